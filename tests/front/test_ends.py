"""Many requests that end in every way there is: nothing is held afterwards, and the next one is served."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from typing import Any

import httpx

from tests.front.conftest import MODEL, STREAM_HEAD, GatewayFactory, Running, wait_until

REQUESTS = 600
AT_ONCE = 30
SEED = 7
OPEN = ["raw", f"{STREAM_HEAD}Transfer-Encoding: chunked\r\n\r\n"]
PART = ["chunk", 'data: {"choices":[{"delta":{"content":"one"}}]}\n\n']
LAST = [["chunk", "data: [DONE]\n\n"], ["raw", "0\r\n\r\n"]]
EXITS = (-9, -6, 1, 3)


def script(chance: random.Random) -> list[Any]:
    """What the engine does: mostly it answers; else it breaks off, or dies."""
    parts = [PART] * chance.randint(0, 20)
    kind = chance.random()
    if kind < 0.6:
        return [OPEN, *parts, *LAST]
    if kind < 0.95:
        return [*chance.choice(([], [OPEN], [OPEN, *parts])), [chance.choice(("reset", "close"))]]
    return [*chance.choice(([], [OPEN, PART])), ["exit", chance.choice(EXITS)]]


async def test_nothing_is_held_after_any_end(gateway: GatewayFactory) -> None:
    running = await asyncio.to_thread(gateway)
    chance, ends = random.Random(SEED), Counter[int]()
    places = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as client:

        async def request() -> None:
            async with places:
                if chance.random() < 0.3:
                    await leave(running, chance)
                    return
                body = {"model": chance.choice((MODEL, MODEL, MODEL, "none")), "stream": True, "script": script(chance)}
                ends[(await client.post("/v1/chat/completions", json=body)).status_code] += 1

        await asyncio.gather(*(request() for _ in range(REQUESTS)))
    assert set(ends) == {200, 404, 502}
    await asyncio.to_thread(wait_until, lambda: running.in_flight() == 0, "every lease to come back")
    await asyncio.to_thread(wait_until, lambda: sockets(running.pid) < AT_ONCE + 20, "connections to be closed")
    assert (await asyncio.to_thread(lambda: running.post(messages=[]))).status_code == 200
    assert "Traceback" not in running.errors()


async def leave(running: Running, chance: random.Random) -> None:
    """A client that goes at some moment: in its body, before the answer, in the middle of it."""
    body = json.dumps({"model": MODEL, "stream": True, "script": [OPEN, PART, ["until", "never"]]}).encode()
    sent = body if chance.random() < 0.8 else body[: len(body) // 2]
    _, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + sent
    )
    await writer.drain()
    await asyncio.sleep(chance.random() * 0.05)
    writer.transport.abort() if chance.random() < 0.5 else writer.close()


def sockets(pid: int) -> int:
    links = (os.path.realpath(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    return sum("socket:" in link for link in links)
