"""The scanner for top-level fields against its twin, which lets the standard library read every value."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blazar._fast.spans import MAX_DEPTH, MAX_FIELDS, NOGIL_BYTES, top_level_spans
from tests.fast import reference

texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['"', "\\", '\\"', "a\\\\", "{", "]", "\u2028"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
blanks = st.text(" \t\r\n", max_size=3)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Valid objects with blanks anywhere at the top level, names that repeat, and both spellings of non-ASCII."""
    parts = []
    for name, value in draw(st.lists(st.tuples(texts, values), max_size=5)):
        ascii_only, indent = draw(st.booleans()), draw(st.none() | st.just(1))
        key = json.dumps(name, ensure_ascii=ascii_only)
        spelled = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
        parts.append(draw(blanks) + key + draw(blanks) + ":" + draw(blanks) + spelled + draw(blanks))
    return (draw(blanks) + "{" + (",".join(parts) or draw(blanks)) + "}" + draw(blanks)).encode()


@given(bodies())
@example(b'{"a\\"b":"c\\\\","a\\u00e9":"\\"","\xc3\xa9":[{}, [], "]"]}')
def test_spans_of_a_valid_object_are_those_of_the_twin(body: bytes) -> None:
    assert top_level_spans(body) == reference.top_level_spans(body)


@given(bodies())
def test_spans_decode_to_what_the_whole_body_decodes_to(body: bytes) -> None:
    pairs: list[Any] = []
    json.loads(body, object_pairs_hook=lambda found: pairs.append(found) or found)
    assert [
        (name, json.loads(body[start:end], object_pairs_hook=list)) for name, start, end in top_level_spans(body)
    ] == [tuple(pair) for pair in pairs[-1]]


@given(bodies(), st.integers(min_value=0), st.binary(max_size=2))
def test_broken_object_is_refused_or_read_as_the_twin_reads_it(body: bytes, place: int, instead: bytes) -> None:
    at = place % (len(body) + 1)
    broken = body[:at] + instead + body[at + 1 :]
    try:
        wanted = reference.top_level_spans(broken)
    except ValueError:
        # The kernel does not check how scalars are spelled; whatever it lets pass must still be spans inside the body.
        try:
            found = top_level_spans(broken)
        except ValueError:
            return
        edges = [edge for _, *span in found for edge in span]
        assert edges == sorted(edges)
        assert all(0 < edge < len(broken) for edge in edges)
    else:
        if b"NaN" not in broken and b"Infinity" not in broken:
            assert top_level_spans(broken) == wanted


@given(st.binary(max_size=64) | st.text('{}[]",:\\ 01aeE-+.', max_size=64).map(str.encode))
def test_garbage_gives_spans_or_a_value_error(body: bytes) -> None:
    try:
        found = top_level_spans(body)
    except ValueError:
        return
    assert body.strip(b" \t\r\n")[:1] == b"{"
    assert all(start < end for _, start, end in found)


@given(bodies())
def test_every_cut_of_an_object_is_refused(body: bytes) -> None:
    whole = body.rstrip(b" \t\r\n")
    for at in range(len(whole)):
        with pytest.raises(ValueError):
            top_level_spans(whole[:at])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "does not start with { at byte 0"),
        (b"[]", "does not start with { at byte 0"),
        (b'{"a"', "ends too early at byte 4"),
        (b'{"a":"b\\"}', "ends too early at byte 10"),
        (b'{"a":1,}', "unexpected character at byte 7"),
        (b'{"a":[1,]}', "unexpected character at byte 8"),
        (b'{"a":[1}}', "unexpected character at byte 7"),
        (b'{"a":{"b"}}', "unexpected character at byte 9"),
        (b'{"a" 1}', "unexpected character at byte 5"),
        (b'{"a":1 2}', "unexpected character at byte 7"),
        (b"{a:1}", "unexpected character at byte 1"),
        (b'{"a":NaN}', "unexpected character at byte 5"),
        (b'{"a":1} x', "something follows the object at byte 8"),
    ],
)
def test_refusal_says_what_is_wrong_and_where(body: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        top_level_spans(body)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nesting_is_read_to_its_bound_and_refused_beyond(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deepest = b'{"v":' + opening * MAX_DEPTH + b"0" + closing * MAX_DEPTH + b"}"
    if opening == b"[":
        deepest = b'{"v":' + opening * MAX_DEPTH + closing * MAX_DEPTH + b"}"
    assert top_level_spans(deepest) == [("v", 5, len(deepest) - 1)]
    with pytest.raises(ValueError, match=f"nested deeper than {MAX_DEPTH}"):
        top_level_spans(b'{"v":' + opening * (MAX_DEPTH + 1))


def test_fields_are_read_to_their_bound_and_refused_beyond() -> None:
    fields = [b'"%d":0' % n for n in range(MAX_FIELDS + 1)]
    assert len(top_level_spans(b"{" + b",".join(fields[:-1]) + b"}")) == MAX_FIELDS
    with pytest.raises(ValueError, match=f"more than {MAX_FIELDS} fields"):
        top_level_spans(b"{" + b",".join(fields) + b"}")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(kind: type) -> None:
    assert top_level_spans(kind(b'{"model":"m"}')) == [("model", 9, 12)]


def test_repeated_names_are_all_reported() -> None:
    assert [name for name, _, _ in top_level_spans(b'{"a":1,"b":2,"\\u0061":3}')] == ["a", "b", "a"]


def test_large_body_is_scanned_in_several_threads_with_one_result() -> None:
    body = json.dumps({"model": "m", "image": "A" * (2 * NOGIL_BYTES), "n": ['\\"' * 99]}).encode()
    wanted = reference.top_level_spans(body)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(top_level_spans(body))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 4
