"""Connections to one engine: kept alive, taken last in first out, closed together when the engine goes.

A connection is in exactly one place: idle in the pool, or with the exchange that took it. The pool's size is bounded by
the requests in flight, which admission bounds; of idle connections it keeps MAX_IDLE at most.
"""

from __future__ import annotations

import asyncio

from blazar._fast.connection import EngineConnection
from blazar.base.endpoint import Endpoint

MAX_IDLE = 1024
CONNECT_TIMEOUT_S = 5.0  # loopback: an engine that does not accept within this hangs


class EnginePool:
    """The connections to one engine process.

    Args:
        endpoint: where it listens, and the secret that it asks for.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._idle: list[EngineConnection] = []
        self._taken: set[EngineConnection] = set()
        self._closed = False
        self.head_end = (
            f" HTTP/1.1\r\nHost: {endpoint.host or 'localhost'}\r\nAuthorization: Bearer {endpoint.secret}\r\n"
            "Accept: */*\r\nContent-Type: application/json\r\n"
        ).encode()

    def take_idle(self) -> EngineConnection | None:
        """A connection that has served before, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                self._taken.add(connection)
                return connection
        return None

    async def connect(self) -> EngineConnection:
        """A fresh connection.

        Raises:
            ConnectionError: the engine does not accept, in CONNECT_TIMEOUT_S.
        """
        if self._closed:
            raise ConnectionResetError("the engine is gone")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._open()
        except TimeoutError:
            raise ConnectionAbortedError(f"the engine accepted no connection within {CONNECT_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise ConnectionRefusedError(f"cannot connect to the engine: {error}") from error
        self._taken.add(connection)
        if self._gone():  # meanwhile
            self.give_back(connection)
            raise ConnectionResetError("the engine is gone")
        return connection

    async def _open(self) -> EngineConnection:
        loop, at = self._loop, self._endpoint
        if at.unix_path:
            _, connection = await loop.create_unix_connection(lambda: EngineConnection(loop), at.unix_path)
        else:
            _, connection = await loop.create_connection(lambda: EngineConnection(loop), at.host, at.port)
        return connection

    def _gone(self) -> bool:
        return self._closed

    def give_back(self, connection: EngineConnection) -> None:
        """The exchange is over: keep the connection if it can serve again, close it if not."""
        self._taken.discard(connection)
        if connection.end() and not self._closed and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.abort()

    def retire(self) -> None:
        """Take no more; what is under way ends by itself."""
        self._closed = True
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def close(self) -> None:
        """Close every connection; exchanges under way see theirs break."""
        self._closed = True
        for connection in (*self._idle, *self._taken):
            connection.abort()
        self._idle.clear()
        self._taken.clear()

    def stats(self) -> dict[str, int]:
        """How many connections there are, by place."""
        return {"idle": len(self._idle), "taken": len(self._taken)}
