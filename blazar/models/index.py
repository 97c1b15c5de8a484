"""The models by name, in memory, for requests: the loop never waits for the database to look one up.

The store may change under a running gateway (`blazar pull` in another process). A name that is not known is looked for
again in the store before it is refused, and the index is read anew every REFRESH_S, always in a thread.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Mapping
from pathlib import Path

from blazar.base.errors import ApiError, Code, CommandError
from blazar.base.records import ModelRow
from blazar.models.gguf import GgufError, read_gguf
from blazar.store.store import Store

log = logging.getLogger("blazar.models")

REFRESH_S = 2.0
HINT_NAMES = 8  # names that an error lists at most


class ModelIndex:
    """A snapshot of the store's models.

    Args:
        store: where they are kept; used from one thread at a time.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, ModelRow] = {}
        self._longest: dict[str, int] = {}  # bytes of the longest token, by the file's digest
        self._reading: asyncio.Task[None] | None = None

    @property
    def rows(self) -> dict[str, ModelRow]:
        """The models as last read, by name. Not to be changed."""
        return self._rows

    async def resolve(self, name: str) -> ModelRow:
        """The model that a request means: of that name, else with the colon as a dash if there is such a row (B08).

        Raises:
            ApiError: MODEL_NOT_FOUND, with the nearest names.
        """
        row = self.find(name)
        if row is None:
            await self.refresh()
            row = self.find(name)
        if row is None:
            raise ApiError(Code.MODEL_NOT_FOUND, f"there is no model {name!r}", self.hint(name))
        return row

    def targets(self, name: str, aliases: Mapping[str, str | list[str]]) -> list[str]:
        """The names to try for what a client asked: an alias's in their order, else the name itself."""
        found = aliases.get(name)
        if not found:
            return [name]
        return [found] if isinstance(found, str) else found

    async def longest_token_bytes(self, row: ModelRow) -> int:
        """Bytes of the longest token in a model's vocabulary; 0 where the file does not tell."""
        found = self._longest.get(row.sha256)
        if found is None:
            try:
                found = (await asyncio.to_thread(read_gguf, Path(row.path))).longest_token_bytes
            except GgufError as error:  # its engine will tell what is wrong with it
                log.warning("%s: %s", row.name, error)
                found = 0
            self._longest[row.sha256] = found
        return found

    def find(self, name: str) -> ModelRow | None:
        """As resolve, of those that are known; None where there is no such model yet."""
        return self._rows.get(name) or self._rows.get(name.replace(":", "-"))

    async def refresh(self) -> None:
        """Read the store again. Callers at the same time share one reading."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        rows = await asyncio.to_thread(self._store.models)
        self._rows = {row.name: row for row in rows}
        digests = {row.sha256 for row in rows}
        self._longest = {digest: size for digest, size in self._longest.items() if digest in digests}

    async def run(self) -> None:
        """Keep the snapshot fresh until cancelled.

        A store that cannot be read for now leaves it as it is, and is told once.
        """
        failing = False
        while True:
            try:
                await self.refresh()
                failing = False
            except CommandError as error:
                if not failing:
                    log.warning("serving the models that are known: %s", error)
                failing = True
            await asyncio.sleep(REFRESH_S)

    def hint(self, name: str = "") -> str:
        """What to do about a name that is missing or wrong."""
        if not self._rows:
            return "there are no models yet: add one with `blazar pull smollm2-135m-instruct` or `blazar import FILE`"
        near = difflib.get_close_matches(name, self._rows, n=HINT_NAMES) or sorted(self._rows)
        names, more = ", ".join(near[:HINT_NAMES]), len(near) - HINT_NAMES
        return f"choose one of: {names}{f' and {more} more' if more > 0 else ''} (`blazar list`)"
