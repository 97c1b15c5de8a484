"""What the kernels of admission cost: the heap of waiters and the sliding minute."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from blazar._fast import buckets
from blazar._fast.heap import Heap, Node
from tests.fast import reference_admission as reference

WAITERS = 100_000
LAPS = 1000


class Member(Node):
    pass


@pytest.mark.parametrize("make", [Heap, reference.PlainHeap], ids=["kernel", "reference"])
def test_heap_push_pop(benchmark: BenchmarkFixture, make: Any) -> None:
    """One waiter comes and one goes, with 100 000 waiting."""
    chance = random.Random(1)
    heap = make()
    keys = [chance.random() for _ in range(WAITERS)]
    for number, key in enumerate(keys):
        heap.push(Member(), key, number)
    new = [chance.random() for _ in range(LAPS)]

    def come_and_go() -> None:
        push, pop = heap.push, heap.pop
        for number, key in enumerate(new):
            push(pop(), key, number)

    benchmark.extra_info["chunks"] = LAPS
    benchmark(come_and_go)


@pytest.mark.parametrize("module", [buckets, reference], ids=["kernel", "reference"])
def test_bucket_check(benchmark: BenchmarkFixture, module: ModuleType) -> None:
    """Does a request fit? With one use in each of the last 60 seconds."""
    window = module.Window()
    for second in range(60):
        window.add(1000.0 + second, 1)

    def check() -> None:
        wait_s = window.wait_s
        for _ in range(LAPS):
            wait_s(1059.5, 1, 100)

    benchmark.extra_info["chunks"] = LAPS
    benchmark(check)


@pytest.mark.parametrize("module", [buckets, reference], ids=["kernel", "reference"])
def test_bucket_take(benchmark: BenchmarkFixture, module: ModuleType) -> None:
    """Requests and tokens, both or neither, and what is told of them afterwards."""
    requests, tokens = module.Window(), module.Window()
    for second in range(60):
        module.take(requests, tokens, 1000.0 + second, 0, 0, 10, 10)

    def take() -> None:
        take, level = module.take, tokens.level
        for _ in range(LAPS):
            take(requests, tokens, 1059.5, 1, 100, 10, 20)  # refused: the windows stay as they are
            level(1059.5)

    benchmark.extra_info["chunks"] = LAPS
    benchmark(take)
