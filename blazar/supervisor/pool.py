"""Which child serves which model: starts one where there is none, once for all who wait."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Generic

import msgspec

from blazar.base.dirs import Dirs
from blazar.base.endpoint import Endpoint
from blazar.base.errors import ApiError, Code
from blazar.supervisor.child import C, Child, ChildStats, LaunchPlan, Lease
from blazar.supervisor.keeper import Keeper
from blazar.supervisor.machine import LEASABLE, State

MAX_STARTS = 4  # how often one request waits for a child that then does not stay

Planner = Callable[[str], Awaitable[LaunchPlan]]


class Outlook(msgspec.Struct, frozen=True):
    """What a model's requests can count on."""

    slots: int  # that run at once
    ctx: int  # tokens of a slot's context
    ready: bool  # whether it is loaded


class Supervisor(Generic[C]):
    """The children of one gateway.

    Args:
        dirs: records and logs.
        plan: how to start a model's engine.
        connect: makes a client of a ready engine.
    """

    def __init__(self, *, dirs: Dirs, plan: Planner, connect: Callable[[Endpoint], C]) -> None:
        self._plan = plan
        self._connect = connect
        self._mark = os.urandom(16).hex()
        self._keeper = Keeper(dirs.run, self._mark)
        self._log_dir = dirs.log / "engines"
        self._children: dict[str, Child[C]] = {}
        self._starts: dict[str, asyncio.Task[Child[C]]] = {}
        self._plans: dict[str, asyncio.Task[Outlook]] = {}
        self._spawned: dict[str, int] = {}
        self._stopping = False

    async def start(self) -> None:
        """End what an earlier gateway left behind, and start the watchdog."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self._keeper.sweep)
        self._keeper.start()

    def outlook(self, model: str) -> Outlook | None:
        """What a model that is loaded, or being loaded, offers; None where it is neither."""
        child = self._children.get(model)
        if child is None or child.state in (State.GONE, State.STOPPING):
            return None
        return Outlook(child.slots, child.ctx, child.state in LEASABLE)

    def is_loading(self, model: str) -> bool:
        """Whether its engine is being started, and so will be ready or fail in bounded time."""
        child = self._children.get(model)
        return model in self._starts or (child is not None and child.state is State.STARTING)

    async def expect(self, model: str) -> Outlook:
        """What a model would offer that is not loaded. Nothing is started. All who ask at once share one answer.

        Raises:
            ApiError: it could not be started at all.
        """
        task = self._plans.get(model)
        if task is None:
            task = self._plans[model] = asyncio.create_task(self._expect(model))
            task.add_done_callback(lambda done: self._on_expected(model, done))
        return await asyncio.shield(task)

    async def _expect(self, model: str) -> Outlook:
        plan = await self._plan(model)
        return Outlook(plan.slots, plan.ctx, ready=False)

    def _on_expected(self, model: str, task: asyncio.Task[Outlook]) -> None:
        self._plans.pop(model, None)
        if not task.cancelled():
            task.exception()  # all who waited have had it

    def try_lease(self, model: str) -> Lease[C] | None:
        """A lease on the model's child if that is ready, without waiting."""
        child = self._children.get(model)
        return child.try_lease() if child is not None else None

    async def lease(self, model: str) -> Lease[C]:
        """A lease on the model's child, which is started, or waited for, where it has to be.

        All who wait share one start and its outcome. One who is cancelled does not hurt the others.

        Raises:
            ApiError: it cannot be started, or died or stood still while loading.
        """
        failure = ApiError(
            Code.ENGINE_CRASHED, f"the engine of {model} was started {MAX_STARTS} times and did not stay"
        )
        for _ in range(MAX_STARTS):
            child = self._children.get(model)
            if child is not None and child.state is State.STOPPING:
                await child.wait_gone()
                child = self._children.get(model)
            if child is None or child.state is State.GONE:
                child = await self._start_once(model)
            await child.wait_settled()
            if (lease := child.try_lease()) is not None:
                return lease
            if child.failure is not None:
                if not child.lost_its_port:
                    raise child.failure.again()
                failure = child.failure.again()
        raise failure

    async def _start_once(self, model: str) -> Child[C]:
        task = self._starts.get(model)
        if task is None:
            if self._stopping:
                raise _shutting_down()
            task = self._starts[model] = asyncio.create_task(self._start(model))
            task.add_done_callback(lambda done: self._on_started(model, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._stopping:  # the start was called off, not the one who waits for it
                raise _shutting_down() from None
            raise

    def _on_started(self, model: str, task: asyncio.Task[Child[C]]) -> None:
        self._starts.pop(model, None)
        if not task.cancelled():
            task.exception()  # all who waited have had it; if all have left, nobody needs it

    async def _start(self, model: str) -> Child[C]:
        plan = await self._plan(model)
        if self._stopping:
            raise _shutting_down()
        restarts = self._spawned.get(model, 0)
        self._spawned[model] = restarts + 1
        child = Child(
            plan, connect=self._connect, keeper=self._keeper, mark=self._mark, log_dir=self._log_dir, restarts=restarts
        )
        self._children[model] = child
        return child

    async def evict(self, model: str, *, drain_s: float) -> bool:
        """Unload a model; whether it was loaded. Its requests in flight have that long to end."""
        child = self._children.get(model)
        if child is None or child.state is State.GONE:
            return False
        child.stop(drain_s=drain_s)
        await child.wait_gone()
        return True

    async def stop(self) -> None:
        """End every child, all at once, then the watchdog. No child is started any more."""
        self._stopping = True
        for task in tuple(self._starts.values()):
            task.cancel()
        await asyncio.gather(*self._starts.values(), return_exceptions=True)
        running = [child for child in self._children.values() if child.state is not State.GONE]
        for child in running:
            child.stop(drain_s=0)
        await asyncio.gather(*(child.wait_gone() for child in running))
        await self._keeper.stop()

    def kill(self) -> None:
        """End every child now, without waiting: the gateway is leaving at once."""
        for child in self._children.values():
            child.kill()

    def stats(self) -> tuple[ChildStats, ...]:
        """The children that are there, by model."""
        return tuple(child.stats() for _, child in sorted(self._children.items()) if child.state is not State.GONE)


def _shutting_down() -> ApiError:
    return ApiError(Code.UNAVAILABLE, "the gateway is shutting down")
