"""A question of the gateway's own to an engine: tokenize this, what do your slots do? The whole answer, in memory."""

from __future__ import annotations

from blazar._fast.connection import EngineConnection
from blazar._fast.http1 import ProtocolError
from blazar.relay.exchange import BrokenExchange, EngineRequest
from blazar.relay.pool import EnginePool

MAX_ANSWER_BYTES = 64 * 1024 * 1024  # tokens of the largest body that is accepted, spelled as JSON


class _Collector:
    """A pump that keeps everything; above the limit it closes the connection, which ends the question."""

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection
        self._size = 0
        self.parts: list[bytes] = []

    def push(self, data: bytes) -> bool:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            self._connection.abort()
            return False
        self.parts.append(data)
        return True


async def ask_engine(pool: EnginePool, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
    """Ask, and wait for the whole answer.

    Returns:
        Status and body.

    Raises:
        BrokenExchange: the engine's side broke, or its answer is larger than MAX_ANSWER_BYTES.
    """
    request = EngineRequest(method, target, [body] if body else [])
    for fresh in (False, True):  # a kept connection may have been closed meanwhile: once more on a fresh one
        try:
            connection = await pool.connect() if fresh else pool.take_idle()
        except ConnectionError as error:
            raise BrokenExchange(str(error)) from error
        if connection is None:
            continue
        try:
            await connection.begin(*request.wire(pool))
            collector = _Collector(connection)
            await connection.attach(collector)
            return connection.status, b"".join(collector.parts)
        except (ProtocolError, ConnectionError) as error:
            if connection.heard or fresh:
                raise BrokenExchange(str(error)) from error
        finally:
            pool.give_back(connection)
    raise BrokenExchange("the engine closed the connection without an answer")
