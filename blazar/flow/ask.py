"""What a generation request's body says that the gateway itself has to know, and the same body with another model name
in it.

A body that the engine speaks too goes on as it came. It is decoded only as far as the fields below; above LARGE_BYTES
not even that: a scanner finds where the values of the top-level fields stand, in a thread and without the interpreter's
lock, and only those few are decoded (a large body decoded on the loop, or in a thread that holds the lock, would stop
every stream).
"""

from __future__ import annotations

import asyncio
import math
import re

import msgspec

from blazar._fast.spans import top_level_spans
from blazar._fast.tokens import estimate_json
from blazar.base.errors import ApiError, Code

LARGE_BYTES = 256 * 1024
MESSAGE_TOKENS = 4  # what templates put around a message: markers, the role, a line end
OPENING_TOKENS = 3  # and before the answer
IMAGE_TOKENS = 768  # of an image, whatever its size: between small projectors' 576 and what large images are cut into
MAX_ANSWER = 1 << 40  # tokens; the context limits it long before
MAX_CHOICES = 128  # answers to one prompt, as far as reservations follow

Body = bytes | bytearray
Spans = list[tuple[str, int, int]]

NOTHING = msgspec.Raw(b"")
SOME_ITEMS = re.compile(rb"\s*\[\s*[^\s\]]")


class Ask(msgspec.Struct, frozen=True):
    """The fields of a request body that decide its way; every other field is the engine's to judge."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: float | None = None  # some clients write 16.0
    max_completion_tokens: float | None = None
    n_predict: float | None = None
    n: int | None = None
    temperature: float | None = None
    seed: int | None = None
    messages: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING
    input: msgspec.Raw = NOTHING
    tools: msgspec.Raw = NOTHING

    @property
    def has_tools(self) -> bool:
        """Whether it brings any tool."""
        return self.tools is not NOTHING and SOME_ITEMS.match(self.tools) is not None

    @property
    def text_bytes(self) -> int:
        """Bytes of the prompt as it stands, escapes and all."""
        return sum(memoryview(text).nbytes for text in (self.messages, self.prompt, self.input, self.tools))

    @property
    def longest_answer(self) -> int | None:
        """Tokens that the answer, or all of several answers, may have; None where the request does not say."""
        most = self.max_completion_tokens or self.max_tokens or self.n_predict or 0
        return math.ceil(min(most, MAX_ANSWER)) * min(max(self.n or 1, 1), MAX_CHOICES) if most > 0 else None

    @property
    def repeatable(self) -> bool:
        """Whether the same request gets the same answer: it is greedy, or names its seed."""
        return self.temperature == 0 or (self.seed is not None and self.seed >= 0)


NO_ASK = Ask()
TEXTS = ("messages", "prompt", "input", "tools")  # fields that are looked at but not decoded
SMALL_FIELDS = frozenset(Ask.__struct_fields__) - frozenset(TEXTS)

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
    small = {name: body[start:end] for name, start, end in spans if name in SMALL_FIELDS}
    ask = decode_ask(b"{" + b",".join(_encode(name) + b":" + value for name, value in small.items()) + b"}")
    whole = memoryview(body)
    texts = {name: msgspec.Raw(whole[start:end]) for name, start, end in spans if name in TEXTS}
    return msgspec.structs.replace(ask, **texts)


class Prompt(msgspec.Struct, frozen=True):
    """What is known of a prompt's length, in tokens, before an engine has counted it."""

    tokens: int  # at least 1
    most: int  # as it may be on a vocabulary that does not know its script


def estimate(ask: Ask) -> Prompt:
    """The prompt as the engine will see it, template and tools included.

    Estimated from the text as it stands (docs/tokens.md has the error); the engine's own count is exact. Large ones
    belong into a thread: the interpreter's lock is not held meanwhile.

    Raises:
        ApiError: BAD_REQUEST, the messages are no JSON.
    """
    total = beyond = 0
    try:
        if ask.messages is not NOTHING:
            tokens, wide, images, items = estimate_json(ask.messages)
            total = tokens + images * IMAGE_TOKENS + items * MESSAGE_TOKENS + OPENING_TOKENS
            beyond = wide
        for text in (ask.prompt, ask.input):
            if text is not NOTHING:
                tokens, wide, images, _ = estimate_json(text)
                total += tokens + images * IMAGE_TOKENS
                beyond += wide
        if ask.has_tools:
            tokens, wide, _, _ = estimate_json(ask.tools, True)
            total += tokens
            beyond += wide
    except ValueError as error:
        raise ApiError(Code.BAD_REQUEST, f"the request's body is not what this route takes: {error}") from error
    return Prompt(max(1, total), max(1, total) + beyond)


class _Part(msgspec.Struct, frozen=True):
    """A part of a message's content."""

    text: str = ""


class _Message(msgspec.Struct, frozen=True):
    """As much of a message as certainly reaches the model."""

    content: str | list[_Part] | None = None


_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_text = msgspec.json.Decoder(str).decode


def count_text_bytes(ask: Ask) -> int:
    """UTF-8 bytes of the prompt that certainly reach the model; 0 where it is not text of a known shape."""
    try:
        if memoryview(ask.messages).nbytes:
            contents = [message.content for message in _decode_messages(ask.messages)]
            texts = [t for c in contents if c for t in ([c] if isinstance(c, str) else [part.text for part in c])]
        else:
            texts = [_decode_text(ask.prompt)]
    except msgspec.DecodeError:
        return 0
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


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
