"""A folder whose directories come and go whole: where engines and models are put.

A directory is filled aside, then renamed into a place of its own. What makes it count is a row in the store, one
transaction. So a directory that no row names is nothing: it was left by a run that was killed, or replaced, and is
swept by the next change.
"""

from __future__ import annotations

import contextlib
import fcntl
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

from blazar.base.files import remove_tree, sync_directory

STAGING = ".staging-"


class Places:
    """The directories of one kind.

    Args:
        data: the data directory; nothing outside of it is ever deleted.
        folder: below it, where the directories are.
        lock: the file that keeps changes apart, among all processes.
        named: the names of the directories that rows name now.
        spared: whether a directory that no row names has to stay all the same.
    """

    def __init__(
        self,
        data: Path,
        folder: Path,
        lock: Path,
        named: Callable[[], set[str]],
        spared: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._data = data
        self._folder = folder
        self._lock = lock
        self._named = named
        self._spared = spared

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """One change at a time; what earlier ones have left is swept before it and after it."""
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._sweep()
            try:
                yield
            finally:
                self._sweep()

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """A directory to fill, within a change; gone afterwards."""
        path = self._folder / f"{STAGING}{secrets.token_hex(6)}"
        path.mkdir(mode=0o700)
        yield path  # the change's own sweep removes it, however this ends

    def put(self, staged: Path, name: str) -> Path:
        """Move a staged directory to a place of its own; returns it. It does not count before a row names it."""
        place = self._folder / f"{name}@{secrets.token_hex(4)}"
        staged.rename(place)
        sync_directory(self._folder)
        return place

    def _sweep(self) -> None:
        named = self._named()
        for entry in self._folder.iterdir():
            if entry.name not in named and not self._spared(entry.name):
                remove_tree(self._data, entry)
