"""A command on a terminal of its own: what a person would see and type."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

PATIENCE_S = 20.0
INTERRUPT, END = "\x03", "\x04"  # Ctrl-C, Ctrl-D


class Terminal:
    """`blazar` with these words, on a pseudo-terminal that obeys it. Use it in a `with`."""

    def __init__(self, *words: str, env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.text = ""
        self._read_to = 0
        # The shell leads a session without a terminal: the first one that it opens becomes its own, Ctrl-C included.
        self.process = subprocess.Popen(
            ["sh", "-c", 'exec "$0" "$@" <"$TTY" >"$TTY" 2>&1', sys.executable, "-m", "blazar", *words],
            env={**env, "TTY": os.ttyname(slave), "TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._slave = slave  # kept open: without it, what the command said last would go with it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def wait_for(self, words: str) -> str:
        """Wait until it has shown the words; returns all that it has shown since the last wait, up to their end."""
        end = time.monotonic() + PATIENCE_S
        while (at := self.text.find(words, self._read_to)) < 0:
            left = end - time.monotonic()
            assert left > 0, f"no {words!r} in {self.text!r}"
            if select.select([self._master], [], [], left)[0]:
                self.text += os.read(self._master, 65536).decode("utf-8", "replace")
        begin, self._read_to = self._read_to, at + len(words)
        return self.text[begin : self._read_to]

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(PATIENCE_S)
