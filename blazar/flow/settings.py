"""The configuration under a running gateway: read again when its file changes, and changed on disk for key management.

A broken file changes nothing and is told of once. A change that the gateway makes is whole on disk or not at all, and
what it serves by never differs from what the disk would give it (B20):

    parse → swap → validate → apply → write aside, fsync, rename; whatever fails takes what was applied back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from blazar.base.errors import ApiError, Code, CommandError, ConfigError
from blazar.base.files import write_atomically
from blazar.config.schema import Config

log = logging.getLogger("blazar.config")

LOOK_S = 1.0  # between two looks at the file; a change counts once it has stood still from one to the next
KEEP_BACKUPS = 8
MAX_TRIES = 3  # of a change, when somebody else changes the file meanwhile
SECRET_MODE = 0o600

Sign = tuple[int, int, int] | None


class LoadConfig(Protocol):
    """Reads the configuration, with the command line's overrides; of that text instead of the file's, where given."""

    def __call__(self, data: bytes | None = None) -> Config: ...


class Settings:
    """The configuration's file.

    Args:
        path: of the file.
        load: reads it.
        config: what it gave at the start.
        apply: makes the gateway go by another configuration from now on; must not fail.

    Attributes:
        config: what the gateway goes by.
        problem: why the file as it stands is not what the gateway goes by; "" where it is.
    """

    def __init__(self, path: Path, load: LoadConfig, config: Config, apply: Callable[[Config], None]) -> None:
        self._path = path
        self._load = load
        self._apply = apply
        self._changing = asyncio.Lock()
        self._seen = self._sign()
        self._change_task: asyncio.Task[Config] | None = None  # the loop itself keeps no task alive
        self.config = config
        self.problem = ""

    # ---- what others change ----

    async def watch(self) -> None:
        """Read the file again whenever it has changed, until cancelled."""
        before = self._seen
        while True:
            await asyncio.sleep(LOOK_S)
            async with self._changing:
                now = await asyncio.to_thread(self._sign)
                if now != self._seen and now == before:
                    await self._read_again()
            before = now

    async def reload(self) -> None:
        """Read the file again, because somebody says so."""
        async with self._changing:
            await self._read_again()

    async def _read_again(self) -> None:
        self._seen = await asyncio.to_thread(self._sign)
        try:
            config = await asyncio.to_thread(self._load)
        except ConfigError as error:
            self._refuse(str(error))
            return
        if self.config.keys and not config.keys:
            self._refuse(f"{self._path} has no [[keys]] any more, which would open the gateway to everyone: restart it")
            return
        self.problem = ""
        self._use(config)

    def _refuse(self, problem: str) -> None:
        if problem != self.problem:
            log.error("the configuration was not reloaded:\n%s", problem)
        self.problem = problem

    def _use(self, config: Config) -> None:
        self.config = config
        self._apply(config)

    # ---- what the gateway changes ----

    async def change(self, edit: Callable[[str], str]) -> Config:
        """Change the file, and go by it.

        Args:
            edit: from the text as it is to the text as it shall be.

        Returns:
            The new configuration.

        Raises:
            ApiError: CONFLICT, the file has mistakes, now or with the change; INTERNAL, it could not be written.
                Nothing has changed.
        """
        # Whoever asked may leave in the middle of it: it comes to its end all the same.
        task = self._change_task = asyncio.create_task(self._change(edit))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _change(self, edit: Callable[[str], str]) -> Config:
        async with self._changing:
            for _ in range(MAX_TRIES):
                before = self.config
                old, new, config = await self._prepare(edit)
                self._use(config)
                try:
                    written = await asyncio.to_thread(self._write, old, new)
                except OSError as error:
                    self._use(before)
                    raise ApiError(
                        Code.INTERNAL,
                        f"the configuration could not be written, and nothing has changed: {error}",
                        "check that its directory is writable and has space",
                    ) from error
                if written:
                    self._seen, self.problem = await asyncio.to_thread(self._sign), ""
                    return config
                self._use(before)
            raise ApiError(Code.CONFLICT, f"{self._path} keeps changing: nothing was changed", "try again")

    async def _prepare(self, edit: Callable[[str], str]) -> tuple[bytes, bytes, Config]:
        try:
            old = await asyncio.to_thread(self._read)
            new = (await asyncio.to_thread(edit, old.decode("utf-8"))).encode()
            return old, new, await asyncio.to_thread(self._load, new)
        except (CommandError, ConfigError) as error:
            raise ApiError(
                Code.CONFLICT, f"the configuration cannot be changed as it is: {error}", "correct it by hand first"
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise ApiError(Code.CONFLICT, f"the configuration cannot be read: {error}") from error

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _write(self, old: bytes, new: bytes) -> bool:
        """Whether it was written; False: the file is not what it was when it was read."""
        path = self._path.resolve()  # of a link, what it points to is replaced, and not the link
        if self._read() != old:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        if old:
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
            write_atomically(path.with_name(f"{path.name}.bak-{stamp}"), old, mode=SECRET_MODE)
        write_atomically(path, new, mode=SECRET_MODE)
        for backup in sorted(path.parent.glob(f"{path.name}.bak-*"))[:-KEEP_BACKUPS]:
            backup.unlink(missing_ok=True)
        return True

    def _sign(self) -> Sign:
        """What changes when the file does."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino)
