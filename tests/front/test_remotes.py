"""Remotes: what they are told, what they are not, and what happens when they fail."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.front.conftest import MODEL, GatewayFactory, wait_until


class Upstream:
    """A server of one answer, which remembers what it was asked."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client:
                data = b""
                while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < length(data):
                    part = client.recv(65536)
                    if not part:
                        break
                    data += part
                self.asked.append(data)
                client.sendall(self.answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


def length(data: bytes) -> int:
    return int(data.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])


def whole(status: int = 200, **body: Any) -> bytes:
    text = json.dumps(body).encode()
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(text)) + text


class Upstreams:
    def __init__(self) -> None:
        self.made: list[Upstream] = []

    def __call__(self, answer: bytes) -> Upstream:
        self.made.append(Upstream(answer))
        return self.made[-1]


@pytest.fixture
def upstream() -> Iterator[Upstreams]:
    made = Upstreams()
    yield made
    for one in made.made:
        one.close()


KEYS = '[[keys]]\nname = "k"\nkey = "client-secret"\n'


def remote(url: str, *, key: str = "", name: str = "up", models: str = "") -> str:
    return f'[[remotes]]\nname = "{name}"\nurl = "{url}"\nkey = "{key}"\nmodels = [{models}]\n'


@pytest.mark.rule("R05")
def test_remote_sees_its_model_and_its_own_bearer(gateway: GatewayFactory, upstream: Upstreams) -> None:
    up = upstream(whole(model="big", usage={"prompt_tokens": 9, "completion_tokens": 2}))
    running = gateway(KEYS + remote(f"{up.url}/api/v1", key="upstream-secret", models='"big"'))
    answer = running.post(secret="client-secret", model="up:big", messages=[], extra={"kept": 1})
    assert answer.json()["model"] == "big"
    assert answer.headers["x-blazar-remote"] == "up"
    head, _, body = up.asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /api/v1/chat/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer upstream-secret" in head
    assert b"client-secret" not in up.asked[0]
    assert json.loads(body) == {"model": "big", "messages": [], "extra": {"kept": 1}}
    listed = running.get("/v1/models", authorization="Bearer client-secret").json()["data"]
    assert "up:big" in [model["id"] for model in listed]
    today = running.get("/api/keys", authorization="Bearer client-secret").json()["keys"][0]["today"]
    assert (today["prompt_tokens"], today["completion_tokens"]) == (9, 2)


@pytest.mark.rule("R05")
def test_clients_key_still_gates_the_client(gateway: GatewayFactory, upstream: Upstreams) -> None:
    up = upstream(whole())
    scoped = '[[keys]]\nname = "g"\nkey = "guest"\nmodels = ["up:small"]\nrpm = 1\n'
    running = gateway(KEYS + scoped + remote(up.url))
    assert running.post(model="up:big", messages=[]).status_code == 401
    assert running.post(secret="guest", model="up:big", messages=[]).status_code == 403
    assert not up.asked
    assert running.post(secret="guest", model="up:small", messages=[]).status_code == 200
    assert running.post(secret="guest", model="up:small", messages=[]).status_code == 429
    assert b"Authorization" not in up.asked[0]  # it has no key of its own, and the client's is not passed on


@pytest.mark.parametrize("broken", [b"", b"garbage\r\n\r\n", whole(503)])
def test_another_member_is_asked_where_one_fails(gateway: GatewayFactory, upstream: Upstreams, broken: bytes) -> None:
    bad, good = upstream(broken), upstream(whole(ok=True))
    running = gateway(remote(bad.url) + remote(good.url))
    for number in range(6):
        answer = running.post(model="up:m", user=str(number), messages=[])
        assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert len(bad.asked) == 3  # then it rests
    assert len(good.asked) == 6


def test_pool_whose_members_all_fail_is_a_true_502(gateway: GatewayFactory, upstream: Upstreams) -> None:
    first, second = upstream(b""), upstream(b"")
    running = gateway(remote(first.url) + remote(second.url))
    answer = running.post(model="up:m", stream=True, messages=[])
    assert answer.status_code == 502
    assert "the remote up broke off" in answer.json()["error"]["message"]
    assert (len(first.asked), len(second.asked)) == (1, 1)


def test_member_that_has_begun_is_not_replaced(gateway: GatewayFactory, upstream: Upstreams) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    cut, other = upstream(head + b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n'), upstream(whole())
    running = gateway(remote(cut.url) + remote(other.url))
    answer = running.post(model="up:m", stream=True, messages=[])
    assert answer.status_code == 200
    assert "one" in answer.text
    assert "BAD_GATEWAY" in answer.text
    assert not other.asked


def test_alias_falls_back_from_a_model_here_to_a_remote(gateway: GatewayFactory, upstream: Upstreams) -> None:
    up = upstream(whole(far=True))
    running = gateway('aliases = { best = ["missing", "up:big"] }\n' + remote(up.url))
    assert running.post(model="best", messages=[]).json() == {"far": True}


def test_remotes_change_without_a_restart(gateway: GatewayFactory, upstream: Upstreams) -> None:
    up = upstream(whole(ok=True))
    running = gateway()
    assert running.post(model="up:m", messages=[]).status_code == 404
    running.write_config(remote(up.url))
    wait_until(lambda: running.post(model="up:m", messages=[]).status_code == 200, "the remote")
    assert running.post(model=MODEL, messages=[]).status_code == 200
