"""Careful file work: writes that are whole or absent, and deletions that cannot leave their directory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from blazar.base.errors import CommandError

READ_BYTES = 1 << 20


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace a file by one with this content: after a crash at any point it is the old or the new one, whole.

    Raises:
        OSError: it could not be written; nothing has changed.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames in a directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """The hex digest of a file; progress is told the bytes read so far."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
            done += len(block)
            if progress:
                progress(done)
    return digest.hexdigest()


def remove_tree(root: Path, path: Path) -> None:
    """Delete a file or a directory with all that is in it, if it lies below root for real.

    A symlink is removed, never followed: neither as path itself, nor within it, nor as one of the directories between
    root and path.

    Raises:
        CommandError: path is not below root, or a symlink stands between them.
    """
    parts = _parts_below(root, path)
    parent = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            try:
                child = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise CommandError(f"{path} is reached through a symbolic link: nothing was deleted") from None
                raise
            os.close(parent)
            parent = child
        _remove_at(parent, parts[-1])
    finally:
        os.close(parent)


def _parts_below(root: Path, path: Path) -> tuple[str, ...]:
    try:
        parts = path.relative_to(root).parts
    except ValueError:
        parts = ()
    if not parts or ".." in parts:
        raise CommandError(f"{path} is not below {root}: nothing was deleted")
    return parts


def _remove_at(parent: int, name: str) -> None:
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)


def link_or_copy(source: Path, target: Path, *, copy: bool) -> bool:
    """Put a file's content at target: as a hard link, which costs no space, or as a copy.

    Args:
        copy: never link.

    Returns:
        Whether it was linked. Across file systems, or where links are not allowed, it is copied.
    """
    if not copy:
        try:
            os.link(source.resolve(), target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
                raise
        else:
            return True
    shutil.copyfile(source, target)
    return False


def free_bytes(path: Path) -> int:
    """Space that is left for us on the file system of an existing path."""
    return shutil.disk_usage(path).free
