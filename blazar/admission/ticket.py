"""What a request brings to a queue: its priority, its kind of work, its deadline.

Everything here comes from the request alone; what the queue makes of it is `queue`'s.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from blazar.base.errors import ApiError, Code

HEAVY_BODY_BYTES = 64 * 1024  # L02: about 16k tokens at 4 bytes
MAX_DIGITS = 12  # of a number in a header
MAX_DEADLINE_MS = 24 * 3600 * 1000


class Priority(IntEnum):
    """Strict: a lower one is served when no higher one waits."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class Work(IntEnum):
    """Kinds of work, in the order in which they go at an equal deadline."""

    TOOL = 0  # chat with tools: an agent waits for it in the middle of something
    CHAT = 1
    RAW = 2  # raw completions: long as a rule, and nobody watches


WORDS = {"high": Priority.HIGH, "low": Priority.LOW}
SLO_S = (2.0, 30.0, 120.0)  # L03, by priority: from arrival to the implicit deadline
TOOL_SLO_S = 10.0  # of tool work, whatever its priority


class Ticket(msgspec.Struct, frozen=True):
    """A request as the queue sees it."""

    key: str
    weight: int
    priority: Priority
    work: Work
    slo_s: float  # from arrival to the implicit deadline
    deadline_s: float | None = None  # from arrival to the explicit deadline


def read_ticket(
    *, key: str, weight: int, best: Priority, priority: str, deadline_ms: str, body_bytes: int, work: Work
) -> Ticket:
    """The ticket of a request.

    Args:
        key: the client's key, "" for an anonymous one.
        weight: the key's.
        best: the best priority that the key may ask for.
        priority: the header X-Blazar-Priority; anything but high and low is normal.
        deadline_ms: the header X-Blazar-Deadline-Ms, "" where there is none.
        body_bytes: size of the body: above HEAVY_BODY_BYTES it goes down one class (L02).
        work: what kind of work it is.

    Raises:
        ApiError: BAD_REQUEST, the deadline is no number of milliseconds in range.
    """
    given = WORDS.get(priority.strip().lower(), Priority.NORMAL) if priority else Priority.NORMAL
    if given < best:
        given = best
    heavy = body_bytes > HEAVY_BODY_BYTES
    if heavy and given is not Priority.LOW:
        given = Priority(given + 1)
    slo_s = TOOL_SLO_S if work is Work.TOOL and not heavy else SLO_S[given]
    if not deadline_ms:
        return Ticket(key, weight, given, work, slo_s)
    deadline_s = read_number("X-Blazar-Deadline-Ms", deadline_ms, MAX_DEADLINE_MS, "milliseconds") / 1000
    return Ticket(key, weight, given, work, slo_s, deadline_s)


def read_number(name: str, text: str, most: int, unit: str) -> int:
    """A header that is a whole number from 1; 0 where it is empty.

    Raises:
        ApiError: BAD_REQUEST, it is none; the message names the header.
    """
    if not text:
        return 0
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else 0
    if not 1 <= value <= most:
        raise ApiError(
            Code.BAD_REQUEST,
            f"the header {name} is {text[:40]!r}, and has to be a whole number of {unit}, 1..={most}",
        )
    return value
