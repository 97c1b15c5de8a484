"""What one key may still use, and what it has used: requests and tokens of the last minute, tokens of the UTC day,
requests under way.

A request's tokens are reserved when it is admitted and settled when it has ended. Whatever is refused burns nothing
(C15): `check` only looks, `commit` looks and takes in one step, `give_back` undoes a commit.
"""

from __future__ import annotations

import functools
import math
from enum import StrEnum

import msgspec

from blazar._fast.buckets import WINDOW_S, Window, take
from blazar.admission.keys import Limits
from blazar.base.errors import ApiError, Code
from blazar.base.records import DayUse

DAY_S = 86400
DEFAULT_COMPLETION = 1024  # tokens reserved for the answer of a request that names no maximum (SPEC §3)
BUSY_RETRY_S = 1  # nobody knows when a request under way will end

Headers = tuple[tuple[bytes, bytes], ...]


class Kind(StrEnum):
    """Which limit refused a request."""

    MAX_CONCURRENT = "max_concurrent"
    RPM = "rpm"
    TPM = "tpm"
    DAILY_TOKENS = "daily_tokens"


class Moment(msgspec.Struct, frozen=True):
    """One look at both clocks."""

    now: float  # seconds of a clock that never goes back
    wall: float  # seconds since the epoch, UTC


class Need(msgspec.Struct, frozen=True):
    """The tokens that a request is thought to take."""

    prompt: int  # estimated, at least 1
    completion: int  # the longest answer, already no longer than the context allows; 0: it generates nothing

    @property
    def least(self) -> int:
        """What has to fit: the answer adapts to what is left, down to one token."""
        return self.prompt + 1 if self.completion else self.prompt


class Reservation(msgspec.Struct):
    """What a request holds of its key's budget until it is settled or given back."""

    at: float  # when it was made, as Moment.now
    day: int
    tokens: int
    windows: bool  # whether it stands in the windows of the last minute


class Account:
    """The use of one key.

    Args:
        name: the key's, "" for the anonymous one.
        limits: the key's; replaced when the configuration changes.
        today: what it has used today already.

    Attributes:
        in_flight: requests under way.
        use: of the day that was looked at last.
        unsaved: rows that have changed since they were last taken by `take_unsaved`.
    """

    __slots__ = ("_midnight", "_requests", "_reserved", "_tokens", "in_flight", "limits", "name", "unsaved", "use")

    def __init__(self, name: str, limits: Limits, today: DayUse) -> None:
        self.name = name
        self.limits = limits
        self.use = today
        self.in_flight = 0
        self.unsaved: dict[int, DayUse] = {}
        self._requests = Window()
        self._tokens = Window()
        self._midnight = (today.day + 1) * DAY_S  # the end of the day that `use` is of
        self._reserved = 0  # tokens of requests under way, which the day's use does not hold yet

    @property
    def label(self) -> str:
        """What logs and metrics call it."""
        return self.name or "anonymous"

    # ---- the lease (B01: before anything else) ----

    def enter(self) -> None:
        """One more request is under way.

        Raises:
            ApiError: RATE_LIMITED, there are as many as the key may have.
        """
        most = self.limits.max_concurrent
        if most and self.in_flight >= most:
            raise ApiError(
                Code.RATE_LIMITED,
                f"key {self.name!r} has {self.in_flight} requests under way, and its max_concurrent is {most}",
                retry_after_s=BUSY_RETRY_S,
                kind=Kind.MAX_CONCURRENT,
            )
        self.in_flight += 1

    def leave(self) -> None:
        """One of them has ended."""
        self.in_flight -= 1

    # ---- requests and tokens ----

    def check(self, at: Moment, need: Need) -> None:
        """Refuse what does not fit now; nothing is taken. Order: rpm, tpm, day (B01).

        Raises:
            ApiError: RATE_LIMITED, with the seconds until it would fit, or without where it never will.
        """
        refusal = self._refusal(at, need)
        if refusal is not None:
            raise refusal

    def commit(self, at: Moment, need: Need) -> Reservation:
        """Take the request and its tokens: prompt and answer, or what the budget has left if that is less (SPEC §3).

        Raises:
            ApiError: as check.
        """
        limits, use = self.limits, self._day(at)
        tokens = need.prompt + need.completion
        limited = limits.rpm > 0 or limits.tpm > 0 or limits.daily_tokens > 0
        if limited:  # else there is nothing to hold it to, now: nothing for the windows to remember
            if limits.daily_tokens:
                tokens = min(tokens, limits.daily_tokens - use.tokens - self._reserved)
            if tokens >= need.least:
                tokens = take(self._requests, self._tokens, at.now, limits.rpm, limits.tpm, need.least, tokens)
            if tokens < need.least:
                refusal = self._refusal(at, need)
                assert refusal is not None
                raise refusal
        use.requests += 1
        self.unsaved[use.day] = use
        self._reserved += tokens
        return Reservation(at.now, use.day, tokens, limited)

    def give_back(self, reservation: Reservation, at: Moment) -> None:
        """The queue has refused the request: it is as if it had not been."""
        if reservation.windows:
            self._requests.amend(reservation.at, at.now, -1)
            self._tokens.amend(reservation.at, at.now, -reservation.tokens)
        self._reserved -= reservation.tokens
        use = self._day(at)
        if use.day == reservation.day:
            use.requests -= 1
            self.unsaved[use.day] = use

    def settle(self, reservation: Reservation, at: Moment, *, prompt: int, completion: int) -> None:
        """The request has ended, and this is what it has really taken.

        What was reserved too much comes back at once; what was reserved too little is added, also for a request
        that has run for longer than the window and whose reservation has left it.
        """
        if reservation.windows:
            change = prompt + completion - reservation.tokens
            if not self._tokens.amend(reservation.at, at.now, change) and change > 0:
                self._tokens.add(at.now, change)
        self._reserved -= reservation.tokens
        use = self._day(at)
        use.prompt_tokens += prompt
        use.completion_tokens += completion
        self.unsaved[use.day] = use

    # ---- what is told ----

    def headers(self, at: Moment) -> Headers:
        """`x-ratelimit-*`, as far as the key has limits."""
        limits = self.limits
        if not (limits.rpm or limits.tpm or limits.daily_tokens):
            return ()
        found: Headers = ()
        if limits.rpm:
            used, empty_s = self._requests.level(at.now)
            found = _headers(REQUESTS, limits.rpm, limits.rpm - used, empty_s)
        if limits.tpm:
            used, empty_s = self._tokens.level(at.now)
            found += _headers(TOKENS, limits.tpm, limits.tpm - used, empty_s)
        elif limits.daily_tokens:
            left = limits.daily_tokens - self._day(at).tokens - self._reserved
            found += _headers(TOKENS, limits.daily_tokens, left, DAY_S - at.wall % DAY_S)
        return found

    def today(self, at: Moment) -> DayUse:
        """A copy of the day's use."""
        return msgspec.structs.replace(self._day(at))

    def take_unsaved(self) -> list[DayUse]:
        """Copies of the rows that have changed; they count as saved from now on."""
        rows = [msgspec.structs.replace(row) for row in self.unsaved.values()]
        self.unsaved.clear()
        return rows

    # ---- within ----

    def _day(self, at: Moment) -> DayUse:
        if at.wall >= self._midnight:  # a clock that is set back does not bring the old day back
            day = int(at.wall // DAY_S)
            self._midnight = (day + 1) * DAY_S
            if day > self.use.day:
                self.use = DayUse(self.name, day)
        return self.use

    def _refusal(self, at: Moment, need: Need) -> ApiError | None:
        """Why it does not fit; None: it does."""
        limits, least = self.limits, need.least
        if limits.rpm and (wait_s := self._requests.wait_s(at.now, 1, limits.rpm)):
            return self._error(at, Kind.RPM, f"{limits.rpm} requests a minute are used up", wait_s)
        if limits.tpm and (wait_s := self._tokens.wait_s(at.now, least, limits.tpm)):
            used = self._tokens.used(at.now)
            return self._error(at, Kind.TPM, _too_many(least, used, limits.tpm, "a minute"), wait_s)
        if limits.daily_tokens:
            used = self._day(at).tokens + self._reserved
            if used + least > limits.daily_tokens:
                never = least > limits.daily_tokens
                text = _too_many(least, used, limits.daily_tokens, "a UTC day")
                return self._error(at, Kind.DAILY_TOKENS, text, -1.0 if never else DAY_S - at.wall % DAY_S)
        return None

    def _error(self, at: Moment, kind: Kind, text: str, wait_s: float) -> ApiError:
        never = wait_s < 0
        return ApiError(
            Code.RATE_LIMITED,
            f"key {self.name!r}: {text}",
            f"send a smaller request, or raise {kind} of the key" if never else "",
            retry_after_s=None if never else max(1, math.ceil(wait_s)),
            kind=kind,
            headers=self.headers(at),
        )


def _too_many(least: int, used: int, limit: int, per: str) -> str:
    if least > limit:
        return f"the request needs {least} tokens at least, and can never fit {limit} {per}"
    return f"the request needs {least} tokens at least, and {used} of {limit} {per} are used or reserved"


def _names(what: bytes) -> tuple[bytes, bytes, bytes]:
    return (b"x-ratelimit-limit-" + what, b"x-ratelimit-remaining-" + what, b"x-ratelimit-reset-" + what)


REQUESTS, TOKENS = _names(b"requests"), _names(b"tokens")


def _headers(names: tuple[bytes, bytes, bytes], limit: int, left: int, reset_s: float) -> Headers:
    remaining = b"%d" % left if left > 0 else b"0"
    return (_limit_header(names[0], limit), (names[1], remaining), (names[2], as_duration(reset_s)))


@functools.lru_cache(maxsize=1024)
def _limit_header(name: bytes, limit: int) -> tuple[bytes, bytes]:
    return (name, b"%d" % limit)


UNDER_A_MINUTE = [b"%ds" % seconds for seconds in range(60)]


def as_duration(seconds: float) -> bytes:
    """Seconds as OpenAI writes them in these headers: `59s`, `6m0s`, `1h0m0s`; rounded up."""
    whole = math.ceil(seconds)
    if whole < 60:
        return UNDER_A_MINUTE[whole]
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return b"%dh%dm%ds" % (hours, minutes, rest) if hours else b"%dm%ds" % (minutes, rest)


assert WINDOW_S == 60  # rpm and tpm are a minute's
