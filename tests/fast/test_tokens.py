"""The token estimate against its twin, on text and on JSON as it stands in requests."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazar._fast.tokens import MAX_DEPTH, NOGIL_BYTES, estimate_json, estimate_text
from tests.fast import reference_tokens as reference

texts = st.text(st.characters(codec="utf-8") | st.sampled_from('abcXYZ019 \t\n.,{}"\\привет漢字🙂'), max_size=30)
keys = st.sampled_from(["role", "content", "text", "type", "id", "image_url", "url", "data", "images", "name"]) | texts
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    scalars | st.just("data:image/png;base64,AAAA"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(texts)
def test_text_costs_what_its_twin_says(text: str) -> None:
    assert estimate_text(text.encode()) == reference.estimate_text(text.encode())


@given(values, st.booleans(), st.none() | st.just(1), st.booleans())
def test_json_costs_what_its_twin_says(value: Any, ascii_only: bool, indent: int | None, every_byte: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert estimate_json(body, every_byte) == reference.estimate_json(body, every_byte)


@given(st.binary(max_size=200) | st.text('{}[]",:\\u0dnt-e ', max_size=80).map(str.encode), st.booleans())
def test_garbage_is_refused_or_counted_and_never_worse(garbage: bytes, every_byte: bool) -> None:
    try:
        tokens, wide, images, items = estimate_json(garbage, every_byte)
    except ValueError:
        return
    assert 0 <= tokens <= 3 * len(garbage) + 1
    assert min(wide, images, items) >= 0


@given(values, st.data())
def test_value_that_is_cut_short_is_refused(value: Any, data: st.DataObject) -> None:
    body = json.dumps([value]).encode()
    with pytest.raises(ValueError, match="no JSON"):
        estimate_json(body[: data.draw(st.integers(1, len(body) - 1))])


def test_what_does_not_reach_the_model_as_text_costs_nothing() -> None:
    said = estimate_json(b'[{"role":"user","content":"hello there"}]')
    more = b'[{"role":"user","id":"a long identifier","content":[{"type":"text","text":"hello there"}]}]'
    assert estimate_json(more)[0] == said[0]


@pytest.mark.parametrize(
    "part",
    [
        b'{"type":"image_url","image_url":{"url":"https://example.org/a-long-name.png","detail":"high"}}',
        b'{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}',
        b'{"images":["AAAA"]}',
        b'{"text":"data:image/png;base64,AAAA"}',
    ],
)
def test_image_is_counted_apart(part: bytes) -> None:
    assert estimate_json(b"[%b]" % part) == (0, 0, 1, 1)


def test_tokens_of_a_prompt_are_counted_one_by_one() -> None:
    assert estimate_json(b"[1, 22, 333]") == (3, 0, 0, 3)
    assert estimate_json(b"[[1, 2], [-3.5e1]]") == (3, 0, 0, 2)


def test_nesting_is_limited() -> None:
    assert estimate_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)[3] == 1
    with pytest.raises(ValueError, match="nested"):
        estimate_json(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


def test_large_values_are_counted_without_the_lock_and_alike() -> None:
    body = json.dumps([{"content": "one two " * NOGIL_BYTES}]).encode()
    found: list[tuple[int, int, int, int]] = []
    threads = [threading.Thread(target=lambda: found.append(estimate_json(body))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {reference.estimate_json(body)}


def test_views_and_bytearrays_are_taken() -> None:
    assert estimate_json(memoryview(bytearray(b'x"hi"'))[1:]) == estimate_json(b'"hi"')
