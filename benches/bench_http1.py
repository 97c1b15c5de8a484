"""What parsing an engine's response costs: a chunk of a stream, a burst of them, a whole small answer."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from blazar._fast.http1 import ResponseParser
from tests.fast.reference_http1 import parse

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"12c\r\n" + b"x" * 300 + b"\r\n"
BURST = CHUNK * 200
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nServer: x\r\nContent-Length: 500\r\n\r\n" + b"x" * 500
both = pytest.mark.parametrize("side", ["kernel", "reference"])


def streaming() -> ResponseParser:
    parser = ResponseParser()
    parser.feed(HEAD)
    return parser


@both
def test_http1_chunk(benchmark: BenchmarkFixture, side: str) -> None:
    """One chunk of 300 bytes in a read of its own."""
    if side == "kernel":
        parser = streaming()
        assert benchmark.pedantic(parser.feed, (CHUNK,), rounds=50, iterations=1000) == b"x" * 300
    else:
        assert benchmark.pedantic(parse, (HEAD + CHUNK,), rounds=50, iterations=20)[2] == b"x" * 300


@both
def test_http1_burst(benchmark: BenchmarkFixture, side: str) -> None:
    """200 chunks in one read."""
    if side == "kernel":
        parser = streaming()
        assert len(benchmark.pedantic(parser.feed, (BURST,), rounds=50, iterations=50)) == 60_000
    else:
        assert len(benchmark.pedantic(parse, (HEAD + BURST,), rounds=20, iterations=1)[2]) == 60_000


@both
def test_http1_answer(benchmark: BenchmarkFixture, side: str) -> None:
    """A whole answer with its head."""
    if side == "kernel":
        parser = ResponseParser()

        def serve() -> bytes:
            parser.begin()
            return parser.feed(ANSWER)

        assert len(benchmark(serve)) == 500
    else:
        assert len(benchmark(lambda: parse(ANSWER))[2]) == 500
