"""The gateway's own end of the watchdog, and the records of running engines in `<data>/run/engines`.

A record is written before an engine serves and removed when it has been reaped. What a start finds there was left by a
gateway that died together with its watchdog: those processes are ended, told by pid and start time, or by the mark that
they carry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from blazar.supervisor import watchdog
from blazar.supervisor.process import EngineProcess, start_time

log = logging.getLogger("blazar.keeper")

RESTART_S = 0.2  # at most, between a watchdog's death and its successor
RESTART_LAST_S = 5.0  # the same, for one that dies again and again
STOP_S = 1.5  # for the watchdog to find that nothing is left


class RunRecord(msgspec.Struct, frozen=True):
    """A running engine, as the next start may have to find it."""

    pid: int  # also its group and session
    started: str
    mark: str
    tag: str
    model: str


class Keeper:
    """Keeps a watchdog running and the records true.

    Args:
        run_dir: `<data>/run`.
        mark: this gateway's own mark.
    """

    def __init__(self, run_dir: Path, mark: str) -> None:
        self._records = run_dir / "engines"
        self._mark = mark
        self._kept: dict[int, str] = {}
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    def sweep(self) -> None:
        """End what an earlier gateway left behind. May take a second; needs no loop."""
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(self._records)

    def start(self) -> None:
        """Start the watchdog."""
        self._spawn()
        self._task = asyncio.create_task(self._keep_alive())

    async def stop(self) -> None:
        """Let the watchdog go: with the pipe closed it looks once more, and ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        process, self._watchdog = self._watchdog, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                await asyncio.to_thread(process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def keep(self, process: EngineProcess, *, tag: str, model: str) -> None:
        """From now on, see to it that this engine does not outlive the gateway.

        Raises:
            OSError: there can be no record of it, so it has to be ended; the watchdog knows of it even so.
        """
        self._kept[process.pid] = process.started
        self._tell(f"add {process.pid} {process.started}\n")
        process.exited.add_done_callback(lambda _: self._forget(process.pid))  # before anybody else hears of its end
        record = RunRecord(process.pid, process.started, self._mark, tag, model)
        # Whole or absent, but not forced to the disk: that would hold the loop, and no process outlives a power cut.
        path = self._records / f"{process.pid}.json"
        path.with_suffix(".new").write_bytes(msgspec.json.encode(record))
        path.with_suffix(".new").replace(path)

    def _forget(self, pid: int) -> None:
        """The engine has been reaped: from now on its pid may be anybody's."""
        self._kept.pop(pid, None)
        self._tell(f"del {pid}\n")
        try:
            (self._records / f"{pid}.json").unlink(missing_ok=True)
        except OSError as error:
            log.error("the record of engine %d, which has ended, cannot be removed: %s", pid, error)

    def _spawn(self) -> None:
        """Start a watchdog and tell it of every engine. Where that fails there is none, until the next try."""
        self._watchdog = None
        try:
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, self._mark],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
                cwd="/",
            )
        except OSError as error:
            log.error("the watchdog cannot be started, trying again: %s", error)
            return
        assert self._watchdog.stdin is not None
        os.set_blocking(self._watchdog.stdin.fileno(), False)
        for pid, started in self._kept.items():
            self._tell(f"add {pid} {started}\n")

    def _tell(self, line: str) -> None:
        """A line to the watchdog. One that has died, or reads no more, gets them all again when it is started anew."""
        if self._watchdog is not None and self._watchdog.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                if self._watchdog.stdin.write(line.encode()) is None:  # the pipe is full
                    self._watchdog.kill()

    async def _keep_alive(self) -> None:
        pause_s = RESTART_S
        while True:
            await asyncio.sleep(pause_s)
            if self._watchdog is not None and self._watchdog.poll() is None:
                pause_s = RESTART_S
                continue
            if self._watchdog is not None and self._watchdog.stdin is not None:
                log.warning("the watchdog has died (%s): starting another", self._watchdog.returncode)
                self._watchdog.stdin.close()
            self._spawn()
            pause_s = min(2 * pause_s, RESTART_LAST_S)


def read_records(records: Path) -> dict[Path, RunRecord]:
    """The records in a directory. One that cannot be read is of no use to anybody and is removed."""
    found: dict[Path, RunRecord] = {}
    for path in records.glob("*.json"):
        try:
            found[path] = msgspec.json.decode(path.read_bytes(), type=RunRecord)
        except FileNotFoundError:
            continue  # its engine has just been reaped
        except (OSError, msgspec.DecodeError) as error:
            log.warning("dropping the broken record %s: %s", path.name, error)
            path.unlink(missing_ok=True)
    return found


def sweep(records: Path) -> None:
    """End the engines that the records name and that are still there, then remove the records."""
    found = read_records(records)
    if not found:
        return
    groups = {record.pid: record.started for record in found.values() if start_time(record.pid) == record.started}
    for group in groups:
        log.warning("ending engine %d, left by a gateway that died", group)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    if os.path.isdir("/proc/self"):
        for mark in {record.mark for record in found.values()}:
            watchdog.kill_all(groups, f"{watchdog.MARK}={mark}".encode())
    for path in found:
        path.unlink(missing_ok=True)


def tags_in_use(run_dir: Path) -> set[str]:
    """Tags of engines that are running now, by whatever gateway uses this data directory."""
    records = run_dir / "engines"
    return {record.tag for record in read_records(records).values() if start_time(record.pid) == record.started}
