"""The queue through the front door: order, shares, limits, and what clients and operators are told of it."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.front.conftest import MODEL, GatewayFactory, Running, wait_until

ONE_SLOT = f"[model_overrides.{MODEL}]\nslots = 1\n"
ANSWER = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def keyed(*weights: int) -> str:
    return "".join(
        f'[[keys]]\nname = "k{n}"\nkey = "secret-{n}"\nweight = {weight}\n' for n, weight in enumerate(weights)
    )


class Crowd:
    """Requests that are sent one after another and then wait in the queue, behind one that holds the only slot."""

    def __init__(self, running: Running, secret: str = "") -> None:
        self.running = running
        self.secret = secret
        self.pool = ThreadPoolExecutor(64)
        self.answers: list[Any] = []
        self.sent = 0
        self.before = len(running.seen("request")) + 1
        self.send("hold", script=[["until", "go"], ["raw", ANSWER]])
        running.wait_seen("request", self.before)

    def send(
        self,
        name: str,
        *,
        headers: dict[str, str] | None = None,
        path: str = "/v1/chat/completions",
        secret: str = "",
        **body: Any,
    ) -> None:
        """Send one, and wait until it is in the queue."""
        secret = secret or self.secret
        sent = {**(headers or {}), **({"x-api-key": secret} if secret else {})}
        ask = {"model": MODEL, "user": name, "messages": [{"role": "user", "content": name}], **body}
        if path == "/v1/completions":
            ask["prompt"] = name
        self.answers.append(
            self.pool.submit(httpx.post, f"{self.running.url}{path}", json=ask, headers=sent, timeout=60)
        )
        self.sent += 1
        if self.sent > 1:
            wait_until(lambda: queued(self.running, secret) == self.sent - 1, f"{name} in the queue")

    def order(self) -> list[str]:
        """Let them go; the order in which the engine got them."""
        self.running.go("go")
        for answer in self.answers:
            assert answer.result().status_code == 200, answer.result().text
        self.pool.shutdown()
        bodies = [seen["body"] for seen in self.running.seen("request")[self.before :]]
        return [found[1] for body in bodies if (found := re.search(r'"user": ?"([^"]*)"', body))]


def queued(running: Running, secret: str = "") -> int:
    found: int = shown(running, secret)["queued"]
    return found


def shown(running: Running, secret: str = "") -> dict[str, Any]:
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    models = running.get("/api/ps", **headers).json()["models"]
    found: dict[str, Any] = models[0] if models else {"queued": 0}
    return found


def test_order_is_priority_then_deadline_then_arrival(gateway: GatewayFactory) -> None:
    crowd = Crowd(gateway(ONE_SLOT))
    crowd.send("low", headers={"X-Blazar-Priority": "LOW"})
    crowd.send("first")
    crowd.send("second")
    crowd.send("tools", tools=[{"type": "function", "function": {"name": "f"}}])
    crowd.send("soon", headers={"X-Blazar-Deadline-Ms": "5000"})
    crowd.send("later", headers={"X-Blazar-Deadline-Ms": "9000"})
    crowd.send("high", headers={"X-Blazar-Priority": "high"})
    assert crowd.order() == ["high", "soon", "later", "tools", "first", "second", "low"]


@pytest.mark.rule("L02")
def test_heavy_prefill_waits_behind_lighter_ones(gateway: GatewayFactory) -> None:
    crowd = Crowd(gateway(ONE_SLOT))
    crowd.send("heavy", padding="x" * 65_536)
    crowd.send("light")
    crowd.send("heavy-high", padding="x" * 65_536, headers={"X-Blazar-Priority": "high"})
    assert crowd.order() == ["light", "heavy-high", "heavy"]


@pytest.mark.rule("L03")
def test_slots_given_late_are_counted(gateway: GatewayFactory) -> None:
    running = gateway(ONE_SLOT)
    crowd = Crowd(running)
    crowd.send("late", headers={"X-Blazar-Deadline-Ms": "1"})
    crowd.send("in-time", headers={"X-Blazar-Deadline-Ms": "60000"})
    crowd.order()
    assert shown(running)["deadline_missed"] == 1
    assert 'blazar_deadline_missed_total{model="scripted"} 1.0' in running.get("/metrics").text


@pytest.mark.rule("L04")
def test_shares_follow_the_weights_and_not_the_number_of_requests(gateway: GatewayFactory) -> None:
    running = gateway(keyed(1, 3) + ONE_SLOT)
    crowd = Crowd(running, "secret-0")
    for number in range(12):
        crowd.send(f"k0-{number}")
    for number in range(12):
        crowd.send(f"k1-{number}", secret="secret-1")
    order = crowd.order()
    first = Counter(name[:2] for name in order[:12])
    assert first == {"k0": 3, "k1": 9}
    assert [name for name in order if name.startswith("k0")] == [f"k0-{n}" for n in range(12)]  # in a key by arrival


def test_deadlines_buy_nothing_beyond_the_share(gateway: GatewayFactory) -> None:
    crowd = Crowd(gateway(keyed(1, 1) + ONE_SLOT), "secret-0")
    for number in range(8):
        crowd.send(f"fair-{number}")
        crowd.send(f"pushy-{number}", secret="secret-1", headers={"X-Blazar-Deadline-Ms": "1"})
    share = Counter(name.split("-")[0] for name in crowd.order()[:8])
    assert abs(share["fair"] - share["pushy"]) <= 2


def test_raw_work_leaves_the_last_slot_to_chats_that_wait(gateway: GatewayFactory) -> None:
    crowd = Crowd(gateway(ONE_SLOT))
    crowd.send("raw", path="/v1/completions")
    crowd.send("chat")
    assert crowd.order() == ["chat", "raw"]


@pytest.mark.case("C20")
def test_full_means_full(gateway: GatewayFactory) -> None:
    running = gateway(ONE_SLOT + "max_queue = 1\n")
    running.post(messages=[])  # warm
    with ThreadPoolExecutor(6) as pool:
        script = [["until", "go"], ["raw", ANSWER]]
        asked = [
            pool.submit(running.post, messages=[{"role": "user", "content": str(n)}], script=script) for n in range(6)
        ]
        wait_until(lambda: sum(one.done() for one in asked) == 4, "four refusals")
        refused = [one.result() for one in asked if one.done()]
        running.go("go")
        served = [one.result() for one in asked if one.result().status_code == 200]
    assert len(served) == 2
    for answer in refused:
        assert answer.status_code == 503
        assert answer.json()["error"]["blazar_code"] == "ALL_SLOTS_BUSY"
        assert int(answer.headers["retry-after"]) >= 1


def test_wait_is_bounded_and_told_exactly(gateway: GatewayFactory) -> None:
    running = gateway('queue_wait_secs = 0.3\n[[keys]]\nname = "k"\nkey = "s"\nrpm = 3\n' + ONE_SLOT)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(running.post, secret="s", messages=[], script=[["until", "go"], ["raw", ANSWER]])
        running.wait_seen("request")
        answer = running.post(secret="s", messages=[{"role": "user", "content": "too late"}])
        running.go("go")
        assert held.result().status_code == 200
    assert answer.status_code == 503
    assert "queue_wait_secs = 0.3: waited 0.3" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) >= 1
    assert running.post(secret="s", messages=[]).status_code == 200  # the refused one burned no rpm
    assert running.post(secret="s", messages=[]).status_code == 200
    assert running.post(secret="s", messages=[]).status_code == 429


def test_waiter_whose_client_has_left_is_removed_at_once(gateway: GatewayFactory) -> None:
    running = gateway(ONE_SLOT)
    crowd = Crowd(running)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{running.url}/v1/chat/completions", json={"model": MODEL, "user": "gone", "messages": []}, timeout=0.3
        )
    wait_until(lambda: queued(running) == 0, "the waiter to go")
    assert crowd.order() == []


def test_those_who_wait_for_a_load_that_fails_all_hear_of_it(gateway: GatewayFactory) -> None:
    running = gateway(ONE_SLOT, start={"load_until": "loaded", "stderr": "no such tensor"})
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(running.post, messages=[{"role": "user", "content": str(n)}]) for n in range(5)]
        running.wait_seen("start")
        wait_until(lambda: queued(running) == 4, "four in the queue")
        assert running.post("/api/evict").json() == {"evicted": True}
        assert {one.result().status_code for one in asked} == {503}
    assert len(running.seen("start")) == 1


def test_answer_says_how_many_were_ahead_and_how_long_it_waited(gateway: GatewayFactory) -> None:
    running = gateway(ONE_SLOT)
    assert running.post(messages=[]).headers["x-blazar-queue"] == "ahead=0; waited_ms=0"
    crowd = Crowd(running)
    crowd.send("one")
    crowd.send("two")
    crowd.order()
    told = [
        dict(part.split("=") for part in answer.result().headers["x-blazar-queue"].split("; "))
        for answer in crowd.answers
    ]
    assert [told[n]["ahead"] for n in range(3)] == ["0", "0", "1"]
    assert all(int(one["waited_ms"]) > 0 for one in told[1:])


def test_ps_and_metrics_show_the_queue(gateway: GatewayFactory) -> None:
    running = gateway(keyed(1, 1) + ONE_SLOT)
    crowd = Crowd(running, "secret-0")
    crowd.send("one")
    crowd.send("two", secret="secret-1", headers={"X-Blazar-Priority": "high"})
    seen = shown(running, "secret-0")
    assert seen["queued"] == 2
    assert seen["oldest_wait_s"] > 0
    assert [(w["place"], w["key"], w["priority"]) for w in seen["queue"]] == [(1, "k1", "high"), (2, "k0", "normal")]
    metrics = running.get("/metrics", authorization="Bearer secret-0").text
    assert 'blazar_queue_depth{model="scripted"} 2.0' in metrics
    assert 'blazar_slots{model="scripted"} 1.0' in metrics
    crowd.order()
    metrics = running.get("/metrics", authorization="Bearer secret-0").text
    assert 'blazar_queue_wait_seconds_count{model="scripted"} 3.0' in metrics
    assert 'blazar_requests_total{code="200",key="k1",model="scripted",route="/v1/chat/completions"} 1.0' in metrics
    assert 'blazar_tokens_total{key="k1",kind="completion",model="scripted"} 5.0' in metrics


@pytest.mark.parametrize(("name", "value"), [("X-Blazar-Deadline-Ms", "soon"), ("X-Blazar-Num-Ctx", "-4")])
def test_header_that_does_not_parse_is_named(gateway: GatewayFactory, name: str, value: str) -> None:
    running = gateway()
    answer = httpx.post(
        f"{running.url}/v1/chat/completions", json={"model": MODEL, "messages": []}, headers={name: value}, timeout=20
    )
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]
    assert value in answer.json()["error"]["message"]
    assert not running.seen("start")


class TestAliases:
    CONFIG = f'[aliases]\n"gpt-4o" = "{MODEL}"\nbest = ["missing", "{MODEL}"]\nnone = ["missing", "absent"]\n'

    def test_alias_means_its_model(self, gateway: GatewayFactory) -> None:
        running = gateway(self.CONFIG)
        assert running.post(model="gpt-4o", messages=[]).json()["model"] == MODEL
        assert running.post(model="best", messages=[]).status_code == 200
        answer = running.post(model="none", messages=[])
        assert answer.status_code == 404
        assert "absent" in answer.json()["error"]["message"]
        assert {model["id"] for model in running.get("/v1/models").json()["data"]} == {MODEL, "gpt-4o", "best"}
        assert running.get("/v1/models/gpt-4o").json()["id"] == "gpt-4o"

    def test_fallback_is_tried_where_the_first_is_full(self, gateway: GatewayFactory) -> None:
        running = gateway(f'aliases = {{ both = ["{MODEL}", "second"] }}\nmax_queue = 0\n' + ONE_SLOT, serve=False)
        running.prepare(models=("second",))
        running.serve()
        crowd = Crowd(running)
        answer = running.post(model="both", user="fell-back", messages=[])
        assert answer.status_code == 200
        assert answer.json()["model"] == "second"
        crowd.order()

    def test_scope_is_checked_on_what_the_alias_means(self, gateway: GatewayFactory) -> None:
        running = gateway(self.CONFIG + '[[keys]]\nname = "k"\nkey = "s"\nmodels = ["other"]\n')
        answer = running.post(secret="s", model="gpt-4o", messages=[])
        assert answer.json()["error"]["blazar_code"] == "KEY_SCOPE_FORBIDDEN"


@pytest.mark.case("C22")
@pytest.mark.rule("L06")
class TestPreflight:
    CONFIG = f"[model_overrides.{MODEL}]\nslots = 1\nctx = 256\n"

    def prompt(self, words: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": "word " * words}]

    def test_prompt_that_does_not_fit_is_refused_with_both_numbers(self, gateway: GatewayFactory) -> None:
        running = gateway(self.CONFIG)
        running.post(messages=[])
        answer = running.post(messages=self.prompt(300))
        assert answer.status_code == 400
        told = answer.json()["error"]
        assert told["blazar_code"] == "PROMPT_TOO_LONG"
        assert "300 tokens" in told["message"]
        assert "256" in told["message"]
        chats = [seen for seen in running.seen("request") if "/v1/chat" in seen["head"][0]]
        assert len(chats) == 1  # the engine was asked for the count, and not for an answer

    def test_engine_is_asked_only_where_the_estimate_is_near(self, gateway: GatewayFactory) -> None:
        running = gateway(self.CONFIG)
        assert running.post(messages=self.prompt(100)).status_code == 200
        assert not [seen for seen in running.seen("request") if "tokenize" in seen["head"][0]]
        assert running.post(messages=self.prompt(245)).status_code == 200
        assert [seen for seen in running.seen("request") if "tokenize" in seen["head"][0]]

    def test_cold_model_is_checked_when_it_is_ready(self, gateway: GatewayFactory) -> None:
        running = gateway(self.CONFIG)
        answer = running.post(messages=self.prompt(300))
        assert answer.json()["error"]["blazar_code"] == "PROMPT_TOO_LONG"
        assert not [seen for seen in running.seen("request") if "/v1/chat" in seen["head"][0]]
        assert running.in_flight() == 0

    def test_client_may_ask_for_less_context(self, gateway: GatewayFactory) -> None:
        running = gateway(self.CONFIG)
        body = {"model": MODEL, "messages": self.prompt(100)}
        headers = {"X-Blazar-Num-Ctx": "64"}
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=20)
        assert "100 tokens" in answer.json()["error"]["message"]

    def test_switched_off_it_leaves_the_verdict_to_the_engine(self, gateway: GatewayFactory) -> None:
        running = gateway("prompt_preflight = false\n" + self.CONFIG)
        assert running.post(messages=self.prompt(300)).status_code == 200


def test_changed_shares_count_without_a_restart(gateway: GatewayFactory) -> None:
    running = gateway(keyed(1, 1) + ONE_SLOT)
    running.write_config(keyed(3, 1) + ONE_SLOT)
    wait_until(lambda: "configuration reloaded" in running.errors(), "the reload")
    crowd = Crowd(running, "secret-0")
    for number in range(8):
        crowd.send(f"k0-{number}")
        crowd.send(f"k1-{number}", secret="secret-1")
    assert Counter(name[:2] for name in crowd.order()[:8]) == {"k0": 6, "k1": 2}
