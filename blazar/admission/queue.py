"""The queue of one model: who is served next. Pure: it decides, its caller acts.

A slot goes to the highest priority. In a priority each kind of work is a lane, whose waiters share an implicit deadline
and so stand in the order of it; the lane whose oldest waiter is due first goes first, and in it the key of the lowest
credit. Credit is what a key has been served, divided by its weight (weighted fair queueing, L04); it belongs to the key
and not to the lane. An explicit deadline that is due before that lane's head goes first.

Precedence that comes from a deadline, explicit or a lane's, is for keys that are level: at most one serve ahead of the
one that is furthest behind. So it changes the order within the shares and never the shares, whatever the clients say.

A key that comes back starts at the lowest credit of those that wait: it has saved nothing up. Every operation costs
O(log n); `MAX_BUCKETS` bounds what is remembered of keys that do not wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from blazar._fast.heap import Heap, Node
from blazar.admission.ticket import Priority, Ticket, Work

MAX_BUCKETS = 256  # L04
SLACK = 1e-9  # of credits, which are sums of fractions
SERVICE_MEMORY = 0.9  # of the mean time of a serve that is kept at each new one
FIRST_SERVICE_S = 1.0  # what a serve is thought to take before there has been one


class Waiter(Node):
    """A request in the queue, and later with a slot.

    Attributes:
        ticket: what it brought.
        arrived: when, in seconds.
        due: its deadline: the explicit one where it has one.
        ahead: how many waited, of its priority or a higher one, when it came.
        granted: when it got its slot; None while it waits.
    """

    __slots__ = ("ahead", "arrived", "bucket", "due", "granted", "ticket")

    def __init__(self, ticket: Ticket, bucket: _Bucket, now: float, ahead: int) -> None:
        self.ticket = ticket
        self.bucket = bucket
        self.arrived = now
        self.due = now + (ticket.slo_s if ticket.deadline_s is None else ticket.deadline_s)
        self.ahead = ahead
        self.granted: float | None = None

    @property
    def waited_s(self) -> float:
        """How long it waited for its slot."""
        return 0.0 if self.granted is None else self.granted - self.arrived


class _Bucket:
    """What the queue remembers of a key."""

    __slots__ = ("credit", "flows", "key", "served", "step", "waiting")

    def __init__(self, key: str, event: int) -> None:
        self.key = key
        self.credit = 0.0
        self.step = 1.0  # what a serve costs: 1 / weight
        self.served = event  # the event of its last serve, or of its first arrival
        self.waiting = 0
        self.flows: dict[tuple[Priority, Work], _Flow] = {}


class _Flow(Node):
    """The waiters of one key in one lane."""

    __slots__ = ("bucket", "explicit", "lane", "waiters")

    def __init__(self, bucket: _Bucket, lane: _Lane) -> None:
        self.bucket = bucket
        self.lane = lane
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.explicit = _Explicit(self)


class _Explicit(Node):
    """Those of them that have an explicit deadline, the earliest first."""

    __slots__ = ("due", "flow")

    def __init__(self, flow: _Flow) -> None:
        self.flow = flow
        self.due: Heap[Waiter] = Heap()


class _Lane:
    """The waiters of one kind of work in one priority."""

    __slots__ = ("early", "flows", "late", "order", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.order: OrderedDict[Waiter, None] = OrderedDict()  # by arrival, which is by implicit deadline
        self.flows: Heap[_Flow] = Heap()  # by credit, then by the time without a serve
        self.early: Heap[_Explicit] = Heap()  # explicit deadlines of level keys, by deadline
        self.late: Heap[_Explicit] = Heap()  # of keys that are ahead, by the credit that makes them level

    @property
    def head(self) -> Waiter:
        """The oldest waiter."""
        return next(iter(self.order))

    @property
    def due(self) -> float:
        """When the oldest waiter is due by its implicit deadline."""
        return self.head.arrived + self.head.ticket.slo_s

    @property
    def lowest(self) -> float:
        """The lowest credit of the keys that wait here."""
        return self.flows.top_key()[0]


class Waiting(msgspec.Struct, frozen=True):
    """What is shown of a waiter."""

    key: str
    priority: str
    age_s: float
    due_in_s: float


class QueueStats(msgspec.Struct, frozen=True):
    """What is shown of a queue."""

    slots: int
    busy: int
    depth: int
    oldest_wait_s: float
    served: int
    deadline_missed: int
    refused: int


class AdmissionQueue:
    """The queue of one model.

    Args:
        slots: requests that run at once; may be changed at any time, `next_granted` acts on it.
        max_queue: requests that wait at once.
        max_buckets: keys that are kept apart.
    """

    def __init__(self, slots: int, max_queue: int, max_buckets: int = MAX_BUCKETS) -> None:
        self.slots = slots
        self.max_queue = max_queue
        self._max_buckets = max_buckets
        self.busy = 0
        self.missed = 0  # grants after their deadline
        self.served = 0
        self.refused = 0
        self._raw_busy = 0
        self._waiting = [0, 0, 0]  # by priority
        self._raw_waiting = 0
        self._lanes = [[_Lane(work) for work in Work] for _ in Priority]
        self._buckets: dict[str, _Bucket] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()  # keys of buckets without waiters, the longest idle first
        self._waiting_keys = 0
        self._crowded = False  # more than MAX_BUCKETS keys wait: credits are reset, the longest unserved goes
        self._events = 0  # serves and first arrivals: the order of keys and deadlines that are equal otherwise
        self._floor = 0.0  # credit at which the last serve was
        self._service_s = FIRST_SERVICE_S

    # ---- what callers do ----

    def __len__(self) -> int:
        high, normal, low = self._waiting
        return high + normal + low

    def enter(self, ticket: Ticket, now: float) -> Waiter | None:
        """A request comes.

        Returns:
            With a slot where one is free and nobody else waits for it; else in the queue; None: the queue is full.
        """
        depth = len(self)
        if depth >= self.max_queue and (depth or self.busy >= self.slots):
            self.refused += 1
            return None
        bucket = self._bucket(ticket)
        if not depth and self.busy < self.slots:
            waiter = Waiter(ticket, bucket, now, 0)
            self._grant(waiter, now)
        else:
            waiter = Waiter(ticket, bucket, now, sum(self._waiting[: ticket.priority + 1]))
            self._add(waiter)
        return waiter

    def next_granted(self, now: float) -> Waiter | None:
        """The next one that gets a slot, if one is free and somebody waits who may have it. To be asked until None."""
        if self.busy >= self.slots:
            return None
        waiter = self._pick(now)
        if waiter is not None:
            self._remove(waiter)
            self._grant(waiter, now)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """One who waits has gone."""
        self._remove(waiter)

    def release(self, waiter: Waiter, now: float) -> None:
        """A slot comes back."""
        assert waiter.granted is not None
        self._free(waiter)
        self._service_s += (1 - SERVICE_MEMORY) * (now - waiter.granted - self._service_s)

    def take_back(self, waiter: Waiter) -> None:
        """A slot comes back from one who was gone before it could use it: that was no serve."""
        self._free(waiter)
        if not self._crowded:
            waiter.bucket.credit -= waiter.bucket.step
            self._rank(waiter.bucket)

    def expected_wait_s(self, ahead: int) -> float:
        """How long one waits who has so many ahead, by what serves have taken lately."""
        return (ahead + 1) * self._service_s / max(1, self.slots)

    def waiting(self, now: float) -> Iterator[Waiting]:
        """Who waits: by priority, then by arrival."""
        for priority in Priority:
            order = sorted((w for lane in self._lanes[priority] for w in lane.order), key=lambda w: w.arrived)
            for waiter in order:
                yield Waiting(waiter.ticket.key, priority.name.lower(), now - waiter.arrived, waiter.due - now)

    def stats(self, now: float) -> QueueStats:
        """What is shown of it."""
        heads = [lane.head.arrived for lanes in self._lanes for lane in lanes if lane.order]
        return QueueStats(
            slots=self.slots,
            busy=self.busy,
            depth=len(self),
            oldest_wait_s=now - min(heads, default=now),
            served=self.served,
            deadline_missed=self.missed,
            refused=self.refused,
        )

    # ---- the choice ----

    def _pick(self, now: float) -> Waiter | None:
        raw_waits = self._raw_is_capped()
        for priority in Priority:
            if not self._waiting[priority]:
                continue
            lanes = [lane for lane in self._lanes[priority] if lane.order]
            if raw_waits:  # until it is overdue, so that a cap never starves
                lanes = [lane for lane in lanes if lane.work is not Work.RAW or lane.due <= now]
            if lanes:
                return self._pick_in(lanes)
        return None

    def _pick_in(self, lanes: list[_Lane]) -> Waiter:
        """Among the waiters of one priority."""
        first = min(lanes, key=lambda lane: lane.due)  # at an equal deadline in the order of Work
        if self._crowded:
            return self._of_flow(_longest_unserved(lanes))
        level = min(lane.lowest for lane in lanes)
        explicit = self._earliest_explicit(lanes, level)
        if explicit is not None and explicit.due <= first.due:
            return explicit
        flow = first.flows.top()
        assert flow is not None
        if not _is_level(flow.bucket, level):
            flow = min(lanes, key=lambda lane: lane.lowest).flows.top()
            assert flow is not None
        return self._of_flow(flow)

    def _earliest_explicit(self, lanes: list[_Lane], level: float) -> Waiter | None:
        """The explicit deadline that is due first, among level keys."""
        found: Waiter | None = None
        for lane in lanes:
            while len(lane.late) and lane.late.top_key()[0] < level - SLACK:
                back = lane.late.pop()
                lane.early.push(back, *back.due.top_key())
            while (top := lane.early.top()) is not None and not _is_level(top.flow.bucket, level):
                lane.early.remove(top)  # it has been served meanwhile
                lane.late.push(top, top.flow.bucket.credit - top.flow.bucket.step, 0)
            if top is not None:
                waiter = top.due.top()
                assert waiter is not None
                if found is None or waiter.due < found.due:
                    found = waiter
        return found

    @staticmethod
    def _of_flow(flow: _Flow) -> Waiter:
        """Whom a key sends: the one that is due first of its oldest and its earliest explicit deadline."""
        oldest = next(iter(flow.waiters))
        explicit = flow.explicit.due.top()
        if explicit is not None and explicit.due < oldest.arrived + oldest.ticket.slo_s:
            return explicit
        return oldest

    def _raw_is_capped(self) -> bool:
        """Raw work may not take the last quarter of the slots while others wait."""
        if not self._raw_waiting or self._raw_waiting == len(self):
            return False
        return self._raw_busy >= self.slots - (self.slots + 3) // 4

    # ---- the books ----

    def _next_event(self) -> int:
        self._events += 1
        return self._events

    def _bucket(self, ticket: Ticket) -> _Bucket:
        bucket = self._buckets.get(ticket.key)
        if bucket is None:
            bucket = self._buckets[ticket.key] = _Bucket(ticket.key, self._next_event())
            self._idle[ticket.key] = None
            self._drop_idle(keep=bucket)
        bucket.step = 1.0 / ticket.weight
        if not bucket.waiting and not self._crowded and bucket.credit < self._floor:
            bucket.credit = max(bucket.credit, self._lowest())
        return bucket

    def _lowest(self) -> float:
        """The lowest credit of the keys that wait, and of the one that was served last: it may be back for more."""
        if not len(self):
            return self._floor
        return min(self._floor, *(lane.lowest for lanes in self._lanes for lane in lanes if lane.order))

    def _drop_idle(self, keep: _Bucket) -> None:
        """Forget keys that do not wait, when there are too many."""
        while len(self._buckets) > self._max_buckets and self._idle:
            key = next(iter(self._idle))
            if key == keep.key:
                if len(self._idle) == 1:
                    return
                self._idle.move_to_end(key)
                continue
            del self._idle[key], self._buckets[key]

    def _add(self, waiter: Waiter) -> None:
        ticket, bucket = waiter.ticket, waiter.bucket
        lane = self._lanes[ticket.priority][ticket.work]
        flow = bucket.flows.get((ticket.priority, ticket.work))
        if flow is None:
            flow = bucket.flows[ticket.priority, ticket.work] = _Flow(bucket, lane)
            lane.flows.push(flow, bucket.credit, bucket.served)
        flow.waiters[waiter] = None
        lane.order[waiter] = None
        if ticket.deadline_s is not None:
            explicit = flow.explicit
            explicit.due.push(waiter, waiter.due, self._next_event())
            if explicit in lane.early:
                lane.early.update(explicit, *explicit.due.top_key())
            elif explicit not in lane.late:
                lane.early.push(explicit, *explicit.due.top_key())  # the next pick moves it if it is not level
        self._waiting[ticket.priority] += 1
        self._raw_waiting += ticket.work is Work.RAW
        if not bucket.waiting:
            self._waiting_keys += 1
            self._idle.pop(bucket.key, None)
            if self._waiting_keys > self._max_buckets and not self._crowded:
                self._reset_credits()
        bucket.waiting += 1

    def _remove(self, waiter: Waiter) -> None:
        ticket, bucket = waiter.ticket, waiter.bucket
        flow = bucket.flows[ticket.priority, ticket.work]
        lane, explicit = flow.lane, flow.explicit
        del flow.waiters[waiter], lane.order[waiter]
        if waiter.queued:
            explicit.due.remove(waiter)
            if explicit in lane.early:
                lane.early.remove(explicit)
                if len(explicit.due):
                    lane.early.push(explicit, *explicit.due.top_key())
            elif not len(explicit.due):
                lane.late.remove(explicit)
        if not flow.waiters:
            lane.flows.remove(flow)
            del bucket.flows[ticket.priority, ticket.work]
        self._waiting[ticket.priority] -= 1
        self._raw_waiting -= ticket.work is Work.RAW
        bucket.waiting -= 1
        if not bucket.waiting:
            self._waiting_keys -= 1
            self._crowded = self._crowded and self._waiting_keys > self._max_buckets
            self._set_idle(bucket)

    def _set_idle(self, bucket: _Bucket) -> None:
        self._idle[bucket.key] = None
        self._drop_idle(keep=bucket)

    def _grant(self, waiter: Waiter, now: float) -> None:
        bucket = waiter.bucket
        self.busy += 1
        self._raw_busy += waiter.ticket.work is Work.RAW
        self.served += 1
        self.missed += now > waiter.due
        waiter.granted = now
        self._floor = bucket.credit
        bucket.served = self._next_event()
        if not self._crowded:
            bucket.credit += bucket.step
        if bucket.flows:
            self._rank(bucket)

    def _free(self, waiter: Waiter) -> None:
        self.busy -= 1
        self._raw_busy -= waiter.ticket.work is Work.RAW

    def _rank(self, bucket: _Bucket) -> None:
        """Its credit has changed."""
        for flow in bucket.flows.values():
            flow.lane.flows.update(flow, bucket.credit, bucket.served)
            if flow.explicit in flow.lane.late:
                flow.lane.late.update(flow.explicit, bucket.credit - bucket.step, 0)

    def _reset_credits(self) -> None:
        """L04: more keys wait than are kept apart. From here on the longest unserved goes, until fewer wait.

        max_buckets + 1 keys are ranked anew, once for each time that their number passes that mark.
        """
        self._crowded = True
        self._floor = 0.0
        for bucket in self._buckets.values():
            bucket.credit = 0.0
            self._rank(bucket)


def _is_level(bucket: _Bucket, level: float) -> bool:
    """Whether a key is less than one serve ahead of the one that is furthest behind."""
    return bucket.credit < level + bucket.step - SLACK


def _longest_unserved(lanes: list[_Lane]) -> _Flow:
    flow = min((lane.flows.top() for lane in lanes), key=lambda flow: flow.bucket.served if flow else 0)
    assert flow is not None
    return flow
