"""What a body asks for, and the same body with another model's name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazar.base.errors import ApiError, Code
from blazar.flow.ask import LARGE_BYTES, Ask, decode_ask, read_ask, with_model

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
