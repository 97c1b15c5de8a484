"""Changes of the configuration by a running gateway: whole or not at all, also in memory (B20)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blazar.base.errors import ApiError, Code
from blazar.config.edit import add_key, remove_key, set_key
from blazar.config.load import load_config
from blazar.config.schema import Config
from blazar.flow.settings import Settings

TEXT = '# ours\n[[keys]]\nname = "boss"\nkey = "secret"\n'


class Gateway:
    """What is applied."""

    def __init__(self, path: Path, text: str = TEXT) -> None:
        self.path = path
        path.write_text(text)
        self.applied: list[Config] = []
        self.settings = Settings(path, self.load, self.load(), self.applied.append)

    def load(self, data: bytes | None = None) -> Config:
        return load_config(self.path, {}, data)

    @property
    def names(self) -> list[str]:
        return [key.name for key in self.settings.config.keys]


def adding(name: str) -> object:
    return lambda text: add_key(text, {"name": name, "key": f"{name}-secret"})


@pytest.mark.rule("B20")
async def test_change_that_cannot_be_written_rolls_back_what_was_applied(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / ("c" * 250))  # the temporary file's name would be too long
    with pytest.raises(ApiError, match="nothing has changed") as caught:
        await gateway.settings.change(adding("new"))  # type: ignore[arg-type]
    assert caught.value.code is Code.INTERNAL
    assert [len(config.keys) for config in gateway.applied] == [2, 1]  # in force, and taken back
    assert gateway.names == ["boss"]
    assert gateway.path.read_text() == TEXT
    assert list(tmp_path.iterdir()) == [gateway.path]


@pytest.mark.rule("B20")
async def test_change_that_would_not_load_is_not_applied(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "config.toml")
    with pytest.raises(ApiError, match="names are unique") as caught:
        await gateway.settings.change(adding("boss"))  # type: ignore[arg-type]
    assert caught.value.code is Code.CONFLICT
    assert gateway.applied == []
    assert gateway.path.read_text() == TEXT


async def test_changes_at_once_are_all_made(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "config.toml")
    await asyncio.gather(*(gateway.settings.change(adding(f"k{n}")) for n in range(8)))  # type: ignore[arg-type]
    assert sorted(gateway.names) == ["boss", *(f"k{n}" for n in range(8))]
    assert [key.name for key in gateway.load().keys] == gateway.names


async def test_edit_by_hand_in_the_middle_of_a_change_is_kept(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "config.toml")
    edits = 0

    def edit(text: str) -> str:
        nonlocal edits
        edits += 1
        if edits == 1:
            gateway.path.write_text("max_queue = 7\n" + TEXT)
        return add_key(text, {"name": "new", "key": "x"})

    await gateway.settings.change(edit)
    assert edits == 2
    assert gateway.load().max_queue == gateway.settings.config.max_queue == 7
    assert gateway.names == ["boss", "new"]


async def test_one_who_leaves_in_the_middle_leaves_nothing_half_done(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "config.toml")
    task = asyncio.create_task(gateway.settings.change(adding("new")))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gateway.settings.change(adding("other"))  # type: ignore[arg-type]
    assert gateway.names == ["boss", "new", "other"]
    assert [key.name for key in gateway.load().keys] == gateway.names


async def test_link_is_written_through(tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_text(TEXT)
    link = tmp_path / "config.toml"
    link.symlink_to(real)
    settings = Settings(link, lambda data=None: load_config(link, {}, data), load_config(link, {}), lambda config: None)
    await settings.change(adding("new"))  # type: ignore[arg-type]
    assert link.is_symlink()
    assert '"new"' in real.read_text()


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        'keys = [{ name = "boss", key = "secret" }]  # in one line\nport = 1\n',
        'port = 1\n\n[[keys]] # first\nname = "boss"\nkey = "secret"\n\n[model_overrides.m]\nctx = 5\n',
        'keys = [\n  { name = "boss", key = "secret" }, # trailing\n]\n',
    ],
)
def test_edits_keep_everything_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    before = load_config(path, {})
    added = add_key(text, {"name": "new", "key": "x", "models": ["m"], "rpm": 3})
    config = load_config(path, {}, added.encode())
    assert [key.name for key in config.keys] == ["boss", "new"]
    assert config.keys[1].rpm == 3
    changed = load_config(path, {}, set_key(added, "new", {"key": "y"}, drop=("rpm",)).encode())
    assert (changed.keys[1].key, changed.keys[1].rpm) == ("y", 0)
    assert load_config(path, {}, remove_key(added, "new").encode()) == before
    for comment in (part for part in text.split("#")[1:]):
        assert comment.split("\n")[0] in added
