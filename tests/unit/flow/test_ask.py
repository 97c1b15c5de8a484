"""What a body asks for, and the same body with another model's name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazar.base.errors import ApiError, Code
from blazar.flow.ask import LARGE_BYTES, Ask, count_text_bytes, decode_ask, estimate, read_ask, with_model

PAD = "x" * LARGE_BYTES


def body_of(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize("pad", ["", PAD], ids=["small", "large"])
async def test_fields_are_read_whatever_the_size(pad: str) -> None:
    assert await read_ask(body_of(pad=pad, model="m", stream=True)) == Ask(model="m", stream=True)
    assert await read_ask(body_of(pad=pad)) == Ask()
    assert await read_ask(bytearray(body_of(pad=pad, model="ä\n", stream=None))) == Ask(model="ä\n")


@pytest.mark.parametrize("pad", ["", PAD], ids=["small", "large"])
@pytest.mark.parametrize(
    "broken", ['{"model": 1%}', '{"stream": "yes"%}', '["model"%]', '{"model": "m"%', '{"model": "m"%}}']
)
async def test_what_is_not_such_a_body_is_refused(pad: str, broken: str) -> None:
    if pad:
        broken = broken.replace("%", f', "pad": "{pad}"' if broken.startswith("{") else f', "{pad}"')
    with pytest.raises(ApiError) as caught:
        await read_ask(broken.replace("%", "").encode())
    assert caught.value.code is Code.BAD_REQUEST


def test_empty_body_is_named() -> None:
    with pytest.raises(ApiError, match="no body"):
        decode_ask(b"")


async def test_same_name_passes_the_body_untouched() -> None:
    body = body_of(model="m")
    assert await with_model(body, "m", "m") == [body]


names = st.text(max_size=8)
others = st.dictionaries(
    st.text(max_size=5).filter(lambda key: key != "model"), st.none() | st.text() | st.lists(st.integers())
)


@given(names, names, others)
@pytest.mark.case("C30")
def test_only_the_name_changes(asked: str, resolved: str, rest: dict[str, object]) -> None:
    import asyncio

    body = json.dumps({**rest, "model": asked, "nested": {"model": asked}}).encode()
    parts = asyncio.run(with_model(body, asked, resolved))
    assert json.loads(b"".join(parts)) == {**rest, "model": resolved, "nested": {"model": asked}}


async def test_large_body_is_spliced_without_a_copy() -> None:
    body = body_of(pad=PAD, model="a", tail=PAD)
    parts = await with_model(body, "a", "longer")
    assert [type(part) for part in parts] == [memoryview, bytes, memoryview]
    assert json.loads(b"".join(parts)) == {"pad": PAD, "model": "longer", "tail": PAD}


@pytest.mark.parametrize(
    ("body", "longest"),
    [
        (b"{}", None),
        (b'{"max_tokens":7}', 7),
        (b'{"max_tokens":7.0}', 7),
        (b'{"max_tokens":7,"max_completion_tokens":5}', 5),
        (b'{"n_predict":-1}', None),
        (b'{"max_tokens":7,"n":3}', 21),
        (b'{"max_tokens":7,"n":null}', 7),
        (b'{"max_tokens":1e300,"n":1000000}', (1 << 40) * 128),
    ],
)
def test_longest_answer(body: bytes, longest: int | None) -> None:
    assert decode_ask(body).longest_answer == longest


@pytest.mark.parametrize(
    ("body", "repeatable"),
    [
        (b"{}", False),
        (b'{"temperature":0}', True),
        (b'{"temperature":0.1}', False),
        (b'{"seed":3}', True),
        (b'{"seed":-1}', False),
    ],
)
def test_greedy_and_seeded_requests_are_repeatable(body: bytes, repeatable: bool) -> None:
    assert decode_ask(body).repeatable is repeatable


async def test_large_body_is_read_as_a_small_one() -> None:
    parts = {
        "model": "m", "max_tokens": 9, "seed": 4, "tools": [{"name": "f"}],
        "messages": [{"role": "user", "content": "one two three " * 40_000}],
    }  # fmt: skip
    large = json.dumps(parts).encode()
    assert len(large) > LARGE_BYTES
    found = await read_ask(large)
    whole = decode_ask(large)
    assert (found.model, found.longest_answer, found.repeatable, found.has_tools) == ("m", 9, True, True)
    assert estimate(found) == estimate(whole)
    assert estimate(found).tokens > 100_000


def test_text_that_certainly_reaches_the_model_is_counted_in_bytes() -> None:
    parts = b'[{"type":"text","text":"ab"},{"type":"image_url"}]'
    chat = b'{"messages":[{"role":"user","content":"h\\u00e9"},{"content":%b}]}' % parts
    assert count_text_bytes(decode_ask(chat)) == 5
    assert count_text_bytes(decode_ask(b'{"prompt":"abc"}')) == 3
    assert count_text_bytes(decode_ask(b'{"prompt":["abc"]}')) == 0
    assert count_text_bytes(decode_ask(b'{"messages":3}')) == 0
