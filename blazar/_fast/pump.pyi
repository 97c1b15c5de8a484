from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any, Protocol

class Feeds(Protocol):
    def feed(self, data: bytes, /) -> None: ...

class Pump:
    sent: int
    full: bool
    def __init__(
        self,
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
        tail: Feeds | None,
        stalled: Callable[[Generator[Any, Any], Any], None],
    ) -> None: ...
    def push(self, data: bytes) -> bool: ...
    def settled(self) -> None: ...
