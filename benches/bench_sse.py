"""What looking at a stream costs for every chunk that passes."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from blazar._fast import sse
from tests.fast import reference

Scanner = type[sse.SseTail] | type[reference.SseTail]
CHUNK = b'data: {"choices":[{"delta":{"content":" Paris"}}],"id":"chatcmpl-0"' + b" " * 230 + b"}\n\n"
both = pytest.mark.parametrize("scanner", [sse.SseTail, reference.SseTail], ids=["kernel", "reference"])


@both
def test_sse_chunk(benchmark: BenchmarkFixture, scanner: Scanner) -> None:
    """One event of 300 bytes."""
    assert len(CHUNK) == 300
    tail = scanner()
    benchmark.pedantic(tail.feed, (CHUNK,), rounds=50, iterations=1000 if scanner is sse.SseTail else 20)
    assert tail.at_boundary


@both
def test_sse_burst(benchmark: BenchmarkFixture, scanner: Scanner) -> None:
    """64 KiB of such events in one read."""
    burst = CHUNK * 218
    tail = scanner()
    benchmark.pedantic(tail.feed, (burst,), rounds=20, iterations=50 if scanner is sse.SseTail else 1)
    assert tail.frames % 218 == 0


@both
def test_sse_usage(benchmark: BenchmarkFixture, scanner: Scanner) -> None:
    """Once a stream: the frames of the full tail."""
    tail = scanner()
    for _ in range(200):
        tail.feed(CHUNK)
    assert len(benchmark(tail.tail_frames)) == 54
