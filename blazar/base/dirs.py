"""Where the configuration and the data are (XDG base directories), and what lies where below the data directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from blazar.base.errors import CommandError

PRIVATE = 0o700  # engine sockets, secrets and the users' models are nobody else's business


class Dirs(msgspec.Struct, frozen=True):
    """The two places, and what is below the second."""

    config_file: Path
    data: Path

    @property
    def db(self) -> Path:
        """The store."""
        return self.data / "blazar.db"

    @property
    def models(self) -> Path:
        """A directory a model."""
        return self.data / "models"

    @property
    def engines(self) -> Path:
        """A directory an installed engine, by tag."""
        return self.data / "engines"

    @property
    def sessions(self) -> Path:
        """KV caches that engines save."""
        return self.data / "sessions"

    @property
    def run(self) -> Path:
        """Locks, sockets, records of running engines."""
        return self.data / "run"

    @property
    def log(self) -> Path:
        """Access log; engines' output below `engines/`."""
        return self.data / "log"

    def ensure(self) -> None:
        """Make what is missing, for the owner only.

        Raises:
            CommandError: that is not possible.
        """
        try:
            for path in (self.data, self.models, self.engines, self.sessions, self.run, self.log, self.log / "engines"):
                path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(
                f"cannot make the data directory {self.data}: {error.strerror}",
                "set BLAZAR_DATA_DIR to a directory that you may write",
            ) from error


def find_dirs(env: Mapping[str, str], *, config: Path | None = None, warn: Callable[[str], None]) -> Dirs:
    """Find both places: the argument, then `BLAZAR_CONFIG` / `BLAZAR_DATA_DIR`, then XDG, then the home directory.

    Args:
        env: the environment.
        config: `--config`, if it was given.
        warn: told when neither XDG nor a home directory is available and the current directory has to do (B18).
    """
    lost: list[str] = []
    home = _usable_home(env)

    def base(variable: str, below_home: str) -> Path:
        if value := env.get(variable):
            return Path(value)
        if home is not None:
            return home / below_home
        lost.append(variable)
        return Path.cwd()

    if config is None:
        named = env.get("BLAZAR_CONFIG")
        config = Path(named) if named else base("XDG_CONFIG_HOME", ".config") / "blazar" / "config.toml"
    named = env.get("BLAZAR_DATA_DIR")
    data = Path(named) if named else base("XDG_DATA_HOME", ".local/share") / "blazar"
    if lost:
        warn(
            f"WARNING: no home directory and no {' or '.join(lost)}: using the current directory {Path.cwd()}. "
            "Set BLAZAR_CONFIG and BLAZAR_DATA_DIR to say where configuration and models belong"
        )
    return Dirs(config_file=config.expanduser().absolute(), data=data.expanduser().absolute())


def _usable_home(env: Mapping[str, str]) -> Path | None:
    """The home directory, if it is one: containers and services often name one that is not there."""
    home = env.get("HOME", "")
    return Path(home) if home and Path(home).is_absolute() and Path(home).is_dir() else None
