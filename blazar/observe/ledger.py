"""The accounts of all keys, and their use of the day in the store.

Rows are absolute, a whole day's: to write one twice changes nothing. They are written off the loop every FLUSH_S, so
that a gateway that is killed loses less than a second of use.
"""

from __future__ import annotations

import asyncio
import logging

from blazar.admission.budget import DAY_S, Account, Moment
from blazar.admission.keys import Key
from blazar.base.clock import Clock
from blazar.base.errors import CommandError
from blazar.base.records import DayUse
from blazar.store.store import Store

log = logging.getLogger("blazar.ledger")

FLUSH_S = 0.5


class Ledger:
    """The keys' accounts.

    Args:
        store: where use is kept.
        clock: where time comes from.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._today: dict[str, DayUse] = {}
        self.failing = ""

    def moment(self) -> Moment:
        """Now."""
        return Moment(self._clock.monotonic(), self._clock.wall())

    def load(self) -> None:
        """Read what has been used today."""
        day = int(self._clock.wall() // DAY_S)
        self._today = {use.key: use for use in self._store.usage(day)}

    def account(self, key: Key) -> Account:
        """The account of a key."""
        account = self._accounts.get(key.name)
        if account is not None and account.limits is key.limits:
            return account
        if account is None:
            today = self._today.pop(key.name, None) or DayUse(key.name, int(self._clock.wall() // DAY_S))
            account = self._accounts[key.name] = Account(key.name, key.limits, today)
        account.limits = key.limits  # the configuration may have changed
        return account

    @property
    def accounts(self) -> dict[str, Account]:
        """By key's name. Not to be changed."""
        return self._accounts

    def keep_only(self, names: set[str]) -> None:
        """Forget the accounts of keys that are gone, once they are of an earlier day and nothing runs on them: a key
        that comes back within the day finds its use again.
        """
        day = int(self._clock.wall() // DAY_S)
        for name in [n for n in self._accounts if n and n not in names]:
            account = self._accounts[name]
            if not account.in_flight and not account.unsaved and account.use.day < day:
                del self._accounts[name]

    async def run(self) -> None:
        """Write until cancelled, then once more."""
        try:
            while True:
                await asyncio.sleep(FLUSH_S)
                rows = self._take()
                if rows:
                    await asyncio.to_thread(self._write, rows)
        finally:
            self._write(self._take())

    def _take(self) -> list[DayUse]:
        return [row for account in self._accounts.values() if account.unsaved for row in account.take_unsaved()]

    def _write(self, rows: list[DayUse]) -> None:
        """A store that refuses is told of once; the rows are tried again, with what has been added meanwhile."""
        if not rows:
            return
        try:
            self._store.put_usage(rows)
            self.failing = ""
        except CommandError as error:
            if not self.failing:
                log.error("the use of keys cannot be written, and is kept in memory: %s", error)
            self.failing = str(error)
            for row in rows:
                account = self._accounts.get(row.key)
                if account is not None and row.day not in account.unsaved:
                    account.unsaved[row.day] = account.use if account.use.day == row.day else row
