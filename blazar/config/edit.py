"""Changes the configuration's text and leaves the rest of it as it is: comments, order, spelling.

Pure: text in, text out. Whether the result is a good configuration is for `load` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Array

from blazar.base.errors import CommandError

Entry = MutableMapping[str, Any]


def add_key(text: str, values: Mapping[str, Any]) -> str:
    """The text with one more `[[keys]]` entry at its end.

    Raises:
        CommandError: the text is not TOML.
    """
    document = _parse(text)
    keys = document.get("keys")
    if isinstance(keys, Array):  # written as keys = [{…}]
        entry: Any = tomlkit.inline_table()
        entry.update(values)
        keys.append(entry)
        return tomlkit.dumps(document)
    # Text, because an entry after all that is there cannot disturb it.
    entry = tomlkit.aot()
    table = tomlkit.table()
    table.update(values)
    entry.append(table)
    addition = tomlkit.document()
    addition.append("keys", entry)
    gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return text + gap + tomlkit.dumps(addition)


def remove_key(text: str, name: str) -> str:
    """The text without the entry of that name.

    Raises:
        CommandError: there is none, or the text is not TOML.
    """

    def drop(keys: Any, place: int) -> None:
        del keys[place]

    return _change_key(text, name, drop)


def set_key(text: str, name: str, values: Mapping[str, Any], drop: tuple[str, ...] = ()) -> str:
    """The text with other values in the entry of that name.

    Args:
        text: the configuration.
        name: of the key.
        values: fields to set.
        drop: fields to take out.

    Raises:
        CommandError: there is no such entry, or the text is not TOML.
    """

    def change(keys: Any, place: int) -> None:
        entry: Entry = keys[place]
        for field in drop:
            entry.pop(field, None)
        entry.update(values)

    return _change_key(text, name, change)


def _change_key(text: str, name: str, change: Callable[[Any, int], None]) -> str:
    document = _parse(text)
    keys = document.get("keys")
    if isinstance(keys, AoT | Array):
        for place, entry in enumerate(keys):
            if entry.get("name") == name:
                change(keys, place)
                if not len(keys):
                    document.remove("keys")
                return tomlkit.dumps(document)
    raise CommandError(f"the configuration has no key {name!r}", "it may have been changed by hand: look into it")


def _parse(text: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise CommandError(f"the configuration is not TOML: {error}", "correct it by hand first") from error
