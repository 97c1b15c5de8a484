"""The heap against its twin, under every order of operations."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from blazar._fast.heap import Heap, Node
from tests.fast import reference_admission as reference

firsts = st.floats(allow_nan=False) | st.sampled_from([0.0, 1.0, math.inf])
seconds = st.integers(-(2**62), 2**62)


class Member(Node):
    pass


class HeapMachine(RuleBasedStateMachine):
    """Push, pop, remove and update at random; the twin's keys are made unique by their second part."""

    def __init__(self) -> None:
        super().__init__()
        self.heap: Heap[Member] = Heap()
        self.twin = reference.Heap()
        self.used: set[tuple[float, int]] = set()

    def fresh(self, first: float, second: int) -> tuple[float, int]:
        while (first, second) in self.used:
            second += 1
        self.used.add((first, second))
        return first, second

    @rule(first=firsts, second=seconds)
    def push(self, first: float, second: int) -> None:
        member, key = Member(), self.fresh(first, second)
        self.heap.push(member, *key)
        self.twin.push(member, *key)
        assert member.queued

    @precondition(lambda self: len(self.twin))
    @rule()
    def pop(self) -> None:
        assert self.heap.top_key() == self.twin.top_key()
        popped = self.heap.pop()
        assert popped is self.twin.pop()
        assert not popped.queued

    @precondition(lambda self: len(self.twin))
    @rule(data=st.data(), first=firsts, second=seconds)
    def update(self, data: st.DataObject, first: float, second: int) -> None:
        member, key = data.draw(st.sampled_from(list(self.twin.members))), self.fresh(first, second)
        self.heap.update(member, *key)
        self.twin.update(member, *key)

    @precondition(lambda self: len(self.twin))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(list(self.twin.members)))
        self.heap.remove(member)
        self.twin.remove(member)
        assert member not in self.heap

    @invariant()
    def same(self) -> None:
        assert len(self.heap) == len(self.twin)
        assert self.heap.top() is self.twin.top()


TestHeap = HeapMachine.TestCase


def test_member_of_one_heap_is_refused_by_another() -> None:
    one, other, member = Heap(), Heap(), Member()
    one.push(member, 1.0, 1)
    with pytest.raises(ValueError, match="one heap at a time"):
        other.push(member, 1.0, 1)
    with pytest.raises(ValueError, match="not in this heap"):
        other.remove(member)
    with pytest.raises(ValueError, match="not in this heap"):
        other.update(member, 1.0, 1)
    assert member in one
    assert member not in other


def test_key_that_is_no_number_is_refused() -> None:
    heap, member = Heap(), Member()
    with pytest.raises(ValueError, match="number"):
        heap.push(member, math.nan, 1)
    heap.push(member, 0.0, 1)
    with pytest.raises(ValueError, match="number"):
        heap.update(member, math.nan, 1)
    assert heap.top_key() == (0.0, 1)


def test_empty_heap_has_no_top() -> None:
    heap = Heap()
    assert heap.top() is None
    with pytest.raises(IndexError):
        heap.pop()
    with pytest.raises(IndexError):
        heap.top_key()


def test_heap_lets_go_of_its_members() -> None:
    heap, member = Heap(), Member()
    left, kept = weakref.ref(member), Member()
    heap.push(member, 1.0, 1)
    heap.push(kept, 2.0, 2)
    del member
    heap.pop()
    assert left() is None
    del heap
    gc.collect()
    assert not kept.queued
