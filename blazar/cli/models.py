"""`pull`, `import`, `list`, `show`, `rm`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from blazar.base.errors import ApiError, UsageError
from blazar.cli.main import Context
from blazar.cli.table import human_bytes, print_json, print_table
from blazar.config.load import load_config
from blazar.engines.lanes import pick_engine
from blazar.engines.profile import compile_profile
from blazar.models.shelf import Shelf
from blazar.sources.progress import terminal_progress
from blazar.store.store import Store


@contextmanager
def open_shelf(context: Context) -> Iterator[Shelf]:
    """The shelf, with its store open."""
    context.dirs.ensure()
    with Store.open(context.dirs.db) as store:
        yield Shelf(store, context.dirs)


def pull(context: Context, options: argparse.Namespace) -> int:
    """Fetch a model of the catalogue."""
    with open_shelf(context) as shelf:
        row, fetched = shelf.pull(options.model, options.name, terminal_progress())
    print(f"{row.name}: {'fetched' if fetched else 'is there already'}, {human_bytes(row.size_bytes)}, {row.quant}")
    return 0


def import_file(context: Context, options: argparse.Namespace) -> int:
    """Put a file on the shelf."""
    with open_shelf(context) as shelf:
        row, linked = shelf.import_file(options.file, options.name, copy=options.copy, progress=terminal_progress())
    how = "shares the file's content" if linked else "has a copy of the file"
    print(f"{row.name}: {how}, {human_bytes(row.size_bytes)}, {row.architecture} {row.quant}")
    return 0


def list_models(context: Context, options: argparse.Namespace) -> int:
    """The models."""
    with open_shelf(context) as shelf:
        rows = shelf.list()
    if options.json:
        print_json([msgspec.structs.asdict(row) for row in rows])
    elif not rows:
        print("no models yet: blazar pull smollm2-135m-instruct, or blazar import FILE")
    else:
        print_table(
            ("NAME", "ARCHITECTURE", "QUANT", "SIZE", "CONTEXT"),
            [
                (row.name, row.architecture, row.quant, human_bytes(row.size_bytes), row.ctx_train or "?")
                for row in rows
            ],
        )
    return 0


def show(context: Context, options: argparse.Namespace) -> int:
    """A model, its file, and the command line that it gets, with the reason for each flag."""
    config = load_config(context.dirs.config_file, context.env)
    with open_shelf(context) as shelf, Store.open(context.dirs.db) as store:
        row, info = shelf.show(options.model)
        try:
            engine = pick_engine(store, row, config)
            profile = compile_profile(model=row, engine=engine, config=config, cpu_count=os.cpu_count() or 1)
            started = [(arg.flag, arg.value, arg.reason) for arg in profile.args]
            problem = ""
        except (ApiError, UsageError) as error:
            started, problem = [], str(error)
    facts = msgspec.structs.asdict(row) | {"file": msgspec.structs.asdict(info)}
    if options.json:
        flags = [{"flag": flag, "value": value, "reason": reason} for flag, value, reason in started]
        print_json(facts | {"flags": flags, "problem": problem})
        return 0
    print_table(
        ("model", row.name),
        (
            ("architecture", row.architecture), ("parameters", f"{row.parameters:,}"), ("quant", row.quant),
            ("size", human_bytes(row.size_bytes)), ("context", row.ctx_train or "?"), ("layers", info.blocks),
            ("heads", f"{info.heads}, {info.heads_kv} for keys and values"), ("vocabulary", info.vocabulary),
            ("chat template", "yes" if row.chat_template else "no"), ("file", row.path), ("sha256", row.sha256),
        ),
    )  # fmt: skip
    print()
    if problem:
        print(f"it cannot be started: {problem}")
    else:
        print(f"started on {engine.tag} with")
        print_table(("  flag", "value", "reason"), [(f"  {flag}", value, reason) for flag, value, reason in started])
    return 0


def remove(context: Context, options: argparse.Namespace) -> int:
    """Remove a model."""
    with open_shelf(context) as shelf:
        row = shelf.remove(options.model)
    print(f"{row.name}: removed")
    return 0
