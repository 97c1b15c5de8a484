"""The front door: a real `blazar serve` in front of a scripted engine."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blazar.base.dirs import Dirs
from blazar.base.records import EngineKind
from blazar.engines.install import EngineShed
from blazar.models.shelf import Shelf
from blazar.sources.progress import silent
from blazar.store.store import Store
from tests.support.files import write_tiny_gguf

ENGINE = Path(__file__).parents[1] / "support" / "scripted_engine.py"
MODEL = "scripted"
PATIENCE_S = 20.0
Event = dict[str, Any]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """The first true value of the condition; fails after that many seconds."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.005)
    return value


class Running:
    """A running gateway."""

    def __init__(
        self, root: Path, config: str, arguments: tuple[str, ...] = (), start: dict[str, Any] | None = None
    ) -> None:
        self.root = root
        self.script_dir = root / "script"
        self.script_dir.mkdir(exist_ok=True)
        self.stderr_path = root / "stderr"
        self.dirs = Dirs(config_file=root / "config.toml", data=root / "data")
        self.write_config(config)
        self.set_start(start or {})
        self.env = {**os.environ, "BLAZAR_CONFIG": str(self.dirs.config_file), "BLAZAR_DATA_DIR": str(self.dirs.data)}
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def write_config(self, text: str) -> None:
        self.dirs.config_file.write_text(f"{text}\n[engine_env]\nSCRIPTED_DIR = {json.dumps(str(self.script_dir))}\n")

    def set_start(self, start: dict[str, Any]) -> None:
        """How the engine behaves at its next start."""
        (self.script_dir / "start.json").write_text(json.dumps(start))

    def prepare(self, engine: Path = ENGINE, models: tuple[str, ...] = (MODEL,)) -> None:
        self.dirs.ensure()
        file = write_tiny_gguf(self.root / "model.gguf")
        with Store.open(self.dirs.db) as store:
            EngineShed(store, self.dirs).install(EngineKind.LLAMACPP, str(engine), None, silent)
            for name in models:
                Shelf(store, self.dirs).import_file(file, name, copy=True, progress=silent)

    def serve(self) -> None:
        if self.process is not None:
            self.wait()
        with self.stderr_path.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "blazar", "serve", "--port", "0", *self.arguments],
                env=self.env, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("listening on http://"), (line, self.errors())
        self.url = line.split()[-1]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def errors(self) -> str:
        return self.stderr_path.read_text()

    # ---- the engine ----

    def go(self, name: str) -> None:
        """Let an engine that waits for that name go on."""
        (self.script_dir / f"{name}.go").touch()

    def seen(self, event: str) -> list[Event]:
        """What the engine has written down, of one kind."""
        path = self.script_dir / "seen.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [found for found in events if found["event"] == event]

    def wait_seen(self, event: str, count: int = 1) -> list[Event]:
        found: list[Event] = wait_until(
            lambda: len(self.seen(event)) >= count and self.seen(event), f"{count} {event} in the engine"
        )
        return found

    # ---- the gateway ----

    def post(self, path: str = "/v1/chat/completions", *, secret: str = "", **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        return httpx.post(f"{self.url}{path}", json={"model": MODEL, **body}, headers=headers, timeout=PATIENCE_S)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=PATIENCE_S)

    def in_flight(self) -> int:
        return sum(model["in_flight"] for model in self.get("/api/ps").json()["models"])

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """The exit status of a gateway that has been told to end, or killed."""
        assert self.process is not None
        status = self.process.wait(PATIENCE_S + 10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


GatewayFactory = Callable[..., Running]


@pytest.fixture
def gateway(short_tmp: Path) -> Iterator[GatewayFactory]:
    """Makes a running gateway: `gateway(config=…, start=…, arguments=…)`. All are ended, and nothing may be left of
    them.
    """
    running: list[Running] = []

    def make(
        config: str = "", *, start: dict[str, Any] | None = None, arguments: tuple[str, ...] = (), serve: bool = True
    ) -> Running:
        root = short_tmp / str(len(running))
        root.mkdir()
        made = Running(root, config, arguments, start)
        running.append(made)
        made.prepare()
        if serve:
            made.serve()
        return made

    yield make
    for made in running:
        if made.process is not None:
            made.stop()
        assert not left_over(made), f"processes left: {left_over(made)}"


def left_over(running: Running) -> list[int]:
    """Processes that carry the gateway's script directory in their environment: its engines, and whatever they
    started.
    """
    mark = f"SCRIPTED_DIR={running.script_dir}".encode()
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:
            continue
    return found


def event_stream(*events: str, tail: str = "data: [DONE]\n\n") -> str:
    """The text of a stream of events."""
    return "".join(f"data: {event}\n\n" for event in events) + tail


STREAM_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(text: str) -> list[list[Any]]:
    """Script: a stream in one HTTP chunk."""
    return [["raw", f"{STREAM_HEAD}Transfer-Encoding: chunked\r\n\r\n"], ["chunk", text], ["raw", "0\r\n\r\n"]]


def encoded(data: bytes) -> list[str]:
    """Script step: these bytes."""
    return ["base64", base64.b64encode(data).decode()]
