"""`serve`: the gateway in the foreground."""

from __future__ import annotations

import argparse
import sys

from blazar.cli.main import Context
from blazar.config.load import load_config
from blazar.config.schema import Config
from blazar.store.store import Store


def serve(context: Context, options: argparse.Namespace) -> int:
    """Run the gateway until it is told to stop."""
    from blazar.app import serve as run_gateway  # the server and the loop: not for other commands

    def load(data: bytes | None = None) -> Config:
        overrides = {}
        if options.host is not None:
            overrides["BLAZAR_LISTEN_HOST"] = options.host
        if options.port is not None:
            overrides["BLAZAR_LISTEN_PORT"] = str(options.port)
        return load_config(context.dirs.config_file, {**context.env, **overrides}, data)

    load()  # mistakes come before anything else
    say_what_is_missing(context)
    return run_gateway(load, context.dirs, keys_from_environment=bool(context.env.get("BLAZAR_KEYS")))


def say_what_is_missing(context: Context) -> None:
    """On a first try there is no engine or no model: say what to type, and serve all the same."""
    context.dirs.ensure()
    with Store.open(context.dirs.db) as store:
        engines, models = store.engines(), store.models()
    if not engines:
        print("no engine is installed yet: blazar engine install", file=sys.stderr)
    if not models:
        print("there are no models yet: blazar pull smollm2-135m-instruct, or blazar import FILE", file=sys.stderr)
