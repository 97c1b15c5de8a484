"""Counters and histograms of the gateway, kept in plain dictionaries and numbers: a few tens of nanoseconds each on the
way of a request. What they are called outside, and Prometheus' text format, are `observe.exposition`'s.

Labels come from known sets only: models and keys that are configured, patterns of routes, statuses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

WAIT_BOUNDS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)


class Histogram:
    """How many values fell at or below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """(bound, how many at or below it), with `+Inf` at the end."""
        total, found = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else repr(bound), total))
        return found


class QueueWaits:
    """How long requests waited for a slot, by model."""

    def __init__(self) -> None:
        self.by_model: dict[str, Histogram] = {}

    def add(self, model: str, seconds: float) -> None:
        """A request got its slot after so long."""
        histogram = self.by_model.get(model)
        if histogram is None:
            histogram = self.by_model[model] = Histogram(WAIT_BOUNDS_S)
        histogram.add(seconds)


class Metrics:
    """What is counted.

    Attributes:
        requests: by (route, model, key, status).
        tokens: of prompts and of answers, by (model, key).
        duplicates: requests that waited for a leader, by what became of it.
        waits: for slots.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str, int]] = Counter()
        self.tokens: dict[tuple[str, str], list[int]] = {}
        self.duplicates: Counter[str] = Counter()
        self.waits = QueueWaits()

    def add_tokens(self, model: str, key: str, prompt: int, completion: int) -> None:
        """A request has ended and cost that much."""
        found = self.tokens.get((model, key))
        if found is None:
            found = self.tokens[model, key] = [0, 0]
        found[0] += prompt
        found[1] += completion
