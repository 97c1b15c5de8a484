"""The states of a child and the events that move it. Pure: a table, and the refusal of what is not in it.

starting ──healthy──▶ ready ◀──idle/lease──▶ busy
    │                   │ ▲                    │
    │                 sleep wake               │
    │                   ▼ │                    │
    │                sleeping                  │
    └──────stop──────┬──┴─────────────stop─────┘
                     ▼
                  stopping ──exit──▶ gone        (exit leads to gone from everywhere)
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a child is in its life."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    SLEEPING = "sleeping"
    STOPPING = "stopping"
    GONE = "gone"


class Event(StrEnum):
    """What happens to a child."""

    HEALTHY = "healthy"  # it answers its health check
    LEASE = "lease"  # its first request in flight
    IDLE = "idle"  # its last request in flight has ended
    SLEEP = "sleep"
    WAKE = "wake"
    STOP = "stop"
    EXIT = "exit"  # the process has ended


class IllegalTransition(Exception):
    """A bug: the event cannot happen in that state."""


TABLE: dict[tuple[State, Event], State] = {
    (State.STARTING, Event.HEALTHY): State.READY,
    (State.READY, Event.LEASE): State.BUSY,
    (State.SLEEPING, Event.LEASE): State.BUSY,  # a request wakes it
    (State.BUSY, Event.IDLE): State.READY,
    (State.STOPPING, Event.IDLE): State.STOPPING,
    (State.GONE, Event.IDLE): State.GONE,  # the last request ends after its engine has
    (State.READY, Event.SLEEP): State.SLEEPING,
    (State.SLEEPING, Event.WAKE): State.READY,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.READY, Event.STOP): State.STOPPING,
    (State.BUSY, Event.STOP): State.STOPPING,
    (State.SLEEPING, Event.STOP): State.STOPPING,
    (State.STOPPING, Event.STOP): State.STOPPING,
    (State.GONE, Event.STOP): State.GONE,
    (State.STARTING, Event.EXIT): State.GONE,
    (State.READY, Event.EXIT): State.GONE,
    (State.BUSY, Event.EXIT): State.GONE,
    (State.SLEEPING, Event.EXIT): State.GONE,
    (State.STOPPING, Event.EXIT): State.GONE,
}

LEASABLE = frozenset((State.READY, State.BUSY, State.SLEEPING))


def transition(state: State, event: Event) -> State:
    """The next state.

    Raises:
        IllegalTransition: the table has no such row.
    """
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalTransition(f"{event} cannot happen while {state}") from None
