"""What the relay's loop costs for a chunk, from the engine's bytes to the client's send, beside the same in plain
Python.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from blazar._fast.http1 import ResponseParser
from blazar._fast.pump import Pump
from blazar._fast.sse import SseTail
from tests.fast import reference

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"delta":{"content":" Paris"}}],"id":"chatcmpl-0"' + b" " * 230 + b"}\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


class Done:
    """A send that is done at once, as the server's is while its client keeps up."""

    def __await__(self) -> Any:
        return iter(())


class Client:
    sent = 0

    def send(self, message: Any) -> Done:
        self.sent += len(message["body"])
        return Done()


@pytest.mark.parametrize("side", ["kernel", "reference"])
def test_relay_chunk(benchmark: BenchmarkFixture, side: str) -> None:
    """Parse, look, send.

    The reference takes the bytes from a stream reader in a task, as a relay without a pump would.
    """
    client = Client()
    if side == "kernel":
        parser = ResponseParser()
        parser.feed(HEAD)
        pump = Pump(client.send, SseTail(), lambda steps, step: pytest.fail("nothing has to wait"))
        benchmark.pedantic(lambda: pump.push(parser.feed(CHUNK)), rounds=50, iterations=500)
    else:
        with asyncio.Runner() as runner:
            relay = PlainRelay(client)
            benchmark.pedantic(lambda: runner.run(relay.pass_on(CHUNK, 100)), rounds=20, iterations=1)
    assert client.sent > 0
    benchmark.extra_info["chunks"] = 1 if side == "kernel" else 100


class PlainRelay:
    """asyncio's own reader, one wake-up a chunk, and the twins."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tail = reference.SseTail()

    async def pass_on(self, chunk: bytes, times: int) -> None:
        reader = asyncio.StreamReader()
        task = asyncio.ensure_future(self._relay(reader, times))
        for _ in range(times):
            reader.feed_data(chunk)
            await asyncio.sleep(0)
        await task

    async def _relay(self, reader: asyncio.StreamReader, times: int) -> None:
        for _ in range(times):
            size = int(await reader.readline(), 16)
            body = (await reader.readexactly(size + 2))[:-2]
            self._tail.feed(body)
            await self._client.send({"type": "http.response.body", "body": body, "more_body": True})
