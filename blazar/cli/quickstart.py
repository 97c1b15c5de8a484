"""`quickstart`: from nothing to a first answer, and what to type next."""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

from blazar.base.errors import CommandError
from blazar.base.records import EngineKind
from blazar.cli.client import find_gateway
from blazar.cli.engine import open_shed
from blazar.cli.main import Context
from blazar.cli.models import open_shelf
from blazar.cli.run import say
from blazar.models.catalogue import FIRST_MODEL
from blazar.sources.progress import terminal_progress

STOP_S = 20.0  # the gateway's own drain, and some more
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}


def quickstart(context: Context, options: argparse.Namespace) -> int:
    """Install what is missing, start the gateway, ask the first question."""
    model = prepare(context)
    with running_gateway(context, options.port) as (url, gateway):
        options.host = url
        client = find_gateway(context, options)
        print(f"> {options.prompt}")
        say(client, model, [SYSTEM, {"role": "user", "content": options.prompt}], None)
        if options.once:
            return 0
        print(
            f"\nThe gateway serves any OpenAI client at {url}/v1. Next, in another terminal:\n"
            f"  blazar run {model}\n"
            f'  curl {url}/v1/chat/completions -d \'{{"model": "{model}", "messages": '
            f'[{{"role": "user", "content": "Hello"}}]}}\'\n'
            "Ctrl-C stops it; blazar serve starts it again.",
            flush=True,
        )
        return gateway.wait()


def prepare(context: Context) -> str:
    """See to it that there is an engine and a model; returns the model's name."""
    with open_shed(context) as shed:
        if not any(row.kind is EngineKind.LLAMACPP and row.active for row in shed.list()):
            print("installing the engine llama.cpp …", file=sys.stderr)
            row = shed.install(EngineKind.LLAMACPP, "pypi", None, terminal_progress())
            print(f"{row.tag} is installed", file=sys.stderr)
    with open_shelf(context) as shelf:
        names = [row.name for row in shelf.list()]
        if not names:
            print(f"fetching the model {FIRST_MODEL} …", file=sys.stderr)
            names = [shelf.pull(FIRST_MODEL, None, terminal_progress())[0].name]
    return FIRST_MODEL if FIRST_MODEL in names else names[0]


@contextlib.contextmanager
def running_gateway(context: Context, port: int | None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A gateway in a process of its own, stopped in order afterwards. It shares our terminal, so that Ctrl-C reaches
    both.
    """
    argv = [sys.executable, "-m", "blazar", "--config", str(context.dirs.config_file), "serve"]
    if port is not None:
        argv += ["--port", str(port)]
    environment = {**context.env, "BLAZAR_DATA_DIR": str(context.dirs.data), "BLAZAR_LOG_LEVEL": "warning"}
    gateway = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert gateway.stdout is not None
        words = gateway.stdout.readline().split()
        if not words:
            raise CommandError(
                f"the gateway did not start (exit status {gateway.wait()})", "look at the messages above"
            )
        yield words[-1], gateway
    except KeyboardInterrupt:
        gateway.wait(STOP_S)
        raise
    finally:
        if gateway.poll() is None:
            gateway.send_signal(signal.SIGTERM)
            try:
                gateway.wait(STOP_S)
            except subprocess.TimeoutExpired:
                gateway.kill()
                gateway.wait()
