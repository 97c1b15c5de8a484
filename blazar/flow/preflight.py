"""Does the prompt fit the context? Asked before an engine spends time on one that does not (L06, C22).

Never a silent cut, and no guess refuses anything: a prompt is refused by the engine's own count, or, where no engine
runs that could count, by what is certain of the model's vocabulary.
"""

from __future__ import annotations

import asyncio

import msgspec

from blazar.base.errors import ApiError, Code
from blazar.base.records import ModelRow
from blazar.flow.ask import Ask, count_text_bytes
from blazar.models.index import ModelIndex
from blazar.relay.exchange import BrokenExchange
from blazar.relay.pool import EnginePool
from blazar.relay.query import ask_engine

SHORT_TOKEN_BYTES = 8  # every vocabulary has longer tokens: shorter prompts are not worth a look at the model's file
SURE_SHARE = 0.9  # L06: an estimate up to this share of the context is believed
COUNT_S = 30.0  # for the engine's count


class _Rendered(msgspec.Struct, frozen=True):
    """Answer of /apply-template."""

    prompt: str


class _Tokens(msgspec.Struct, frozen=True):
    """Answer of /tokenize: only how many there are matters."""

    tokens: list[msgspec.Raw]


class _Content(msgspec.Struct, frozen=True):
    """Body of /tokenize."""

    content: str | msgspec.Raw
    add_special: bool = True
    parse_special: bool = True


_decode_rendered = msgspec.json.Decoder(_Rendered).decode
_decode_tokens = msgspec.json.Decoder(_Tokens).decode
_encode = msgspec.json.Encoder().encode


def is_near(most: int, ctx: int) -> bool:
    """Whether only the engine's own count can tell if a prompt of so many tokens at most fits."""
    return most > SURE_SHARE * ctx


async def check_warm(pool: EnginePool, model: str, ask: Ask, ctx: int) -> int | None:
    """Check a prompt by the count of an engine that runs.

    Args:
        pool: the engine's.
        model: its name, for the message.
        ask: the request.
        ctx: tokens of the context.

    Returns:
        The engine's count; None where it does not tell.

    Raises:
        ApiError: PROMPT_TOO_LONG.
    """
    tokens = await count_prompt(pool, ask)
    if tokens is not None and tokens >= ctx:
        raise _refusal(model, str(tokens), ctx)
    return tokens


async def check_cold(models: ModelIndex, model: ModelRow, ask: Ask, ctx: int) -> None:
    """Refuse what is certain not to fit: even if each token were the vocabulary's longest. Nothing is started for it.

    Raises:
        ApiError: PROMPT_TOO_LONG.
    """
    if ask.text_bytes <= ctx * SHORT_TOKEN_BYTES:
        return
    longest = await models.longest_token_bytes(model)
    if longest and (least := await asyncio.to_thread(count_text_bytes, ask) // longest) >= ctx:
        raise _refusal(model.name, f"at least {least}", ctx)


def _refusal(model: str, tokens: str, ctx: int) -> ApiError:
    return ApiError(
        Code.PROMPT_TOO_LONG, f"the prompt has {tokens} tokens, and a slot of {model} has a context of {ctx}"
    )


async def count_prompt(pool: EnginePool, ask: Ask) -> int | None:
    """The engine's own count of the prompt; None where it does not tell, or the prompt is none that it could.

    Images are not counted: the engine finds out about them itself.
    """
    try:
        async with asyncio.timeout(COUNT_S):
            return await _count(pool, ask)
    except (BrokenExchange, msgspec.DecodeError, TimeoutError):
        return None  # the request itself will meet what is wrong


async def _count(pool: EnginePool, ask: Ask) -> int | None:
    content: str | msgspec.Raw
    if memoryview(ask.messages).nbytes:
        tools = b"".join((b',"tools":', ask.tools)) if ask.has_tools else b""
        body = b"".join((b'{"messages":', ask.messages, tools, b"}"))
        status, answer = await ask_engine(pool, "POST", "/apply-template", body)
        if status != 200:
            return None
        content = _decode_rendered(answer).prompt
    elif bytes(memoryview(ask.prompt)[:1]) == b'"':
        content = ask.prompt
    else:
        return None  # several prompts, or tokens: each has a context of its own
    status, answer = await ask_engine(pool, "POST", "/tokenize", _encode(_Content(content)))
    return len(_decode_tokens(answer).tokens) if status == 200 else None
