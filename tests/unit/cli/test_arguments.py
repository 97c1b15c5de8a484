"""Which command lines mean what, and which address is meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blazar.base.errors import UsageError
from blazar.cli.client import base_url, configured_url, find_gateway
from blazar.cli.main import Context, main, parse
from blazar.config.schema import Config

HEAVY = {"httpx", "uvloop", "granian", "sqlite3", "numpy", "asyncio", "blazar.app"}


@pytest.mark.parametrize(
    ("words", "prompt"),
    [
        ("run m", []),
        ("run m hello there", ["hello", "there"]),
        ("run m --max-tokens 9 hello there", ["hello", "there"]),
        ("run --max-tokens 9 m hello", ["hello"]),
        ("run m hello --max-tokens 9 there", ["hello", "there"]),
        ("run m --max-tokens 9 -- -x", ["-x"]),
    ],
)
def test_question_may_stand_on_either_side_of_options(words: str, prompt: list[str]) -> None:
    options = parse(words.split())
    assert (options.model, options.prompt) == ("m", prompt)


@pytest.mark.parametrize("words", ["run m --bogus hello", "list extra", "ps --host", "run m --max-tokens 0"])
def test_arguments_without_a_meaning_are_refused(words: str) -> None:
    with pytest.raises(UsageError, match="for its usage: blazar"):
        parse(words.split())


@pytest.mark.parametrize(
    ("words", "meant"),
    [("serv", "blazar serve"), ("qickstart", "blazar quickstart"), ("engine isntall", "blazar engine install")],
)
def test_mistyped_command_is_told_the_nearest(words: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"did you mean {meant}\?"):
        parse(words.split())


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "run"]) == 0
    assert capsys.readouterr().out.startswith("usage: blazar run")


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("box", "http://box:11435"),
        ("box:80", "http://box:80"),
        ("::1", "http://[::1]:11435"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("http://box:8080/", "http://box:8080"),
        ("https://box", "https://box"),
    ],
)
def test_address_becomes_a_url(address: str, url: str) -> None:
    assert base_url(address) == url


@pytest.mark.parametrize(
    "address", ["http://[::1", "box:99999", "box:0", "box:x", "ht!tp://a b", "ftp://box", "http://", "/"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is no address of a gateway"):
        base_url(address)


@pytest.mark.parametrize(
    ("config", "url"),
    [
        (Config(), "http://127.0.0.1:11435"),
        (Config(host="0.0.0.0", port=9), "http://127.0.0.1:9"),
        (Config(host="::", port=9), "http://[::1]:9"),
    ],
)
def test_configured_gateway_is_reached_where_it_listens(config: Config, url: str) -> None:
    assert configured_url(config) == url


def test_port_that_nobody_knows_is_taught() -> None:
    with pytest.raises(UsageError, match="--host HOST:PORT, or BLAZAR_HOST"):
        configured_url(Config(port=0))


def test_host_option_beats_the_variable_and_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text("port = 1111\n")
    monkeypatch.setenv("BLAZAR_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("BLAZAR_DATA_DIR", str(tmp_path))

    def found(*words: str) -> str:
        with find_gateway(Context(None), parse(["ps", *words])) as client:
            return client.base

    assert found() == "http://127.0.0.1:1111"
    monkeypatch.setenv("BLAZAR_HOST", "box:2222")
    assert found() == "http://box:2222"
    assert found("--host", "box:3333") == "http://box:3333"


def test_config_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "none.toml"), "list"]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from blazar.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stderr.split())


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    env = {**os.environ, "BLAZAR_CONFIG": str(tmp_path / "config.toml"), "BLAZAR_DATA_DIR": str(tmp_path / "data")}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "blazar", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=env,
        )
    assert (done.returncode, done.stderr) == (1, "blazar: [Errno 28] No space left on device\n")
