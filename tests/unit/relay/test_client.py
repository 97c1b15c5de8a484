"""The client's side of a request: bodies, leaving, early ends, stalls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blazar.base.clock import FakeClock
from blazar.base.errors import ApiError, Code
from blazar.relay.client import Client, Stage
from blazar.relay.stalls import StallLimits, StallSweep


class Server:
    """An ASGI server's two callables: messages come from a list, then from `arrive`."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.waiting: list[asyncio.Future[Any]] = []
        self.sent: list[dict[str, Any]] = []

    def receive(self) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        if self.messages:
            future.set_result(self.messages.pop(0))
        else:
            self.waiting.append(future)
        return future

    def arrive(self, message: dict[str, Any]) -> None:
        self.waiting.pop(0).set_result(message)

    async def send(self, message: Any) -> None:
        self.sent.append(message)


def part(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


LEFT = {"type": "http.disconnect"}


def client_of(*messages: dict[str, Any]) -> tuple[Client, Server]:
    server = Server(*messages)
    return Client(server.receive, server.send, "trace"), server


async def test_body_in_one_piece_is_not_copied() -> None:
    body = b"x" * 10
    client, _ = client_of(part(body, more=True))
    assert await client.read_body(10, 100) is body  # the announced length says that this was all
    client.finish()


async def test_body_in_parts_is_joined() -> None:
    client, _ = client_of(part(b"ab", more=True), part(b"cd", more=True), part(b"", more=False))
    assert await client.read_body(None, 100) == b"abcd"
    client.finish()


@pytest.mark.rule("L01")
@pytest.mark.parametrize("declared", [None, 11])
async def test_body_over_the_limit_is_refused(declared: int | None) -> None:
    client, server = client_of(part(b"x" * 6, more=True), part(b"x" * 5, more=True), part(b"", more=False))
    with pytest.raises(ApiError) as caught:
        await client.read_body(declared, 10)
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE
    assert len(server.messages) == (3 if declared else 1)  # an announced one is refused before it is read


async def test_client_that_leaves_in_its_body_is_told_apart() -> None:
    client, _ = client_of(part(b"x", more=True), LEFT)
    with pytest.raises(ApiError) as caught:
        await client.read_body(5, 10)
    assert caught.value.code is Code.CLIENT_CLOSED
    assert client.left


async def test_leaving_interrupts_wherever_the_request_waits() -> None:
    async def request() -> ApiError | None:
        client, server = client_of(part(b"", more=False))
        await client.read_body(0, 10)
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, lambda: server.arrive(LEFT))
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return client.interrupted()
        return None

    error = await asyncio.create_task(request())
    assert error is not None
    assert error.code is Code.CLIENT_CLOSED


async def test_first_interrupt_counts_and_none_after_the_end() -> None:
    async def request() -> ApiError | None:
        client, _ = client_of()
        client.interrupt(ApiError(Code.UNAVAILABLE, "first"))
        client.interrupt(ApiError(Code.INTERNAL, "second"))
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            error = client.interrupted()
        client.finish()
        client.interrupt(ApiError(Code.INTERNAL, "third"))
        await asyncio.sleep(0)
        return error

    error = await asyncio.create_task(request())
    assert error is not None
    assert error.message == "first"


async def test_cancellation_from_outside_is_not_an_interrupt() -> None:
    async def request() -> None:
        client, _ = client_of()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            assert client.interrupted() is None
            raise

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_every_answer_carries_the_trace_id() -> None:
    client, server = client_of()
    await client.respond(200, [(b"a", b"b")], b"hi")
    assert server.sent[0]["headers"] == [(b"a", b"b"), (b"x-blazar-trace-id", b"trace")]
    assert server.sent[1] == {"type": "http.response.body", "body": b"hi", "more_body": False}
    assert client.started


class TestStalls:
    LIMITS = StallLimits(body_s=60, header_s=120, stream_s=0)

    def look(self, stage: Stage, steps: list[tuple[float, int]]) -> list[Code]:
        """Interrupts after looks at (seconds passed, progress)."""
        clock, found = FakeClock(), []
        sweep = StallSweep(self.LIMITS, clock)

        class Waiting:
            seen: Any = None
            since = 0.0
            moved = 0

            def __init__(self) -> None:
                self.stage = stage

            def progress(self) -> int:
                return self.moved

            def interrupt(self, error: ApiError) -> None:
                found.append(error.code)

        waiting = Waiting()
        sweep.look(waiting, clock.monotonic())  # type: ignore[arg-type]
        for seconds, moved in steps:
            clock.advance(seconds)
            waiting.moved = moved
            sweep.look(waiting, clock.monotonic())  # type: ignore[arg-type]
        return found

    async def test_silence_up_to_the_limit_is_fine(self) -> None:
        assert self.look(Stage.BODY, [(59.9, 0)]) == []

    async def test_silence_over_it_is_not(self) -> None:
        assert self.look(Stage.BODY, [(60, 0)]) == [Code.REQUEST_TIMEOUT]
        assert self.look(Stage.HEADER, [(120, 0)]) == [Code.GATEWAY_TIMEOUT]

    async def test_a_byte_starts_the_time_anew(self) -> None:
        assert self.look(Stage.BODY, [(59, 1), (59, 2), (59, 2)]) == []

    async def test_limit_of_zero_is_no_limit(self) -> None:
        assert self.look(Stage.STREAM, [(1e9, 0)]) == []
        assert self.look(Stage.ENGINE, [(1e9, 0)]) == []
