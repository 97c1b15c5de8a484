"""Key management through the front door: who may, what is shown, what is kept, and when it counts."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.front.conftest import MODEL, GatewayFactory, Running, wait_until

KEYED = f"""
# the team's gateway
max_queue = 64  # enough for us

[[keys]]
name = "boss"
key = "boss-secret-of-some-length"

[[keys]]
name = "guest"
key = "guest-secret-of-some-length"
models = ["{MODEL}"]
rpm = 2
"""
BOSS, GUEST = "boss-secret-of-some-length", "guest-secret-of-some-length"
OPEN_TEXT = "no keys configured: add the first [[keys]] entry in config.toml (or BLAZAR_KEYS env) and restart"


def call(running: Running, method: str, path: str, secret: str = BOSS, body: Any = None) -> httpx.Response:
    headers = {"x-api-key": secret} if secret else {}
    return httpx.request(method, f"{running.url}{path}", headers=headers, json=body, timeout=20)


def error(answer: httpx.Response) -> tuple[int, str, str]:
    told = answer.json()["error"]
    return answer.status_code, told["blazar_code"], told["message"]


def works(running: Running, secret: str) -> bool:
    return call(running, "GET", "/v1/models", secret).status_code == 200


@pytest.mark.rule("R02")
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("POST", ""), ("DELETE", "?name=x"), ("POST", "/rotate?name=x")],
)
def test_open_gateway_manages_no_keys(gateway: GatewayFactory, method: str, path: str) -> None:
    status, code, message = error(call(gateway(), method, f"/api/keys{path}", ""))
    assert (status, code) == (403, "KEYS_NOT_CONFIGURED")
    assert message.startswith(OPEN_TEXT)


@pytest.mark.rule("R03")
def test_scoped_key_manages_no_keys_and_uses_its_models_only(gateway: GatewayFactory) -> None:
    running = gateway(KEYED.replace(f'models = ["{MODEL}"]', 'models = ["other"]'))
    for method, path in (("GET", ""), ("POST", ""), ("DELETE", "?name=boss"), ("POST", "/rotate?name=boss")):
        assert error(call(running, method, f"/api/keys{path}", GUEST))[:2] == (403, "KEY_SCOPE_FORBIDDEN")
    assert error(running.post(secret=GUEST, messages=[]))[:2] == (403, "KEY_SCOPE_FORBIDDEN")
    assert works(running, BOSS)


@pytest.mark.rule("R07")
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/evict"), ("POST", "/props"), ("POST", "/slots/0"), ("GET", "/metrics"), ("GET", "/api/doctor")],
)
def test_what_changes_or_shows_the_gateway_is_the_admins(gateway: GatewayFactory, method: str, path: str) -> None:
    running = gateway(KEYED)
    assert error(call(running, method, path, GUEST, {"model": MODEL}))[:2] == (403, "KEY_SCOPE_FORBIDDEN")


@pytest.mark.rule("R07")
def test_scoped_key_tokenizes_and_lists_its_models(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)
    assert call(running, "POST", "/tokenize", GUEST, {"model": MODEL, "content": "a b c"}).json()["tokens"] == [0, 1, 2]
    assert [model["id"] for model in call(running, "GET", "/v1/models", GUEST).json()["data"]] == [MODEL]


@pytest.mark.rule("R04")
def test_admin_adds_lists_rotates_and_removes(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)
    made = call(running, "POST", "/api/keys", body={"name": "new", "models": [MODEL], "rpm": 7})
    assert made.status_code == 201
    secret = made.json()["key"]
    assert works(running, secret)
    running.post(secret=secret, messages=[])
    listed = {key["name"]: key for key in call(running, "GET", "/api/keys").json()["keys"]}
    assert listed["new"]["rpm"] == 7
    assert listed["new"]["today"] == {"requests": 1, "prompt_tokens": 7, "completion_tokens": 5, "tokens": 12}
    assert [listed[name]["prefix"] for name in ("boss", "guest", "new")] == ["boss-s…", "guest-…", f"{secret[:6]}…"]
    rotated = call(running, "POST", "/api/keys/rotate?name=new").json()["key"]
    assert works(running, rotated)
    assert not works(running, secret)
    assert call(running, "DELETE", "/api/keys?name=new").json() == {"removed": "new"}
    assert not works(running, rotated)
    assert error(call(running, "DELETE", "/api/keys?name=new"))[:2] == (404, "NOT_FOUND")


@pytest.mark.rule("B20")
def test_change_outlives_a_restart_and_leaves_the_rest_of_the_file(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)
    file = running.dirs.config_file
    before = file.read_text()
    secret = call(running, "POST", "/api/keys", body={"name": "new"}).json()["key"]
    rotated = call(running, "POST", "/api/keys/rotate?name=boss").json()["key"]
    text = file.read_text()
    assert "# the team's gateway\nmax_queue = 64  # enough for us" in text
    assert secret not in text
    assert rotated not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    backups = sorted(file.parent.glob("config.toml.bak-*"))
    assert backups[0].read_text() == before
    assert all(stat.S_IMODE(backup.stat().st_mode) == 0o600 for backup in backups)
    running.stop()
    running.serve()
    assert works(running, secret)
    assert works(running, rotated)
    assert not works(running, BOSS)


@pytest.mark.rule("B20")
def test_change_that_cannot_be_written_is_taken_back(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)
    before = running.dirs.config_file.read_bytes()
    running.write_config("max_queue = nonsense")
    status, code, message = error(call(running, "POST", "/api/keys/rotate?name=guest"))
    assert (status, code) == (409, "CONFLICT")
    assert "is not TOML" in message
    assert works(running, GUEST)
    running.dirs.config_file.write_bytes(before)
    assert call(running, "POST", "/api/keys/rotate?name=guest").status_code == 200
    assert not works(running, GUEST)


def test_at_most_eight_backups_are_kept(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)
    for _ in range(11):
        assert call(running, "POST", "/api/keys/rotate?name=guest").status_code == 200
    assert len(list(running.dirs.config_file.parent.glob("config.toml.bak-*"))) == 8


@pytest.mark.rule("V01")
@pytest.mark.parametrize("name", ["", "a b", "ключ", "a/b", "a\n", None, 3])
def test_name_of_other_characters_is_refused(gateway: GatewayFactory, name: Any) -> None:
    running = gateway(KEYED)
    before = running.dirs.config_file.read_bytes()
    status, code, message = error(call(running, "POST", "/api/keys", body={"name": name}))
    assert (status, code) == (400, "BAD_REQUEST")
    assert "name" in message
    assert running.dirs.config_file.read_bytes() == before


@pytest.mark.rule("V02")
@pytest.mark.parametrize("field", ["rpm", "tpm", "daily_tokens", "max_concurrent", "weight"])
def test_limit_that_is_no_whole_number_from_zero_is_refused(gateway: GatewayFactory, field: str) -> None:
    running = gateway(KEYED)
    for value in (-1, 1.5, 1.0, "5", True, [], 2**60):
        status, code, message = error(call(running, "POST", "/api/keys", body={"name": "x", field: value}))
        assert (status, code) == (400, "BAD_REQUEST"), value
        assert field in message
    assert call(running, "POST", "/api/keys", body={"name": "x", field: 0}).status_code == 201


@pytest.mark.parametrize("body", [{"name": "x", "secret": "y"}, {"name": "x", "key": "mine"}, [], "x"])
def test_field_that_is_not_for_the_request_to_give_is_refused(gateway: GatewayFactory, body: Any) -> None:
    assert error(call(gateway(KEYED), "POST", "/api/keys", body=body))[:2] == (400, "BAD_REQUEST")


@pytest.mark.rule("V03")
def test_name_that_is_taken_is_a_conflict(gateway: GatewayFactory) -> None:
    assert error(call(gateway(KEYED), "POST", "/api/keys", body={"name": "guest"}))[:2] == (409, "CONFLICT")


@pytest.mark.rule("V04")
def test_last_key_stays(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)
    assert call(running, "DELETE", "/api/keys?name=guest").status_code == 200
    status, code, message = error(call(running, "DELETE", "/api/keys?name=boss"))
    assert (status, code) == (409, "CONFLICT")
    assert "last key" in message
    assert works(running, BOSS)


def test_keys_of_the_environment_are_not_changed(gateway: GatewayFactory) -> None:
    running = gateway(serve=False)
    running.env["BLAZAR_KEYS"] = json.dumps([{"name": "boss", "key": BOSS}])
    running.serve()
    assert [key["name"] for key in call(running, "GET", "/api/keys").json()["keys"]] == ["boss"]
    assert error(call(running, "POST", "/api/keys", body={"name": "x"}))[:2] == (409, "CONFLICT")


def test_edit_by_hand_counts_without_a_restart(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)
    running.write_config(KEYED.replace(GUEST, "another-secret").replace("rpm = 2", "rpm = 1"))
    wait_until(lambda: works(running, "another-secret"), "the edited key")
    assert not works(running, GUEST)
    assert running.post(secret="another-secret", messages=[]).status_code == 200
    assert running.post(secret="another-secret", messages=[]).status_code == 429


def test_broken_edit_changes_nothing_and_is_told_once(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)
    running.write_config(KEYED.replace("rpm = 2", "rpm = -2"))
    wait_until(lambda: "was not reloaded" in running.errors(), "the report")
    running.signal(signal.SIGHUP)
    found = wait_until(lambda: call(running, "GET", "/api/doctor").json()["findings"], "the finding")
    assert found[0]["check"] == "config"
    assert "keys.1.rpm" in found[0]["problem"]
    assert works(running, GUEST)
    running.write_config(KEYED)
    wait_until(lambda: not call(running, "GET", "/api/doctor").json()["findings"], "the finding to go")
    assert running.errors().count("was not reloaded") == 1


def test_edit_that_would_open_the_gateway_is_refused(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)
    running.dirs.config_file.unlink()
    wait_until(lambda: "open the gateway to everyone" in running.errors(), "the refusal")
    assert not works(running, "")
    assert works(running, BOSS)


@pytest.mark.rule("R06")
def test_browser_gets_a_page_that_asks_for_the_key(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)
    page = running.get("/", accept="text/html,*/*")
    assert page.status_code == 401
    assert page.headers["content-type"].startswith("text/html")
    assert "needs a key" in page.text
    assert error(running.get("/"))[:2] == (401, "UNAUTHORIZED")
    assert error(running.get("/v1/models", accept="text/html"))[:2] == (401, "UNAUTHORIZED")
    assert error(running.get("/no/such/route"))[:2] == (401, "UNAUTHORIZED")
    assert running.get("/healthz").status_code == running.get("/health").status_code == 200
    preflight = httpx.options(
        f"{running.url}/v1/models", headers={"origin": "x", "access-control-request-method": "GET"}
    )
    assert (preflight.status_code, preflight.content) == (204, b"")


def test_commands_manage_keys(gateway: GatewayFactory) -> None:
    running = gateway(KEYED)

    def keys(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "blazar", "keys", *words, "--host", running.url]
        return subprocess.run(
            argv, env={**running.env, "BLAZAR_KEY": BOSS}, capture_output=True, text=True, check=False
        )

    made = keys("add", "cli", "--model", MODEL, "--rpm", "3")
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    assert works(running, secret)
    listed = keys("list").stdout
    assert "boss-s…" in listed
    assert secret not in listed
    rotated = json.loads(keys("rotate", "cli", "--json").stdout)["key"]
    assert works(running, rotated)
    assert not works(running, secret)
    assert keys("rm", "cli").stdout == "cli: removed\n"
    assert not works(running, rotated)
    assert keys("add", "no-scope").returncode == 2
    refused = keys("add", "boss", "--admin")
    assert refused.returncode == 1
    assert "there is a key 'boss' already" in refused.stderr


KILLED = textwrap.dedent(
    """
    import asyncio, os, signal, sys
    from pathlib import Path
    from blazar.base.dirs import Dirs
    from blazar.config.edit import set_key
    from blazar.config.load import load_config
    from blazar.flow.settings import Settings

    path, fatal, count = Path(sys.argv[1]), int(sys.argv[2]), 0

    def deadly(module, name):
        real = getattr(module, name)
        def step(*arguments, **named):
            global count
            for moment in ("before", "after"):
                count += 1
                if count == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                if moment == "before":
                    result = real(*arguments, **named)
            return result
        setattr(module, name, step)

    for name in ("open", "fdopen", "fsync", "fchmod", "replace"):
        deadly(os, name)
    load = lambda data=None: load_config(path, {}, data)
    settings = Settings(path, load, load(), lambda config: None)
    new = {"key_hash": "sha256:" + "0" * 64}
    asyncio.run(settings.change(lambda text: set_key(text, "guest", new, drop=("key",))))
    print("done", count)
    """
)


@pytest.mark.rule("B20")
def test_kill_at_any_step_of_a_change_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    seen, steps = set(), 0
    while True:
        steps += 1
        for left in tmp_path.iterdir():
            left.unlink()
        path.write_text(KEYED)
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(path), str(steps)],
            capture_output=True, text=True, check=False, env={**os.environ, "BLAZAR_CONFIG": ""},
        )  # fmt: skip
        guest = tomllib.loads(path.read_text())["keys"][1]
        assert guest.get("key") == GUEST or guest.get("key_hash") == "sha256:" + "0" * 64
        seen.add("key" in guest)
        assert KEYED.split("[[keys]]")[0] in path.read_text()
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert steps > 15
    assert seen == {True, False}
