"""Readable Python twins of the kernels in `blazar._fast`: what a kernel has to answer, said as plainly as possible.

They are slow, use no cleverness of the kernels, and serve tests and benches only.
"""

from __future__ import annotations

import json
import re

TAIL_BYTES = 16384
BLANKS = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder(strict=False)


class SseTail:
    """Twin of `sse.SseTail`: one byte after another, and everything kept."""

    def __init__(self) -> None:
        self.stream = bytearray()
        self.frames = 0
        self._line = bytearray()
        self._data: list[bytes] = []
        self._start = 0  # where the event so far started
        self._events: list[tuple[int, bytes]] = []  # start and payload of each data event
        self._in_event = False
        self._after_cr = False

    @property
    def seen(self) -> int:
        return len(self.stream)

    @property
    def at_boundary(self) -> bool:
        return not self._line and not self._in_event

    @property
    def done(self) -> bool:
        lines = re.split(rb"[\r\n]+", bytes(self.stream[-TAIL_BYTES:]).rstrip(b"\r\n"))
        return re.fullmatch(rb"data: *\[DONE\] *", lines[-1]) is not None

    def feed(self, data: bytes) -> None:
        for byte in data:
            self.stream.append(byte)
            second_of_crlf = byte == 10 and self._after_cr
            self._after_cr = byte == 13
            if second_of_crlf:
                continue
            if byte not in (10, 13):
                if self.at_boundary:
                    self._start = len(self.stream) - 1
                self._line.append(byte)
            elif self._line:
                self._end_line()
            else:
                self._end_event()

    def tail_frames(self) -> list[bytes]:
        """Events that stand wholly in the last TAIL_BYTES."""
        return [payload for start, payload in self._events if start >= len(self.stream) - TAIL_BYTES]

    def _end_line(self) -> None:
        self._in_event = True
        if self._line.startswith(b"data:"):
            self._data.append(bytes(self._line[5:].removeprefix(b" ")))
        self._line.clear()

    def _end_event(self) -> None:
        if self._data:
            self.frames += 1
            self._events.append((self._start, b"\n".join(self._data)))
        self._data = []
        self._in_event = False


def top_level_spans(body: bytes) -> list[tuple[str, int, int]]:
    """Twin of `spans.top_level_spans`: the standard library reads each value, and says where it ended.

    The body is read as Latin-1, so that a character's place is a byte's place.
    """
    text = body.decode("latin-1")
    spans = []
    at = _expect(text, 0, "{")
    while True:
        if not spans and _peek(text, at) == "}":
            break
        start = _expect(text, at, '"') - 1
        _, end = DECODER.raw_decode(text, start)
        name = json.loads(body[start:end].decode())
        start = _skip(text, _expect(text, end, ":"))
        _, end = DECODER.raw_decode(text, start)
        spans.append((name, start, end))
        at = end
        if _peek(text, at) == "}":
            break
        at = _expect(text, at, ",")
    at = _skip(text, _expect(text, at, "}"))
    if at < len(text):
        raise ValueError(f"something follows the object at byte {at}")
    return spans


def _skip(text: str, at: int) -> int:
    match = BLANKS.match(text, at)
    return match.end() if match else at


def _peek(text: str, at: int) -> str:
    at = _skip(text, at)
    return text[at : at + 1]


def _expect(text: str, at: int, wanted: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != wanted:
        raise ValueError(f"no {wanted} at byte {at}")
    return at + 1
