"""Strict reading: every problem, with its place and what would be accepted (V08, V22)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blazar.base.errors import ConfigError
from blazar.config.load import load_config
from blazar.config.schema import Config


def problems(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> list[str]:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, env or {})
    assert caught.value.exit_status == 2
    return [str(problem).replace(str(path), "FILE") for problem in caught.value.problems]


def load(tmp_path: Path, text: str, env: dict[str, str] | None = None) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load_config(path, env or {})


def test_missing_file_is_the_defaults(tmp_path: Path) -> None:
    config = load_config(tmp_path / "none.toml", {})
    assert (config.host, config.port, config.default_ctx, config.keys) == ("127.0.0.1", 11435, 16384, [])


def test_values_of_every_shape_are_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        'port = 0\nbody_timeout_secs = 5\ncors_origins = ["*"]\naccess_log = false\n[engine_env]\nA = "b"\n'
        '[[keys]]\nname = "a"\nkey = "s"\nmodels = ["m"]\n[model_overrides."m.1"]\nctx = 4096\nextra_args = ["--x"]\n',
    )
    assert (config.port, config.body_timeout_secs, config.access_log, config.engine_env) == (0, 5.0, False, {"A": "b"})
    assert config.keys[0].models == ["m"]
    assert config.model_overrides["m.1"].ctx == 4096


@pytest.mark.rule("V22")
def test_all_problems_are_reported_together_with_their_places(tmp_path: Path) -> None:
    text = (
        'host = 5\n\nport = 99999\nlog_level = "loud"\n[[keys]]\nname = "ok"\nkey = "s"\n[[keys]]\nname = "no name"\n'
    )
    assert problems(tmp_path, text) == [
        "FILE:1: host: is 5, and has to be text",
        "FILE:3: port: is 99999, and has to be an integer, 0..=65535",
        'FILE:4: log_level: is \'loud\', and has to be "debug" or "error" or "info" or "warning"',
        "FILE:9: keys.1.name: is 'no name', and has to be text that matches ^[A-Za-z0-9._-]+\\Z",
    ]


@pytest.mark.rule("V08")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prot = 1", "FILE:1: prot: is no known key: did you mean `port`?"),
        (
            "[model_overrides.foo]\nctxx = 1",
            "FILE:2: model_overrides.foo.ctxx: is no known key of this table: did you mean `ctx`?",
        ),
        (
            '[[keys]]\nname = "a"\nkey = "s"\nmodel = []',
            "FILE:4: keys.0.model: is no known key of this table: did you mean `models`?",
        ),
    ],
)
def test_unknown_field_of_any_table_is_refused_with_the_nearest(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(tmp_path, text) == [problem]


@pytest.mark.rule("V22")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = ", "FILE:1: is not TOML"),
        ("a = 1\na = 2", "is not TOML"),
        ("port = true", "FILE:1: port: is True, and has to be an integer"),
        ("port = 1.5", "port: is 1.5"),
        ('port = "80"', "port: is '80'"),
        ("keys = 3", "write [[keys]]"),
        ("[[keys]]\nname = 'a'", "exactly one of `key` and `key_hash`"),
        ("[[keys]]\nname = 'a'\nkey = 's'\nkey_hash = 'sha256:" + "0" * 64 + "'", "exactly one"),
        ("[[keys]]\nkey = 's'", "has no `name`"),
        ("[[keys]]\nname = 'a'\nkey = 's'\n[[keys]]\nname = 'a'\nkey = 't'", "FILE:5: keys.1.name: 'a' is the name of"),
        ("[[keys]]\nname = 'a'\nkey_hash = 'md5:1'", "has to be text that matches"),
        ("model_overrides = 1", "write [model_overrides.NAME]"),
        ("[model_overrides]\nfoo = 1", "model_overrides.foo: is 1, and has to be a table"),
        ("engine_env = {A = 1}", "engine_env: is {'A': 1}"),
        ("default_ctx = 1", "an integer, 128 or more"),
    ],
)
def test_bad_values_are_named(tmp_path: Path, text: str, words: str) -> None:
    assert words in "\n".join(problems(tmp_path, text))


def test_bad_secret_is_not_shown(tmp_path: Path) -> None:
    assert "12345678" not in "\n".join(problems(tmp_path, "[[keys]]\nname = 'a'\nkey = 12345678"))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a\n"])
def test_key_name_charset(tmp_path: Path, name: str) -> None:
    assert problems(tmp_path, "", {"BLAZAR_KEYS": f'[{{"name": {name!r}, "key": "s"}}]'.replace("'", '"')})


def test_binary_and_unreadable_files_are_problems(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_config(path, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, {})


class TestEnvironment:
    def test_variables_win_over_the_file(self, tmp_path: Path) -> None:
        env = {
            "BLAZAR_LISTEN_PORT": "1",
            "BLAZAR_ACCESS_LOG": "false",
            "BLAZAR_CORS_ORIGINS": "a, b",
            "BLAZAR_BODY_TIMEOUT_SECS": "1.5",
            "BLAZAR_KEYS": '[{"name": "x", "key": "y"}]',
            "BLAZAR_ENGINE_ENV": '{"A": "b"}',
        }
        config = load(tmp_path, "port = 2\naccess_log = true", env)
        assert (config.port, config.access_log, config.cors_origins, config.body_timeout_secs) == (
            1,
            False,
            ["a", "b"],
            1.5,
        )
        assert (config.keys[0].name, config.engine_env) == ("x", {"A": "b"})

    def test_other_variables_and_empty_ones_are_left_alone(self, tmp_path: Path) -> None:
        env = {"BLAZAR_HOST": "there:1", "BLAZAR_DATA_DIR": "/d", "BLAZAR_SLOTS": "", "PATH": "/bin"}
        assert load(tmp_path, "", env).slots == 0

    @pytest.mark.rule("V22")
    def test_bad_ones_are_named_by_their_variable(self, tmp_path: Path) -> None:
        env = {"BLAZAR_SLOTS": "many", "BLAZAR_SLOT": "1", "BLAZAR_KEYS": "{"}
        found = "\n".join(problems(tmp_path, "", env))
        assert "BLAZAR_SLOTS: slots: is 'many', and has to be an integer, 0..=4096" in found
        assert "BLAZAR_SLOT: is no known variable: did you mean `BLAZAR_SLOTS`?" in found
        assert "BLAZAR_KEYS: has to be JSON" in found


def test_documentation_is_made_from_the_table() -> None:
    made = subprocess.run([sys.executable, "-m", "blazar.config.describe"], capture_output=True, text=True, check=True)
    page = Path(__file__).parents[3] / "docs/config.md"
    assert page.read_text() == made.stdout, "run: python -m blazar.config.describe > docs/config.md"
