"""The client's side of one request: its body, its answer, and the moment at which it leaves.

Owns the order of ASGI messages and the one way to end a request early. It knows nothing of routes, dialects or engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from enum import Enum
from typing import Any, Protocol

from blazar.base.errors import ApiError, Code

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

# A request that is answered sooner never pays for watching its client; one that leaves is to be seen within 10 ms.
WATCH_AFTER_S = 0.008
LINGER_S = 1.0  # how long a refused body is read on, so that the client sees the answer and not a reset (L01)


class Receive(Protocol):
    """ASGI receive. The server's awaitable is a future already, which spares a task for each request."""

    def __call__(self) -> asyncio.Future[Message]: ...


class Stage(Enum):
    """What a request waits for; each has a limit of its own (see relay.stalls)."""

    BODY = "body"
    ENGINE = "engine"  # lease, load, queue: limits of their own elsewhere
    HEADER = "header"
    STREAM = "stream"
    DONE = "done"


class Client:
    """One request's client.

    Args:
        receive: ASGI receive.
        send: ASGI send.
        trace_id: sent as `x-blazar-trace-id` with whatever answer is sent.

    Attributes:
        stage: what is waited for; `relay.stalls` reads it.
        progress: grows whenever a byte moves; compared by `relay.stalls`.
        status: the status sent, 0 before that.
        left: whether the client has gone.
    """

    __slots__ = (
        "_interrupt",
        "_receive",
        "_send",
        "_task",
        "_timer",
        "_trace",
        "extra_headers",
        "left",
        "progress",
        "seen",
        "since",
        "stage",
        "status",
    )

    def __init__(self, receive: Receive, send: Send, trace_id: str) -> None:
        self._receive = receive
        self._send = send
        self._trace = (b"x-blazar-trace-id", trace_id.encode())
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._interrupt: ApiError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.extra_headers: tuple[tuple[bytes, bytes], ...] = ()
        self.stage = Stage.BODY
        self.progress: Callable[[], int] = int
        self.seen: tuple[Stage, int] | None = None
        self.since = 0.0
        self.status = 0
        self.left = False

    # ---- leaving, and other early ends ----

    def interrupt(self, error: ApiError) -> None:
        """End the request early: its task is cancelled where it waits, and `interrupted` gives the error.

        The first one counts.
        """
        if self._interrupt is None and self._task is not None and self.stage is not Stage.DONE:
            self._interrupt = error
            self._task.cancel()

    def interrupted(self) -> ApiError | None:
        """In a handler of CancelledError.

        The error of our own interrupt, or None when the task was cancelled from outside.
        """
        if self._interrupt is not None and self._task is not None:
            self._task.uncancel()
        return self._interrupt

    def _watch(self) -> None:
        self._receive().add_done_callback(self._on_message)

    def _on_message(self, future: asyncio.Future[Message]) -> None:
        if self.stage is Stage.DONE or future.cancelled():
            return
        if future.result()["type"] != "http.disconnect":
            self._watch()  # that was only the end of the body
            return
        self.left = True
        self.interrupt(ApiError(Code.CLIENT_CLOSED, "the client left before the answer was complete"))

    def finish(self) -> None:
        """The request is over: nothing interrupts it any more."""
        self.stage = Stage.DONE
        self._task = None
        if self._timer is not None:
            self._timer.cancel()

    # ---- the body ----

    async def read_body(self, declared: int | None, limit: int) -> bytes | bytearray:
        """The whole body. From then on the client's leaving interrupts the request.

        Args:
            declared: its Content-Length, if there is one.
            limit: bytes that are accepted (L01).

        Returns:
            bytes where it came in one piece, else a bytearray: joining a large body again would hold the loop.

        Raises:
            ApiError: PAYLOAD_TOO_LARGE; CLIENT_CLOSED.
        """
        if declared is not None:
            _check_size(declared, limit)
        body: bytes | bytearray
        body, more = await self._next_part()
        # The announced length spares waiting for the server's word that this was all.
        if more and len(body) != declared:
            body = bytearray(body)
            self.progress = body.__len__
            while more and len(body) != declared:
                part, more = await self._next_part()
                body += part
                _check_size(len(body), limit)
        _check_size(len(body), limit)
        self.progress = int
        self.stage = Stage.ENGINE
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._watch)
        return body

    async def _next_part(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] != "http.request":
            self.left = True
            raise ApiError(Code.CLIENT_CLOSED, "the client left before its request was complete")
        return message["body"], message["more_body"]

    async def linger(self) -> None:
        """Read on and throw away for at most LINGER_S: a client in the middle of sending sees the answer that way."""
        try:
            async with asyncio.timeout(LINGER_S):
                while (message := await self._receive())["type"] == "http.request" and message["more_body"]:
                    pass
        except TimeoutError:
            return  # it goes on sending: the server closes the connection on it

    # ---- the answer ----

    @property
    def started(self) -> bool:
        """Whether the status line has gone out: from then on a failure can only be told within the body."""
        return self.status != 0

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers; what every answer carries is added."""
        self.status = status
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self.extra_headers, self._trace],
            }
        )

    async def send(self, body: bytes, *, more: bool) -> None:
        """Send a part of the body; waits while the client does not keep up."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer."""
        await self.start(status, headers)
        await self.send(body, more=False)

    @property
    def raw_send(self) -> Send:
        """The ASGI send itself, for the pump."""
        return self._send


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise ApiError(
            Code.PAYLOAD_TOO_LARGE, f"the request's body of {size} bytes or more is over the limit of {limit}"
        )
