"""A streamed chat answer, from bytes to what was thought and said. It opens nothing and prints nothing.

The stream is read as leniently as clients have to: comments, empty events, any line end, cut anywhere; a field named
`error` counts as an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from blazar.base.errors import CommandError

MAX_LINE_BYTES = 16 * 1024 * 1024  # of an event; what is longer is no chat answer
LINE_END = re.compile(rb"\r\n|\n|\r")  # a CRLF that is cut in two gives one more empty line: that is nothing here


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str


class Piece(msgspec.Struct, frozen=True):
    """A part of an answer: thinking, or what is said."""

    text: str
    thinking: bool


class Delta(msgspec.Struct, frozen=True):
    """What an event adds to the answer."""

    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """One of the answers; only the first is read."""

    delta: Delta | None = None


class Event(msgspec.Struct, frozen=True):
    """An event of the stream."""

    choices: tuple[Choice, ...] | None = ()
    error: Any = None


_decode = msgspec.json.Decoder(Event).decode


def pieces(chunks: Iterable[bytes]) -> Iterator[Piece]:
    """The parts of an answer.

    Args:
        chunks: the stream's bytes, cut anywhere.

    Raises:
        CommandError: an error came in the stream, it cannot be read, or it ended before the answer did.
    """
    for line in _lines(chunks):
        field, _, value = line.partition(b":")
        data = value.strip()
        if field == b"error" and data:
            raise CommandError(words_of(b'{"error":%s}' % data) or data.decode("utf-8", "replace"))
        if field != b"data" or not data:
            continue
        if data == b"[DONE]":
            return
        try:
            event = _decode(data)
        except msgspec.DecodeError as error:
            raise CommandError(f"the answer holds an event that cannot be read ({error})", "ask again") from error
        if event.error is not None:
            raise CommandError(words_of(data) or "the answer ended with an error")
        for choice in (event.choices or ())[:1]:
            delta = choice.delta or Delta()
            if delta.reasoning_content:
                yield Piece(delta.reasoning_content, thinking=True)
            if delta.content:
                yield Piece(delta.content, thinking=False)
    raise CommandError("the answer is not complete: the stream ended early", "ask again")


def words_of(content: bytes) -> str:
    """The message of an error envelope; "" where it is none."""
    try:
        error = msgspec.json.decode(content)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        *whole, held = LINE_END.split(held + chunk)
        yield from whole
        if len(held) > MAX_LINE_BYTES:
            raise CommandError(f"the answer holds an event of more than {MAX_LINE_BYTES} bytes")
    yield held
