"""An answer on its way to the user.

As it is where it goes into a file or a pipe, readable and harmless on a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from typing import TextIO

from blazar.cli.client import ChatAsk, GatewayClient
from blazar.cli.events import Piece

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
# A model's words must not move the cursor, set titles or answer queries: control characters stay out of a terminal.
HARMLESS = dict.fromkeys([*range(0x20), 0x7F, *range(0x80, 0xA0)]) | {0x09: "\t", 0x0A: "\n"}


class AnswerPrinter:
    """Prints the pieces of one answer. Thinking is dimmed on a terminal, and left out elsewhere (B13).

    Args:
        out: where to.
        env: NO_COLOR and TERM say whether dimming is wanted; without it, thinking stands in parentheses.

    Attributes:
        said: what was said so far, without the thinking.
    """

    def __init__(self, out: TextIO, env: Mapping[str, str]) -> None:
        self.said = ""
        self._out = out
        self._terminal = out.isatty()
        styled = not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        self._open, self._close = (DIM, PLAIN) if styled else ("(thinking: ", ")")
        self._thinking = False
        self._last = "\n"

    def show(self, piece: Piece) -> None:
        """Print a piece."""
        if not piece.thinking:
            self._end_thinking("\n\n")
            self.said += piece.text
        elif not self._terminal:
            return
        elif not self._thinking:
            self._write(self._open)
            self._thinking = True
        self._write(piece.text.translate(HARMLESS) if self._terminal else piece.text)
        self._out.flush()

    def end(self) -> None:
        """The answer is over, in whatever way: leave the terminal as it was, at the start of a line."""
        self._end_thinking("")
        if self._last != "\n":
            self._write("\n")
        self._out.flush()

    def _end_thinking(self, gap: str) -> None:
        if self._thinking:
            self._thinking = False
            self._write(self._close + gap)

    def _write(self, text: str) -> None:
        self._last = text[-1:] or self._last  # first: Ctrl-C may come in the middle of the write
        self._out.write(text)


def say(client: GatewayClient, ask: ChatAsk, env: Mapping[str, str]) -> str:
    """Print an answer as it comes; returns what was said.

    Raises:
        CommandError: as GatewayClient.chat.
    """
    printer = AnswerPrinter(sys.stdout, env)
    print_all(client, ask, printer)
    return printer.said


def print_all(client: GatewayClient, ask: ChatAsk, printer: AnswerPrinter) -> None:
    """Print an answer as it comes. Whatever ends it, the gateway is told at once, so that the engine stops."""
    try:
        with closing(client.chat(ask)) as answer:
            for piece in answer:
                printer.show(piece)
    finally:
        printer.end()
