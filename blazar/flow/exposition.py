"""What `/metrics` shows, made from the services' own stats at each scrape. A scrape loads nothing and wakes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from blazar.flow.gates import Gate
from blazar.observe.ledger import Ledger
from blazar.observe.metrics import Metrics
from blazar.supervisor import ChildStats

CONTENT_TYPE = CONTENT_TYPE_LATEST


class _Scrape(Collector):
    """One look at everything."""

    def __init__(self, metrics: Metrics, gates: Mapping[str, Gate], ledger: Ledger, children: Iterable[ChildStats]):
        self._metrics = metrics
        self._gates = gates
        self._ledger = ledger
        self._children = children

    def collect(self) -> Iterable[Metric]:
        yield from self._of_requests()
        yield from self._of_queues()
        yield from self._of_engines()

    def _of_requests(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "blazar_requests", "Requests that have ended.", labels=("route", "model", "key", "code")
        )
        for (route, model, key, status), count in self._metrics.requests.items():
            requests.add_metric((route, model, key, str(status)), count)
        yield requests
        tokens = CounterMetricFamily(
            "blazar_tokens", "Tokens by the engines' own count.", labels=("model", "key", "kind")
        )
        for (model, key), amounts in self._metrics.tokens.items():
            for kind, amount in zip(("prompt", "completion"), amounts, strict=True):
                tokens.add_metric((model, key, kind), amount)
        yield tokens
        duplicates = CounterMetricFamily(
            "blazar_singleflight", "Chats that could have duplicates, by what became of them.", labels=("result",)
        )
        for result, count in self._metrics.duplicates.items():
            duplicates.add_metric((result,), count)
        yield duplicates
        leases = GaugeMetricFamily("blazar_in_flight", "Requests under way.", labels=("key",))
        for account in self._ledger.accounts.values():
            leases.add_metric((account.label,), account.in_flight)
        yield leases

    def _of_queues(self) -> Iterable[Metric]:
        depth = GaugeMetricFamily("blazar_queue_depth", "Requests that wait for a slot.", labels=("model",))
        oldest = GaugeMetricFamily("blazar_queue_oldest_seconds", "Age of the oldest of them.", labels=("model",))
        slots = GaugeMetricFamily("blazar_slots", "Requests that a model runs at once.", labels=("model",))
        busy = GaugeMetricFamily("blazar_slots_busy", "Slots that are taken.", labels=("model",))
        missed = CounterMetricFamily("blazar_deadline_missed", "Slots given after the deadline.", labels=("model",))
        refused = CounterMetricFamily("blazar_queue_refused", "Requests that met a full queue.", labels=("model",))
        now = self._ledger.moment().now
        for model, gate in self._gates.items():
            stats, labels = gate.queue.stats(now), (model,)
            for family, value in (
                (depth, stats.depth), (oldest, stats.oldest_wait_s), (slots, stats.slots), (busy, stats.busy),
            ):  # fmt: skip
                family.add_metric(labels, value)
            missed.add_metric(labels, stats.deadline_missed)
            refused.add_metric(labels, stats.refused)
        yield from (depth, oldest, slots, busy, missed, refused)
        waits = HistogramMetricFamily("blazar_queue_wait_seconds", "Waits for a slot.", labels=("model",))
        for model, histogram in self._metrics.waits.by_model.items():
            waits.add_metric((model,), buckets=histogram.cumulative(), sum_value=histogram.sum)
        yield waits

    def _of_engines(self) -> Iterable[Metric]:
        state = GaugeMetricFamily("blazar_engine_state", "1 for the state that it is in.", labels=("model", "state"))
        restarts = CounterMetricFamily("blazar_engine_restarts", "Starts after the first one.", labels=("model",))
        for child in self._children:
            state.add_metric((child.model, child.state), 1)
            restarts.add_metric((child.model,), child.restarts)
        yield from (state, restarts)


def exposition(metrics: Metrics, gates: Mapping[str, Gate], ledger: Ledger, children: Iterable[ChildStats]) -> bytes:
    """Everything, in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Scrape(metrics, gates, ledger, children))
    return generate_latest(registry)
