"""The response parser against its twin, over every cut, and against what it has to refuse."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blazar._fast.http1 import MAX_HEAD_BYTES, MAX_HEADERS, ProtocolError, ResponseParser
from tests.fast.reference_http1 import parse

names = st.sampled_from([b"Content-Type", b"X-A", b"x-b", b"ETag"])
values = st.text(alphabet="abcdef /=;.", max_size=12).map(lambda text: text.encode())
bodies = st.binary(max_size=200)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """A well-formed response in one of the framings, with all that may be loose about it."""
    out = b""
    if draw(st.booleans()):
        out += b"HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\n"
    eol = draw(st.sampled_from([b"\r\n", b"\n"]))
    version = draw(st.sampled_from([b"HTTP/1.1", b"HTTP/1.0"]))
    lines = [version + b" %d Some Words" % draw(st.sampled_from([200, 201, 400, 503]))]
    lines += [
        name + b":" + draw(st.sampled_from([b"", b" ", b"\t "])) + draw(values)
        for name in draw(st.lists(names, max_size=4))
    ]
    if draw(st.booleans()):
        lines.append(b"Connection: " + draw(st.sampled_from([b"close", b"keep-alive", b"Keep-Alive, x"])))
    framing = draw(st.sampled_from(["length", "chunked", "both", "close"]))
    body = draw(bodies)
    if framing in ("length", "both"):
        lines.append(b"Content-Length: %d" % len(body))
    if framing in ("chunked", "both"):
        lines.append(b"Transfer-Encoding: chunked")
    out += eol.join(lines) + eol + eol
    if framing in ("chunked", "both"):
        at = 0
        while at < len(body):
            size = draw(st.integers(1, 60))
            part = body[at : at + size]
            at += size
            extension = draw(st.sampled_from([b"", b";a=b", b" ", b';q="x"']))
            out += b"%x%b\r\n%b\r\n" % (len(part), extension, part)
        return out + b"0\r\n" + draw(st.sampled_from([b"", b"X-Trailer: 1\r\n", b"a: b\r\nc: d\r\n"])) + b"\r\n"
    return out + body


def feed(stream: bytes, cuts: list[int]) -> tuple[int, list[tuple[bytes, bytes]], bytes, bool, bool]:
    parser = ResponseParser()
    edges = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
    body = b"".join(parser.feed(stream[start:end]) for start, end in itertools.pairwise(edges) if start < end)
    return parser.status, parser.headers, body, parser.complete, parser.keep_alive


@given(responses(), st.lists(st.integers(0, 10_000), max_size=12))
def test_agrees_with_its_twin_however_it_is_cut(stream: bytes, cuts: list[int]) -> None:
    assert feed(stream, cuts) == parse(stream)


@given(responses())
@settings(max_examples=30)
def test_every_single_cut_gives_the_same(stream: bytes) -> None:
    whole = feed(stream, [])
    assert all(feed(stream, [cut]) == whole for cut in range(len(stream)))


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_waits_but_never_completes(data: bytes) -> None:
    parser = ResponseParser()
    try:
        parser.feed(data)
    except ProtocolError:
        return
    assert not parser.complete or data.startswith(b"HTTP/1.")


@given(responses(), st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_never_crashes_it(stream: bytes, place: int, value: int) -> None:
    broken = bytearray(stream)
    broken[place % len(broken)] = value
    with contextlib.suppress(ProtocolError):
        feed(bytes(broken), [place])


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"HTTP/2 200 OK\r\n\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 abc\r\n\r\n", "does not speak HTTP/1.1"),
        (b"ICY 200 OK\r\n\r\n", "does not speak HTTP/1.1"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "status 101"),
        (HEAD + b"no colon\r\n\r\n", "broken header line"),
        (HEAD + b"a b : c\r\n\r\n", "broken header line"),
        (HEAD + b": c\r\n\r\n", "broken header line"),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "Content-Length"),
        (HEAD + b"Content-Length: -1\r\n\r\n", "Content-Length"),
        (HEAD + b"Content-Length: 1, 1\r\n\r\n", "Content-Length"),
        (HEAD + b"Content-Length: 99999999999999999999\r\n\r\n", "Content-Length"),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", "Transfer-Encoding"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "chunked framing"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n", "chunked framing"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX", "chunked framing"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", "chunked framing"),
        (HEAD + b"Content-Length: 2\r\n\r\nokmore", "more than its response"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore", "more than its response"),
        (HEAD + b"X: " + b"y" * MAX_HEAD_BYTES, "larger than"),
        (HEAD + b"x: y\r\n" * (MAX_HEADERS + 5) + b"\r\n", "more than"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 9000, "chunked framing"),
    ],
)
@pytest.mark.case("C30")
def test_what_is_not_http_is_refused_by_name(stream: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        ResponseParser().feed(stream)


def test_same_length_twice_is_one_length() -> None:
    assert feed(HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", [])[2:4] == (b"ok", True)


def test_head_request_has_no_body_whatever_its_length() -> None:
    parser = ResponseParser()
    parser.begin(True)
    parser.feed(HEAD + b"Content-Length: 20\r\n\r\n")
    assert parser.complete


def test_end_of_file_completes_only_a_body_without_length() -> None:
    parser = ResponseParser()
    parser.feed(HEAD + b"\r\nsome")
    parser.feed_eof()
    assert parser.complete
    parser.begin()
    parser.feed(HEAD + b"Content-Length: 5\r\n\r\nsome")
    with pytest.raises(ProtocolError, match="in the middle"):
        parser.feed_eof()


def test_parser_serves_one_response_after_another() -> None:
    parser = ResponseParser()
    for text in (b"one", b"three"):
        parser.begin()
        assert parser.feed(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(text), text)) == text
        assert parser.complete
        assert parser.keep_alive
