"""One engine process: starting it so that it cannot be left behind, reading what it prints, seeing its end.

It knows nothing of models, health or leases. Everything happens on the loop's thread; nothing here waits in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from blazar.base.errors import CommandError
from blazar.supervisor.watchdog import MARK, STARTED, stat_fields

RING_BYTES = 64 * 1024  # of an engine's last output that is kept in memory
LOG_BYTES = 4 * 1024 * 1024  # an engine's log file; one older one is kept
PR_SET_PDEATHSIG = 1
LAST_READS = 16  # of RING_BYTES each, once it is dead
EXIT_POLL_S = 0.05  # where the kernel has no pidfd

_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def start_time(pid: int) -> str:
    """When a process started, in its system's own terms; "" where there is none.

    Together with the pid it names a process for good.
    """
    if Path("/proc/self").exists():
        fields = stat_fields(str(pid))
        return fields[STARTED] if fields else ""
    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


class EngineProcess:
    """A running engine.

    Args:
        argv: its command line.
        env: variables on top of the gateway's own.
        mark: value of MARK.
        log_path: where its output goes.

    Attributes:
        exited: becomes the exit status (minus the signal's number) once it has ended and its group is dead.
        output_at: loop time of its last output.

    Raises:
        CommandError: it cannot be started.
        OSError: its log cannot be written.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], mark: str, log_path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self.output_at = self._loop.time()
        self._ring = bytearray()
        self._log_path = log_path
        self._log = log_path.open("ab", buffering=0)
        try:
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env, MARK: mark},
                start_new_session=True,  # Ctrl-C in the gateway's terminal must not reach it before the drain
                preexec_fn=_die_with(os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._log.close()
            raise CommandError(
                f"cannot start {argv[0]}: {error}", "run `blazar engine list`, install the engine again"
            ) from error
        self.pid = self._popen.pid
        self.started = start_time(self.pid)
        assert self._popen.stdout is not None
        self._output = self._popen.stdout.fileno()
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._read_output)
        self._watch_exit()  # from here on, whatever fails elsewhere, its end is seen and its group ends with it

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the engine and everything in its group."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def words(self) -> str:
        """The end of what it printed."""
        return self._ring.decode("utf-8", "replace")

    # ---- output ----

    def _read_output(self) -> bool:
        """Take what there is; whether there was anything."""
        try:
            data = os.read(self._output, RING_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._output)
            return False
        self.output_at = self._loop.time()
        self._ring += data
        del self._ring[:-RING_BYTES]
        with contextlib.suppress(OSError):  # a full disk must not take the engine with it: the ring has the words
            self._log.write(data)
            if self._log.tell() > LOG_BYTES:
                self._turn_log()
        return True

    def _turn_log(self) -> None:
        """Begin a new log file. The old one stays in use until there is another."""
        self._log_path.replace(self._log_path.with_name(f"{self._log_path.name}.1"))
        old, self._log = self._log, self._log_path.open("ab", buffering=0)
        old.close()

    # ---- the end ----

    def _watch_exit(self) -> None:
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # another system, an old or sandboxed kernel, no descriptor left
            self._loop.call_later(EXIT_POLL_S, self._poll_exit)
        else:
            self._loop.add_reader(pidfd, self._on_exit, pidfd)

    def _poll_exit(self) -> None:
        if self._has_ended():
            self._reap()
        else:
            self._loop.call_later(EXIT_POLL_S, self._poll_exit)

    def _has_ended(self) -> bool:
        """Whether it is dead: without reaping it, where that is possible (not on macOS before Python 3.13)."""
        if not hasattr(os, "waitid"):
            return self._popen.poll() is not None
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _on_exit(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._reap()

    def _reap(self) -> None:
        """The engine is dead but not reaped, so that its pid still names its group.

        End what is left of it, then reap.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for _ in range(LAST_READS):  # its last words may still be in the pipe; who left its group may still be writing
            if not self._read_output():
                break
        self._loop.remove_reader(self._output)
        assert self._popen.stdout is not None
        self._popen.stdout.close()
        self._log.close()
        status = self._popen.wait()
        if not self.exited.done():
            self.exited.set_result(status)


def _die_with(parent: int) -> Callable[[], None] | None:
    """What runs in the child before exec.

    Be killed when the gateway's thread ends, and end now if it has already (Linux).
    """
    if _LIBC is None:
        return None
    prctl = _LIBC.prctl
    kill = int(signal.SIGKILL)

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, kill, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)

    return prepare
