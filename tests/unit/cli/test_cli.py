"""The command line: exit statuses, one line and a remedy, what is printed where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.front.conftest import ENGINE
from tests.support.files import write_tiny_gguf

Done = subprocess.CompletedProcess[str]


class Shell:
    """Runs `blazar` with directories of its own."""

    def __init__(self, root: Path) -> None:
        self.env = {**os.environ, "BLAZAR_CONFIG": str(root / "config.toml"), "BLAZAR_DATA_DIR": str(root / "data")}

    def __call__(self, *words: str, stdin: str = "", **env: str) -> Done:
        return subprocess.run(
            [sys.executable, "-m", "blazar", *words], env={**self.env, **env}, input=stdin, capture_output=True,
            text=True, check=False, timeout=60,
        )  # fmt: skip


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_alone_it_says_how_to_begin(shell: Shell) -> None:
    done = shell()
    assert done.returncode == 0
    assert "blazar quickstart" in done.stdout


@pytest.mark.parametrize("words", [("--help",), ("serve", "--help"), ("engine", "install", "--help"), ("--version",)])
def test_help_and_version(shell: Shell, words: tuple[str, ...]) -> None:
    assert shell(*words).returncode == 0


@pytest.mark.parametrize(
    "words", [("nonsense",), ("serve", "--nonsense"), ("pull",), ("serve", "--port", "x"), ("engine",)]
)
def test_usage_errors_exit_2(shell: Shell, words: tuple[str, ...]) -> None:
    done = shell(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("blazar: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("rm", "none"), 2, "there is no model 'none'"),
        (("show", "none"), 2, "there is no model 'none'"),
        (("pull", "none"), 2, "the catalogue has no model 'none'"),
        (("import", "/nowhere.gguf"), 1, "/nowhere.gguf does not exist"),
        (
            ("engine", "install", "--kind", "foo"),
            2,
            "choose one of llamacpp, mistralrs, sglang, sdcpp, whisper, mlx, piper",
        ),
        (("engine", "install", "--from", "/nowhere"), 2, "/nowhere does not exist"),
        (("engine", "use", "none"), 2, "there is no engine 'none'"),
        (("ps", "--host", "127.0.0.1:1"), 1, "start one: blazar serve"),
        (("run", "m", "hi", "--host", "127.0.0.1:1"), 1, "no gateway answers at http://127.0.0.1:1"),
        (("serve", "--port", "70000"), 2, "'70000' is no port"),
    ],
)
def test_failures_are_one_line_with_a_remedy(shell: Shell, words: tuple[str, ...], status: int, says: str) -> None:
    done = shell(*words)
    assert done.returncode == status
    assert says in done.stderr
    assert done.stderr.startswith("blazar: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.rule("B18")
def test_without_a_home_it_works_here_and_says_so(shell: Shell, tmp_path: Path) -> None:
    env = {name: value for name, value in shell.env.items() if not name.startswith(("BLAZAR_", "XDG_", "HOME"))}
    argv = [sys.executable, "-m", "blazar", "list"]
    env["PYTHONPATH"] = str(Path(__file__).parents[3])
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "WARNING" in done.stderr
    assert str(tmp_path) in done.stderr
    assert (tmp_path / "blazar" / "blazar.db").exists()


def test_engines_and_models_from_install_to_removal(shell: Shell, tmp_path: Path) -> None:
    assert "no engines yet" in shell("engine", "list").stdout
    assert "no models yet" in shell("list").stdout
    installed = shell("engine", "install", "--kind", "llamacpp", "--from", str(ENGINE))
    assert installed.stdout == "local: installed and in use (llamacpp, version: 1 (scripted))\n"
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    assert "tiny: shares the file's content" in shell("import", str(file)).stdout
    assert json.loads(shell("engine", "list", "--json").stdout)[0]["tag"] == "local"
    assert json.loads(shell("list", "--json").stdout)[0]["name"] == "tiny"
    shown = shell("show", "tiny").stdout
    assert "cores of this machine" in shown
    flags = {flag["flag"]: flag["value"] for flag in json.loads(shell("show", "tiny", "--json").stdout)["flags"]}
    assert flags["--alias"] == "tiny"
    assert shell("rm", "tiny").stdout == "tiny: removed\n"
    assert shell("engine", "rm", "local").stdout == "local: removed\n"
    assert file.exists()


def test_closed_pipe_is_no_error(shell: Shell) -> None:
    done = subprocess.run(
        f"{sys.executable} -m blazar --help | true",
        shell=True,
        env=shell.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
