"""Reads the configuration, strictly: every problem is found, named with its place, and reported together with the
others (V08, V22).

Sources, later ones win: defaults, the file, `BLAZAR_*` environment variables. Nothing here looks at more than these;
nothing is corrected silently.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from blazar.base.errors import ConfigError, Problem
from blazar.config.lines import key_lines
from blazar.config.schema import Config, KeyConfig, ModelOverride, RemoteConfig

MAX_FILE_BYTES = 16 << 20  # some hundred bytes for each of 100 000 keys
SECRETS = frozenset(("key", "key_hash"))  # fields whose value no message may show
# Variables that are not keys: where things are, and how client commands reach a gateway.
OTHER_VARIABLES = frozenset(
    (
        "BLAZAR_CONFIG",
        "BLAZAR_DATA_DIR",
        "BLAZAR_HOST",
        "BLAZAR_KEY",
        "BLAZAR_BUILD",
        "BLAZAR_TEST_CACHE",
        "BLAZAR_CI_CACHE",
        "BLAZAR_ENGINE_OF",
    )
)
# `BLAZAR_HOST` is the gateway that a client command talks to, so the two keys of the listener have names of their own.
RENAMED = {"host": "BLAZAR_LISTEN_HOST", "port": "BLAZAR_LISTEN_PORT"}


def load_config(path: Path, env: Mapping[str, str], data: bytes | None = None) -> Config:
    """The configuration.

    Args:
        path: the file; a missing one has no keys.
        env: the environment.
        data: what the file would have in it, instead of what it has.

    Raises:
        ConfigError: with everything that is wrong.
    """
    reader = _Reader(path)
    values = reader.parse(data) if data is not None else reader.read_file()
    values.update(reader.read_environment(env))
    config = reader.convert(values)
    if reader.problems:
        raise ConfigError(tuple(reader.problems))
    return config


def variable_of(key: str) -> str:
    """The environment variable of a top-level key."""
    return RENAMED.get(key, f"BLAZAR_{key.upper()}")


def check_key(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the fields of a `[[keys]]` entry, its secret apart; for fields that come from elsewhere."""
    reader = _Reader(Path())
    reader.convert_table("", values, KeyConfig)
    return [
        f"{problem.key.lstrip('.')}: {problem.text}" if problem.key else problem.text for problem in reader.problems
    ]


class _Reader:
    """Collects problems while it reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, int] = {}
        self._from_env: dict[str, str] = {}  # key → variable
        self.problems: list[Problem] = []

    def read_file(self) -> dict[str, Any]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._add("", f"cannot be read: {error.strerror}")
            return {}
        return self.parse(data)

    def parse(self, data: bytes) -> dict[str, Any]:
        """The file's content as values."""
        if len(data) > MAX_FILE_BYTES:
            self._add("", f"has {len(data)} bytes, and a configuration at most {MAX_FILE_BYTES}")
            return {}
        try:
            text = data.decode("utf-8")
            values = tomllib.loads(text)
        except UnicodeDecodeError as error:
            self._add("", f"is not UTF-8 at byte {error.start}")
            return {}
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"line (\d+)", str(error))
            line = int(at[1]) if at else text.count("\n") + 1  # without a line, it is the end of the file
            self.problems.append(Problem(str(self._path), line, "", f"is not TOML: {error}"))
            return {}
        self._lines = key_lines(text)
        return values

    def read_environment(self, env: Mapping[str, str]) -> dict[str, Any]:
        """Values of `BLAZAR_*` variables; an empty one counts as not set."""
        known = {variable_of(key): key for key in Config.__struct_fields__}
        values: dict[str, Any] = {}
        for variable, text in sorted(env.items()):
            if not variable.startswith("BLAZAR_") or variable in OTHER_VARIABLES or not text:
                continue
            key = known.get(variable)
            if key is None:
                nearest = _nearest(variable, known)
                self.problems.append(Problem(variable, 0, "", f"is no known variable{nearest}"))
                continue
            self._from_env[key] = variable
            values[key] = self._parse_variable(variable, key, text)
        return values

    def _parse_variable(self, variable: str, key: str, text: str) -> Any:
        """Text to what TOML would have given: JSON for tables and lists of tables, commas for lists of strings."""
        kind = _types()[key]
        try:
            if isinstance(kind, msgspec.inspect.ListType) and not isinstance(kind.item_type, msgspec.inspect.StrType):
                return msgspec.json.decode(text)
            if isinstance(kind, msgspec.inspect.DictType):
                return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            self.problems.append(Problem(variable, 0, "", f"has to be JSON: {error}"))
            return None
        if isinstance(kind, msgspec.inspect.ListType):
            return [item.strip() for item in text.split(",") if item.strip()]
        if isinstance(kind, msgspec.inspect.BoolType):
            return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
        if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
            try:
                return float(text) if "." in text else int(text)
            except ValueError:
                return text
        return text

    def convert(self, values: dict[str, Any]) -> Config:
        """Check key by key, so that every problem is seen."""
        fields = {field.name: field for field in msgspec.structs.fields(Config)}
        good: dict[str, Any] = {}
        for key, value in values.items():
            field = fields.get(key)
            if field is None:
                self._add(key, f"is no known key{_nearest(key, fields)}")
            elif key == "keys":
                good[key] = list(self._convert_keys(value))
            elif key == "remotes":
                good[key] = list(self._convert_remotes(value))
            elif key == "model_overrides":
                good[key] = dict(self._convert_overrides(value))
            elif value is not None:
                converted = self._convert_one(key, value, field.type)
                if converted is not None:
                    good[key] = converted
        return Config(**good)

    def _convert_one(self, key: str, value: Any, kind: Any) -> Any:
        try:
            return msgspec.convert(value, kind, strict=True)
        except msgspec.ValidationError as error:
            secret = key.rpartition(".")[2] in SECRETS
            self._add(key, _explain("a value that is not shown" if secret else repr(value), error, kind))
            return None

    def convert_table(self, path: str, value: Any, kind: type[msgspec.Struct]) -> dict[str, Any] | None:
        """The checked fields of a table, or None if there was a problem."""
        if not isinstance(value, dict):
            self._add(path, f"is {value!r}, and has to be a table")
            return None
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        before, good = len(self.problems), {}
        for name, item in value.items():
            if name not in fields:
                self._add(f"{path}.{name}", f"is no known key of this table{_nearest(name, fields)}")
            else:
                good[name] = self._convert_one(f"{path}.{name}", item, fields[name].type)
        for name, field in fields.items():
            if field.required and name not in value:
                self._add(path, f"has no `{name}`, which every entry needs")
        return good if len(self.problems) == before else None

    def _convert_keys(self, value: Any) -> Iterator[KeyConfig]:
        if not isinstance(value, list):
            self._add("keys", f"is {value!r}, and has to be a list of tables: write [[keys]]")
            return
        seen: set[str] = set()
        for number, item in enumerate(value):
            path = f"keys.{number}"
            table = self.convert_table(path, item, KeyConfig)
            if table is None:
                continue
            if bool(table.get("key")) == bool(table.get("key_hash")):
                self._add(path, f"key {table['name']!r} needs exactly one of `key` and `key_hash`")
            elif table["name"] in seen:
                self._add(f"{path}.name", f"{table['name']!r} is the name of an earlier key: names are unique")
            else:
                seen.add(table["name"])
                yield KeyConfig(**table)

    def _convert_remotes(self, value: Any) -> Iterator[RemoteConfig]:
        if not isinstance(value, list):
            self._add("remotes", f"is {value!r}, and has to be a list of tables: write [[remotes]]")
            return
        for number, item in enumerate(value):
            table = self.convert_table(f"remotes.{number}", item, RemoteConfig)
            if table is not None:
                yield RemoteConfig(**table)

    def _convert_overrides(self, value: Any) -> Iterator[tuple[str, ModelOverride]]:
        if not isinstance(value, dict):
            self._add("model_overrides", f"is {value!r}, and has to be a table of tables: write [model_overrides.NAME]")
            return
        for name, item in value.items():
            table = self.convert_table(f"model_overrides.{name}", item, ModelOverride)
            if table is not None:
                yield name, ModelOverride(**table)

    def _add(self, key: str, text: str) -> None:
        """Note a problem of a key, at its own line or that of its table."""
        top = key.split(".")[0]
        if top in self._from_env:
            self.problems.append(Problem(self._from_env[top], 0, key, text))
            return
        line, path = 0, key
        while path and not line:
            line = self._lines.get(path, 0)
            path = path.rpartition(".")[0]
        self.problems.append(Problem(str(self._path), line, key, text))


def _types() -> dict[str, msgspec.inspect.Type]:
    info = msgspec.inspect.type_info(Config)
    assert isinstance(info, msgspec.inspect.StructType)
    return {field.name: _bare(field.type) for field in info.fields}


def _bare(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    return _bare(kind.type) if isinstance(kind, msgspec.inspect.Metadata) else kind


def accepted(kind: msgspec.inspect.Type) -> str:
    """What a key takes, in words: for errors and for the documentation."""
    kind = _bare(kind)
    if isinstance(kind, msgspec.inspect.LiteralType):
        return " or ".join(f'"{value}"' for value in kind.values)
    if isinstance(kind, msgspec.inspect.BoolType):
        return "true or false"
    if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        word = "an integer" if isinstance(kind, msgspec.inspect.IntType) else "a number"
        if kind.ge is not None and kind.le is not None:
            return f"{word}, {kind.ge}..={kind.le}"
        return f"{word}, {kind.ge} or more" if kind.ge is not None else word
    if isinstance(kind, msgspec.inspect.StrType):
        return f"text that matches {kind.pattern}" if kind.pattern else "text"
    if isinstance(kind, msgspec.inspect.ListType):
        return "a list of text"
    if isinstance(kind, msgspec.inspect.UnionType):
        return " or ".join(accepted(part) for part in kind.types if not isinstance(part, msgspec.inspect.NoneType))
    if isinstance(kind, msgspec.inspect.DictType):
        lists = isinstance(_bare(kind.value_type), msgspec.inspect.UnionType)
        return "a table of text, or of lists of text" if lists else "a table of text"
    return "a table"


def _explain(value: str, error: msgspec.ValidationError, kind: Any) -> str:
    where = re.search(r"at `\$(.+)`", str(error))
    part = f" (at {where[1]})" if where else ""
    return f"is {value}{part}, and has to be {accepted(msgspec.inspect.type_info(kind))}"


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f": did you mean `{near[0]}`?" if near else ""
