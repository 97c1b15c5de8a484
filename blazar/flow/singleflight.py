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
    """One request's part in a flight.

    Attributes:
        answer: the leader's whole answer, where it is shared.
    """

    __slots__ = ("answer", "flight")

    def __init__(self, flight: Flight) -> None:
        self.flight = flight
        self.answer: Answer | None = None

    @property
    def leads(self) -> bool:
        """Whether others wait for this one."""
        return self.flight.leader is self

    async def wait(self, shares: bool) -> str:
        """Wait for the leader; returns what ended it: warm, led, timeout, shared.

        Args:
            shares: the request may be answered with the leader's bytes.
        """
        return await self.flight.wait(self, shares)

    def on_engine(self, lease: Lease[EnginePool]) -> None:
        """The request goes to that engine now."""
        if self.leads:
            self.flight.on_engine(lease)

    def on_answer(self, answer: Answer | None) -> None:
        """The request has been answered; None: with more than is kept."""
        if self.leads and answer is not None and answer.status == 200:
            self.flight.answer = answer


class Flight:
    """Requests that are the same, the first of which runs."""

    __slots__ = ("_engine", "_poll", "_sent", "_waiting", "answer", "leader", "warm")

    def __init__(self) -> None:
        self.leader: Seat | None = None
        self.answer: Answer | None = None
        self.warm = False  # nothing is gained by waiting any more
        self._engine: Lease[EnginePool] | None = None
        self._sent = 0.0
        self._poll: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Seat, asyncio.Future[None], bool]] = []  # the first to come first

    async def wait(self, seat: Seat, shares: bool) -> str:
        """Wait for the leader; returns what ended it, for the metrics.

        Args:
            seat: of the duplicate.
            shares: it takes the leader's answer if there is one, and so does not go when the prefill is done.
        """
        if self.warm and not shares:
            return "warm"
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (seat, future, shares)
        self._waiting.append(entry)
        self._watch()
        try:
            async with asyncio.timeout(WINDOW_S):
                await future
        except TimeoutError:
            return "timeout"
        finally:
            with contextlib.suppress(ValueError):  # woken already
                self._waiting.remove(entry)
            if not self._waiting and self._poll is not None:
                self._poll.cancel()
                self._poll = None
        if shares and self.answer is not None:
            seat.answer = self.answer
            return "shared"
        return "led" if self.leader is seat else "warm"

    def on_engine(self, lease: Lease[EnginePool]) -> None:
        """The leader goes to that engine."""
        self._engine = lease
        self._sent = asyncio.get_running_loop().time()
        self._watch()

    def end(self) -> bool:
        """The leader has ended. Returns whether the flight is over: nobody leads it any more."""
        self._engine = self.leader = None
        if self._poll is not None:
            self._poll.cancel()
            self._poll = None
        if self.answer is not None:
            self._wake(sharing=True)
        if self._waiting:
            seat, future, _ = self._waiting.pop(0)
            self.leader = seat
            if future.done():  # it is just leaving, or its time is over
                return self.end()
            future.set_result(None)
            return False
        return True

    # ---- within ----

    def _wake(self, *, sharing: bool) -> None:
        """End the wait of those who share, or of those who do not."""
        for entry in [e for e in self._waiting if e[2] is sharing]:
            self._waiting.remove(entry)
            if not entry[1].done():
                entry[1].set_result(None)

    def _watch(self) -> None:
        if self._engine is not None and self._poll is None and any(not shares for _, _, shares in self._waiting):
            self._poll = asyncio.create_task(self._poll_slots(self._engine))

    async def _poll_slots(self, lease: Lease[EnginePool]) -> None:
        """Until the leader's prefill is done and its end is not near, as far as the engine tells.

        Which slot is the leader's it does not tell: those that are at work when first looked at are watched, the
        leader's is among them.
        """
        loop = asyncio.get_running_loop()
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
            now = loop.time()
            prefill_s = prefill_s or now - self._sent
            if len(slots) == 1 or not _ends_soon(ours, now - self._sent - prefill_s, prefill_s):
                self.warm = True
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
        self._flights: dict[Identity, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def board(self, identity: Identity) -> Seat:
        """A seat for a request: the leader's for the first one of its kind. To be left, however it ends."""
        flight = self._flights.get(identity)
        if flight is None:
            flight = self._flights[identity] = Flight()
            seat = flight.leader = Seat(flight)
        else:
            seat = Seat(flight)
        return seat

    def leave(self, identity: Identity, seat: Seat) -> None:
        """The request is over."""
        flight = seat.flight
        if flight.leader is seat and flight.end():
            del self._flights[identity]
