"""Duplicates of a request under way: how long they wait, what ends it, and what they get."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.front.conftest import MODEL, GatewayFactory, Running, wait_until

ONE_SLOT = f"[model_overrides.{MODEL}]\nslots = 1\n"
TWO_SLOTS = f"[model_overrides.{MODEL}]\nslots = 2\n"


def answer(text: str) -> list[str]:
    body = json.dumps({"text": text, "usage": {"prompt_tokens": 20, "completion_tokens": 5}})
    return ["raw", f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"]


SLOW = [["slot", 0], ["until", "prefilled"], ["slot", 3], ["until", "go"], answer("done")]


class Group:
    """Requests at once."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.pool = ThreadPoolExecutor(16)
        self.asked: list[Future[httpx.Response]] = []

    def ask(self, *, secret: str = "", path: str = "/v1/chat/completions", **body: Any) -> Future[httpx.Response]:
        body = {"messages": [{"role": "user", "content": "the same"}], "script": SLOW, **body}
        self.asked.append(self.pool.submit(self.running.post, path, secret=secret, **body))
        return self.asked[-1]

    def lead(self, **body: Any) -> Future[httpx.Response]:
        count = len(self.chats())
        asked = self.ask(**body)
        wait_until(lambda: len(self.chats()) == count + 1, "the leader in the engine")
        return asked

    def chats(self) -> list[Any]:
        return [seen for seen in self.running.seen("request") if "POST /v1/" in seen["head"][0]]

    def end(self) -> list[httpx.Response]:
        self.running.go("prefilled")
        self.running.go("go")
        found = [one.result(30) for one in self.asked]
        self.pool.shutdown()
        return found


def busy(running: Running) -> int:
    found: int = running.get("/api/keys", authorization="Bearer s").json()["keys"][0]["in_flight"]
    return found


def looks(running: Running) -> int:
    return len([seen for seen in running.seen("look") if "/slots" in seen["head"][0]])


@pytest.mark.rule("B14")
def test_duplicate_goes_when_the_leaders_prefill_is_done(gateway: GatewayFactory) -> None:
    running = gateway(TWO_SLOTS)
    group = Group(running)
    group.lead()
    group.ask()
    wait_until(lambda: looks(running) >= 3, "looks at the slots")
    assert len(group.chats()) == 1
    assert running.get("/api/ps").json()["models"][0]["queued"] == 0  # the wait is outside of the queue
    running.go("prefilled")
    wait_until(lambda: len(group.chats()) == 2, "the duplicate in the engine", 3)
    assert [one.status_code for one in group.end()] == [200, 200]
    told = 'blazar_singleflight_total{result="warm"} 1.0'
    assert told in running.get("/metrics").text


@pytest.mark.rule("B14")
def test_slots_are_asked_for_only_while_a_duplicate_waits(gateway: GatewayFactory) -> None:
    running = gateway(TWO_SLOTS)
    group = Group(running)
    group.lead()
    group.ask(messages=[{"role": "user", "content": "another"}])
    wait_until(lambda: len(group.chats()) == 2, "both in the engine")
    group.end()
    assert looks(running) == 0


@pytest.mark.rule("B14")
@pytest.mark.parametrize("end", [[["close"]], [["reset"]], [answer("early")]])
def test_leaders_end_of_whatever_kind_ends_the_wait(gateway: GatewayFactory, end: list[Any]) -> None:
    running = gateway(TWO_SLOTS)
    group = Group(running)
    script = [["slot", 0], ["until", "go"], *end]
    for _ in range(3):
        group.ask(script=script)
    wait_until(lambda: looks(running) >= 2, "looks at the slots")
    assert len(group.chats()) == 1
    assert len({one.status_code for one in group.end()}) == 1
    assert len(group.chats()) >= 3  # each ran for itself; one on a kept connection that breaks is sent once more


@pytest.mark.rule("B14")
def test_leader_that_leaves_ends_the_wait(gateway: GatewayFactory) -> None:
    running = gateway(TWO_SLOTS)
    group = Group(running)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "the same"}], "script": SLOW}
    leader = group.pool.submit(httpx.post, f"{running.url}/v1/chat/completions", json=body, timeout=1.0)
    wait_until(lambda: len(group.chats()) == 1, "the leader in the engine")
    group.ask()
    with pytest.raises(httpx.ReadTimeout):
        leader.result()
    wait_until(lambda: len(group.chats()) == 2, "the duplicate in the engine", 3)
    assert group.end()[0].status_code == 200


@pytest.mark.rule("L05")
def test_duplicate_waits_at_most_five_seconds(gateway: GatewayFactory) -> None:
    running = gateway(TWO_SLOTS)
    group = Group(running)
    group.lead()
    began = time.monotonic()
    group.ask()
    wait_until(lambda: len(group.chats()) == 2, "the duplicate in the engine", 15)
    first, second = group.chats()
    assert second["at"] - first["at"] >= 4.9
    assert time.monotonic() - began >= 4.9
    group.end()


@pytest.mark.rule("L05")
@pytest.mark.parametrize(
    "other",
    [
        {"stream": True},
        {"temperature": 0.5},
        {"messages": [{"role": "user", "content": "the samf"}]},
        {"path": "/v1/completions", "prompt": "x"},
        {"secret": "secret-2"},
    ],
)
def test_only_the_very_same_chat_of_the_same_key_is_a_duplicate(gateway: GatewayFactory, other: dict[str, Any]) -> None:
    keys = "".join(f'[[keys]]\nname = "k{n}"\nkey = "secret-{n}"\n' for n in (1, 2))
    running = gateway(keys + f"[model_overrides.{MODEL}]\nslots = 4\n")
    group = Group(running)
    group.lead(secret="secret-1")
    group.ask(**{"secret": "secret-1", **other})
    wait_until(lambda: len(group.chats()) == 2, "both in the engine", 4)
    group.end()


def test_switched_off_nothing_waits(gateway: GatewayFactory) -> None:
    running = gateway("singleflight = false\n" + TWO_SLOTS)
    group = Group(running)
    group.lead()
    group.ask()
    wait_until(lambda: len(group.chats()) == 2, "both in the engine", 4)
    group.end()


class TestSharing:
    CONFIG = 'singleflight_share = true\n[[keys]]\nname = "k"\nkey = "s"\n' + ONE_SLOT

    def use(self, running: Running) -> dict[str, int]:
        found: dict[str, int] = running.get("/api/keys", authorization="Bearer s").json()["keys"][0]["today"]
        return found

    def test_greedy_duplicates_get_the_leaders_very_bytes(self, gateway: GatewayFactory) -> None:
        running = gateway(self.CONFIG)
        group = Group(running)
        group.lead(secret="s", temperature=0)
        for _ in range(4):
            group.ask(secret="s", temperature=0)
        wait_until(
            lambda: running.get("/api/keys", authorization="Bearer s").json()["keys"][0]["in_flight"] == 5, "all"
        )
        answers = group.end()
        assert len({one.content for one in answers}) == 1
        assert len(group.chats()) == 1
        assert self.use(running) == {"requests": 5, "prompt_tokens": 20, "completion_tokens": 5, "tokens": 25}

    @pytest.mark.parametrize(("how", "runs"), [({"seed": 4}, 1), ({"temperature": 0.7}, 2), ({}, 2)])
    def test_seeded_ones_too_and_sampled_ones_not(
        self, gateway: GatewayFactory, how: dict[str, Any], runs: int
    ) -> None:
        running = gateway(self.CONFIG)
        group = Group(running)
        group.lead(secret="s", **how)
        group.ask(secret="s", **how)
        wait_until(lambda: busy(running) == 2, "both")
        group.end()
        assert len(group.chats()) == runs

    def test_failure_is_not_shared(self, gateway: GatewayFactory) -> None:
        running = gateway(self.CONFIG)
        group = Group(running)
        refusal = "HTTP/1.1 500 No\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        script = [["slot", 0], ["until", "go"], ["raw", refusal]]
        for _ in range(2):
            group.ask(secret="s", temperature=0, script=script)
        wait_until(lambda: len(group.chats()) == 1, "the leader")
        assert [one.status_code for one in group.end()] == [500, 500]
        assert len(group.chats()) == 2
