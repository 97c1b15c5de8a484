"""Client commands against a running gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.front.conftest import GatewayFactory
from tests.unit.cli.test_cli import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_run_answers_once_and_from_a_pipe(gateway: GatewayFactory, shell: Shell) -> None:
    url = gateway().url
    assert shell("run", "scripted", "What?", "--host", url).stdout == "The capital is Paris.\n"
    assert shell("run", "scripted", stdin="What?\n", BLAZAR_HOST=url).stdout == "The capital is Paris.\n"
    assert shell("run", "scripted", stdin="", BLAZAR_HOST=url).returncode == 2
    refused = shell("run", "nothing", "x", BLAZAR_HOST=url)
    assert refused.returncode == 1
    assert "there is no model 'nothing'" in refused.stderr


def test_ps_and_stop(gateway: GatewayFactory, shell: Shell) -> None:
    running = gateway('[[keys]]\nname = "boss"\nkey = "secret"')
    refused = shell("ps", "--host", running.url)
    assert refused.returncode == 1
    assert "BLAZAR_KEY" in refused.stderr
    shell.env["BLAZAR_KEY"] = "secret"
    assert "nothing is loaded" in shell("ps", "--host", running.url).stdout
    running.post(secret="secret", messages=[])
    assert "scripted  ready  local" in shell("ps", "--host", running.url).stdout
    assert json.loads(shell("ps", "--json", "--host", running.url).stdout)["models"][0]["name"] == "scripted"
    assert shell("stop", "scripted", "--host", running.url).stdout == "scripted: unloaded\n"
    assert shell("stop", "scripted", "--host", running.url).stdout == "scripted: was not loaded\n"
