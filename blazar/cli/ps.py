"""`ps` and `stop`: what a running gateway has loaded."""

from __future__ import annotations

import argparse

import msgspec

from blazar.cli.client import find_gateway
from blazar.cli.main import Context
from blazar.cli.table import human_bytes, print_json, print_table


class Loaded(msgspec.Struct, frozen=True):
    """A loaded model, as `/api/ps` shows it."""

    name: str
    state: str
    engine: str
    size: int
    slots: int
    in_flight: int
    ctx: int
    pid: int | None


class Running(msgspec.Struct, frozen=True):
    """Answer of `/api/ps`."""

    models: tuple[Loaded, ...]


class Evict(msgspec.Struct, frozen=True):
    """Body of `/api/evict`."""

    model: str


class Evicted(msgspec.Struct, frozen=True):
    """Answer of `/api/evict`."""

    evicted: bool


def ps(context: Context, options: argparse.Namespace) -> int:
    """What is loaded."""
    with find_gateway(context, options) as client:
        content = client.ask("GET", "/api/ps")
        models = client.read(content, Running).models
    if options.json:
        print_json(msgspec.Raw(content))
    elif not models:
        print("nothing is loaded: a model is loaded by its first request")
    else:
        print_table(
            ("NAME", "STATE", "ENGINE", "SIZE", "SLOTS", "BUSY", "CONTEXT", "PID"),
            [
                (
                    model.name, model.state, model.engine, human_bytes(model.size), model.slots,
                    model.in_flight, model.ctx, model.pid or "",
                )
                for model in models
            ],
        )  # fmt: skip
    return 0


def stop(context: Context, options: argparse.Namespace) -> int:
    """Unload a model."""
    with find_gateway(context, options) as client:
        answer = client.read(client.ask("POST", "/api/evict", Evict(options.model)), Evicted)
    print(f"{options.model}: {'unloaded' if answer.evicted else 'was not loaded'}")
    return 0
