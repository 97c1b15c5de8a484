"""`quickstart` with an engine and a model that are there: the gateway's life around the first answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest

from tests.front.conftest import PATIENCE_S, STREAM_HEAD, GatewayFactory, Running, wait_until
from tests.support.terminal import INTERRUPT, Terminal

FIRST = "> What is the capital of France?\nThe capital is Paris.\n"


def quickstart(running: Running, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "blazar", "quickstart", *words]
    return subprocess.run(argv, env=running.env, capture_output=True, text=True, check=False, timeout=60)


def gateway_pid(running: Running) -> int:
    return int((running.dirs.run / "gateway.lock").read_text())


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_once_leaves_an_answer_and_no_process(gateway: GatewayFactory) -> None:
    running = gateway(serve=False)
    done = quickstart(running, "--once", "--port", "0")
    assert (done.returncode, done.stdout, done.stderr) == (0, FIRST, "")
    assert is_gone(gateway_pid(running))


def test_running_gateway_is_used_and_left_alone(gateway: GatewayFactory) -> None:
    running = gateway()
    done = quickstart(running, "--once", "--port", str(running.port))
    assert done.returncode == 0
    assert done.stdout.startswith(FIRST)
    assert f"blazar run --host 127.0.0.1:{running.port} scripted" in done.stdout
    assert running.get("/healthz").status_code == 200


def test_port_of_someone_else_exits_3(gateway: GatewayFactory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = quickstart(gateway(serve=False), "--port", str(taken.getsockname()[1]))
    assert done.returncode == 3
    assert "is in use" in done.stderr


def test_broken_configuration_comes_first(gateway: GatewayFactory) -> None:
    done = quickstart(gateway("prot = 1", serve=False))
    assert done.returncode == 2
    assert "port" in done.stderr


@pytest.mark.parametrize(
    ("end", "status"),
    [
        pytest.param(lambda terminal: terminal.type(INTERRUPT), 0, id="Ctrl-C"),
        pytest.param(lambda terminal: terminal.process.terminate(), 128 + signal.SIGTERM, id="TERM"),
        pytest.param(lambda terminal: terminal.process.send_signal(signal.SIGHUP), 128 + signal.SIGHUP, id="HUP"),
    ],
)
def test_gateway_ends_with_the_command(gateway: GatewayFactory, end: Callable[[Terminal], None], status: int) -> None:
    running = gateway(serve=False)
    with Terminal("quickstart", "--port", "0", env=running.env) as terminal:
        terminal.wait_for("Ctrl-C stops it")
        pid = gateway_pid(running)
        end(terminal)
        assert terminal.wait() == status
        wait_until(lambda: is_gone(pid), "the gateway's end")
    assert "Traceback" not in terminal.text


def test_interrupt_lets_the_answers_of_others_end(gateway: GatewayFactory) -> None:
    running = gateway(serve=False)
    with Terminal("quickstart", "--port", "0", env=running.env) as terminal:
        url = terminal.wait_for("/v1. Next").split()[-2].removesuffix("/v1.")
        terminal.wait_for("Ctrl-C stops it")
        script = [
            ["raw", f"{STREAM_HEAD}Transfer-Encoding: chunked\r\n\r\n"], ["chunk", "data: 1\n\n"], ["until", "end"],
            ["chunk", "data: [DONE]\n\n"], ["raw", "0\r\n\r\n"],
        ]  # fmt: skip
        ask = {"model": "scripted", "messages": [], "stream": True, "script": script}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=ask, timeout=PATIENCE_S) as answer:
            pieces = answer.iter_text()
            next(pieces)
            terminal.type(INTERRUPT)
            wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 503, "the drain")
            running.go("end")
            assert "".join(pieces).endswith("data: [DONE]\n\n")
        assert terminal.wait() == 0
