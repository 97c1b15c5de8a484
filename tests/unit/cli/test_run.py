"""`run`: once, from a pipe, and as a conversation on a terminal."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from blazar.cli.client import ChatAsk, GatewayClient
from blazar.cli.main import Context
from blazar.cli.quickstart import first_answer
from blazar.cli.repl import converse
from tests.support.terminal import END, INTERRUPT, Terminal
from tests.unit.cli.conftest import Gateway


@pytest.fixture
def env(tmp_path: Path, book: Gateway) -> dict[str, str]:
    (tmp_path / "data").mkdir()
    own = {"BLAZAR_CONFIG": str(tmp_path / "none"), "BLAZAR_DATA_DIR": str(tmp_path / "data")}
    return {**os.environ, **own, "BLAZAR_HOST": book.address}


def run(env: dict[str, str], *words: str | bytes, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, "-m", "blazar", "run", "m", *words]
    return subprocess.run(argv, env=env, input=stdin, capture_output=True, check=False, timeout=30)


# ---- once ----


def test_pipe_goes_with_the_question(env: dict[str, str], book: Gateway) -> None:
    assert run(env, "sum", "up", stdin=b"a long text\n").returncode == 0
    assert book.asked[0]["messages"][-1] == {"role": "user", "content": "sum up\n\na long text"}


def test_question_waits_for_no_socket_on_stdin(env: dict[str, str]) -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        argv = [sys.executable, "-m", "blazar", "run", "m", "hello"]
        done = subprocess.run(argv, env=env, stdin=theirs, capture_output=True, check=False, timeout=30)
    assert done.stdout == b"2 messages, the last: hello\n"


def test_bytes_that_are_no_text_are_asked_all_the_same(env: dict[str, str], book: Gateway) -> None:
    assert run(env, b"caf\xe9 au lait", stdin=b"\xff!").returncode == 0
    assert book.asked[0]["messages"][-1]["content"] == "caf\ufffd au lait\n\n\ufffd!"


@pytest.mark.rule("B13")
def test_thinking_stays_out_of_a_pipe(env: dict[str, str]) -> None:
    assert run(env, "think").stdout == b"thought of it\n"


@pytest.mark.parametrize(
    ("word", "out", "error"),
    [("cut", b"half an\n", b"the stream ended early"), ("fail", b"", b"the engine died")],
)
def test_answer_that_is_not_whole_is_a_failure(env: dict[str, str], word: str, out: bytes, error: bytes) -> None:
    done = run(env, word)
    assert (done.returncode, done.stdout) == (1, out)
    assert error in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_ending_the_command_ends_the_answer(env: dict[str, str], book: Gateway) -> None:
    argv = [sys.executable, "-m", "blazar", "run", "m", "endless"]
    with subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(9) == b"on and on"
        process.terminate()
    assert book.left.wait(10)


def test_interrupt_ends_with_130(env: dict[str, str], book: Gateway) -> None:
    with Terminal("run", "m", "endless", env=env) as terminal:
        terminal.wait_for("on and on")
        terminal.type(INTERRUPT)
        assert terminal.wait() == 130
    assert book.left.wait(10)
    assert "Traceback" not in terminal.text


def test_first_answer_is_bounded_and_left_to_no_chance(
    env: dict[str, str], book: Gateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("BLAZAR_CONFIG", "BLAZAR_DATA_DIR"):
        monkeypatch.setenv(name, env[name])
    first_answer(Context(None), f"http://{book.address}", "m", "hello")
    assert capsys.readouterr().out == "> hello\n2 messages, the last: hello\n"
    assert book.asked[0]["temperature"] == 0
    assert 0 < book.asked[0]["max_tokens"] <= 1024


def test_server_that_is_no_gateway_is_told_apart(env: dict[str, str], book: Gateway) -> None:
    argv = [sys.executable, "-m", "blazar", "ps"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no Blazar gateway" in done.stderr
    assert done.stderr.count("\n") == 1


# ---- conversation ----


@pytest.mark.rule("B13")
def test_thinking_is_dimmed_in_a_conversation(env: dict[str, str]) -> None:
    with Terminal("run", "m", env=env) as terminal:
        terminal.wait_for(">>> ")
        terminal.type("think\n")
        assert "\x1b[2mlet me see\x1b[0m" in terminal.wait_for("thought of it")


def test_interrupt_stops_the_answer_and_not_the_conversation(env: dict[str, str], book: Gateway) -> None:
    with Terminal("run", "m", env=env) as terminal:
        terminal.wait_for(">>> ")
        terminal.type("endless\n")
        terminal.wait_for("on and on")
        terminal.type(INTERRUPT)
        terminal.wait_for(">>> ")
        assert book.left.wait(10)
        terminal.type("next\n")
        terminal.wait_for("4 messages, the last: next")  # the system's, the question, what came of its answer, this one
        terminal.wait_for(">>> ")
        terminal.type("/exit\n")
        assert terminal.wait() == 0


def test_interrupt_at_the_prompt_asks_again(
    env: dict[str, str], book: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not on a terminal: Python's input() may notice a Ctrl-C that comes just after its prompt only with the next key.
    for name in ("BLAZAR_CONFIG", "BLAZAR_DATA_DIR"):
        monkeypatch.setenv(name, env[name])
    typed = iter([KeyboardInterrupt, KeyboardInterrupt, "hello", EOFError])

    def read(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)
    with GatewayClient(f"http://{book.address}", "") as client:
        assert converse(Context(None), client, ChatAsk(model="m", messages=(), stream=True), ()) == 0
    assert [ask["messages"][-1]["content"] for ask in book.asked] == ["hello"]


def test_conversation_remembers_until_it_is_cleared(env: dict[str, str]) -> None:
    with Terminal("run", "m", env=env) as terminal:
        for question, answer in (
            ("one", "2 messages, the last: one"),
            ("two", "4 messages, the last: two"),
            ("/clear", "forgotten"),
            ("three", "2 messages, the last: three"),
            ("/help", "/exit"),
            ("/nonsense", "there is no /nonsense"),
            ("/etc/passwd is what", "4 messages, the last: what"),
        ):
            terminal.wait_for(">>> ")
            terminal.type(f"{question}\n")
            terminal.wait_for(answer)
        terminal.wait_for(">>> ")
        terminal.type(END)
        assert terminal.wait() == 0


def test_failed_question_is_told_and_forgotten(env: dict[str, str]) -> None:
    with Terminal("run", "m", env=env) as terminal:
        terminal.wait_for(">>> ")
        terminal.type("fail\n")
        terminal.wait_for("blazar: the engine died")
        terminal.wait_for(">>> ")
        terminal.type("on\n")
        terminal.wait_for("2 messages, the last: on")


def test_unknown_model_is_told_before_the_first_question(env: dict[str, str]) -> None:
    with Terminal("run", "other", env=env) as terminal:
        terminal.wait_for("blazar: there is no such model")
        assert terminal.wait() == 1


def test_history_lasts_and_is_private(env: dict[str, str], tmp_path: Path) -> None:
    with Terminal("run", "m", env=env) as terminal:
        terminal.wait_for(">>> ")
        terminal.type("remember this\n")
        terminal.wait_for(">>> ")
        terminal.type(END)
        assert terminal.wait() == 0
    history = tmp_path / "data" / "history"
    assert "remember this" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with Terminal("run", "m", env=env) as terminal:
        terminal.wait_for(">>> ")
        terminal.type("\x1b[A\n")  # the arrow up
        terminal.wait_for("2 messages, the last: this")
