"""The one clock. Code with a timer takes it as an argument, so that tests can turn it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""

    def wall(self) -> float:
        """Seconds since the epoch, UTC."""


class SystemClock:
    """The machine's own clock."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class FakeClock:
    """A clock that stands still until it is advanced. Ships with the package so that plug-in code can be tested too."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let that many seconds pass."""
        self._now += seconds
