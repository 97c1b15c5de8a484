"""Readable Python twins of the kernels that admission stands on: the heap and the sliding minute."""

from __future__ import annotations

import math
from typing import Any

WINDOW_S = 60


class Heap:
    """Twin of `heap.Heap`: a list that is searched for its smallest member each time."""

    def __init__(self) -> None:
        self.members: dict[Any, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, node: Any) -> bool:
        return node in self.members

    def push(self, node: Any, first: float, second: int) -> None:
        self.members[node] = (first, second)

    def top(self) -> Any:
        return min(self.members, key=self.members.__getitem__, default=None)

    def top_key(self) -> tuple[float, int]:
        return min(self.members.values())

    def pop(self) -> Any:
        node = self.top()
        del self.members[node]
        return node

    def remove(self, node: Any) -> None:
        del self.members[node]

    def update(self, node: Any, first: float, second: int) -> None:
        self.members[node] = (first, second)


class PlainHeap:
    """The same as textbooks have it, with two children a node: what the bench divides by."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, Any]] = []
        self.places: dict[Any, int] = {}

    def push(self, node: Any, first: float, second: int) -> None:
        self.entries.append((first, second, node))
        place = len(self.entries) - 1
        while place and self.entries[place][:2] < self.entries[(place - 1) // 2][:2]:
            self._swap(place, (place - 1) // 2)
            place = (place - 1) // 2
        self.places[node] = place

    def pop(self) -> Any:
        self._swap(0, len(self.entries) - 1)
        node = self.entries.pop()[2]
        del self.places[node]
        place = 0
        while (child := 2 * place + 1) < len(self.entries):
            if child + 1 < len(self.entries) and self.entries[child + 1][:2] < self.entries[child][:2]:
                child += 1
            if self.entries[place][:2] <= self.entries[child][:2]:
                break
            self._swap(place, child)
            place = child
        return node

    def _swap(self, one: int, other: int) -> None:
        entries = self.entries
        entries[one], entries[other] = entries[other], entries[one]
        self.places[entries[one][2]] = one
        self.places[entries[other][2]] = other


class Window:
    """Twin of `buckets.Window`: every use is remembered with its second."""

    def __init__(self) -> None:
        self.uses: list[tuple[int, int]] = []

    def _live(self, now: float) -> list[tuple[int, int]]:
        return [(second, amount) for second, amount in self.uses if second > math.floor(now) - WINDOW_S]

    def used(self, now: float) -> int:
        return sum(amount for _, amount in self._live(now))

    def add(self, now: float, amount: int) -> None:
        self.uses.append((math.floor(now), amount))

    def amend(self, at: float, now: float, change: int) -> bool:
        if math.floor(at) <= math.floor(now) - WINDOW_S:
            return False
        self.uses.append((math.floor(at), change))
        return True

    def wait_s(self, now: float, need: int, limit: int) -> float:
        if self.used(now) + need <= limit:
            return 0.0
        if need > limit:
            return -1.0
        for second in range(math.floor(now) + 1, math.floor(now) + WINDOW_S + 1):
            if self.used(second) + need <= limit:
                return second - now
        return -1.0

    def empty_s(self, now: float) -> float:
        cells: dict[int, int] = {}
        for second, amount in self._live(now):
            cells[second] = cells.get(second, 0) + amount
        return max((second + WINDOW_S - now for second, amount in cells.items() if amount), default=0.0)

    def level(self, now: float) -> tuple[int, float]:
        return self.used(now), self.empty_s(now)


def take(requests: Window, tokens: Window, now: float, rpm: int, tpm: int, least: int, most: int) -> int:
    if rpm and requests.used(now) + 1 > rpm:
        return -1
    if tpm and tokens.used(now) + least > tpm:
        return -1
    taken = min(most, tpm - tokens.used(now)) if tpm else most
    requests.add(now, 1)
    tokens.add(now, taken)
    return taken
