"""One engine process: its end is seen, its group ends with it, and no failure on the way leaves it behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from blazar.supervisor import process as module
from blazar.supervisor.process import EngineProcess, start_time

NAMED_BADLY = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'engine-engine-\\xc3', 0, 0, 0)"


def shell(text: str, tmp_path: Path) -> EngineProcess:
    return EngineProcess(("/bin/sh", "-c", text), {}, "mark", tmp_path / "log")


async def first_line(process: EngineProcess) -> str:
    while "\n" not in process.words():
        await asyncio.sleep(0.002)
    return process.words().splitlines()[0]


async def until_gone(pid: int) -> None:
    while start_time(pid) and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        await asyncio.sleep(0.002)


@pytest.mark.parametrize(("text", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -SEGV $$", -signal.SIGSEGV)])
async def test_exit_is_told_with_its_status(text: str, status: int, tmp_path: Path) -> None:
    assert await shell(text, tmp_path).exited == status


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="nothing to take away here")
async def test_exit_is_seen_where_the_kernel_gives_no_descriptor_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    process = shell("echo up; exit 5", tmp_path)
    assert await process.exited == 5
    assert process.words() == "up\n"


async def test_exit_is_seen_where_the_system_cannot_look_without_reaping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    monkeypatch.delattr(os, "waitid", raising=False)
    assert await shell("exit 5", tmp_path).exited == 5


@pytest.mark.case("C28")
async def test_group_ends_with_its_leader(tmp_path: Path) -> None:
    process = shell("sleep 600 & echo $!; exit 1", tmp_path)
    child = int(await first_line(process))
    assert await process.exited == 1
    async with asyncio.timeout(1):
        await until_gone(child)


async def test_last_words_are_kept_whole(tmp_path: Path) -> None:
    process = shell("i=0; while [ $i -lt 900 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done; "
                    "echo last words >&2; exit 1", tmp_path)  # fmt: skip
    await process.exited
    assert process.words().count("\n") == 901
    assert process.words().endswith("last words\n")


async def test_output_in_memory_is_bounded(tmp_path: Path) -> None:
    process = shell("head -c 300000 /dev/zero", tmp_path)
    await process.exited
    assert len(process.words()) == module.RING_BYTES


async def test_log_on_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 100_000)
    await shell("head -c 900000 /dev/zero", tmp_path).exited
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 100_000 + module.RING_BYTES


async def test_log_that_cannot_be_turned_does_not_stop_the_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 10)
    (tmp_path / "log.1" / "in the way").mkdir(parents=True)
    process = shell("for i in 1 2 3 4; do echo a longer line $i; sleep 0.01; done", tmp_path)
    assert await process.exited == 0
    assert process.words().endswith("line 4\n")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_engine_inherits_nothing_but_its_output(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, (tmp_path / "db").open("w") as file:
        os.set_inheritable(listener.fileno(), True)
        os.set_inheritable(file.fileno(), True)
        process = shell("echo; exec sleep 600", tmp_path)
        await first_line(process)
        held = {path.name: os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()}
        process.signal(signal.SIGKILL)
        await process.exited
    assert set(held) == {"0", "1", "2"}
    assert held["0"] == "/dev/null"
    assert held["1"] == held["2"]
    assert held["1"].startswith("pipe:")


@pytest.mark.skipif(sys.platform != "linux", reason="names are set with prctl")
async def test_start_time_of_a_process_with_any_name_is_known(tmp_path: Path) -> None:
    program = f"{NAMED_BADLY}; print(1, flush=True); time.sleep(600)"
    process = EngineProcess((sys.executable, "-c", program), {}, "mark", tmp_path / "log")
    await first_line(process)
    assert start_time(process.pid) == process.started
    assert process.words() == "1\n"
    process.signal(signal.SIGKILL)
    assert await process.exited == -signal.SIGKILL
    assert start_time(process.pid) == ""
