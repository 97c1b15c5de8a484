"""The queue as plainly as it can be said: lists that are searched, nothing remembered that can be counted again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from blazar.admission.ticket import Priority, Ticket, Work


@dataclass(eq=False)
class Obvious:
    """Twin of `AdmissionQueue`; waiters are (number, ticket, arrival)."""

    slots: int
    max_queue: int
    max_buckets: int
    waiting: list[tuple[int, Ticket, float]] = field(default_factory=list)
    running: dict[int, Ticket] = field(default_factory=dict)
    credit: dict[str, float] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)
    born: dict[str, int] = field(default_factory=dict)  # when a key was last heard of for the first time
    lives: dict[int, int] = field(default_factory=dict)  # that, of the key of a request that runs
    idle: list[str] = field(default_factory=list)
    events: int = 0
    floor: float = 0.0
    crowded: bool = False

    def keys(self) -> set[str]:
        return {ticket.key for _, ticket, _ in self.waiting}

    def enter(self, number: int, ticket: Ticket, now: float) -> str:
        full = len(self.waiting) >= self.max_queue
        if full and (len(self.running) >= self.slots or self.waiting):
            return "refused"
        if ticket.key not in self.credit:
            self.credit[ticket.key] = 0.0
            self.served[ticket.key] = self.born[ticket.key] = self.event()
            self.idle.append(ticket.key)
            self.forget(ticket.key)
        if ticket.key not in self.keys() and not self.crowded:
            lowest = min([self.floor, *(self.credit[key] for key in self.keys())])
            self.credit[ticket.key] = max(self.credit[ticket.key], lowest)
        if len(self.running) < self.slots and not self.waiting:
            self.grant(number, ticket)
            return "granted"
        self.waiting.append((number, ticket, now))
        if ticket.key in self.idle:
            self.idle.remove(ticket.key)
        if len(self.keys()) > self.max_buckets and not self.crowded:
            self.crowded = True
            self.floor = 0.0
            self.credit = dict.fromkeys(self.credit, 0.0)
        return "waits"

    def leave(self, number: int) -> None:
        gone = next(waiter for waiter in self.waiting if waiter[0] == number)
        self.waiting.remove(gone)
        if gone[1].key not in self.keys():
            self.crowded = self.crowded and len(self.keys()) > self.max_buckets
            self.idle.append(gone[1].key)
            self.forget(gone[1].key)

    def next_granted(self, now: float) -> int | None:
        if len(self.running) >= self.slots:
            return None
        choice = self.choose(now)
        if choice is not None:
            number, ticket, _ = choice
            self.leave(number)
            self.grant(number, ticket)
            return number
        return None

    def choose(self, now: float) -> tuple[int, Ticket, float] | None:
        raw = [waiter for waiter in self.waiting if waiter[1].work is Work.RAW]
        raw_running = sum(ticket.work is Work.RAW for ticket in self.running.values())
        capped = len(raw) < len(self.waiting) and raw_running >= self.slots - math.ceil(self.slots / 4)
        for priority in Priority:
            lanes = []
            for work in Work:
                lane = [w for w in self.waiting if w[1].priority is priority and w[1].work is work]
                if lane and not (work is Work.RAW and capped and implicit(lane[0]) > now):
                    lanes.append(lane)
            if lanes:
                return self.choose_in(lanes)
        return None

    def choose_in(self, lanes: list[list[tuple[int, Ticket, float]]]) -> tuple[int, Ticket, float]:
        everyone = [waiter for lane in lanes for waiter in lane]
        first = min(lanes, key=lambda lane: (implicit(lane[0]), lane[0][1].work))
        if self.crowded:
            key = min((waiter[1].key for waiter in everyone), key=self.served.__getitem__)
            lane = next(lane for lane in lanes if any(waiter[1].key == key for waiter in lane))
            return self.of_key(lane, key)
        level = min(self.credit[waiter[1].key] for waiter in everyone)
        urgent = [w for w in everyone if w[1].deadline_s is not None and self.is_level(w[1], level)]
        if urgent:
            earliest = min(urgent, key=explicit)  # equal ones: see `deadlines_differ` of the test
            if explicit(earliest) <= implicit(first[0]):
                return earliest
        key = min((waiter[1].key for waiter in first), key=lambda key: (self.credit[key], self.served[key]))
        if not self.is_level(next(w[1] for w in first if w[1].key == key), level):
            first = min(lanes, key=lambda lane: min(self.credit[waiter[1].key] for waiter in lane))
            key = min((waiter[1].key for waiter in first), key=lambda key: (self.credit[key], self.served[key]))
        return self.of_key(first, key)

    @staticmethod
    def of_key(lane: list[tuple[int, Ticket, float]], key: str) -> tuple[int, Ticket, float]:
        own = [waiter for waiter in lane if waiter[1].key == key]
        urgent = [waiter for waiter in own if waiter[1].deadline_s is not None]
        earliest = min(urgent, key=explicit, default=own[0])
        return earliest if urgent and explicit(earliest) < implicit(own[0]) else own[0]

    def is_level(self, ticket: Ticket, level: float) -> bool:
        return self.credit[ticket.key] < level + 1 / ticket.weight - 1e-9

    def grant(self, number: int, ticket: Ticket) -> None:
        self.running[number] = ticket
        self.lives[number] = self.born[ticket.key]
        self.floor = self.credit.get(ticket.key, 0.0)
        self.served[ticket.key] = self.event()
        if not self.crowded:
            self.credit[ticket.key] = self.floor + 1 / ticket.weight

    def release(self, number: int) -> None:
        del self.running[number]

    def take_back(self, number: int) -> None:
        ticket = self.running.pop(number)
        known = ticket.key in self.credit and self.born[ticket.key] == self.lives[number]
        if known and not self.crowded:
            self.credit[ticket.key] -= 1 / ticket.weight

    def event(self) -> int:
        self.events += 1
        return self.events

    def forget(self, keep: str) -> None:
        while len(self.credit) > self.max_buckets and [key for key in self.idle if key != keep]:
            key = next(key for key in self.idle if key != keep)
            self.idle.remove(key)
            del self.credit[key], self.served[key]


def implicit(waiter: tuple[int, Ticket, float]) -> float:
    return waiter[2] + waiter[1].slo_s


def explicit(waiter: tuple[int, Ticket, float]) -> float:
    assert waiter[1].deadline_s is not None
    return waiter[2] + waiter[1].deadline_s
