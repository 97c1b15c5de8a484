"""Progress of what takes longer than a second: a bar on a terminal, nothing when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]
"""Called with (what, bytes done, bytes in all)."""

BAR_CELLS = 30
REDRAW_S = 0.1


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody sees."""


class TerminalBar:
    """Draws one line, over and over."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn = 0.0
        self._what = ""
        self._began = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._began = what, now
        elif done < total and now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        share = min(done / total, 1.0) if total else 0.0
        cells = int(share * BAR_CELLS)
        rate = done / (now - self._began) / 1e6 if now > self._began else 0.0
        bar = "#" * cells + "." * (BAR_CELLS - cells)
        self._out.write(
            f"\r\x1b[K{what} [{bar}] {done / 1e6:.0f} of {total / 1e6:.0f} MB, {rate:.0f} MB/s"
            + ("\n" if done >= total else "")
        )
        self._out.flush()


def terminal_progress(out: TextIO = sys.stderr) -> Progress:
    """A bar if out is a terminal."""
    return TerminalBar(out) if out.isatty() else silent
