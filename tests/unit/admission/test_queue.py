"""The queue against an obvious one, its shares, its bounds, and what deadlines buy."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from blazar.admission.queue import MAX_BUCKETS, AdmissionQueue, Waiter
from blazar.admission.ticket import SLO_S, TOOL_SLO_S, Priority, Ticket, Work
from tests.unit.admission.obvious import Obvious

WEIGHTS = {"a": 1, "b": 1, "c": 2, "d": 3, "e": 7, "f": 1, "g": 5}


def ticket(
    key: str = "a",
    *,
    weight: int = 1,
    priority: Priority = Priority.NORMAL,
    work: Work = Work.CHAT,
    deadline_s: float | None = None,
) -> Ticket:
    slo_s = TOOL_SLO_S if work is Work.TOOL else SLO_S[priority]
    return Ticket(key, weight, priority, work, slo_s, deadline_s)


def serve(queue: AdmissionQueue, waiter: Waiter, now: float) -> Waiter | None:
    """The slot comes back, and goes to the next one."""
    queue.release(waiter, now)
    return queue.next_granted(now)


class QueueMachine(RuleBasedStateMachine):
    """Every order of arrivals, ends, leavings and changes of the number of slots, against the obvious queue."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(2, 12, max_buckets=4)
        self.twin = Obvious(2, 12, 4)
        self.numbers: dict[int, Waiter] = {}
        self.count = 0
        self.now = 0.0

    @rule(
        key=st.sampled_from(sorted(WEIGHTS)),
        priority=st.sampled_from(Priority),
        work=st.sampled_from(Work),
        deadline=st.none() | st.integers(0, 40),
        pause=st.sampled_from([0.0, 0.1, 1.0, 15.0]),
    )
    def enter(self, key: str, priority: Priority, work: Work, deadline: int | None, pause: float) -> None:
        self.count += 1
        self.now += pause + self.count * 1e-6  # no two deadlines are equal
        deadline_s = None if deadline is None else float(deadline)
        asked = ticket(key, weight=WEIGHTS[key], priority=priority, work=work, deadline_s=deadline_s)
        waiter = self.queue.enter(asked, self.now)
        verdict = "refused" if waiter is None else "waits" if waiter.granted is None else "granted"
        assert verdict == self.twin.enter(self.count, asked, self.now)
        if waiter is not None:
            self.numbers[self.count] = waiter
        self.grant()

    @precondition(lambda self: self.twin.running)
    @rule(data=st.data(), taken=st.booleans())
    def end(self, data: st.DataObject, taken: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.twin.running)))
        if taken:
            self.queue.release(self.numbers.pop(number), self.now)
            self.twin.release(number)
        else:
            self.queue.take_back(self.numbers.pop(number))
            self.twin.take_back(number)
        self.grant()

    @precondition(lambda self: self.twin.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([waiter[0] for waiter in self.twin.waiting]))
        self.queue.leave(self.numbers.pop(number))
        self.twin.leave(number)
        self.grant()

    @rule(slots=st.integers(0, 6))
    def resize(self, slots: int) -> None:
        self.queue.slots = self.twin.slots = slots
        self.grant()

    def grant(self) -> None:
        while True:
            granted, number = self.queue.next_granted(self.now), self.twin.next_granted(self.now)
            assert granted is (None if number is None else self.numbers[number])
            if granted is None:
                return

    @invariant()
    def same(self) -> None:
        assert len(self.queue) == len(self.twin.waiting)
        assert self.queue.busy == len(self.twin.running)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def saturate(weights: dict[str, int], serves: int, **how: object) -> Counter[str]:
    """Who is served how often, while every key always has a request waiting."""
    queue = AdmissionQueue(1, 10 * len(weights))
    first = queue.enter(ticket("first"), 0.0)
    assert first is not None
    for key, weight in weights.items():
        queue.enter(ticket(key, weight=weight, **how), 0.0)  # type: ignore[arg-type]
    running, served, now = serve(queue, first, 1.0), Counter[str](), 1.0
    for _ in range(serves):
        assert running is not None
        key = running.ticket.key
        served[key] += 1
        now += 0.01
        queue.enter(ticket(key, weight=weights[key], **how), now)  # type: ignore[arg-type]
        running = serve(queue, running, now)
    return served


@pytest.mark.rule("L04")
@pytest.mark.parametrize("count", [2, 3, 17, 128, MAX_BUCKETS])
def test_share_is_within_one_percent_of_the_weights(count: int) -> None:
    chance = random.Random(count)
    weights = {f"k{number}": chance.randint(1, 9) for number in range(count)}
    total, serves = sum(weights.values()), 200 * sum(weights.values())
    served = saturate(weights, serves)
    for key, weight in weights.items():
        assert served[key] / serves == pytest.approx(weight / total, rel=0.01), key


@pytest.mark.rule("L04")
def test_above_256_waiting_keys_each_is_served_in_turn() -> None:
    weights = {f"k{number}": 1 + number % 7 for number in range(MAX_BUCKETS + 50)}
    served = saturate(weights, 20 * len(weights))
    assert set(served.values()) <= {19, 20, 21}


@pytest.mark.rule("L04")
def test_tie_goes_to_the_key_unserved_longest() -> None:
    queue = AdmissionQueue(1, 10)
    running = queue.enter(ticket("a"), 0.0)
    assert running is not None
    for key in ("b", "c", "a"):
        queue.enter(ticket(key), 1.0)
    order = []
    while running := serve(queue, running, 2.0):
        order.append(running.ticket.key)
        if len(order) < 7:
            queue.enter(ticket(order[-1]), 2.0)
    assert order[:7] == ["b", "c", "a", "b", "c", "a", "b"]


@pytest.mark.rule("L04")
def test_key_back_from_idle_gets_no_burst() -> None:
    queue = AdmissionQueue(1, 100)
    running = queue.enter(ticket("busy"), 0.0)
    for _ in range(50):  # the other one is away for fifty serves
        queue.enter(ticket("busy"), 0.0)
        assert running is not None
        running = serve(queue, running, 1.0)
    for key in ("busy", "back"):
        for _ in range(10):
            queue.enter(ticket(key), 2.0)
    order = []
    for _ in range(10):
        assert running is not None
        running = serve(queue, running, 3.0)
        assert running is not None
        order.append(running.ticket.key)
    assert Counter(order) == {"busy": 5, "back": 5}


def test_priority_is_strict() -> None:
    queue = AdmissionQueue(1, 10)
    running = queue.enter(ticket(), 0.0)
    for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
        queue.enter(ticket(priority=priority), 1.0)
    order = []
    while running := serve(queue, running, 2.0) if running else None:
        order.append(running.ticket.priority)
    assert order == [Priority.HIGH, Priority.NORMAL, Priority.LOW]


@pytest.mark.rule("L03")
@pytest.mark.parametrize(("priority", "slo_s"), [(Priority.HIGH, 2.0), (Priority.NORMAL, 30.0), (Priority.LOW, 120.0)])
def test_grant_after_the_deadline_of_its_priority_is_counted(priority: Priority, slo_s: float) -> None:
    queue = AdmissionQueue(1, 10)
    running = queue.enter(ticket(), 0.0)
    assert running is not None
    queue.enter(ticket(priority=priority), 0.0)
    queue.enter(ticket(priority=priority), 0.0)
    running = serve(queue, running, slo_s)
    assert queue.missed == 0
    assert running is not None
    serve(queue, running, slo_s + 0.001)
    assert queue.missed == 1


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.data())
def test_explicit_deadlines_of_one_key_have_no_avoidable_miss(deadlines: list[int], data: st.DataObject) -> None:
    """With serves of one second each, EDF meets all deadlines whenever any order does: position ≤ deadline, sorted."""
    queue = AdmissionQueue(1, 100)
    running = queue.enter(ticket(), 0.0)
    for deadline in data.draw(st.permutations(deadlines)):
        queue.enter(ticket(deadline_s=float(deadline)), 0.0)
    now = 0.0
    while running is not None:
        running = serve(queue, running, now)
        now += 1.0
    feasible = all(place <= deadline for place, deadline in enumerate(sorted(deadlines)))
    assert (queue.missed == 0) == feasible


@pytest.mark.parametrize("pushing", [{"deadline_s": 0.001}, {"work": Work.TOOL}], ids=["deadlines", "tools"])
def test_pushing_buys_nothing_beyond_the_share(pushing: dict[str, Any]) -> None:
    queue, served, now = AdmissionQueue(1, 100), Counter[str](), 0.0
    asks = {"fair": ticket("fair"), "pushy": ticket("pushy", **pushing)}
    running = queue.enter(asks["fair"], now)
    for _ in range(5):
        queue.enter(asks["fair"], now)
        queue.enter(asks["pushy"], now)
    for _ in range(400):
        assert running is not None
        now += 0.1
        running = serve(queue, running, now)
        assert running is not None
        served[running.ticket.key] += 1
        queue.enter(asks[running.ticket.key], now)
    assert abs(served["pushy"] - served["fair"]) <= 2


def test_tool_work_goes_before_chat_that_came_earlier() -> None:
    queue = AdmissionQueue(1, 10)
    running = queue.enter(ticket(), 0.0)
    queue.enter(ticket(work=Work.CHAT), 1.0)
    queue.enter(ticket(work=Work.TOOL), 2.0)
    assert running is not None
    running = serve(queue, running, 3.0)
    assert running is not None
    assert running.ticket.work is Work.TOOL


@pytest.mark.parametrize(("slots", "most"), [(1, 0), (2, 1), (4, 3), (8, 6), (9, 6)])
def test_raw_work_leaves_the_last_quarter_of_the_slots_to_others(slots: int, most: int) -> None:
    queue = AdmissionQueue(0, 100)
    for _ in range(2 * slots):
        queue.enter(ticket("raw", work=Work.RAW), 0.0)
        queue.enter(ticket("chat"), 0.0)
        queue.enter(ticket("chat"), 0.0)
    queue.slots = slots
    granted = [queue.next_granted(1.0) for _ in range(slots)]
    assert sum(waiter is not None and waiter.ticket.work is Work.RAW for waiter in granted) <= most


def test_raw_work_takes_every_slot_when_nobody_else_waits() -> None:
    queue = AdmissionQueue(4, 100)
    waiters = [queue.enter(ticket(work=Work.RAW), 0.0) for _ in range(4)]
    assert all(waiter is not None and waiter.granted is not None for waiter in waiters)


def test_overdue_raw_work_is_not_capped_any_more() -> None:
    queue = AdmissionQueue(1, 100)
    running = queue.enter(ticket(), 0.0)
    queue.enter(ticket(work=Work.RAW), 0.0)
    for _ in range(3):
        queue.enter(ticket(), 1.0)
    assert running is not None
    running = serve(queue, running, 29.9)
    assert running is not None
    assert running.ticket.work is Work.CHAT
    running = serve(queue, running, 30.0)
    assert running is not None
    assert running.ticket.work is Work.RAW


@pytest.mark.parametrize("seed", range(8))
def test_wait_within_a_priority_is_bounded(seed: int) -> None:
    """The bound of docs/admission.md: m-th in its key's line, a waiter sees at most m·W/w + 2·K + 1 serves before its
    own, W the weights of the K keys that wait, w its own key's; deadlines and kinds of work do not change that.
    """
    chance = random.Random(seed)
    weights = {f"k{number}": chance.randint(1, 5) for number in range(chance.randint(2, 30))}
    queue, now = AdmissionQueue(1, 100_000), 0.0
    running = queue.enter(ticket("first"), now)
    places: dict[Waiter, tuple[int, int]] = {}  # number of serves when it came, its place in its key's line
    lines, serves = Counter[str](), 0

    def come(key: str) -> None:
        waiter = queue.enter(ticket(key, weight=weights[key]), now)
        assert waiter is not None
        lines[key] += 1
        places[waiter] = (serves, lines[key])

    for key in weights:
        for _ in range(chance.randint(1, 6)):
            come(key)
    for _ in range(2000):
        assert running is not None
        now += 1.0
        running = serve(queue, running, now)
        assert running is not None
        key = running.ticket.key
        came, place = places.pop(running)
        bound = place * sum(weights.values()) / weights[key] + 2 * len(weights) + 1
        assert serves - came <= bound
        lines[key] -= 1
        serves += 1
        come(key)


@pytest.mark.case("C20")
def test_full_means_full() -> None:
    queue = AdmissionQueue(1, 1)
    verdicts = [queue.enter(ticket(), 0.0) for _ in range(6)]
    assert verdicts[0] is not None
    assert verdicts[0].granted is not None
    assert verdicts[1] is not None
    assert verdicts[2:] == [None] * 4
    assert queue.stats(0.0).refused == 4


def test_queue_of_no_length_still_gives_free_slots() -> None:
    queue = AdmissionQueue(1, 0)
    running = queue.enter(ticket(), 0.0)
    assert running is not None
    assert queue.enter(ticket(), 0.0) is None
    queue.release(running, 1.0)
    assert queue.enter(ticket(), 1.0) is not None


def test_what_is_remembered_of_keys_is_bounded() -> None:
    queue = AdmissionQueue(1, 10)
    for number in range(2000):
        waiter = queue.enter(ticket(f"k{number}"), 0.0)
        assert waiter is not None
        queue.release(waiter, 0.0)
    assert len(queue._buckets) <= MAX_BUCKETS


def test_stats_show_depth_age_and_order() -> None:
    queue = AdmissionQueue(1, 10)
    queue.enter(ticket("a"), 0.0)
    queue.enter(ticket("b", priority=Priority.LOW), 1.0)
    queue.enter(ticket("c", deadline_s=5.0), 3.0)
    stats = queue.stats(4.0)
    assert (stats.slots, stats.busy, stats.depth, stats.oldest_wait_s) == (1, 1, 2, 3.0)
    assert [(w.key, w.priority, w.age_s, w.due_in_s) for w in queue.waiting(4.0)] == [
        ("c", "normal", 1.0, 4.0),
        ("b", "low", 3.0, 117.0),
    ]
