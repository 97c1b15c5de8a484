"""The store's file and the rows in it. See the package's docstring for the design."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import msgspec

from blazar.base.errors import CommandError, UsageError
from blazar.base.files import sync_directory
from blazar.base.records import DayUse, EngineKind, EngineRow, EngineSource, Manifest, ModelRow
from blazar.store.migrations import SCRIPTS

BUSY_TIMEOUT_S = 10.0  # another process holds the write lock for milliseconds
RESERVED = "#"  # replicas are named model#N (V05)


class Store:
    """Engines and models.

    Args:
        connection: an open database whose schema is current; `Store.open` makes one.

    May be used from any thread, by one at a time: a lock sees to that.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, scripts: tuple[str, ...] = SCRIPTS) -> Self:
        """Open the file, make it where it is missing, bring its schema up to date.

        A copy of the file as it was is kept beside it before the schema changes: `blazar.db.bak-vN`.

        Raises:
            CommandError: it was written by a newer Blazar, or it is no database.
        """
        try:
            connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            _migrate(connection, path, scripts)
        except sqlite3.DatabaseError as error:
            raise CommandError(
                f"cannot open the store {path}: {error}", "restore a copy (blazar.db.bak-*), or move the file away"
            ) from error
        return cls(connection)

    def close(self) -> None:
        """Close the file; the store cannot be used any more."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """The connection, by one at a time; what SQLite complains of becomes an error that can be read."""
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise CommandError(
                    f"the store cannot be used: {error}",
                    "check that its disk is writable and has space, then try again",
                ) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._open():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _read(self, query: str, *values: object) -> list[sqlite3.Row]:
        with self._open() as connection:
            return connection.execute(query, values).fetchall()

    # ---- models ----

    def models(self) -> list[ModelRow]:
        """Every model, by name."""
        return [_model(row) for row in self._read("SELECT * FROM models ORDER BY name")]

    def model(self, name: str) -> ModelRow | None:
        """The model of that name."""
        rows = self._read("SELECT * FROM models WHERE name = ?", name)
        return _model(rows[0]) if rows else None

    def put_model(self, row: ModelRow) -> None:
        """Add a model, or replace the one of its name.

        Raises:
            UsageError: the name is empty or holds a `#` (V05).
        """
        check_model_name(row.name)
        values = msgspec.structs.asdict(row)
        with self._writing() as connection:
            connection.execute(_insert("models", values), values)

    def remove_model(self, name: str) -> bool:
        """Forget a model; whether there was one."""
        with self._writing() as connection:
            return connection.execute("DELETE FROM models WHERE name = ?", (name,)).rowcount > 0

    # ---- engines ----

    def engines(self) -> list[EngineRow]:
        """Every installed engine, by kind, the newest first."""
        return [_engine(row) for row in self._read("SELECT * FROM engines ORDER BY kind, installed_at DESC")]

    def engine(self, tag: str) -> EngineRow | None:
        """The engine of that tag."""
        rows = self._read("SELECT * FROM engines WHERE tag = ?", tag)
        return _engine(rows[0]) if rows else None

    def active_engine(self, kind: EngineKind) -> EngineRow | None:
        """The engine of that kind that is used where nothing else is said."""
        rows = self._read("SELECT * FROM engines WHERE kind = ? AND active", kind.value)
        return _engine(rows[0]) if rows else None

    def put_engine(self, row: EngineRow) -> None:
        """Add an engine, or replace the one of its tag.

        An active one takes that place from the kind's other engines.
        """
        values = msgspec.structs.asdict(row)
        values |= {
            "kind": row.kind.value,
            "source": row.source.value,
            "manifest": msgspec.json.encode(row.manifest).decode(),
        }
        with self._writing() as connection:
            if row.active:
                connection.execute("UPDATE engines SET active = 0 WHERE kind = ?", (row.kind.value,))
            connection.execute(_insert("engines", values), values)

    def remove_engine(self, tag: str) -> bool:
        """Forget an engine; whether there was one."""
        with self._writing() as connection:
            return connection.execute("DELETE FROM engines WHERE tag = ?", (tag,)).rowcount > 0

    # ---- use of keys ----

    def usage(self, day: int) -> list[DayUse]:
        """What keys have used on a day: days since the epoch, UTC."""
        return [DayUse(**dict(row)) for row in self._read("SELECT * FROM key_usage WHERE day = ?", day)]

    def put_usage(self, rows: list[DayUse]) -> None:
        """Replace the rows of these keys and days, all or none."""
        values = [msgspec.structs.asdict(row) for row in rows]
        with self._writing() as connection:
            connection.executemany(_insert("key_usage", values[0]), values)


def check_model_name(name: str) -> None:
    """Refuse a name that the store cannot keep (V05).

    Raises:
        UsageError: it is empty or holds a `#`.
    """
    if not name:
        raise UsageError("a model's name is empty", "give it one with --name")
    if RESERVED in name:
        raise UsageError(
            f"the model name {name!r} holds a {RESERVED!r}, which is kept for replicas (model#N)", "choose another name"
        )


def _migrate(connection: sqlite3.Connection, path: Path, scripts: tuple[str, ...]) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(scripts):
        raise CommandError(
            f"the store {path} has version {version}, and this Blazar knows versions up to {len(scripts)}",
            "update Blazar, or restore an older copy of the file (blazar.db.bak-*)",
        )
    for number, script in enumerate(scripts[version:], version + 1):
        if version:  # a new file has nothing to be kept
            _back_up(connection, path, number - 1)
        # One transaction a version: after a crash the file has the old schema or the new one, with its number.
        connection.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")


def _back_up(connection: sqlite3.Connection, path: Path, version: int) -> None:
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = path.with_name(f"{path.name}.bak-v{version}")
    partial = copy.with_name(f".{copy.name}.partial")
    shutil.copyfile(path, partial)
    partial.replace(copy)
    sync_directory(path.parent)


def _insert(table: str, values: dict[str, object]) -> str:
    names = ", ".join(values)
    return f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({', '.join(f':{name}' for name in values)})"


def _model(row: sqlite3.Row) -> ModelRow:
    values = dict(row)
    return ModelRow(**{**values, "chat_template": bool(values["chat_template"])})


def _engine(row: sqlite3.Row) -> EngineRow:
    values = dict(row)
    return EngineRow(
        **{
            **values,
            "kind": EngineKind(values["kind"]),
            "source": EngineSource(values["source"]),
            "manifest": msgspec.json.decode(values["manifest"], type=Manifest),
            "active": bool(values["active"]),
        }
    )
