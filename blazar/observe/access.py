"""The access log: one JSON line for every request that ended, in `<data>/log/access.jsonl`.

The loop only encodes into a bounded buffer, a microsecond a line; a thread writes it out every FLUSH_S. (Encoding in
the thread would hold the interpreter's lock all the same.) When the disk cannot keep up, lines are dropped and counted.
It never holds content, secrets or query strings.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import msgspec

FLUSH_S = 0.5
MAX_WAITING_BYTES = 4 * 1024 * 1024  # of lines between two flushes
ROTATE_BYTES = 16 * 1024 * 1024
KEEP_FILES = 4  # rotated files beside the one that is written

log = logging.getLogger("blazar.access")


class AccessRecord(msgspec.Struct, omit_defaults=True):
    """One request."""

    at: float  # seconds since the epoch, when it ended
    trace: str
    method: str
    route: str  # the route's pattern, "other" for none
    status: int
    key: str
    ms: float
    model: str = ""
    code: str = ""  # the error's stable code


class AccessLog:
    """Writes records to a file.

    Args:
        path: the file; rotated files get `.1`, `.2`… appended. None: nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._waiting = bytearray()
        self._encode_into = msgspec.json.Encoder().encode_into
        self.dropped = 0
        self.failing = ""

    def add(self, record: AccessRecord) -> None:
        """Take a record; never waits."""
        if self._path is None:
            return
        if len(self._waiting) < MAX_WAITING_BYTES:
            self._encode_into(record, self._waiting, -1)
            self._waiting += b"\n"
        else:
            self.dropped += 1

    async def run(self) -> None:
        """Flush until cancelled, then once more."""
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                if self._waiting:
                    await asyncio.to_thread(self.flush)
        finally:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting. A disk that refuses costs the lines, is counted, and is reported once."""
        data, self._waiting = self._waiting, bytearray()
        if not data or self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(data)
                size = file.tell()
            if size > ROTATE_BYTES:
                self._rotate(self._path)
            self.failing = ""
        except OSError as error:
            self.dropped += data.count(b"\n")
            if not self.failing:
                log.error("cannot write the access log %s: %s; its lines are dropped", self._path, error)
            self.failing = str(error)

    def _rotate(self, path: Path) -> None:
        for number in range(KEEP_FILES, 0, -1):
            older = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            with contextlib.suppress(FileNotFoundError):
                older.replace(path.with_name(f"{path.name}.{number}"))
