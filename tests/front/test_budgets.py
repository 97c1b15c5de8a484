"""Budgets through the front door: what is refused, what it burns, what is counted, and what a kill costs."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.front.conftest import MODEL, STREAM_HEAD, GatewayFactory, Running, wait_until

BOSS = "boss-secret-of-some-length"
OPEN = ["raw", f"{STREAM_HEAD}Transfer-Encoding: chunked\r\n\r\n"]
ROLE = ["chunk", 'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n']
WORD = ["chunk", 'data: {"choices":[{"delta":{"content":"one"}}]}\n\n']
LAST = [["chunk", "data: [DONE]\n\n"], ["raw", "0\r\n\r\n"]]
QUIET = {"stream": True, "script": [OPEN, ROLE, WORD, WORD, WORD, ["until", "go"], *LAST]}


def keyed(**limits: Any) -> str:
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in limits.items())
    return f'[[keys]]\nname = "boss"\nkey = "{BOSS}"\n\n[[keys]]\nname = "k"\nkey = "k-secret"\n{lines}'


def ask(running: Running, **body: Any) -> httpx.Response:
    return running.post(secret="k-secret", messages=[{"role": "user", "content": "hi"}], **body)


def use(running: Running) -> dict[str, int]:
    keys = running.get("/api/keys", authorization=f"Bearer {BOSS}").json()["keys"]
    return {**keys[1]["today"], "in_flight": keys[1]["in_flight"]}


def kind(answer: httpx.Response) -> str:
    assert answer.status_code == 429, answer.text
    told = answer.json()["error"]
    assert told["blazar_code"] == "RATE_LIMITED"
    found: str = told["kind"]
    return found


class Held:
    """A request that is under way until it is let go."""

    def __init__(self, running: Running, **body: Any) -> None:
        before = len(running.seen("request"))
        self.running = running
        self.answer: httpx.Response | None = None
        self._thread = threading.Thread(target=self._ask, args=({**QUIET, **body},))
        self._thread.start()
        running.wait_seen("request", before + 1)

    def _ask(self, body: dict[str, Any]) -> None:
        self.answer = ask(self.running, **body)

    def end(self) -> httpx.Response:
        self.running.go("go")
        self._thread.join(20)
        assert self.answer is not None
        return self.answer


@pytest.mark.rule("B01")
def test_lease_comes_first_and_is_held_until_the_stream_has_ended(gateway: GatewayFactory) -> None:
    running = gateway(keyed(max_concurrent=1, rpm=2, models=[MODEL]))
    held = Held(running)
    busy = running.post(secret="k-secret", model="out-of-scope", messages=[])
    assert kind(busy) == "max_concurrent"  # before the scope, and before the body is even looked at
    assert busy.headers["retry-after"] == "1"
    assert held.end().status_code == 200
    wait_until(lambda: use(running)["in_flight"] == 0, "the lease")
    assert running.post(secret="k-secret", model="out-of-scope", messages=[]).status_code in (403, 404)
    assert ask(running).status_code == 200
    assert kind(ask(running)) == "rpm"


@pytest.mark.case("C15")
def test_refused_for_concurrency_burns_no_rpm(gateway: GatewayFactory) -> None:
    running = gateway(keyed(max_concurrent=1, rpm=2))
    held = Held(running)
    assert kind(ask(running)) == "max_concurrent"
    held.end()
    wait_until(lambda: use(running)["in_flight"] == 0, "the lease")
    assert ask(running).status_code == 200
    assert use(running)["requests"] == 2


@pytest.mark.case("C15")
@pytest.mark.parametrize("body", [{"model": "nothing"}, {"stream": 3}, {"max_tokens": "many"}])
def test_refused_request_burns_nothing(gateway: GatewayFactory, body: dict[str, Any]) -> None:
    running = gateway(keyed(rpm=1))
    for _ in range(3):
        assert running.post(secret="k-secret", **{"messages": [], **body}).status_code in (400, 404)
    assert use(running)["requests"] == 0
    assert ask(running).status_code == 200


def test_lease_is_given_back_by_a_client_that_leaves(gateway: GatewayFactory) -> None:
    running = gateway(keyed(max_concurrent=1))
    body = {"model": MODEL, "messages": [], **QUIET}
    headers = {"Authorization": "Bearer k-secret"}
    with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=20) as answer:
        parts = answer.iter_raw()  # kept: a generator that goes takes the connection with it
        assert next(parts)
        assert kind(ask(running)) == "max_concurrent"
    running.wait_seen("left")
    wait_until(lambda: use(running)["in_flight"] == 0, "the lease")
    assert ask(running).status_code == 200


def test_429_tells_the_true_second_and_what_is_left(gateway: GatewayFactory) -> None:
    running = gateway(keyed(rpm=2, tpm=10_000))
    began = time.monotonic()
    first = ask(running)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-limit-tokens"] == "10000"
    ask(running)
    answer = ask(running)
    assert kind(answer) == "rpm"
    assert 60 - (time.monotonic() - began) - 2 <= int(answer.headers["retry-after"]) <= 60
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert answer.headers["x-ratelimit-reset-requests"] in (f"{second}s" for second in range(50, 61)) or (
        answer.headers["x-ratelimit-reset-requests"] == "1m0s"
    )
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) <= 10_000 - 24


@pytest.mark.case("C16")
def test_five_at_once_exceed_the_tokens_by_no_more_than_one(gateway: GatewayFactory) -> None:
    running = gateway(keyed(tpm=100))
    with ThreadPoolExecutor(5) as pool:
        script = [["until", "go"], ["raw", answer_with(usage=(30, 10))]]
        asked = [pool.submit(ask, running, max_tokens=30, script=script) for _ in range(5)]
        wait_until(lambda: len([one for one in asked if one.done()]) + len(running.seen("request")) >= 5, "all five")
        running.go("go")
        codes = sorted(one.result().status_code for one in asked)
    admitted = codes.count(200)
    assert codes == [200] * admitted + [429] * (5 - admitted)
    assert 2 <= admitted <= 4
    assert use(running)["tokens"] == 40 * admitted
    assert use(running)["tokens"] <= 100 + 40


def answer_with(usage: tuple[int, int]) -> str:
    told = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    body = json.dumps({"object": "chat.completion", "choices": [], "usage": told})
    return f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"


def test_unspent_reservation_comes_back_at_once(gateway: GatewayFactory) -> None:
    running = gateway(keyed(tpm=1000))
    for _ in range(8):
        assert ask(running).status_code == 200  # each reserves all that is left, and costs 12
    assert use(running)["tokens"] == 96


@pytest.mark.case("C17")
def test_streamed_and_whole_answers_debit_the_same(gateway: GatewayFactory) -> None:
    running = gateway(keyed())
    costs = []
    for body in ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}):
        before = use(running)["tokens"]
        assert ask(running, **body).status_code == 200
        costs.append(use(running)["tokens"] - before)
    assert costs == [12, 12, 12]


@pytest.mark.case("C17")
def test_stream_that_its_client_cuts_costs_what_was_produced(gateway: GatewayFactory) -> None:
    running = gateway(keyed())
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **QUIET}
    headers = {"Authorization": "Bearer k-secret"}
    with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=20) as answer:
        text = ""
        for part in answer.iter_text():
            text += part
            if text.count("one") == 3:
                break
    running.wait_seen("left")
    wait_until(lambda: use(running)["in_flight"] == 0, "the end")
    spent = use(running)
    assert spent["completion_tokens"] == 3
    assert spent["prompt_tokens"] > 0


@pytest.mark.case("C17")
@pytest.mark.parametrize("end", [["close"], ["reset"], ["exit", 3]])
def test_stream_that_its_engine_cuts_costs_what_was_produced(gateway: GatewayFactory, end: list[Any]) -> None:
    running = gateway(keyed())
    answer = ask(running, stream=True, script=[OPEN, ROLE, WORD, WORD, end])
    assert "[DONE]" not in answer.text
    assert use(running)["completion_tokens"] == 2


def test_request_that_the_engine_refuses_costs_no_tokens(gateway: GatewayFactory) -> None:
    running = gateway(keyed())
    refusal = "HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    assert ask(running, script=[["raw", refusal]]).status_code == 400
    assert use(running) == {"requests": 1, "prompt_tokens": 0, "completion_tokens": 0, "tokens": 0, "in_flight": 0}


@pytest.mark.case("C10")
def test_verdict_comes_before_the_load(gateway: GatewayFactory) -> None:
    running = gateway(keyed(rpm=1), start={"load_until": "loaded"})
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, running, stream=True)
        running.wait_seen("start")
        answer = ask(running, stream=True)
        assert kind(answer) == "rpm"
        running.go("loaded")
        assert first.result().status_code == 200


def test_request_that_can_never_fit_is_told_the_number(gateway: GatewayFactory) -> None:
    running = gateway(keyed(tpm=50))
    answer = running.post(secret="k-secret", messages=[{"role": "user", "content": "many words here " * 100}])
    assert kind(answer) == "tpm"
    assert "can never fit 50 a minute" in answer.json()["error"]["message"]
    assert "retry-after" not in answer.headers


@pytest.mark.rule("T04")
def test_use_of_the_day_is_kept_by_utc_day(gateway: GatewayFactory) -> None:
    running = gateway(keyed(daily_tokens=1000))
    today = int(time.time() // 86400)
    ask(running)
    running.stop()
    with sqlite3.connect(running.dirs.db) as store:
        rows = store.execute("SELECT * FROM key_usage WHERE key = 'k'").fetchall()
        store.execute("UPDATE key_usage SET day = day - 1, completion_tokens = 2000 WHERE key = 'k'")
    store.close()
    assert rows in ([("k", today, 1, 7, 5)], [("k", today + 1, 1, 7, 5)])
    running.serve()
    assert use(running)["tokens"] == 0  # that was yesterday
    assert ask(running).status_code == 200
    running.stop()
    with sqlite3.connect(running.dirs.db) as store:
        store.execute("UPDATE key_usage SET completion_tokens = 2000 WHERE key = 'k'")
    store.close()
    running.serve()
    answer = ask(running)
    assert kind(answer) == "daily_tokens"
    assert abs(int(answer.headers["retry-after"]) - (86400 - time.time() % 86400)) < 10


def test_kill_loses_less_than_a_second_of_use_and_counts_nothing_twice(gateway: GatewayFactory) -> None:
    running = gateway(keyed())
    for lap in range(3):
        for _ in range(5):
            ask(running)
        done = (lap + 1) * 5
        wait_until(lambda done=done: stored(running) == done, "the store")  # well below a second
        ask(running)  # this one may be lost
        running.signal(signal.SIGKILL)
        running.wait()
        kept = stored(running)
        assert kept in (done, done + 1)
        with sqlite3.connect(running.dirs.db) as store:
            store.execute("UPDATE key_usage SET requests = ?", (done,))
        store.close()
        running.serve()
        assert use(running)["requests"] == done


def stored(running: Running) -> int:
    store = sqlite3.connect(running.dirs.db)
    try:
        rows = store.execute("SELECT requests FROM key_usage WHERE key = 'k'").fetchall()
    finally:
        store.close()
    return rows[0][0] if rows else 0


@pytest.mark.case("C14")
def test_leases_slots_and_budgets_never_leak(gateway: GatewayFactory) -> None:
    """The ends of tests/front/test_ends.py, with limits that a single leak would use up."""
    running = gateway(keyed(max_concurrent=40, tpm=10_000_000) + "[model_overrides.scripted]\nslots = 3\n")
    ends = [
        {},
        {"stream": True},
        {"script": [["close"]]},
        {"stream": True, "script": [OPEN, WORD, ["reset"]]},
        {"messages": 3},
        {"model": "nothing"},
        {"stream": True, "script": [OPEN, WORD, ["until", "never"]]},  # its client leaves
        {"script": [["until", "never"]]},
    ]

    async def one(client: httpx.AsyncClient, number: int) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": str(number)}], **ends[number % len(ends)]}
        limit = 0.3 if "never" in json.dumps(body) else 20
        try:
            await client.post(f"{running.url}/v1/chat/completions", json=body, timeout=limit)
        except httpx.HTTPError:
            return

    async def all_of_them() -> None:
        headers = {"Authorization": "Bearer k-secret"}
        limits = httpx.Limits(max_connections=30)
        async with httpx.AsyncClient(headers=headers, limits=limits) as client:
            await asyncio.gather(*(one(client, number) for number in range(400)))

    asyncio.run(all_of_them())
    wait_until(lambda: use(running)["in_flight"] == 0, "the leases")
    shown = running.get("/api/ps", authorization=f"Bearer {BOSS}").json()["models"][0]
    assert (shown["in_flight"], shown["queued"]) == (0, 0)
    metrics = running.get("/metrics", authorization=f"Bearer {BOSS}").text
    assert 'blazar_slots_busy{model="scripted"} 0.0' in metrics
    assert 'blazar_in_flight{key="k"} 0.0' in metrics
    assert ask(running).status_code == 200
    remaining = int(ask(running).headers["x-ratelimit-remaining-tokens"])
    assert 10_000_000 - remaining <= use(running)["tokens"] + 1100  # only its own reservation is out
