"""One exchange: a request to an engine, and its answer on the way to a client, byte for byte.

Owns the rules of a broken exchange: what is retried (a kept connection that turns out to be dead, once, before anything
has come back), and how a stream that has begun ends when it cannot go on (with the error in-band, never with a bare end
of file).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import msgspec

from blazar._fast.connection import HOLD_BYTES, EngineConnection
from blazar._fast.http1 import ProtocolError
from blazar._fast.pump import Pump
from blazar._fast.sse import SseTail
from blazar.base.errors import ApiError
from blazar.dialects.errors import error_frame
from blazar.relay.client import Client, Headers, Stage
from blazar.relay.pool import EnginePool
from blazar.relay.usage import BodyEnds, Spent, spent_of_answer, spent_of_stream

LAST_WORDS_S = 1.0  # for a client that has to take the error which ends its stream
JOIN_BYTES = 65536  # a request up to this size goes to the engine in one write

# Headers of the engine's answer that describe its connection or its own front, not the answer. RFC 9110, 7.6.1.
DROPPED_HEADERS = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"server", b"date", b"access-control-allow-origin",
        b"access-control-allow-credentials",
        b"access-control-allow-headers", b"access-control-allow-methods", b"x-blazar-trace-id",
    )
)  # fmt: skip
EVENTS = b"text/event-stream"
STREAM_HEADERS = ((b"x-accel-buffering", b"no"),)  # proxies in front of us must not hold frames back


class EngineRequest(msgspec.Struct, frozen=True):
    """What goes to the engine. `parts` are the body's bytes in order: a spliced body is never joined."""

    method: str
    target: str  # path with query
    parts: list[bytes | bytearray | memoryview]

    def wire(self, pool: EnginePool) -> list[bytes | bytearray | memoryview]:
        """The request's bytes: one right length, no header of the client's (C30)."""
        size = sum(map(len, self.parts))
        head = b"%b %b%bContent-Length: %d\r\n\r\n" % (self.method.encode(), self.target.encode(), pool.head_end, size)
        if size <= JOIN_BYTES:
            return [b"".join((head, *self.parts))]
        return [head, *self.parts]

    def forget(self) -> None:
        """Let go of the body: it has been sent, and its answer may run for minutes."""
        self.parts.clear()


class BrokenExchange(Exception):
    """The engine's side broke before its answer had begun: not HTTP, closed too early, or no connection at all."""


class Answer(msgspec.Struct, frozen=True):
    """A whole answer that came in one piece."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


Explain = Callable[[str], Awaitable[ApiError]]
"""From the reason of a break to the error that the client is told.

Whoever knows the engine finds out what became of it.
"""


class Exchange:
    """One request to one engine.

    Args:
        pool: the engine's connections.
        client: who asks; nothing has been sent to it.
        explain: called when the engine's side breaks.

    Attributes:
        asked: whether the engine has been sent the request.
        status: of the engine's answer; 0 before there is one.
        answer: the answer, where it was no stream and came whole: at most HOLD_BYTES.
    """

    def __init__(self, pool: EnginePool, client: Client, explain: Explain) -> None:
        self._pool = pool
        self._client = client
        self._explain = explain
        self._connection: EngineConnection | None = None
        self._ends: SseTail | BodyEnds | None = None  # of the answer's body, once it has begun
        self.asked = False
        self.status = 0
        self.answer: Answer | None = None

    async def relay(self, request: EngineRequest, headers: Headers = (), refused: frozenset[int] = frozenset()) -> None:
        """Send the request, and its answer to the client as it is; wait until the last byte has been taken.

        Args:
            request: for the engine.
            headers: that the client gets beside the engine's.
            refused: statuses that count as a broken exchange: another engine may do better.

        Raises:
            ApiError: the engine broke, or the request was interrupted. If the client had the beginning of an answer by
                then, it has been told: in-band in a stream, else by a connection that ends before the body does.
        """
        self._client.stage = Stage.HEADER
        try:
            connection = await self._open(request)
            if connection.status in refused:
                self.status = connection.status
                raise BrokenExchange(f"it answered with status {connection.status}")
            stream, passed = sort_headers(connection.headers)
            if not stream and not connection.complete:
                await _wait_for_small(connection)
        except BrokenExchange as broken:
            raise await self._explain(str(broken)) from broken
        request.forget()
        self.status = connection.status
        if connection.complete and not stream:
            self.answer = Answer(connection.status, passed, connection.take_held())
            self._client.stage = Stage.STREAM
            await self._client.respond(connection.status, [*passed, *headers], self.answer.body)
            return
        await self._client.start(connection.status, [*passed, *headers])
        self._client.progress = lambda: connection.received
        self._client.stage = Stage.STREAM
        if not stream:
            self._ends = BodyEnds()
            await self._relay_body(connection, self._ends, None)
            await self._client.send(b"", more=False)
            return
        tail = self._ends = SseTail()
        last = await self._relay_body(connection, tail, tail)
        if connection.status == 200 and not tail.done and not ends_with_error(tail):
            if last:
                await self._client.send(last, more=True)
            error = await self._explain("the engine ended the stream before its last frame")
            await self._end_in_band(tail, error)
            raise error
        await self._client.send(last, more=False)

    def spent(self, prompt: int) -> Spent:
        """The tokens that the request has cost, however it ended.

        By the engine's own figures; where it did not come to tell them, the prompt as given and what was streamed,
        a token a frame.

        Args:
            prompt: tokens of the prompt, as estimated.
        """
        if not self.asked or self.status >= 400:
            return Spent(0, 0)
        ends, told = self._ends, None
        if self.answer is not None:
            told = spent_of_answer(self.answer.body)
        elif isinstance(ends, BodyEnds):
            told = ends.spent()
        elif ends is not None:
            told = spent_of_stream(ends)
        if told is not None:
            return told
        return Spent(prompt, max(0, ends.frames - 1) if isinstance(ends, SseTail) else 0)

    def close(self, *, drain_s: float, done: Callable[[], None]) -> None:
        """The request is over, however it ended. Never waits.

        Args:
            drain_s: seconds for which an answer that nobody wants any more is read on before the connection is closed;
                0: the connection is closed at once, which tells the engine to stop.
            done: called once, when the engine is free of this request.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            done()
        elif drain_s and connection.open and not connection.complete:

            def release() -> None:
                self._pool.give_back(connection)
                done()

            _drain(connection, drain_s, release)
        else:
            self._pool.give_back(connection)
            done()

    async def _open(self, request: EngineRequest) -> EngineConnection:
        """The connection, with the head of the answer.

        A kept connection that the engine has closed meanwhile is no failure: if not a byte of an answer has come, the
        request goes out once more on a fresh one.
        """
        connection = self._pool.take_idle()
        while True:
            kept = connection is not None
            if connection is None:
                try:
                    connection = await self._pool.connect()
                except ConnectionError as error:
                    raise BrokenExchange(str(error)) from error
            self._connection = connection
            try:
                head = connection.begin(*request.wire(self._pool), head_request=request.method == "HEAD")
                self.asked = True
                await head
            except (ProtocolError, ConnectionError) as error:
                self._connection = None
                self._pool.give_back(connection)
                if connection.heard:  # garbage, or half a head
                    raise BrokenExchange(str(error)) from error
                if not kept:
                    raise BrokenExchange("the engine closed the connection without an answer") from error
                connection = None
            else:
                return connection

    async def _relay_body(
        self, connection: EngineConnection, ends: SseTail | BodyEnds, stream: SseTail | None
    ) -> bytes:
        """Pump the body; returns what is still to be sent, which for an answer that came in one read is all of it.

        Args:
            connection: of the answer.
            ends: told of every part.
            stream: the same, where a failure can be told within the body.
        """
        if connection.complete:
            last = connection.take_held()
            ends.feed(last)
            return last
        try:
            await _pump_all(connection, self._client, ends)
        except (ProtocolError, ConnectionError) as broken:
            error = await self._explain(str(broken))
            await self._end_in_band(stream, error)
            raise error from broken
        except asyncio.CancelledError:
            reason = self._client.interrupted()
            if reason is None or self._client.left:
                raise
            await self._end_in_band(stream, reason)
            raise reason from None
        return b""

    async def _end_in_band(self, stream: SseTail | None, error: ApiError) -> None:
        """Tell a client that is in the middle of a stream what happened, as its last event.

        A body that is no stream has no place for that: it is left unfinished, and the server then closes the connection
        before the body's announced end. The same where the client takes nothing any more.
        """
        if stream is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await self._client.send(error_frame(error, between_frames=stream.at_boundary), more=False)


async def _wait_for_small(connection: EngineConnection) -> None:
    """Wait for a whole small body, so that an engine which dies in the middle of one is a true 502 to the client.

    Raises:
        BrokenExchange: it did.
    """
    length = next((int(value) for name, value in connection.headers if name == b"content-length"), HOLD_BYTES + 1)
    if length > HOLD_BYTES:
        return
    try:
        await connection.attach(None)
    except (ProtocolError, ConnectionError) as error:
        raise BrokenExchange(str(error)) from error


async def _pump_all(connection: EngineConnection, client: Client, tail: SseTail | BodyEnds) -> None:
    """Until the engine's body has ended and the client has taken all of it."""
    waiting: set[asyncio.Task[None]] = set()  # at most one: a full pump takes no more

    def stalled(steps: Generator[Any, Any, None], step: Any) -> None:
        task = asyncio.ensure_future(_finish_send(steps, step))
        waiting.add(task)
        task.add_done_callback(settled)

    def settled(task: asyncio.Task[None]) -> None:
        waiting.discard(task)
        if task.cancelled():
            return
        if task.exception() is not None:  # the server refuses more for this client: nothing can be sent any more
            connection.abort()
            return
        pump.settled()
        connection.resume()

    pump = Pump(client.raw_send, tail, stalled)
    ended = connection.attach(pump)
    try:
        await ended
        while waiting:
            await asyncio.wait(waiting)
    finally:
        for task in waiting:
            task.cancel()


class _Resumed:
    """An awaitable that has been stepped once already, by the pump: waits for that step, then goes on."""

    __slots__ = ("_step", "_steps")

    def __init__(self, steps: Generator[Any, Any, None], step: Any) -> None:
        self._steps = steps
        self._step = step

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._step
        yield from self._steps


async def _finish_send(steps: Generator[Any, Any, None], step: Any) -> None:
    await _Resumed(steps, step)


def _drain(connection: EngineConnection, give_up_s: float, done: Callable[[], None]) -> None:
    """Read an abandoned answer to its end, for an engine that does not take an abort well (`on_abort = "drain"`).

    Args:
        connection: an exchange under way whose client has left.
        give_up_s: after so long it is closed all the same.
        done: called once, when the connection can be given back.
    """
    ended = connection.attach(_Void())
    connection.resume()
    timer = asyncio.get_running_loop().call_later(give_up_s, connection.abort)

    def finish(future: asyncio.Future[None]) -> None:
        timer.cancel()
        if not future.cancelled():
            future.exception()  # an engine that breaks now is nobody's loss: the supervisor sees its end
        done()

    ended.add_done_callback(finish)


class _Void:
    """A pump that throws everything away."""

    def push(self, data: bytes) -> bool:
        return True


def sort_headers(headers: list[tuple[bytes, bytes]]) -> tuple[bool, list[tuple[bytes, bytes]]]:
    """Whether the answer is a stream of events, and which of the engine's headers the client gets."""
    stream = cached = False
    passed = []
    for header in headers:
        name = header[0]
        if name in DROPPED_HEADERS:
            continue
        passed.append(header)
        if name == b"content-type":
            stream = header[1][: len(EVENTS)].lower() == EVENTS
        elif name == b"cache-control":
            cached = True
    if stream:
        passed += STREAM_HEADERS
        if not cached:
            passed.append((b"cache-control", b"no-cache"))
    return stream, passed


def ends_with_error(tail: SseTail) -> bool:
    """Whether the engine itself has told the client, in its last frame, what went wrong."""
    frames = tail.tail_frames()
    return bool(frames) and b'"error"' in frames[-1]
