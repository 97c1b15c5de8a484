"""`engine install|list|use|rm`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from blazar.base.records import EngineKind
from blazar.cli.main import Context
from blazar.cli.table import print_json, print_table
from blazar.engines.install import EngineShed
from blazar.sources.progress import terminal_progress
from blazar.store.store import Store
from blazar.supervisor.keeper import tags_in_use


@contextmanager
def open_shed(context: Context) -> Iterator[EngineShed]:
    """The shed, with its store open."""
    context.dirs.ensure()
    with Store.open(context.dirs.db) as store:
        yield EngineShed(store, context.dirs, frozenset(tags_in_use(context.dirs.run)))


def install(context: Context, options: argparse.Namespace) -> int:
    """Install an engine."""
    kind = EngineKind.parse(options.kind)
    with open_shed(context) as shed:
        row = shed.install(kind, options.origin, options.tag, terminal_progress())
    print(f"{row.tag}: installed and in use ({row.kind}, {row.manifest.version})")
    return 0


def list_engines(context: Context, options: argparse.Namespace) -> int:
    """The installed engines."""
    with open_shed(context) as shed:
        rows = shed.list()
    if options.json:
        print_json([msgspec.structs.asdict(row) for row in rows])
    elif not rows:
        print("no engines yet: blazar engine install")
    else:
        print_table(
            ("TAG", "KIND", "SOURCE", "VERSION", "IN USE"),
            [(row.tag, row.kind, row.source, row.manifest.version, "yes" if row.active else "") for row in rows],
        )
    return 0


def use(context: Context, options: argparse.Namespace) -> int:
    """Make an engine the active one of its kind."""
    with open_shed(context) as shed:
        row = shed.use(options.tag)
    print(f"{row.tag}: in use for {row.kind}, from the next start of a model on")
    return 0


def remove(context: Context, options: argparse.Namespace) -> int:
    """Remove an engine."""
    with open_shed(context) as shed:
        row = shed.remove(options.tag)
    print(f"{row.tag}: removed")
    return 0
