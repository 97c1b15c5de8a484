"""Where things are: the order of sources, and a machine without a home (B18)."""

from __future__ import annotations

from pathlib import Path

import pytest

from blazar.base.dirs import find_dirs
from blazar.base.errors import CommandError


def never(text: str) -> None:
    pytest.fail(f"nothing to warn of: {text}")


def test_own_variables_win_over_xdg_and_home(tmp_path: Path) -> None:
    env = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": "/xdg/c",
        "XDG_DATA_HOME": "/xdg/d",
        "BLAZAR_CONFIG": "/own/c.toml",
        "BLAZAR_DATA_DIR": "/own/d",
    }
    dirs = find_dirs(env, warn=never)
    assert (dirs.config_file, dirs.data) == (Path("/own/c.toml"), Path("/own/d"))
    assert find_dirs(env, config=Path("/flag.toml"), warn=never).config_file == Path("/flag.toml")


def test_xdg_wins_over_home(tmp_path: Path) -> None:
    dirs = find_dirs({"HOME": str(tmp_path), "XDG_CONFIG_HOME": "/xdg/c"}, warn=never)
    assert dirs.config_file == Path("/xdg/c/blazar/config.toml")
    assert dirs.data == tmp_path / ".local/share/blazar"


@pytest.mark.rule("B18")
@pytest.mark.parametrize("home", ["", "relative", "/nowhere/at/all"])
def test_without_a_home_the_current_directory_has_to_do_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    dirs = find_dirs({"HOME": home}, warn=told.append)
    assert dirs.config_file == tmp_path / "blazar/config.toml"
    assert dirs.data == tmp_path / "blazar"
    assert len(told) == 1
    assert "WARNING" in told[0]
    assert str(tmp_path) in told[0]
    assert "BLAZAR_DATA_DIR" in told[0]


def test_directories_are_for_the_owner_only(tmp_path: Path) -> None:
    dirs = find_dirs({"BLAZAR_DATA_DIR": str(tmp_path / "d"), "BLAZAR_CONFIG": "/c"}, warn=never)
    dirs.ensure()
    for path in (dirs.data, dirs.models, dirs.engines, dirs.run, dirs.log):
        assert path.stat().st_mode & 0o777 == 0o700


def test_data_directory_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    dirs = find_dirs({"BLAZAR_DATA_DIR": str(tmp_path / "file" / "d"), "BLAZAR_CONFIG": "/c"}, warn=never)
    with pytest.raises(CommandError, match="BLAZAR_DATA_DIR"):
        dirs.ensure()
