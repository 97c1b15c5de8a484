"""The gate of each model: waits for what its queue decides, and gives back what is held, however a request ends.

The queue decides, waiters act: a grant counts once its waiter has taken it; one that is gone by then returns it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from blazar.admission.queue import AdmissionQueue, Waiter
from blazar.admission.ticket import Ticket
from blazar.base.clock import Clock
from blazar.base.errors import ApiError, Code
from blazar.config.schema import Config
from blazar.observe.metrics import QueueWaits
from blazar.relay.pool import EnginePool
from blazar.supervisor import Lease

AT_ONCE = (b"x-blazar-queue", b"ahead=0; waited_ms=0")
MAX_RETRY_S = 3600  # what is told at most


class Slot:
    """The right to one request on the model's engine. Release it when the engine is free of the request.

    Attributes:
        waiter: what the queue knows of it.
        lease: on the engine, once there is one; it is released with the slot.
    """

    __slots__ = ("_gate", "_released", "lease", "waiter")

    def __init__(self, gate: Gate, waiter: Waiter) -> None:
        self._gate = gate
        self._released = False
        self.waiter = waiter
        self.lease: Lease[EnginePool] | None = None

    def release(self) -> None:
        """Give it back; a second time does nothing."""
        if not self._released:
            self._released = True
            if self.lease is not None:
                self.lease.release()
            self._gate.on_release(self.waiter)

    @property
    def header(self) -> tuple[bytes, bytes]:
        """`x-blazar-queue`: how many were ahead, and how long it waited."""
        waiter = self.waiter
        if self.at_once:
            return AT_ONCE
        return (b"x-blazar-queue", b"ahead=%d; waited_ms=%d" % (waiter.ahead, round(waiter.waited_s * 1000)))

    @property
    def at_once(self) -> bool:
        """Whether there was nothing to wait for."""
        return self.waiter.granted == self.waiter.arrived

    @property
    def granted(self) -> bool:
        """Whether it may be used."""
        return self.waiter.granted is not None


class Gate:
    """One model's queue and those who wait in it.

    Args:
        model: its name.
        clock: where time comes from.
        max_queue: requests that wait at once.
        waits: told how long each one waited.

    Attributes:
        queue: who is next.
        is_loading: whether the model is being loaded; that time does not count against anybody's wait.
        config: that its limits were read from.
    """

    def __init__(self, model: str, clock: Clock, max_queue: int, waits: QueueWaits) -> None:
        self.model = model
        self.queue = AdmissionQueue(0, max_queue)
        self.is_loading: Callable[[], bool] = bool
        self.config: Config | None = None
        self._clock = clock
        self._waits = waits
        self._futures: dict[Waiter, asyncio.Future[None]] = {}

    def set_slots(self, slots: int) -> None:
        """The model runs that many requests at once from now on."""
        if slots != self.queue.slots:
            self.queue.slots = slots
            self._serve()

    def enter(self, ticket: Ticket) -> Slot:
        """Into the queue; where a slot is free and nobody waits, right through it.

        Args:
            ticket: of the request.

        Returns:
            What will be its slot: `wait` for it where it is not granted yet.

        Raises:
            ApiError: ALL_SLOTS_BUSY, the queue is full.
        """
        waiter = self.queue.enter(ticket, self._clock.monotonic())
        if waiter is None:
            raise self._full()
        if waiter.granted is not None:
            self._waits.add(self.model, 0.0)
        return Slot(self, waiter)

    async def wait(self, slot: Slot, wait_s: float) -> None:
        """Wait until the slot is granted.

        Args:
            slot: that `enter` gave, and that is not granted.
            wait_s: longest wait for a slot of the model once it is loaded.

        Raises:
            ApiError: ALL_SLOTS_BUSY, the wait is over; what `fail` was given. There is nothing to release then.
        """
        await self._wait(slot.waiter, wait_s)
        self._waits.add(self.model, slot.waiter.waited_s)

    def fail(self, error: ApiError) -> None:
        """Everyone who waits gets that error: what they wait for will not come."""
        for waiter, future in tuple(self._futures.items()):
            if not future.done():
                self._end_wait(waiter, error.again())

    def on_release(self, waiter: Waiter) -> None:
        """A slot comes back."""
        self.queue.release(waiter, self._clock.monotonic())
        self._serve()

    # ---- within ----

    async def _wait(self, waiter: Waiter, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        future = self._futures[waiter] = loop.create_future()
        timer = loop.call_later(wait_s, self._on_time, waiter, wait_s)
        try:
            self._serve()  # a slot may be free that those before may not have
            await future
        except asyncio.CancelledError:
            if waiter.granted is not None:
                self.queue.take_back(waiter)
            elif not future.done() or future.cancelled():  # else `_end_wait` has taken it out
                self.queue.leave(waiter)
            self._serve()
            raise
        finally:
            timer.cancel()
            del self._futures[waiter]

    def _on_time(self, waiter: Waiter, wait_s: float) -> None:
        future = self._futures.get(waiter)
        if future is None or future.done():
            return
        if self.is_loading():  # bounded by the load's own limits
            asyncio.get_running_loop().call_later(wait_s, self._on_time, waiter, wait_s)
            return
        waited_s, ahead = self._clock.monotonic() - waiter.arrived, len(self.queue) - 1
        error = ApiError(
            Code.ALL_SLOTS_BUSY,
            f"no slot of {self.model} became free within queue_wait_secs = {wait_s:g}: waited {waited_s:.3f} s, "
            f"{self.queue.busy} of {self.queue.slots} slots busy, {ahead} others waiting",
            retry_after_s=self._retry_s(ahead),
        )
        self._end_wait(waiter, error)

    def _end_wait(self, waiter: Waiter, error: ApiError) -> None:
        self.queue.leave(waiter)
        self._futures[waiter].set_exception(error)

    def _serve(self) -> None:
        """Wake whoever the queue grants a slot."""
        if not len(self.queue):
            return
        now = self._clock.monotonic()
        while (waiter := self.queue.next_granted(now)) is not None:
            future = self._futures[waiter]
            if not future.done():  # else it was cancelled, and gives the slot back when it wakes
                future.set_result(None)

    def _full(self) -> ApiError:
        queue = self.queue
        return ApiError(
            Code.ALL_SLOTS_BUSY,
            f"all {queue.slots} slots of {self.model} are busy, and max_queue = {queue.max_queue} requests wait",
            retry_after_s=self._retry_s(len(queue)),
        )

    def _retry_s(self, ahead: int) -> int:
        return min(max(1, math.ceil(self.queue.expected_wait_s(ahead))), MAX_RETRY_S)


class Gates:
    """The gates of all models.

    Args:
        clock: where time comes from.
        waits: told how long each request waited.
        is_loading: whether a model is being loaded.
    """

    def __init__(self, clock: Clock, waits: QueueWaits, is_loading: Callable[[str], bool]) -> None:
        self._clock = clock
        self._waits = waits
        self._is_loading = is_loading
        self._gates: dict[str, Gate] = {}

    def of(self, model: str, config: Config) -> Gate:
        """The gate of a model that exists, which goes by that configuration."""
        gate = self._gates.get(model)
        if gate is None:
            gate = self._gates[model] = Gate(model, self._clock, config.max_queue, self._waits)
            gate.is_loading = lambda: self._is_loading(model)
        if gate.config is not config:
            gate.config = config
            override = config.model_overrides.get(model)
            own = override.max_queue if override is not None else None
            gate.queue.max_queue = config.max_queue if own is None else own
        return gate

    def all(self) -> dict[str, Gate]:
        """Every gate that there has been need of, by model. Bounded by the models that there are."""
        return self._gates

    def forget(self, known: set[str]) -> None:
        """Drop the gates of models that are gone and that nobody uses any more."""
        for model in [m for m, gate in self._gates.items() if m not in known]:
            queue = self._gates[model].queue
            if not queue.busy and not len(queue):
                del self._gates[model]
