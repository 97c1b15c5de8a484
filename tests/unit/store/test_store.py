"""The store: rows come back as they were put, names are guarded (V05), migrations keep a copy."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from blazar.base.errors import CommandError, UsageError
from blazar.base.records import EngineKind, EngineRow, EngineSource, Manifest, ModelRow
from blazar.store.migrations import SCRIPTS
from blazar.store.store import Store

MODEL = ModelRow(
    name="m", path="/p", size_bytes=3, sha256="ab", architecture="llama", ctx_train=1, parameters=2, quant="F16",
    chat_template=True, source="import", added_at=1.5,
)  # fmt: skip
ENGINE = EngineRow(
    tag="a", kind=EngineKind.LLAMACPP, source=EngineSource.LOCAL, binary="/b", sha256="cd",
    manifest=Manifest(version="1", flags=("-m", "--port")), active=True, installed_at=2.5,
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "blazar.db"


def test_models_come_back_as_they_were_put(path: Path) -> None:
    with Store.open(path) as store:
        store.put_model(MODEL)
        assert store.model("m") == MODEL
        assert store.model("other") is None
    with Store.open(path) as store:
        assert store.models() == [MODEL]
        assert store.remove_model("m")
        assert not store.remove_model("m")


def test_one_engine_of_a_kind_is_active(path: Path) -> None:
    with Store.open(path) as store:
        store.put_engine(ENGINE)
        second = msgspec.structs.replace(ENGINE, tag="b", installed_at=3.0)
        store.put_engine(second)
        assert store.active_engine(EngineKind.LLAMACPP) == second
        assert [(row.tag, row.active) for row in store.engines()] == [("b", True), ("a", False)]
        assert store.active_engine(EngineKind.MLX) is None
        assert store.remove_engine("b")
        assert store.engine("b") is None


@pytest.mark.rule("V05")
@pytest.mark.parametrize("name", ["a#1", "#", ""])
def test_reserved_names_are_refused(path: Path, name: str) -> None:
    with Store.open(path) as store:
        with pytest.raises(UsageError, match="name"):
            store.put_model(msgspec.structs.replace(MODEL, name=name))
        assert store.models() == []
        with pytest.raises(sqlite3.IntegrityError):  # whoever writes past the store is stopped too
            store._connection.execute("INSERT INTO models VALUES (?, '', 0, '', '', 0, 0, '', 0, '', 0)", (name,))


def test_newer_file_is_refused_and_left_alone(path: Path) -> None:
    Store.open(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version = {len(SCRIPTS) + 1}")
    raw.close()
    with pytest.raises(CommandError, match="update Blazar"):
        Store.open(path)


def test_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("not a database at all, " * 100)
    with pytest.raises(CommandError, match="cannot open the store"):
        Store.open(path)


def test_store_that_cannot_be_written_is_a_readable_error(path: Path) -> None:
    with Store.open(path) as store:
        store._connection.execute("PRAGMA query_only = 1")
        with pytest.raises(CommandError, match="the store cannot be used: attempt to write a readonly database"):
            store.put_model(MODEL)
        store._connection.execute("PRAGMA query_only = 0")
        store.put_model(MODEL)


def test_new_store_leaves_no_copies(path: Path) -> None:
    Store.open(path).close()
    assert not list(path.parent.glob("*.bak-*"))


LATER = (*SCRIPTS, "ALTER TABLE models ADD COLUMN note TEXT NOT NULL DEFAULT ''")


def test_migration_keeps_a_copy_of_the_file_before(path: Path) -> None:
    with Store.open(path) as store:
        store.put_model(MODEL)
    Store.open(path, LATER).close()
    copy = path.with_name(f"blazar.db.bak-v{len(SCRIPTS)}")
    raw = sqlite3.connect(copy)
    assert raw.execute("PRAGMA user_version").fetchone() == (len(SCRIPTS),)
    assert raw.execute("SELECT name FROM models").fetchall() == [("m",)]
    raw.close()


def test_migration_that_fails_changes_nothing(path: Path) -> None:
    with Store.open(path) as store:
        store.put_model(MODEL)
    with pytest.raises(CommandError):
        Store.open(path, (*SCRIPTS, "ALTER TABLE models ADD COLUMN note TEXT; SELECT nonsense FROM nowhere"))
    with Store.open(path) as store:
        assert store.models() == [MODEL]


KILLED = """
import sys
from pathlib import Path
from blazar.store.migrations import SCRIPTS
from blazar.store.store import Store
numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 20000000) SELECT x FROM n"
slow = f"CREATE TABLE filler AS {numbers}"
print("go", flush=True)
Store.open(Path(sys.argv[1]), (*SCRIPTS, slow))
"""


def test_migration_that_is_killed_leaves_the_old_schema(path: Path) -> None:
    with Store.open(path) as store:
        store.put_model(MODEL)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    while not path.with_name(f"blazar.db.bak-v{len(SCRIPTS)}").exists() and process.poll() is None:
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    with Store.open(path) as store:
        assert store.models() == [MODEL]
        assert store._connection.execute("PRAGMA user_version").fetchone()[0] == len(SCRIPTS)
