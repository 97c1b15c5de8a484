"""The engine connection and the pump, on a real socket with a scripted peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from blazar._fast.connection import HOLD_BYTES, READ_BYTES, EngineConnection
from blazar._fast.http1 import ProtocolError
from blazar._fast.pump import Pump

Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Sink:
    """Takes everything, or says that it is full."""

    def __init__(self, room: int = 1 << 60) -> None:
        self.data = b""
        self.room = room

    def push(self, data: bytes) -> bool:
        self.data += data
        return len(self.data) < self.room


@contextlib.asynccontextmanager
async def connected(peer: Peer) -> AsyncIterator[EngineConnection]:
    """A connection to a peer; both are closed afterwards, whatever the test does."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await peer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # what the test does to the other side
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            over.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    port = server.sockets[0].getsockname()[1]
    transport, connection = await loop.create_connection(lambda: EngineConnection(loop), "127.0.0.1", port)
    try:
        yield connection
    finally:
        transport.abort()
        server.close()
        await over.wait()


def answering(*parts: bytes, close: bool = False) -> Peer:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                return

    return peer


REQUEST = b"GET / HTTP/1.1\r\n\r\n"


async def test_small_answer_is_there_with_its_head_and_the_connection_is_kept() -> None:
    async with connected(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")) as connection:
        for _ in range(3):
            await connection.begin(REQUEST)
            await connection.attach(None)
            assert (connection.status, connection.take_held(), connection.complete) == (200, b"ok", True)
            assert connection.end()


async def test_stream_goes_to_the_pump_in_order() -> None:
    parts = [b"%x\r\n%b\r\n" % (len(text), text) for text in (b"one ", b"two ", b"three")]
    async with connected(answering(CHUNKED, *parts, b"0\r\n\r\n")) as connection:
        await connection.begin(REQUEST)
        sink = Sink()
        await connection.attach(sink)
        assert sink.data == b"one two three"
        assert connection.end()


async def test_full_pump_stops_the_reading_until_resume() -> None:
    blocks = 400
    block = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    sent = 0

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        for _ in range(blocks):
            writer.write(block)
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with connected(peer) as connection:
        await connection.begin(REQUEST)
        sink = Sink(room=1)
        ended = connection.attach(sink)
        before = -1
        while before != sent:  # until the peer cannot send any more
            before = sent
            await asyncio.sleep(0.05)
        assert sent < blocks
        assert len(sink.data) <= HOLD_BYTES + READ_BYTES
        sink.room = 1 << 60
        connection.resume()
        await ended
        assert len(sink.data) == blocks * 65536


async def test_body_without_a_pump_is_held_to_a_bound() -> None:
    async with connected(answering(CHUNKED, *[b"4000\r\n" + b"x" * 16384 + b"\r\n"] * 200)) as connection:
        await connection.begin(REQUEST)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert len(connection.take_held()) <= HOLD_BYTES + READ_BYTES


async def test_close_in_the_middle_is_an_error_and_after_the_end_is_none() -> None:
    async with connected(answering(CHUNKED, b"5\r\nhel", close=True)) as connection:
        await connection.begin(REQUEST)
        with pytest.raises((ProtocolError, ConnectionError)):
            await connection.attach(Sink())
        assert not connection.end()
    async with connected(answering(b"HTTP/1.1 200 OK\r\n\r\nall of it", close=True)) as connection:
        await connection.begin(REQUEST)
        await connection.attach(None)
        assert connection.take_held() == b"all of it"
        assert not connection.end()


async def test_close_before_a_byte_is_told_apart() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with connected(peer) as connection:
        with pytest.raises((ProtocolError, ConnectionError)):
            await connection.begin(REQUEST)
        assert not connection.heard


async def test_one_exchange_at_a_time() -> None:
    async with connected(answering()) as connection:
        waiting = connection.begin(REQUEST)
        with pytest.raises(RuntimeError, match="under way"):
            connection.begin(REQUEST)
        waiting.cancel()
        assert not connection.end()
        with pytest.raises(ConnectionError):
            connection.begin(REQUEST)


async def test_engine_that_talks_out_of_turn_is_hung_up_on() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        await reader.read()

    async with connected(peer) as connection:
        while connection.open:
            await asyncio.sleep(0.001)


class TestPump:
    async def test_send_that_is_done_at_once_needs_nobody(self) -> None:
        sent: list[bytes] = []

        async def send(message: Any) -> None:
            sent.append(message["body"])
            assert message["more_body"]

        pump = Pump(send, None, lambda steps, step: pytest.fail("nothing has to wait"))
        assert pump.push(b"one")
        assert pump.push(b"two")
        assert (sent, pump.sent, pump.full) == ([b"one", b"two"], 6, False)

    async def test_send_that_waits_is_handed_over_after_its_first_step(self) -> None:
        gate = asyncio.get_running_loop().create_future()
        handed: list[Any] = []

        async def send(message: Any) -> None:
            await gate

        pump = Pump(send, None, lambda steps, step: handed.append((steps, step)))
        assert not pump.push(b"one")
        assert pump.full
        steps, step = handed[0]
        assert step is gate
        gate.set_result(None)
        with pytest.raises(StopIteration):
            steps.send(None)
        pump.settled()
        assert not pump.full

    async def test_tail_sees_every_part(self) -> None:
        class Tail:
            seen = b""

            def feed(self, data: bytes) -> None:
                self.seen += data

        async def send(message: Any) -> None: ...

        tail = Tail()
        pump = Pump(send, tail, lambda steps, step: None)
        pump.push(b"a")
        pump.push(b"b")
        assert tail.seen == b"ab"

    async def test_send_that_fails_fails_the_push(self) -> None:
        async def send(message: Any) -> None:
            raise ValueError("no")

        pump = Pump(send, None, lambda steps, step: None)
        with pytest.raises(ValueError, match="no"):
            pump.push(b"x")
