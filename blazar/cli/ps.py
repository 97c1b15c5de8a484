"""`ps` and `stop`: what a running gateway has loaded."""

from __future__ import annotations

import argparse

from blazar.cli.client import find_gateway
from blazar.cli.main import Context
from blazar.cli.table import human_bytes, print_json, print_table


def ps(context: Context, options: argparse.Namespace) -> int:
    """What is loaded."""
    answer = find_gateway(context, options).get("/api/ps")
    models = answer["models"]
    if options.json:
        print_json(answer)
    elif not models:
        print("nothing is loaded: a model is loaded by its first request")
    else:
        print_table(
            ("NAME", "STATE", "ENGINE", "SIZE", "SLOTS", "BUSY", "CONTEXT", "PID"),
            [
                (
                    model["name"], model["state"], model["engine"], human_bytes(model["size"]), model["slots"],
                    model["in_flight"], model["ctx"], model["pid"],
                )
                for model in models
            ],
        )  # fmt: skip
    return 0


def stop(context: Context, options: argparse.Namespace) -> int:
    """Unload a model."""
    answer = find_gateway(context, options).post("/api/evict", {"model": options.model})
    print(f"{options.model}: {'unloaded' if answer['evicted'] else 'was not loaded'}")
    return 0
