"""What a generation request's body says that the gateway itself has to know, and the same body with another model name
in it.

A body that the engine speaks too goes on as it came. It is decoded only as far as the fields below; above LARGE_BYTES
not even that: a scanner finds where the values of the top-level fields stand, in a thread and without the interpreter's
lock, and only those few are decoded (a large body decoded on the loop, or in a thread that holds the lock, would stop
every stream).
"""

from __future__ import annotations

import asyncio

import msgspec

from blazar._fast.spans import top_level_spans
from blazar.base.errors import ApiError, Code

LARGE_BYTES = 256 * 1024

Body = bytes | bytearray
Spans = list[tuple[str, int, int]]


class Ask(msgspec.Struct, frozen=True):
    """The fields of a request body that decide its way; every other field is the engine's to judge."""

    model: str | None = None
    stream: bool | None = None


_decode_ask = msgspec.json.Decoder(Ask).decode
_encode = msgspec.json.Encoder().encode


async def read_ask(body: Body) -> Ask:
    """Read the fields that matter.

    Raises:
        ApiError: BAD_REQUEST, it is not a JSON object, or one of the fields has the wrong type.
    """
    if len(body) <= LARGE_BYTES:
        return decode_ask(body)
    spans = await asyncio.to_thread(scan, body)
    named = {name: body[start:end] for name, start, end in spans if name in Ask.__struct_fields__}
    return decode_ask(b"{" + b",".join(_encode(name) + b":" + value for name, value in named.items()) + b"}")


def decode_ask(body: Body) -> Ask:
    """As read_ask, for a small body."""
    try:
        return _decode_ask(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not body:
            raise ApiError(Code.BAD_REQUEST, "the request has no body: send a JSON object") from error
        raise ApiError(Code.BAD_REQUEST, f"the request's body is not what this route takes: {error}") from error


def scan(body: Body) -> Spans:
    """Where the values of the top-level fields stand: (name, start, end), in order, repeated names included.

    Raises:
        ApiError: BAD_REQUEST, it is not a JSON object.
    """
    try:
        return top_level_spans(body)
    except ValueError as error:
        raise ApiError(Code.BAD_REQUEST, f"the request's body is not a JSON object: {error}") from error


async def with_model(body: Body, asked: str, resolved: str) -> list[Body | memoryview]:
    """The body's parts with the model's name replaced wherever it stands at top level; the rest is not copied.

    Args:
        body: a JSON object that `read_ask` accepted.
        asked: the name in it.
        resolved: the name that the engine knows.
    """
    if asked == resolved:
        return [body]
    spans = scan(body) if len(body) <= LARGE_BYTES else await asyncio.to_thread(scan, body)
    whole, name = memoryview(body), _encode(resolved)
    parts: list[Body | memoryview] = []
    copied = 0
    for field, start, end in spans:
        if field == "model":
            parts += (whole[copied:start], name)
            copied = end
    return [*parts, whole[copied:]]
