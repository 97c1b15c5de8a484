"""Installing engines: probed first, whole or absent, and nothing outside is ever touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blazar.base.dirs import Dirs
from blazar.base.errors import CommandError, UsageError
from blazar.base.records import EngineKind
from blazar.engines.catalogue import BUILDS, find_build
from blazar.engines.install import EngineShed
from blazar.engines.probe import parse_flags
from blazar.sources.progress import silent
from blazar.store.store import Store

GOOD = '#!/bin/sh\ncase "$1" in --version) echo "version: {version}";; --help) echo "-m, --model FNAME";; esac\n'


@pytest.fixture
def dirs(tmp_path: Path) -> Dirs:
    made = Dirs(config_file=tmp_path / "c.toml", data=tmp_path / "data")
    made.ensure()
    return made


@pytest.fixture
def store(dirs: Dirs):  # type: ignore[no-untyped-def]
    with Store.open(dirs.db) as opened:
        yield opened


def server(path: Path, text: str = GOOD, version: str = "1") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("{version}", version))
    path.chmod(0o755)
    return path


def install(store: Store, dirs: Dirs, path: Path, tag: str | None = None):  # type: ignore[no-untyped-def]
    return EngineShed(store, dirs).install(EngineKind.LLAMACPP, str(path), tag, silent)


def test_installed_engine_is_a_copy_that_is_active(store: Store, dirs: Dirs, tmp_path: Path) -> None:
    built = server(tmp_path / "build/llama-server")
    (tmp_path / "build/libggml.so").write_text("lib")
    row = install(store, dirs, tmp_path / "build")
    built.unlink()
    assert (row.tag, row.active, row.manifest.version) == ("local", True, "version: 1")
    assert row.manifest.flags == ("--model", "-m")
    assert Path(row.binary).is_file()
    assert (Path(row.binary).parent / "libggml.so").read_text() == "lib"
    assert Path(row.binary).is_relative_to(dirs.engines)


def test_tags_stand_side_by_side_and_use_chooses(store: Store, dirs: Dirs, tmp_path: Path) -> None:
    install(store, dirs, server(tmp_path / "a/llama-server", version="1"), "one")
    install(store, dirs, server(tmp_path / "b/llama-server", version="2"), "two")
    shed = EngineShed(store, dirs)
    assert [(row.tag, row.active) for row in shed.list()] == [("two", True), ("one", False)]
    assert shed.use("one").active
    active = store.active_engine(EngineKind.LLAMACPP)
    assert active is not None
    assert active.tag == "one"
    with pytest.raises(UsageError, match="installed: two, one"):
        shed.use("three")


def test_same_tag_again_replaces_it_whole(store: Store, dirs: Dirs, tmp_path: Path) -> None:
    first = install(store, dirs, server(tmp_path / "llama-server", version="1"))
    second = install(store, dirs, server(tmp_path / "llama-server", version="2"))
    assert store.engines() == [second]
    assert not Path(first.binary).exists()
    assert [path.name for path in dirs.engines.iterdir()] == [Path(second.binary).parent.name]


def test_remove_frees_the_space_but_not_under_a_running_engine(store: Store, dirs: Dirs, tmp_path: Path) -> None:
    install(store, dirs, server(tmp_path / "llama-server"), "one")
    install(store, dirs, server(tmp_path / "llama-server"), "two")
    with pytest.raises(CommandError, match="is running"):
        EngineShed(store, dirs, frozenset({"one"})).remove("one")
    with pytest.raises(CommandError, match="blazar engine use one"):
        EngineShed(store, dirs).remove("two")
    EngineShed(store, dirs).remove("one")
    EngineShed(store, dirs).remove("two")
    assert list(dirs.engines.iterdir()) == []
    assert store.engines() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not a program", "does not start"),
        ("#!/bin/sh\nexit 3\n", "exit status 3"),
        ("#!/bin/sh\necho broken library >&2\nexit 127\n", "broken library"),
        ("#!/bin/sh\nkill -ILL $$\n", "SIGILL"),
        ("#!/bin/sh\necho hello\n", "names no flags"),
        ("#!/nowhere/interpreter\n", "does not start"),
    ],
)
def test_what_does_not_start_is_refused_and_leaves_nothing(
    store: Store, dirs: Dirs, tmp_path: Path, text: str, words: str
) -> None:
    good = install(store, dirs, server(tmp_path / "good/llama-server"))
    with pytest.raises(CommandError, match=words):
        install(store, dirs, server(tmp_path / "bad/llama-server", text))
    assert store.engines() == [good]
    assert Path(good.binary).is_file()
    assert len(list(dirs.engines.iterdir())) == 1


def test_program_that_never_ends_is_given_up(
    store: Store, dirs: Dirs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blazar.engines.probe.PROBE_TIMEOUT_S", 0.2)
    with pytest.raises(CommandError, match="did not end within"):
        install(store, dirs, server(tmp_path / "llama-server", "#!/bin/sh\nexec sleep 60\n"))


@pytest.mark.parametrize("tag", ["../evil", "a/b", "", ".hidden", "x" * 65, "a b"])
def test_tag_that_is_a_path_is_refused(store: Store, dirs: Dirs, tmp_path: Path, tag: str) -> None:
    with pytest.raises(UsageError, match="is no tag"):
        install(store, dirs, server(tmp_path / "llama-server"), tag)


def test_missing_path_and_empty_directory_are_told(store: Store, dirs: Dirs, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        install(store, dirs, tmp_path / "nothing")
    with pytest.raises(UsageError, match="holds no llama-server"):
        install(store, dirs, tmp_path)


@pytest.mark.rule("V06")
def test_kind_that_cannot_be_installed_is_told(store: Store, dirs: Dirs, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kind sglang cannot be installed"):
        EngineShed(store, dirs).install(EngineKind.SGLANG, "pypi", None, silent)


def test_symlinked_engines_directory_is_never_emptied(store: Store, dirs: Dirs, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").mkdir()
    dirs.engines.rmdir()
    dirs.engines.symlink_to(outside)
    with pytest.raises(CommandError, match="symbolic link"):
        install(store, dirs, server(tmp_path / "llama-server"))
    assert (outside / "precious").exists()


def test_planted_symlink_is_removed_and_not_followed(store: Store, dirs: Dirs, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (dirs.engines / ".staging-x").symlink_to(outside)
    install(store, dirs, server(tmp_path / "llama-server"))
    assert (outside / "precious").exists()
    assert not (dirs.engines / ".staging-x").exists()


INSTALLER = """
import sys
from pathlib import Path
from blazar.base.dirs import Dirs
from blazar.base.records import EngineKind
from blazar.engines.install import EngineShed
from blazar.sources.progress import silent
from blazar.store.store import Store
dirs = Dirs(config_file=Path("/c"), data=Path(sys.argv[1]))
with Store.open(dirs.db) as store:
    print("go", flush=True)
    while True:
        EngineShed(store, dirs).install(EngineKind.LLAMACPP, sys.argv[2], None, silent)
"""


def test_install_that_is_killed_leaves_the_old_engine_or_the_new_one(store: Store, dirs: Dirs, tmp_path: Path) -> None:
    built = server(tmp_path / "llama-server")
    install(store, dirs, built)
    for number in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", INSTALLER, str(dirs.data), str(built)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        end = time.monotonic() + 0.013 * number  # a different place each time
        while time.monotonic() < end:
            pass
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        row = store.active_engine(EngineKind.LLAMACPP)
        assert row is not None
        done = subprocess.run([row.binary, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == "version: 1\n"
    install(store, dirs, built)
    assert len(list(dirs.engines.iterdir())) == 1


def test_platform_without_a_build_is_told_what_to_do() -> None:
    with pytest.raises(UsageError, match="--from PATH"):
        find_build(EngineKind.LLAMACPP, "linux", "riscv64")
    for build in BUILDS.values():
        assert len(build.pin.sha256) == 64
        assert build.pin.filename.endswith(".whl")


def test_flags_are_read_in_every_spelling() -> None:
    text = """----- common params -----
-h,    --help, --usage                  print usage and exit
--version                               show version
-ngl,  --gpu-layers, --n-gpu-layers N   layers (default: -1, --auto is not a flag)
                                        (env: LLAMA_ARG_N_GPU_LAYERS) --neither
       --slots, --no-slots              expose
--poll <0...100>                        polling
"""
    assert parse_flags(text) == (
        "--gpu-layers", "--help", "--n-gpu-layers", "--no-slots", "--poll", "--slots", "--usage", "--version",
        "-h", "-ngl",
    )  # fmt: skip
