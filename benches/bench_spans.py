"""What finding the top-level fields of a request body costs."""

from __future__ import annotations

import json
from types import ModuleType

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from blazar._fast import spans
from tests.fast import reference

both = pytest.mark.parametrize("module", [spans, reference], ids=["kernel", "reference"])


def chat(messages: int, content: str) -> bytes:
    said = [{"role": "user", "content": content} for _ in range(messages)]
    return json.dumps({"model": "m", "stream": True, "messages": said, "temperature": 0.7}).encode()


SMALL = chat(3, "What is the capital of France?\n" * 8)
LONG = chat(400, 'She said: "no", and\nleft. ' * 20)
IMAGE = chat(1, "A" * (4 << 20))


@both
def test_spans_small(benchmark: BenchmarkFixture, module: ModuleType) -> None:
    """A short chat, about a kilobyte."""
    assert len(benchmark(module.top_level_spans, SMALL)) == 4


@both
def test_spans_long(benchmark: BenchmarkFixture, module: ModuleType) -> None:
    """A long chat, a quarter of a megabyte with an escape every few words."""
    assert len(benchmark(module.top_level_spans, LONG)) == 4


@both
def test_spans_image(benchmark: BenchmarkFixture, module: ModuleType) -> None:
    """An image of 4 MiB as one string."""
    assert len(benchmark(module.top_level_spans, IMAGE)) == 4
