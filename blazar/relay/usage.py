"""What an answer has cost, by the engine's own figures: read from what was remembered of its end, never from a second
copy of it.
"""

from __future__ import annotations

import re

import msgspec

from blazar._fast.sse import SseTail

HEAD_BYTES = 4096  # of a body's beginning: some engines say the usage before the data
TAIL_BYTES = 16384
USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')


class Spent(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt: int
    completion: int


class _Usage(msgspec.Struct, frozen=True):
    """OpenAI's figures."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Timings(msgspec.Struct, frozen=True):
    """llama.cpp's figures."""

    cache_n: int = 0
    prompt_n: int = 0
    predicted_n: int = 0


class _Figures(msgspec.Struct, frozen=True):
    """Where either may stand in a frame or in a whole answer."""

    usage: _Usage | None = None
    timings: _Timings | None = None


_decode_figures = msgspec.json.Decoder(_Figures).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode


class BodyEnds:
    """The beginning and the end of an answer that is no stream, whatever its size. Takes SseTail's place in a pump."""

    __slots__ = ("_head", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Look at the next bytes."""
        if len(self._head) < HEAD_BYTES:
            self._head += data[: HEAD_BYTES - len(self._head)]
        self._tail = data[-TAIL_BYTES:] if len(data) >= TAIL_BYTES else (self._tail + data)[-TAIL_BYTES:]

    def spent(self) -> Spent | None:
        """The usage that is told in the end, else in the beginning."""
        for part in (self._tail, self._head):
            found = USAGE.findall(part)
            if found:
                try:
                    usage = _decode_usage(found[-1])
                except msgspec.DecodeError:
                    continue
                return Spent(usage.prompt_tokens, usage.completion_tokens)
        return None


def spent_of_stream(tail: SseTail) -> Spent | None:
    """What a stream's last frames tell: usage, or llama.cpp's timings; None where they tell neither."""
    for frame in reversed(tail.tail_frames()):
        if b'"usage"' in frame or b'"timings"' in frame:
            spent = spent_of_answer(frame)
            if spent is not None:
                return spent
    return None


def spent_of_answer(body: bytes) -> Spent | None:
    """What a whole answer, or a frame, tells; None where it tells nothing, or is no JSON."""
    try:
        figures = _decode_figures(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if figures.usage is not None:
        return Spent(figures.usage.prompt_tokens, figures.usage.completion_tokens)
    if figures.timings is not None:
        timings = figures.timings
        return Spent(timings.cache_n + timings.prompt_n, timings.predicted_n)
    return None
