"""The watchdog as the program that it is: what it kills when its pipe ends, and what it leaves alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from blazar.supervisor import watchdog
from blazar.supervisor.process import start_time

pytestmark = [
    pytest.mark.case("C28"),
    pytest.mark.skipif(sys.platform != "linux", reason="the watchdog looks into /proc"),
]
MARK = "test-mark"
ENV = {"PATH": os.environ["PATH"], watchdog.MARK: MARK}
PLAIN = {"PATH": os.environ["PATH"]}
NAMED_BADLY = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'engine-engine-\\xc3', 0, 0, 0)"


class Zoo:
    """Processes of a test; all are ended with it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def start(self, *argv: str, env: dict[str, str], session: bool = True) -> tuple[subprocess.Popen[str], int]:
        """A process, and the number that it prints first."""
        process = subprocess.Popen(argv, env=env, start_new_session=session, stdout=subprocess.PIPE, text=True)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        number = int(process.stdout.readline())
        self._stack.callback(end, number)
        return process, number

    def shell(self, text: str, env: dict[str, str]) -> tuple[subprocess.Popen[str], int]:
        return self.start("/bin/sh", "-c", text, env=env)


def end(pid: int) -> None:
    if pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


@pytest.fixture
def zoo() -> Iterator[Zoo]:
    with contextlib.ExitStack() as stack:
        yield Zoo(stack)


def alive(pid: int) -> bool:
    fields = watchdog.stat_fields(str(pid))
    return bool(fields) and fields[0] not in "ZX"


def watch(*lines: str, meanwhile: subprocess.Popen[str] | None = None) -> float:
    """Run a watchdog that is told these lines to the end of its pipe; seconds that it took from there."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", watchdog.__file__, MARK], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as dog:
        assert dog.stdin is not None
        assert dog.stderr is not None
        dog.stdin.write("".join(f"{line}\n" for line in lines))
        dog.stdin.flush()
        if meanwhile is not None:
            meanwhile.kill()
            meanwhile.wait()
        began = time.monotonic()
        dog.stdin.close()
        assert dog.wait(10) == 0, dog.stderr.read()
        return time.monotonic() - began


def add(pid: int) -> str:
    return f"add {pid} {start_time(pid)}"


def test_registered_group_goes_within_a_second(zoo: Zoo) -> None:
    engine, child = zoo.shell("sleep 600 & echo $!; wait", PLAIN)
    assert watch(add(engine.pid)) < 1
    assert not alive(engine.pid)
    assert not alive(child)


def test_marked_process_goes_without_registration(zoo: Zoo) -> None:
    _, child = zoo.shell("setsid sleep 600 & echo $!; wait", ENV)
    watch()
    assert not alive(child)


def test_member_without_mark_goes_when_its_leader_has_gone_first(zoo: Zoo) -> None:
    engine, child = zoo.shell("env -i sleep 600 & echo $!; wait", ENV)
    watch(add(engine.pid), meanwhile=engine)
    assert not alive(child)


def test_group_of_its_own_in_the_engines_session_goes(zoo: Zoo) -> None:
    program = (
        "import os, time\n"
        "pid = os.fork()\n"
        "if pid: print(pid, flush=True); time.sleep(600)\n"
        "os.setpgid(0, 0); os.execve('/bin/sleep', ['sleep', '600'], {})"
    )
    engine, child = zoo.start(sys.executable, "-c", program, env=ENV)
    while alive(child) and int(watchdog.stat_fields(str(child))[watchdog.GROUP]) != child:
        os.sched_yield()
    watch(add(engine.pid))
    assert not alive(child)


def test_pid_that_is_somebody_elses_by_now_is_left_alone(zoo: Zoo) -> None:
    stranger, child = zoo.shell("sleep 600 & echo $!; wait", PLAIN)
    watch(f"add {stranger.pid} 1")
    assert alive(stranger.pid)
    assert alive(child)


def test_engine_of_unknown_start_is_told_by_its_mark_alone(zoo: Zoo) -> None:
    stranger, _ = zoo.shell("echo 0; exec sleep 600", PLAIN)
    marked, _ = zoo.shell("echo 0; exec sleep 600", ENV)
    watch(f"add {stranger.pid} ", f"add {marked.pid} ")
    assert alive(stranger.pid)
    assert not alive(marked.pid)


def test_group_that_was_taken_back_is_left_alone(zoo: Zoo) -> None:
    stranger, _ = zoo.shell("echo 0; exec sleep 600", PLAIN)
    watch(add(stranger.pid), f"del {stranger.pid}")
    assert alive(stranger.pid)


def test_engine_of_another_gateway_is_left_alone(zoo: Zoo) -> None:
    other, _ = zoo.shell("echo 0; exec sleep 600", {**PLAIN, watchdog.MARK: f"{MARK}2"})
    watch()
    assert alive(other.pid)


def test_process_with_a_name_that_is_no_text_does_not_stop_it(zoo: Zoo) -> None:
    zoo.start(sys.executable, "-c", f"{NAMED_BADLY}; print(0, flush=True); time.sleep(600)", env=PLAIN)
    engine, _ = zoo.shell("echo 0; exec sleep 600", ENV)
    watch(add(engine.pid))
    assert not alive(engine.pid)


def test_engine_that_ignores_every_signal_that_can_be_ignored_goes(zoo: Zoo) -> None:
    engine, _ = zoo.shell("trap '' TERM INT HUP QUIT; echo 0; while :; do sleep 600; done", ENV)
    watch(add(engine.pid))
    assert not alive(engine.pid)


def test_watchdog_needs_nothing_but_its_pipe(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", watchdog.__file__, MARK]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, cwd=tmp_path, env={}, check=False)
    assert done.returncode == 0
