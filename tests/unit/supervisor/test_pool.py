"""The supervisor with real processes: shared starts, leases, stops, and those who leave meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blazar.base.dirs import Dirs
from blazar.base.endpoint import Endpoint
from blazar.base.errors import ApiError, Code
from blazar.base.records import EngineKind
from blazar.supervisor import LaunchPlan, Supervisor
from blazar.supervisor import child as child_module
from tests.support.scripted_engine import __file__ as engine_path


class Client:
    closed = False

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def close(self) -> None:
        self.closed = True


class Plans:
    """Plans for scripted engines; counts how often it was asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked = 0
        self.argv: tuple[str, ...] = (sys.executable, engine_path)
        self.timeout_s = 20.0
        self.secret = "s"

    async def __call__(self, model: str) -> LaunchPlan:
        self.asked += 1
        path = str(self.root / f"{model}-{self.asked}.sock")
        return LaunchPlan(
            model=model, kind=EngineKind.LLAMACPP, tag="t", argv=(*self.argv, "--host", path),
            env={"SCRIPTED_DIR": str(self.root)},
            endpoint=Endpoint(host="", port=0, unix_path=path, secret=self.secret),
            load_timeout_s=self.timeout_s, slots=1, ctx=1, on_abort="cancel",
        )  # fmt: skip


@asynccontextmanager
async def supervised(root: Path) -> AsyncIterator[tuple[Supervisor[Client], Plans]]:
    dirs = Dirs(config_file=root / "c", data=root / "data")
    dirs.ensure()
    plans = Plans(root)
    supervisor: Supervisor[Client] = Supervisor(dirs=dirs, plan=plans, connect=Client)
    await supervisor.start()
    try:
        yield supervisor, plans
    finally:
        await supervisor.stop()
    assert supervisor.stats() == ()


def living(group: int) -> list[str]:
    """The members of a process group that are not just waiting to be reaped by whoever inherited them."""
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [row[-1] for row in rows if int(row[0]) == group and not row[1].startswith("Z")]


def start(root: Path, text: str) -> None:
    (root / "start.json").write_text(text)


async def test_leases_share_one_start_and_count(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, plans):
        assert supervisor.try_lease("m") is None
        leases = await asyncio.gather(*(supervisor.lease("m") for _ in range(5)))
        assert plans.asked == 1
        shown = supervisor.stats()[0]
        assert (shown.state, shown.in_flight, shown.model) == ("busy", 5, "m")
        fast = supervisor.try_lease("m")
        assert fast is not None
        for lease in (*leases, fast):
            lease.release()
            lease.release()  # a second time does nothing
        assert (supervisor.stats()[0].state, supervisor.stats()[0].in_flight) == ("ready", 0)


async def test_waiter_that_leaves_does_not_hurt_the_others(short_tmp: Path) -> None:
    start(short_tmp, '{"load_until": "loaded"}')
    async with supervised(short_tmp) as (supervisor, plans):
        waiters = [asyncio.create_task(supervisor.lease("m")) for _ in range(3)]
        while not (short_tmp / "seen.jsonl").exists():
            await asyncio.sleep(0.005)
        waiters[0].cancel()
        (short_tmp / "loaded.go").touch()
        assert (await waiters[1]).client is (await waiters[2]).client
        assert plans.asked == 1
        assert supervisor.stats()[0].in_flight == 2


async def test_failed_load_fails_all_who_wait_and_the_next_starts_anew(short_tmp: Path) -> None:
    start(short_tmp, '{"stderr": "error: invalid argument: --zzz", "exit": 1}')
    async with supervised(short_tmp) as (supervisor, plans):
        outcomes = await asyncio.gather(*(supervisor.lease("m") for _ in range(3)), return_exceptions=True)
        assert len({id(outcome) for outcome in outcomes}) == 3
        for outcome in outcomes:
            assert isinstance(outcome, ApiError)
            assert outcome.code is Code.ENGINE_CRASHED
            assert "--zzz" in str(outcome)
        start(short_tmp, "{}")
        (await supervisor.lease("m")).release()
        assert plans.asked == 2
        assert supervisor.stats()[0].restarts == 1


async def test_plan_that_cannot_be_made_fails_all_who_wait(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, _):

        async def none(model: str) -> LaunchPlan:
            raise ApiError(Code.MODEL_NOT_FOUND, f"no {model}")

        supervisor._plan = none
        outcomes = await asyncio.gather(*(supervisor.lease("m") for _ in range(2)), return_exceptions=True)
        assert all(isinstance(outcome, ApiError) and outcome.code is Code.MODEL_NOT_FOUND for outcome in outcomes)


async def test_program_that_is_not_there_is_an_error_of_the_engine(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, plans):
        plans.argv = ("/nowhere/llama-server",)
        with pytest.raises(ApiError, match="cannot start /nowhere/llama-server"):
            await supervisor.lease("m")


@pytest.mark.rule("T08")
async def test_silent_load_is_given_up_after_its_time(short_tmp: Path) -> None:
    start(short_tmp, '{"never_healthy": true, "ignore_term": true}')
    async with supervised(short_tmp) as (supervisor, plans):
        plans.timeout_s = 0.5
        with pytest.raises(ApiError) as caught:
            await supervisor.lease("m")
        assert caught.value.code is Code.MODEL_LOAD_TIMEOUT


async def test_evict_drains_first_and_a_waiter_gets_a_new_child(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, plans):
        lease = await supervisor.lease("m")
        evicting = asyncio.create_task(supervisor.evict("m", drain_s=20))
        while supervisor.stats()[0].state != "stopping":
            await asyncio.sleep(0.005)
        assert supervisor.try_lease("m") is None
        waiting = asyncio.create_task(supervisor.lease("m"))
        assert not lease.client.closed
        lease.release()
        assert await evicting
        assert lease.client.closed
        again = await waiting
        assert again.client is not lease.client
        assert plans.asked == 2
        assert not await supervisor.evict("other", drain_s=0)


async def test_evict_while_loading_tells_those_who_wait(short_tmp: Path) -> None:
    start(short_tmp, '{"load_until": "never"}')
    async with supervised(short_tmp) as (supervisor, _):
        waiting = asyncio.create_task(supervisor.lease("m"))
        while not supervisor.stats():
            await asyncio.sleep(0.005)
        assert await supervisor.evict("m", drain_s=0)
        with pytest.raises(ApiError, match="unloaded while it was loading"):
            await waiting


async def test_death_is_told_with_its_cause_and_the_next_lease_restarts(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, _):
        lease = await supervisor.lease("m")
        os.kill(supervisor.stats()[0].pid, 9)
        cause = await lease.child.wait_gone(10)
        assert cause is not None
        assert "SIGKILL" in cause.words
        lease.release()
        assert supervisor.stats() == ()
        (await supervisor.lease("m")).release()
        assert supervisor.stats()[0].restarts == 1


async def test_child_that_lives_is_not_waited_for_longer_than_asked(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, _):
        lease = await supervisor.lease("m")
        assert await lease.child.wait_gone(0.05) is None
        lease.release()


async def test_nothing_starts_any_more_once_it_stops(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, _):
        await supervisor.stop()
        with pytest.raises(ApiError, match="shutting down"):
            await supervisor.lease("m")


@pytest.mark.parametrize("folder", ["log", "run"])
async def test_data_directory_that_has_gone_is_an_error_that_says_so(short_tmp: Path, folder: str) -> None:
    async with supervised(short_tmp) as (supervisor, plans):
        shutil.rmtree(short_tmp / "data" / folder)
        with pytest.raises(ApiError, match="check that the data directory is writable"):
            await supervisor.lease("m")
        assert plans.asked == 1
        assert supervisor.stats() == ()
        while marked(short_tmp):  # one that was started already is ended
            await asyncio.sleep(0.005)


def marked(root: Path) -> list[str]:
    """Processes that a plan of this root has started."""
    mark, found = f"SCRIPTED_DIR={root}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


async def test_one_who_waits_for_a_plan_when_it_stops_is_told_and_not_cancelled(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, _):
        asked = asyncio.Event()

        async def never(model: str) -> LaunchPlan:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        supervisor._plan = never
        waiting = asyncio.create_task(supervisor.lease("m"))
        await asked.wait()
        await supervisor.stop()
        with pytest.raises(ApiError, match="shutting down"):
            await waiting


async def test_one_who_leaves_while_a_plan_is_made_is_cancelled(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, plans):
        waiting = asyncio.create_task(supervisor.lease("m"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        (await supervisor.lease("m")).release()
        assert plans.asked == 1


async def test_later_stop_shortens_a_drain_under_way(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, _):
        lease = await supervisor.lease("m")
        evicting = asyncio.create_task(supervisor.evict("m", drain_s=50))
        while supervisor.stats()[0].state != "stopping":
            await asyncio.sleep(0.005)
        async with asyncio.timeout(10):
            await supervisor.stop()
        assert await evicting
        lease.release()


async def test_later_stop_does_not_lengthen_a_drain(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, _):
        lease = await supervisor.lease("m")
        async with asyncio.timeout(10):
            await asyncio.gather(supervisor.evict("m", drain_s=0.1), supervisor.evict("m", drain_s=50))
        lease.release()


@pytest.mark.rule("T12")
async def test_engine_that_ignores_term_is_killed_with_its_group(short_tmp: Path) -> None:
    start(short_tmp, '{"ignore_term": true}')
    async with supervised(short_tmp) as (supervisor, plans):
        plans.argv = ("/bin/sh", "-c", f"trap '' TERM; {sys.executable} {engine_path} \"$@\"; exit 1", "sh")
        lease = await supervisor.lease("m")
        lease.release()
        group = supervisor.stats()[0].pid
        assert await supervisor.evict("m", drain_s=0)
        assert living(group) == []
        cause = await lease.child.wait_gone(0)
        assert cause is not None
        assert not cause.clean


async def test_client_that_cannot_be_made_ends_the_engine_and_everybodys_wait(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, plans):

        def broken(endpoint: Endpoint) -> Client:
            raise ValueError("no client")

        supervisor._connect = broken
        outcomes = await asyncio.gather(*(supervisor.lease("m") for _ in range(2)), return_exceptions=True)
        assert all(isinstance(outcome, ApiError) and outcome.code is Code.INTERNAL for outcome in outcomes)
        assert plans.asked == 1
        task = supervisor._children["m"]._task
        with pytest.raises(ValueError, match="no client"):
            await task


async def test_health_probe_that_fails_is_no_health(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(endpoint: Endpoint, *, asks_props: bool) -> None:
        raise UnicodeError("not an answer")

    async with supervised(short_tmp) as (supervisor, _):
        monkeypatch.setattr(child_module, "wait_healthy", broken)
        with pytest.raises(ApiError) as caught:
            await supervisor.lease("m")
        assert caught.value.code is Code.INTERNAL
        with pytest.raises(UnicodeError):
            await supervisor._children["m"]._task


async def test_port_that_was_taken_meanwhile_is_another_start_and_no_error(short_tmp: Path) -> None:
    start(short_tmp, '{"stderr": "couldn\'t bind HTTP server socket", "exit": 1}')
    async with supervised(short_tmp) as (supervisor, plans):
        plan = supervisor._plan

        async def second_time(model: str) -> LaunchPlan:
            if plans.asked == 1:
                start(short_tmp, "{}")
            return await plan(model)

        supervisor._plan = second_time
        leases = await asyncio.gather(*(supervisor.lease("m") for _ in range(3)))
        assert plans.asked == 2
        assert len({id(lease.client) for lease in leases}) == 1


async def test_port_that_is_always_taken_is_told_after_some_starts(short_tmp: Path) -> None:
    start(short_tmp, '{"stderr": "couldn\'t bind HTTP server socket", "exit": 1}')
    async with supervised(short_tmp) as (supervisor, plans):
        with pytest.raises(ApiError, match="couldn't bind"):
            await supervisor.lease("m")
        assert plans.asked == 4


async def test_engines_secret_is_in_no_error(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, plans):
        plans.secret, plans.timeout_s = "TheSecret", 0.3
        plans.argv = ("/bin/sh", "-c", "echo api key TheSecret; exec sleep 600")
        with pytest.raises(ApiError, match=r"api key \[secret\]"):
            await supervisor.lease("m")


async def test_evict_and_lease_storm_never_loses_anybody(short_tmp: Path) -> None:
    async with supervised(short_tmp) as (supervisor, _):

        async def ask() -> None:
            lease = supervisor.try_lease("m") or await supervisor.lease("m")
            assert not lease.client.closed
            await asyncio.sleep(0)
            lease.release()

        for _ in range(3):
            asking = [asyncio.create_task(ask()) for _ in range(20)]
            await asking[0]
            asking += [asyncio.create_task(ask()) for _ in range(20)]
            evicting = [asyncio.create_task(supervisor.evict("m", drain_s=20)) for _ in range(3)]
            async with asyncio.timeout(30):
                await asyncio.gather(*asking, *evicting)
        assert all(shown.in_flight == 0 for shown in supervisor.stats())


@pytest.mark.rule("T08")
async def test_load_that_only_talks_is_given_up_too(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blazar.supervisor.child.LOAD_CAP", 2)
    start(short_tmp, '{"chatter": true}')
    async with supervised(short_tmp) as (supervisor, plans):
        plans.timeout_s = 0.5
        with pytest.raises(ApiError, match="till loading") as caught:
            await supervisor.lease("m")
        assert caught.value.code is Code.MODEL_LOAD_TIMEOUT
