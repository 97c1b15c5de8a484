"""Writes that are whole or absent, deletions that cannot leave their directory."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blazar.base.errors import CommandError
from blazar.base.files import link_or_copy, remove_tree, sha256_file, write_atomically

WRITER = """
import sys
from pathlib import Path
from blazar.base.files import write_atomically
path, n = Path(sys.argv[1]), 0
print("go", flush=True)
while True:
    n += 1
    write_atomically(path, (str(n % 10) * 200_000).encode())
"""


def test_write_replaces_and_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    write_atomically(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        while not path.exists():
            pass
        process.kill()
        process.wait()
        process.stdout.close()
        content = path.read_text()
        assert len(content) == 200_000
        assert len(set(content)) == 1


def test_remove_tree_deletes_what_is_below(tmp_path: Path) -> None:
    (tmp_path / "root/a/b").mkdir(parents=True)
    (tmp_path / "root/a/b/f").touch()
    remove_tree(tmp_path / "root", tmp_path / "root/a")
    assert list((tmp_path / "root").iterdir()) == []
    remove_tree(tmp_path / "root", tmp_path / "root/a")  # gone already


@pytest.mark.parametrize("path", ["", "..", "../other", "a/../../other"])
def test_remove_tree_refuses_what_is_not_below(tmp_path: Path, path: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "other").mkdir()
    with pytest.raises(CommandError, match="nothing was deleted"):
        remove_tree(tmp_path / "root", tmp_path / "root" / path)
    assert (tmp_path / "other").exists()


def test_remove_tree_does_not_go_through_a_symlink(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep/precious").touch()
    root = tmp_path / "root"
    (root / "dir").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "dir/inner").symlink_to(outside)
    with pytest.raises(CommandError, match="symbolic link"):
        remove_tree(root, root / "link" / "deep")
    remove_tree(root, root / "link")
    remove_tree(root, root / "dir")
    assert (outside / "deep/precious").exists()
    assert list(root.iterdir()) == []


def test_link_shares_and_copy_does_not(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("x")
    assert link_or_copy(source, tmp_path / "linked", copy=False)
    assert not link_or_copy(source, tmp_path / "copied", copy=True)
    assert (tmp_path / "linked").stat().st_ino == source.stat().st_ino
    assert (tmp_path / "copied").stat().st_ino != source.stat().st_ino


def test_digest_reports_progress(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 3_000_000)
    seen: list[int] = []
    assert sha256_file(path, seen.append) == hashlib.sha256(b"x" * 3_000_000).hexdigest()
    assert seen[-1] == 3_000_000
