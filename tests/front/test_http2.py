"""HTTP/2 without TLS, by prior knowledge: the same ways, several at once on one connection."""

from __future__ import annotations

import asyncio

import httpx

from tests.front.conftest import MODEL, STREAM_HEAD, GatewayFactory, chunked, event_stream, wait_until

OPEN = ["raw", f"{STREAM_HEAD}Transfer-Encoding: chunked\r\n\r\n"]


async def test_streams_share_a_connection_and_one_that_leaves_hurts_nobody(gateway: GatewayFactory) -> None:
    running = gateway()
    text = event_stream('{"choices":[{"delta":{"content":"жé🦊"}}]}')
    leaving = {"model": MODEL, "stream": True, "script": [OPEN, ["chunk", "data: {}\n\n"], ["until", "never"]]}
    async with connect(running.url) as client:
        first = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": []})
        assert (first.status_code, first.http_version) == (200, "HTTP/2")

        async def relayed() -> str:
            body = {"model": MODEL, "stream": True, "script": chunked(text)}
            return (await client.post("/v1/chat/completions", json=body)).text

        async with connect(running.url) as other, other.stream("POST", "/v1/chat/completions", json=leaving) as answer:
            await anext(answer.aiter_raw())
            assert await asyncio.gather(*(relayed() for _ in range(10))) == [text] * 10
        await asyncio.to_thread(running.wait_seen, "left")
        assert await relayed() == text
    await asyncio.to_thread(wait_until, lambda: running.in_flight() == 0, "the leases to come back")


def connect(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, http1=False, http2=True, timeout=20)
