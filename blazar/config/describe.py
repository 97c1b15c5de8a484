"""What the table of keys says, as text: `docs/config.md` is its output, and a test holds the two together.

python -m blazar.config.describe > docs/config.md
"""

from __future__ import annotations

import msgspec

from blazar.config.load import accepted, variable_of
from blazar.config.schema import Config, KeyConfig, ModelOverride, RemoteConfig

HEAD = """# Configuration

`config.toml` is read from `$BLAZAR_CONFIG`, else from `$XDG_CONFIG_HOME/blazar/`, else from `~/.config/blazar/`.
Every top-level key can be set by the environment variable named beside it, which wins over the file: lists as words
with commas between, tables as JSON. A `SIGHUP` reads the file again: **live** keys count at once (those of a model from
its next start), the others from the next start. A file with a mistake changes nothing; all its mistakes are reported
together. This page is made from the table in `blazar/config/schema.py`.
"""


class KeyFacts(msgspec.Struct, frozen=True):
    """A row of the documentation."""

    name: str
    default: str
    accepted: str
    unit: str
    live: bool
    doc: str


def describe(kind: type[msgspec.Struct]) -> list[KeyFacts]:
    """The keys of a table, in the order of the schema."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    rows = []
    for field in info.fields:
        assert isinstance(field.type, msgspec.inspect.Metadata)
        extra = field.type.extra or {}
        schema = field.type.extra_json_schema or {}
        rows.append(
            KeyFacts(
                name=field.name,
                default=_default(field),
                accepted=accepted(field.type),
                unit=extra.get("unit", ""),
                live=extra.get("live", False),
                doc=schema.get("description", ""),
            )
        )
    return rows


def _default(field: msgspec.inspect.Field) -> str:
    if field.required:
        return ""
    if field.default_factory is not msgspec.NODEFAULT:
        return "[]" if field.default_factory is list else "{}"
    return "" if field.default is None else msgspec.json.encode(field.default).decode()


def document() -> str:
    """The whole page."""
    parts = [HEAD, _table("Top level", describe(Config), variables=True)]
    parts.append(_table("`[[keys]]`", describe(KeyConfig)))
    parts.append(_table("`[[remotes]]`", describe(RemoteConfig)))
    parts.append(_table("`[model_overrides.NAME]`", describe(ModelOverride)))
    return "\n".join(parts)


def _table(title: str, rows: list[KeyFacts], *, variables: bool = False) -> str:
    lines = [f"## {title}", "", "| key | default | takes | meaning | live |", "|---|---|---|---|---|"]
    for row in rows:
        name = f"`{row.name}`" + (f"<br>`{variable_of(row.name)}`" if variables else "")
        default = f"`{row.default}`" if row.default else "required" if row.name == "name" else ""
        unit = f" ({row.unit})" if row.unit else ""
        takes = row.accepted.replace("|", "\\|")
        lines.append(f"| {name} | {default} | {takes}{unit} | {row.doc} | {'yes' if row.live else 'no'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(document(), end="")
