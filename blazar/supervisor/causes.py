"""Why an engine ended: from its exit status and its last words to a typed cause. Pure.

The words are the engine's own: the line that names the failure where there is one, else its last line.
"""

from __future__ import annotations

import re
import signal
from enum import StrEnum

import msgspec

MAX_WORDS = 400  # characters of the engine's own words that an error quotes


class CauseKind(StrEnum):
    """Kinds of ends. CLEAN is no failure."""

    CLEAN = "clean exit"
    OUT_OF_MEMORY = "out of memory"
    UNKNOWN_ARCHITECTURE = "unknown architecture"
    BAD_FLAG = "bad flag"
    PORT = "port in use"
    MISSING_LIBRARY = "missing library"
    MODEL_FILE = "broken model file"
    SIGNAL = "signal"
    EXIT = "exit status"


class CrashCause(msgspec.Struct, frozen=True):
    """Why an engine ended.

    `status` is the exit status, or minus the signal's number.
    """

    kind: CauseKind
    words: str
    status: int

    @property
    def clean(self) -> bool:
        """Whether it was no failure (B17)."""
        return self.kind is CauseKind.CLEAN


# The first pattern that matches a line decides, the last line that matches is quoted.
PATTERNS: tuple[tuple[CauseKind, re.Pattern[str]], ...] = (
    (CauseKind.UNKNOWN_ARCHITECTURE, re.compile(r"unknown model architecture|unsupported (model )?architecture", re.I)),
    (
        CauseKind.OUT_OF_MEMORY,
        re.compile(
            r"out of memory|cannot allocate memory|failed to allocate|bad_alloc|unable to allocate|OutOfMemory", re.I
        ),
    ),
    (CauseKind.PORT, re.compile(r"address already in use|couldn't bind|could not bind|failed to bind", re.I)),
    (
        CauseKind.BAD_FLAG,
        re.compile(r"invalid argument: ?-|unrecognized arguments?|unknown argument|unexpected argument", re.I),
    ),
    (
        CauseKind.MISSING_LIBRARY,
        re.compile(r"error while loading shared libraries|cannot open shared object|Library not loaded", re.I),
    ),
    (
        CauseKind.MODEL_FILE,
        re.compile(
            r"invalid magic|failed to load model|error loading model|tensor .* (data )?is not within|failed to read",
            re.I,
        ),
    ),
)


# A model that was served has had its flags, its libraries and its file read: such words in its output, which may be
# hours old or a client's, are no cause.
WHILE_LOADING = frozenset(
    (
        CauseKind.UNKNOWN_ARCHITECTURE,
        CauseKind.PORT,
        CauseKind.BAD_FLAG,
        CauseKind.MISSING_LIBRARY,
        CauseKind.MODEL_FILE,
    )
)


def diagnose(status: int, output: str, *, stopped: bool, loading: bool) -> CrashCause:
    """The cause of an end.

    Args:
        status: exit status, or minus the signal's number, as subprocess gives it.
        output: the end of what the engine printed.
        stopped: we asked it to end.
        loading: it was never ready.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if stopped and status in (0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM):
        return CrashCause(CauseKind.CLEAN, "stopped", status)
    if status == 0 and not loading:
        return CrashCause(CauseKind.CLEAN, lines[-1][:MAX_WORDS] if lines else "it printed nothing", status)
    for kind, pattern in PATTERNS:
        if kind in WHILE_LOADING and not loading:
            continue
        for line in reversed(lines):
            if pattern.search(line):
                return CrashCause(kind, line[:MAX_WORDS], status)
    last = lines[-1][:MAX_WORDS] if lines else "it printed nothing"
    if status < 0:
        return CrashCause(CauseKind.SIGNAL, f"{_signal_name(-status)}; its last line: {last}", status)
    if status == 0:
        return CrashCause(CauseKind.CLEAN, last, status)
    return CrashCause(CauseKind.EXIT, f"status {status}; its last line: {last}", status)


def _signal_name(number: int) -> str:
    try:
        return f"signal {number}, {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"
