"""Starting, stopping, and what must never be left: T12, B23, C28, SIGHUP."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.front.conftest import ENGINE, MODEL, STREAM_HEAD, GatewayFactory, Running, left_over, wait_until

OPEN = ["raw", f"{STREAM_HEAD}Transfer-Encoding: chunked\r\n\r\n"]
FIRST = ["chunk", 'data: {"choices":[{"delta":{"content":"one"}}]}\n\n']
LAST = [["chunk", "data: [DONE]\n\n"], ["raw", "0\r\n\r\n"]]
LEFT_S = 1.0  # C28: what is left of a gateway that was killed is gone by then


class Stream:
    """A stream in flight, read by a thread."""

    def __init__(self, running: Running, script: list[Any]) -> None:
        self.text = ""
        self.begun = threading.Event()
        self.failed: Exception | None = None
        self._thread = threading.Thread(target=self._read, args=(running, script))
        self._thread.start()
        assert self.begun.wait(20)

    def _read(self, running: Running, script: list[Any]) -> None:
        body = {"model": MODEL, "stream": True, "script": script}
        try:
            with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, timeout=30) as answer:
                for text in answer.iter_text():
                    self.text += text
                    self.begun.set()
        except httpx.TransportError as error:
            self.failed = error
        finally:
            self.begun.set()

    def end(self) -> str:
        self._thread.join(30)
        return self.text


@pytest.mark.rule("T12")
class TestStopping:
    def test_stream_in_flight_ends_and_new_requests_are_refused(self, gateway: GatewayFactory) -> None:
        running = gateway()
        stream = Stream(running, [OPEN, FIRST, ["until", "go"], *LAST])
        running.signal(signal.SIGTERM)
        refused = wait_until(
            lambda: (answer := running.get("/v1/models")).status_code == 503 and answer, "503 while draining"
        )
        assert int(refused.headers["retry-after"]) > 0
        assert running.get("/readyz").status_code == 503
        assert running.get("/healthz").status_code == 200
        running.go("go")
        assert "[DONE]" in stream.end()
        assert running.wait() == 0

    def test_stream_that_outlasts_the_drain_is_told(self, gateway: GatewayFactory) -> None:
        running = gateway()
        stream = Stream(running, [OPEN, FIRST, ["until", "never"]])
        began = time.monotonic()
        assert running.stop() == 0
        assert 9 < time.monotonic() - began < 14
        text = stream.end()
        assert stream.failed is None
        assert json.loads(text.rstrip().rpartition("data: ")[2])["error"]["blazar_code"] == "UNAVAILABLE"
        assert "[DONE]" not in text

    def test_second_signal_ends_at_once(self, gateway: GatewayFactory) -> None:
        running = gateway()
        stream = Stream(running, [OPEN, FIRST, ["until", "never"]])
        running.signal(signal.SIGTERM)
        wait_until(lambda: running.get("/readyz").status_code == 503, "the drain")
        began = time.monotonic()
        running.signal(signal.SIGTERM)
        assert running.wait() == 128 + signal.SIGTERM
        assert time.monotonic() - began < 3
        stream.end()
        wait_until(lambda: not left_over(running), "the engine's end", LEFT_S)

    def test_engine_that_ignores_the_signal_is_killed(self, gateway: GatewayFactory) -> None:
        running = gateway(start={"ignore_term": True})
        running.post(messages=[])
        assert running.stop() == 0
        assert running.seen("term")
        assert not left_over(running)

    def test_ctrl_c_in_a_terminal_lets_the_stream_end(self, gateway: GatewayFactory) -> None:
        running = gateway(serve=False)
        main, side = pty.openpty()
        running.process = process = subprocess.Popen(
            [sys.executable, "-m", "blazar", "serve", "--port", "0"],
            env=running.env, stdin=side, stdout=subprocess.PIPE, stderr=side,
            start_new_session=True, preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(side)
        assert process.stdout is not None
        running.url = process.stdout.readline().decode().split()[-1]
        stream = Stream(running, [OPEN, FIRST, ["until", "go"], *LAST])
        os.write(main, b"\x03")
        wait_until(lambda: running.get("/readyz").status_code == 503, "the drain")
        running.go("go")
        assert "[DONE]" in stream.end()
        assert process.wait(15) == 0
        os.close(main)


def take_terminal() -> None:
    """In the child: make the pseudo-terminal on stdin the controlling one, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.rule("B23")
class TestPort:
    def test_second_gateway_on_the_port_exits_3(self, gateway: GatewayFactory) -> None:
        first, second = gateway(), gateway(serve=False)
        done = subprocess.run(
            [sys.executable, "-m", "blazar", "serve", "--port", str(first.port)],
            env=second.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3
        assert f"port {first.port} on 127.0.0.1 is in use" in done.stderr
        assert done.stdout == ""
        assert first.post(messages=[]).status_code == 200

    def test_second_gateway_on_the_data_is_refused(self, gateway: GatewayFactory) -> None:
        first = gateway()
        done = subprocess.run(
            [sys.executable, "-m", "blazar", "serve", "--port", "0"],
            env=first.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert f"pid {first.pid}" in done.stderr


@pytest.mark.case("C28")
class TestNoOrphans:
    def kill_and_look(self, running: Running) -> None:
        assert running.post(messages=[]).status_code == 200
        assert left_over(running)
        running.signal(signal.SIGKILL)
        running.wait()
        wait_until(lambda: not left_over(running), f"the end of {left_over(running)}", LEFT_S)

    def test_engine_goes_with_a_killed_gateway(self, gateway: GatewayFactory) -> None:
        self.kill_and_look(gateway())

    def test_engine_that_ignores_sigterm_goes(self, gateway: GatewayFactory) -> None:
        self.kill_and_look(gateway(start={"ignore_term": True}))

    def test_grandchild_in_a_session_of_its_own_goes(self, gateway: GatewayFactory) -> None:
        self.kill_and_look(gateway(start={"fork": True}))

    def test_engine_behind_a_shell_goes(self, gateway: GatewayFactory, short_tmp: Path) -> None:
        shell = short_tmp / "llama-server"
        shell.write_text(f'#!/bin/sh\n"{sys.executable}" "{ENGINE}" "$@"\nexit $?\n')
        shell.chmod(0o755)
        running = gateway(serve=False)
        running.prepare(engine=shell, models=())
        running.serve()
        self.kill_and_look(running)

    def test_engine_goes_when_it_is_still_loading(self, gateway: GatewayFactory) -> None:
        running = gateway(start={"load_until": "never"})
        with contextlib.closing(socket.create_connection(("127.0.0.1", running.port))) as client:
            body = json.dumps({"model": MODEL}).encode()
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            running.wait_seen("start")
            running.signal(signal.SIGKILL)
            running.wait()
            wait_until(lambda: not left_over(running), "the engine's end", LEFT_S)

    def test_dead_watchdog_is_replaced(self, gateway: GatewayFactory) -> None:
        running = gateway(start={"fork": True})
        running.post(messages=[])
        first = watchdogs(running.pid)
        assert len(first) == 1
        os.kill(first[0], signal.SIGKILL)
        wait_until(lambda: watchdogs(running.pid) not in ([], first), "another watchdog")
        self.kill_and_look(running)

    def test_leftovers_of_a_gateway_that_died_with_its_watchdog_go_at_the_next_start(
        self, gateway: GatewayFactory
    ) -> None:
        running = gateway(start={"fork": True})
        running.post(messages=[])
        os.kill(running.pid, signal.SIGSTOP)  # so that neither can do anything for the other
        os.kill(watchdogs(running.pid)[0], signal.SIGKILL)
        running.signal(signal.SIGKILL)
        running.wait()
        assert left_over(running)  # the grandchild: nobody was there to see to it
        running.set_start({})
        running.serve()
        assert not left_over(running)
        assert running.post(messages=[]).status_code == 200

    def test_stopped_gateway_leaves_no_watchdog_and_no_record(self, gateway: GatewayFactory) -> None:
        running = gateway()
        running.post(messages=[])
        dogs = watchdogs(running.pid)
        assert running.stop() == 0
        assert not [dog for dog in dogs if Path(f"/proc/{dog}").exists()]
        assert not list((running.dirs.run / "engines").iterdir())
        assert not list(running.dirs.run.glob("*.sock"))


def watchdogs(parent: int) -> list[int]:
    """The gateway's watchdog processes."""
    found = []
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"watchdog.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


class TestReload:
    def test_sighup_keeps_pid_streams_and_engines(self, gateway: GatewayFactory) -> None:
        running = gateway()
        stream = Stream(running, [OPEN, FIRST, ["until", "go"], *LAST])
        engine = running.get("/api/ps").json()["models"][0]["pid"]
        running.write_config('[[keys]]\nname = "new"\nkey = "new-secret"')
        running.signal(signal.SIGHUP)
        wait_until(lambda: running.get("/v1/models").status_code == 401, "the new key")
        running.go("go")
        assert "[DONE]" in stream.end()
        shown = running.get("/api/ps", authorization="Bearer new-secret").json()["models"]
        assert [model["pid"] for model in shown] == [engine]
        assert len(running.seen("start")) == 1

    def test_broken_file_changes_nothing_and_is_reported(self, gateway: GatewayFactory) -> None:
        running = gateway()
        running.write_config("prot = 1\nslots = -1")
        running.signal(signal.SIGHUP)
        wait_until(lambda: "was not reloaded" in running.errors(), "the report")
        assert "did you mean `port`?" in running.errors()
        assert running.post(messages=[]).status_code == 200


@pytest.mark.rule("T08")
def test_model_that_makes_no_progress_is_given_up(gateway: GatewayFactory) -> None:
    running = gateway("model_load_timeout_secs = 1", start={"never_healthy": True, "stderr": "loading tensors"})
    answer = running.post(messages=[])
    assert (answer.status_code, answer.json()["error"]["blazar_code"]) == (503, "MODEL_LOAD_TIMEOUT")
    assert "loading tensors" in answer.json()["error"]["message"]
    wait_until(lambda: not left_over(running), "the engine's end")


@pytest.mark.rule("V22")
def test_serve_with_mistakes_exits_2_with_all_of_them(gateway: GatewayFactory) -> None:
    running = gateway("port = 99999\nlog_level = 'loud'", serve=False)
    done = subprocess.run(
        [sys.executable, "-m", "blazar", "serve"], env=running.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"{running.dirs.config_file}:1: port: is 99999, and has to be an integer, 0..=65535" in done.stderr
    assert f"{running.dirs.config_file}:2: log_level: is 'loud'" in done.stderr


def test_serve_on_an_empty_machine_says_what_to_type(short_tmp: Path) -> None:
    running = Running(short_tmp, "")
    running.serve()
    try:
        assert "blazar engine install" in running.errors()
        assert "blazar pull" in running.errors()
        answer = running.post(messages=[])
        assert answer.status_code == 404
        assert "blazar pull" in answer.json()["error"]["message"]
    finally:
        running.stop()
