"""A streamed answer is read the same however it is cut and whatever ends its lines; what is not whole is an error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazar.base.errors import CommandError
from blazar.cli import events
from blazar.cli.events import pieces, words_of


def event(**delta: str) -> str:
    return "data: " + json.dumps({"choices": [{"delta": delta}]}, ensure_ascii=False)


def stream(*lines: str, end: str = "\n") -> bytes:
    return "".join(line + end + end for line in lines).encode()


def read(*chunks: bytes) -> list[tuple[str, bool]]:
    return [(piece.text, piece.thinking) for piece in pieces(chunks)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_line_end_and_comments_and_empty_events_are_read(end: str) -> None:
    text = stream(
        ": ping", "data:", event(role="assistant"), event(reasoning_content="hm"), event(content="yes"),
        'data:{"choices":[],"usage":{"total_tokens":3}}', 'data: {"choices":null}', "data: [DONE]", end=end,
    )  # fmt: skip
    assert read(text) == [("hm", True), ("yes", False)]


@given(cuts=st.lists(st.integers(0, 400), max_size=8), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_cuts_change_nothing(cuts: list[int], end: str) -> None:
    whole = stream(
        event(content="né \U0001f300 a\u2028b\u0085c"), event(reasoning_content="x"), "data: [DONE]", end=end
    )
    at = [0, *sorted(cuts), len(whole)]
    assert read(*(whole[a:b] for a, b in zip(at, at[1:], strict=False))) == [
        ("né \U0001f300 a\u2028b\u0085c", False),
        ("x", True),
    ]


def test_separators_of_unicode_end_no_line() -> None:
    assert read(stream(event(content="a\u2028b\u2029c\u0085d"), "data: [DONE]")) == [("a\u2028b\u2029c\u0085d", False)]


def test_done_without_a_line_end_is_the_end() -> None:
    assert read(stream(event(content="a")) + b"data: [DONE]") == [("a", False)]


def test_nothing_is_read_after_the_end() -> None:
    assert read(stream("data: [DONE]", event(content="late"))) == []


def test_cut_stream_gives_what_came_and_then_fails() -> None:
    source = pieces([stream(event(content="a"))])
    assert next(source).text == "a"
    with pytest.raises(CommandError, match="ended early"):
        next(source)


@pytest.mark.parametrize(
    "line",
    [
        'data: {"error":{"message":"engine died","code":502}}',
        'error: {"message":"engine died"}',
        'error: "engine died"',
    ],
)
def test_error_in_the_stream_is_told_in_its_own_words(line: str) -> None:
    with pytest.raises(CommandError, match=r"^engine died$"):
        read(stream(event(content="a"), line))


@pytest.mark.parametrize("line", ["data: {", "data: []", 'data: {"choices":[{"delta":{"content":7}}]}', "data: \x00"])
def test_event_that_cannot_be_read_is_an_error(line: str) -> None:
    with pytest.raises(CommandError, match="cannot be read"):
        read(stream(line, "data: [DONE]"))


def test_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_LINE_BYTES", 1000)
    with pytest.raises(CommandError, match="more than 1000 bytes"):
        read(b"data: ", *[b"x" * 400] * 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"error":{"message":"no such model"}}', "no such model"),
        (b'{"error":"plain"}', "plain"),
        (b'{"error":{}}', ""),
        (b"[]", ""),
        (b"<html>", ""),
        (b"", ""),
    ],
)
def test_words_of_an_error(content: bytes, words: str) -> None:
    assert words_of(content) == words
