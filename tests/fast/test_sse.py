"""The event-stream scanner against its twin: however a stream is cut, the same is known of it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blazar._fast.sse import TAIL_BYTES, SseTail
from tests.fast import reference

PIECES = [
    b"data:",
    b"data: ",
    b"dat",
    b"a: ",
    b":",
    b"event: x",
    b"{}",
    b"[DONE]",
    b" ",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
]
streams = st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), max_size=40).map(b"".join)
cuts = st.lists(st.integers(0, 200), max_size=20)


def fed(stream: bytes, places: list[int]) -> SseTail:
    tail = SseTail()
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    for start, end in zip(edges, edges[1:], strict=False):
        tail.feed(stream[start:end])
    return tail


def known(tail: SseTail | reference.SseTail) -> tuple[int, int, bool, bool, list[bytes]]:
    return tail.seen, tail.frames, tail.at_boundary, tail.done, tail.tail_frames()


def twin(stream: bytes) -> reference.SseTail:
    tail = reference.SseTail()
    tail.feed(stream)
    return tail


@given(streams, cuts)
@example(b"data: a\r\n\r", [])
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [9])
@example(b"\n\n\ndata: a\n\n\n\n:ping\n\n\ndata\n\n", [])
def test_any_cut_of_a_stream_says_what_the_twin_says(stream: bytes, places: list[int]) -> None:
    assert known(fed(stream, places)) == known(twin(stream))


@given(streams)
def test_every_prefix_of_a_stream_says_what_the_twin_says(stream: bytes) -> None:
    tail, other = SseTail(), reference.SseTail()
    for at in range(len(stream)):
        tail.feed(stream[at : at + 1])
        other.feed(stream[at : at + 1])
        assert known(tail) == known(other)


def long_stream(count: int, end: bytes) -> bytes:
    return b"".join(b'data: {"n":%d,"pad":"%s"}' % (n, b"x" * (n % 701)) + end for n in range(count))


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("size", [1, 7, 300, 4096, TAIL_BYTES - 1, TAIL_BYTES, TAIL_BYTES + 1, 3 * TAIL_BYTES])
def test_tail_of_a_long_stream_does_not_depend_on_the_size_of_chunks(size: int, end: bytes) -> None:
    stream = long_stream(400, end)
    assert len(stream) > 4 * TAIL_BYTES
    tail = SseTail()
    for at in range(0, len(stream), size):
        tail.feed(stream[at : at + size])
    whole = twin(stream)
    assert (tail.seen, tail.frames, tail.at_boundary, tail.done) == (len(stream), 400, True, False)
    assert tail.tail_frames() == fed(stream, []).tail_frames()
    # The first event of the tail is left out even if it is whole: where it starts cannot be told.
    assert tail.tail_frames() in (whole.tail_frames(), whole.tail_frames()[1:])


def test_event_larger_than_the_tail_is_left_out_and_the_next_one_is_found() -> None:
    stream = b"data: " + b"x" * (2 * TAIL_BYTES) + b"\n\ndata: usage\n\n"
    assert fed(stream, [5, 100, TAIL_BYTES]).tail_frames() == [b"usage"]


@pytest.mark.parametrize(
    "stream", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\n\n", b"data: {}\r\n\r\ndata: [DONE]\r\n\r\n"]
)
def test_done_is_seen_with_or_without_the_empty_line_after_it(stream: bytes) -> None:
    assert fed(stream, [3]).done


@pytest.mark.parametrize(
    "stream", [b"", b"data: [DONE", b'data: "[DONE]"\n\n', b"data: [DONE]\n\ndata: {}\n\n", b"[DONE]"]
)
def test_done_is_not_seen_in_what_only_resembles_it(stream: bytes) -> None:
    assert not fed(stream, []).done


@pytest.mark.parametrize("stream", [b"d", b"data: {}", b"data: {}\n", b"event: x\n", b":ping\r"])
def test_nothing_may_be_put_into_an_open_event(stream: bytes) -> None:
    assert not fed(stream, []).at_boundary


def test_anything_but_bytes_is_refused() -> None:
    with pytest.raises(TypeError):
        SseTail().feed("data: x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        SseTail().feed(None)  # type: ignore[arg-type]
