"""What a browser sees of a gateway with keys before it has shown one (R06): no outside assets, nothing kept."""

from __future__ import annotations

ASKS_FOR_KEY = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Blazar</title>
<style>
  body { font: 16px system-ui; margin: 15vh auto; max-width: 26em; padding: 0 1em }
  input { font: inherit; width: 100% }
</style>
<h1>Blazar</h1>
<form id="form">
  <p><label>This gateway needs a key. <input id="key" type="password" autocomplete="off" required></label></p>
  <p><button>Check it</button> <output id="said"></output></p>
</form>
<script>
  const at = id => document.getElementById(id);
  at("form").onsubmit = async event => {
    event.preventDefault();
    const answer = await fetch("/v1/models", { headers: { "x-api-key": at("key").value } });
    const names = answer.ok ? (await answer.json()).data.map(model => model.id) : [];
    at("said").value = answer.ok ? "It is valid. Models: " + names.join(", ") : "It belongs to no key.";
  };
</script>
</html>
"""
