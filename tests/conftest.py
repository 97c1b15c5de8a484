"""Fixtures for every test, and coroutine tests: `async def test_…` runs on uvloop, or with --plain-loop on asyncio in
debug mode.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

TEST_TIMEOUT_S = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--plain-loop", action="store_true", help="run coroutine tests on asyncio's own loop, in debug mode"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    plain = pyfuncitem.config.getoption("--plain-loop")

    async def run() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            await pyfuncitem.obj(**arguments)

    factory: Any = asyncio.new_event_loop if plain else uvloop.new_event_loop
    with asyncio.Runner(debug=plain, loop_factory=factory) as runner:
        runner.run(run())
    return True


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """Where tests keep what is dear to make or to fetch, from one run to the next."""
    base = (
        os.environ.get("BLAZAR_TEST_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blazar-tests"
    )
    path = Path(base)
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def short_tmp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a path short enough for unix sockets."""
    import shutil
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="bz-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
