"""The gateway's end of the watchdog, and the records: kept true, and never in the way of serving."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blazar.supervisor import keeper as module
from blazar.supervisor.keeper import Keeper, RunRecord, tags_in_use
from blazar.supervisor.process import EngineProcess, start_time


@asynccontextmanager
async def keeping(run: Path) -> AsyncIterator[Keeper]:
    keeper = Keeper(run, "mark")
    keeper.sweep()
    keeper.start()
    try:
        yield keeper
    finally:
        await keeper.stop()


def engine(tmp_path: Path) -> EngineProcess:
    return EngineProcess(("/bin/sleep", "600"), {}, "mark", tmp_path / "log")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def test_record_is_there_as_long_as_the_engine(tmp_path: Path) -> None:
    async with keeping(tmp_path) as keeper:
        process = engine(tmp_path)
        keeper.keep(process, tag="t1", model="m")
        assert tags_in_use(tmp_path) == {"t1"}
        assert [path.name for path in (tmp_path / "engines").iterdir()] == [f"{process.pid}.json"]
        process.signal(signal.SIGKILL)
        await process.exited
        assert tags_in_use(tmp_path) == set()
        assert list((tmp_path / "engines").iterdir()) == []


async def test_engine_without_a_record_is_refused_but_known_to_the_watchdog(tmp_path: Path) -> None:
    async with keeping(tmp_path) as keeper:
        shutil.rmtree(tmp_path / "engines")
        process = engine(tmp_path)
        with pytest.raises(FileNotFoundError):
            keeper.keep(process, tag="t", model="m")
        await keeper.stop()  # as at the gateway's end: the pipe is closed
        assert await process.exited == -signal.SIGKILL


async def test_watchdog_that_cannot_be_replaced_at_once_is_replaced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real: Any = subprocess.Popen
    failures = 2

    def busy(*args: Any, **options: Any) -> Any:
        nonlocal failures
        if failures == 0:
            return real(*args, **options)
        failures -= 1
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(module, "RESTART_S", 0.01)
    async with keeping(tmp_path) as keeper:
        process = engine(tmp_path)
        first = keeper._watchdog
        assert first is not None
        monkeypatch.setattr(subprocess, "Popen", busy)
        first.kill()
        await until(lambda: failures == 1)
        keeper.keep(process, tag="t", model="m")  # while there is none
        await until(lambda: keeper._watchdog not in (None, first))
        assert "the watchdog cannot be started, trying again" in caplog.text
        await keeper.stop()
        assert await process.exited == -signal.SIGKILL  # the new one was told of it


async def test_broken_record_is_dropped_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "1.json").write_text("{")
    assert tags_in_use(tmp_path) == set()
    Keeper(tmp_path, "mark").sweep()
    assert list((tmp_path / "engines").iterdir()) == []


@pytest.mark.case("C28")
def test_sweep_ends_what_is_recorded_and_spares_a_pid_with_another_start(tmp_path: Path) -> None:
    left, stranger = (subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) for _ in range(2))
    (tmp_path / "engines").mkdir()
    for process, started in ((left, start_time(left.pid)), (stranger, "1")):
        record = RunRecord(process.pid, started, "old", "t", "m")
        (tmp_path / "engines" / f"{process.pid}.json").write_bytes(msgspec.json.encode(record))
    try:
        Keeper(tmp_path, "mark").sweep()
        assert left.wait(5) == -signal.SIGKILL
        assert stranger.poll() is None
        assert list((tmp_path / "engines").iterdir()) == []
    finally:
        for process in (left, stranger):
            process.kill()
            process.wait()


async def test_watchdog_is_out_of_reach_of_the_terminal(tmp_path: Path) -> None:
    async with keeping(tmp_path) as keeper:
        assert keeper._watchdog is not None
        assert os.getsid(keeper._watchdog.pid) == keeper._watchdog.pid
