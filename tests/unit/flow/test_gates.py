"""Gates under cancellation: whatever happens to those who wait, slots come back and nobody is forgotten."""

from __future__ import annotations

import asyncio
import random

import pytest

from blazar.admission.ticket import Priority, Ticket, Work
from blazar.base.clock import SystemClock
from blazar.base.errors import ApiError, Code
from blazar.config.schema import Config
from blazar.flow.gates import Gate, Gates, Slot
from blazar.observe.metrics import QueueWaits

CONFIG = Config(max_queue=1000)


def ticket(key: str = "") -> Ticket:
    return Ticket(key, 1, Priority.NORMAL, Work.CHAT, 30.0)


def gate_of(slots: int, *, loading: bool = False) -> Gate:
    gate = Gates(SystemClock(), QueueWaits(), lambda model: loading).of("m", CONFIG)
    gate.set_slots(slots)
    return gate


async def enter(gate: Gate, key: str = "", wait_s: float = 30.0) -> Slot:
    slot = gate.enter(ticket(key))
    if not slot.granted:
        await gate.wait(slot, wait_s)
    return slot


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(10))
async def test_slots_come_back_however_those_who_wait_end(seed: int) -> None:
    chance = random.Random(seed)
    gate = gate_of(3)
    served = 0

    async def one(number: int) -> None:
        nonlocal served
        slot = await enter(gate, f"k{number % 5}")
        try:
            for _ in range(chance.randint(0, 4)):
                await asyncio.sleep(0)
            served += 1
        finally:
            slot.release()

    tasks = [asyncio.create_task(one(number)) for number in range(300)]
    cancelled = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        if chance.random() < 0.5:
            cancelled += chance.choice([task for task in tasks if not task.done()] or tasks).cancel()
        if chance.random() < 0.01:
            gate.fail(ApiError(Code.ENGINE_CRASHED, "gone"))
        if chance.random() < 0.05:
            gate.set_slots(chance.randint(1, 5))
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError, ApiError}
    assert (gate.queue.busy, len(gate.queue)) == (0, 0)
    assert cancelled > 0
    assert served > 0
    (await enter(gate)).release()


async def test_grant_to_one_who_is_just_leaving_goes_to_the_next() -> None:
    gate = gate_of(1)
    held = await enter(gate)
    first, second = (asyncio.create_task(enter(gate)) for _ in range(2))
    await settle()
    held.release()  # the first has the slot now, and does not know it yet
    first.cancel()
    slot = await second
    with pytest.raises(asyncio.CancelledError):
        await first
    assert gate.queue.busy == 1
    slot.release()
    assert gate.queue.busy == 0


async def test_slot_is_released_once() -> None:
    gate = gate_of(2)
    slot = await enter(gate)
    slot.release()
    slot.release()
    assert gate.queue.busy == 0


async def test_wait_of_a_model_that_loads_goes_on() -> None:
    gate = gate_of(0, loading=True)
    waiting = asyncio.create_task(enter(gate, wait_s=0.01))
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    gate.set_slots(1)
    (await waiting).release()


async def test_wait_of_a_model_that_is_loaded_ends() -> None:
    gate = gate_of(1)
    await enter(gate)
    with pytest.raises(ApiError, match=r"queue_wait_secs = 0\.01") as caught:
        await enter(gate, wait_s=0.01)
    assert caught.value.code is Code.ALL_SLOTS_BUSY
    assert caught.value.retry_after_s == 1
    assert len(gate.queue) == 0


async def test_gates_of_models_that_are_gone_are_forgotten_once_nobody_uses_them() -> None:
    gates = Gates(SystemClock(), QueueWaits(), lambda model: False)
    gate = gates.of("gone", CONFIG)
    gate.set_slots(1)
    slot = await enter(gate)
    gates.forget(set())
    assert "gone" in gates.all()
    slot.release()
    gates.forget({"other"})
    assert gates.all() == {}


async def test_limit_follows_the_configuration() -> None:
    gates = Gates(SystemClock(), QueueWaits(), lambda model: False)
    assert gates.of("m", CONFIG).queue.max_queue == 1000
    assert gates.of("m", Config(max_queue=5)).queue.max_queue == 5


async def test_failure_of_a_load_is_told_to_each_as_its_own_error() -> None:
    gate = gate_of(0)
    waiting = [asyncio.create_task(enter(gate)) for _ in range(3)]
    await settle()
    gate.fail(ApiError(Code.MODEL_LOAD_TIMEOUT, "too slow"))
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert len({id(error) for error in errors}) == 3
    assert all(isinstance(error, ApiError) and error.code is Code.MODEL_LOAD_TIMEOUT for error in errors)
    assert len(gate.queue) == 0
