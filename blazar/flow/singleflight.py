"""Duplicates of a request under way wait for it, so that its prompt is prefilled once (L05, B14).

The wait is outside the queue: a duplicate holds no slot. It ends

* when the leader's prefill is done, which the engine's `/slots` tell, asked every POLL_S and only while a duplicate
  waits. On a model of several slots that alone would win nothing, since a slot that still answers lends its cache to no
  other (measured): there the wait goes on while the leader's end is nearer than a prefill of one's own would take;
* when the leader has ended, well or not. Its slot is warm then, for one: that one leads those who still wait;
* after WINDOW_S.

Each runs for itself then; with sharing on, one whose leader has answered gets the leader's very bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import msgspec

from blazar.relay.exchange import Answer, BrokenExchange
from blazar.relay.pool import EnginePool
from blazar.relay.query import ask_engine
from blazar.supervisor import Lease

log = logging.getLogger("blazar.singleflight")

WINDOW_S = 5.0  # L05
POLL_S = 0.025
ASK_S = 1.0  # for an answer of /slots; an engine that is slower tells nothing in time


class _NextToken(msgspec.Struct, frozen=True):
    """How far a slot's answer has come."""

    n_decoded: int = 0
    n_remain: int = -1  # -1: it does not know


class _SlotState(msgspec.Struct, frozen=True):
    """A slot, as llama.cpp's `/slots` shows it."""

    id_task: int = -1
    is_processing: bool = False
    next_token: list[_NextToken] | _NextToken = msgspec.field(default_factory=list)

    @property
    def token(self) -> _NextToken:
        """The first sequence's."""
        if isinstance(self.next_token, _NextToken):
            return self.next_token
        return self.next_token[0] if self.next_token else _NextToken()


_decode_slots = msgspec.json.Decoder(list[_SlotState]).decode


Identity = tuple[str, str, int, bytes]  # key, model, context, digest of the body: what makes requests the same


class Seat:
    """One request's part among those that are the same.

    Args:
        flight: that it joins; None for the first one.

    Attributes:
        flight: of those who wait for it, or wait with it; None while it is the only one, as most are.
        answer: its own, if it came whole; of one that shares, the leader's.
        engine: where it runs, once it does, and `sent`, since when.
    """

    __slots__ = ("answer", "engine", "flight", "sent")

    def __init__(self, flight: Flight | None) -> None:
        self.flight = flight
        self.answer: Answer | None = None
        self.engine: Lease[EnginePool] | None = None
        self.sent = 0.0

    @property
    def leads(self) -> bool:
        """Whether it runs, and others wait for it."""
        return self.flight is None or self.flight.leader is self

    async def wait(self, *, shares: bool) -> str:
        """As a duplicate: wait for the leader; returns what ended it, for the metrics: warm, led, timeout, shared.

        Args:
            shares: it takes the leader's answer if there is one, and so does not go when the prefill is done.
        """
        assert self.flight is not None
        return await self.flight.wait(self, shares=shares)

    def on_engine(self, lease: Lease[EnginePool]) -> None:
        """The request goes to that engine now."""
        self.engine = lease
        self.sent = time.monotonic()
        if self.flight is not None and self.flight.leader is self:
            self.flight.watch()

    def on_answer(self, answer: Answer | None) -> None:
        """The request has been answered; None: with more than is kept."""
        if answer is not None and answer.status == 200:
            self.answer = answer


class Flight:
    """Requests that are the same, the first of which runs.

    Args:
        leader: the one that runs.
    """

    __slots__ = ("_answer", "_poll", "_waiting", "_warm", "leader")

    def __init__(self, leader: Seat) -> None:
        self.leader: Seat | None = leader
        self._answer: Answer | None = None
        self._warm = False  # nothing is gained by waiting any more
        self._poll: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Seat, asyncio.Future[None], bool]] = []  # the first to come first

    async def wait(self, seat: Seat, *, shares: bool) -> str:
        """As Seat.wait, for that seat."""
        if self._warm and not shares:
            return "warm"
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (seat, future, shares)
        self._waiting.append(entry)
        self.watch()
        try:
            async with asyncio.timeout(WINDOW_S):
                await future
        except TimeoutError:
            return "timeout"
        finally:
            with contextlib.suppress(ValueError):  # woken already
                self._waiting.remove(entry)
            if not self._waiting:
                self._stop_watching()
        if shares and self._answer is not None:
            seat.answer = self._answer
            return "shared"
        return "led" if self.leader is seat else "warm"

    def watch(self) -> None:
        """Look at the engine, where the leader runs and somebody waits for its prefill."""
        leader = self.leader
        if leader is None or leader.engine is None or self._poll is not None:
            return
        if any(not shares for _, _, shares in self._waiting):
            self._poll = asyncio.create_task(self._poll_slots(leader.engine, leader.sent))

    def end(self) -> Seat | None:
        """The leader has ended. Returns who leads those that still wait; None: nobody does."""
        self._answer = (self.leader and self.leader.answer) or self._answer
        self.leader = None
        self._stop_watching()
        if self._answer is not None:
            self._wake(sharing=True)
        while self._waiting:
            seat, future, _ = self._waiting.pop(0)
            if not future.done():  # else it is just leaving, or its time is over
                self.leader = seat
                future.set_result(None)
                break
        return self.leader

    # ---- within ----

    def _wake(self, *, sharing: bool) -> None:
        """End the wait of those who share, or of those who do not."""
        for entry in [e for e in self._waiting if e[2] is sharing]:
            self._waiting.remove(entry)
            if not entry[1].done():
                entry[1].set_result(None)

    def _stop_watching(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
            self._poll = None

    async def _poll_slots(self, lease: Lease[EnginePool], sent: float) -> None:
        """Until the leader's prefill is done and its end is not near, as far as the engine tells.

        Which slot is the leader's it does not tell: those that are at work when first looked at are watched, the
        leader's is among them.
        """
        watched: set[int] = set()
        prefill_s = 0.0
        while True:
            await asyncio.sleep(POLL_S)  # first of all: the request has to get there
            try:
                async with asyncio.timeout(ASK_S):
                    status, body = await ask_engine(lease.client, "GET", "/slots")
                slots = _decode_slots(body) if status == 200 else []
            except (BrokenExchange, msgspec.DecodeError, TimeoutError):
                return  # this engine has no such route, or not now: the leader's end is waited for
            if not slots:
                return
            busy = [slot for slot in slots if slot.is_processing]
            watched = watched or {slot.id_task for slot in busy}
            ours = [slot for slot in busy if slot.id_task in watched]
            if not ours or any(slot.token.n_decoded == 0 for slot in ours):
                continue  # not there yet, in its prefill, or at its end, which `end` will tell
            now = time.monotonic()
            prefill_s = prefill_s or now - sent
            if len(slots) == 1 or not _ends_soon(ours, now - sent - prefill_s, prefill_s):
                self._warm = True
                self._wake(sharing=False)
                return


def _ends_soon(slots: list[_SlotState], decoding_s: float, prefill_s: float) -> bool:
    """Whether all of these slots end before a prefill would."""
    for slot in slots:
        token = slot.token
        if token.n_remain < 0:
            return False
        a_token_s = decoding_s / token.n_decoded
        if token.n_remain * a_token_s > prefill_s:
            return False
    return True


class Flights:
    """The flights of one gateway."""

    def __init__(self) -> None:
        self._leaders: dict[Identity, Seat] = {}

    def board(self, identity: Identity) -> Seat:
        """A seat for a request: the leader's for the first one of its kind. To be left, however it ends."""
        leader = self._leaders.get(identity)
        if leader is None:
            seat = self._leaders[identity] = Seat(None)
            return seat
        if leader.flight is None:
            leader.flight = Flight(leader)
        return Seat(leader.flight)

    def leave(self, identity: Identity, seat: Seat) -> None:
        """The request is over."""
        if not seat.leads:
            return
        heir = seat.flight.end() if seat.flight is not None else None
        if heir is None:
            del self._leaders[identity]
        else:
            self._leaders[identity] = heir
