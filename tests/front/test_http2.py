"""HTTP/2 without TLS, by prior knowledge: the same ways, several at once on one connection."""

from __future__ import annotations

import httpx

from tests.front.conftest import MODEL, STREAM_HEAD, GatewayFactory, chunked, event_stream, wait_until

LAST = [["chunk", "data: [DONE]\n\n"], ["raw", "0\r\n\r\n"]]
OPEN = ["raw", f"{STREAM_HEAD}Transfer-Encoding: chunked\r\n\r\n"]


def test_streams_share_a_connection(gateway: GatewayFactory) -> None:
    running = gateway()
    text = event_stream('{"choices":[{"delta":{"content":"жé🦊"}}]}')
    waiting = {"model": MODEL, "stream": True, "script": [OPEN, ["chunk", "data: {}\n\n"], ["until", "go"], *LAST]}
    relayed = {"model": MODEL, "stream": True, "script": chunked(text)}
    with connect(running.url) as client, client.stream("POST", "/v1/chat/completions", json=waiting) as answer:
        parts = answer.iter_raw()
        assert next(parts) == b"data: {}\n\n"
        for _ in range(5):
            other = client.post("/v1/chat/completions", json=relayed)
            assert (other.text, other.http_version) == (text, "HTTP/2")
        running.go("go")
        assert b"".join(parts) == b"data: [DONE]\n\n"


def test_client_that_leaves_is_seen(gateway: GatewayFactory) -> None:
    running = gateway()
    body = {"model": MODEL, "stream": True, "script": [OPEN, ["chunk", "data: {}\n\n"], ["until", "never"]]}
    with connect(running.url) as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_raw())
    running.wait_seen("left")
    wait_until(lambda: running.in_flight() == 0, "the lease to come back")


def connect(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, http1=False, http2=True, timeout=20)
