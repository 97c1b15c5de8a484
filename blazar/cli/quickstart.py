"""`quickstart`: from nothing to a first answer, and what to type next."""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import FrameType

import msgspec

from blazar.base.errors import BlazarError, CommandError
from blazar.base.records import EngineKind
from blazar.cli.answer import say
from blazar.cli.client import ChatAsk, GatewayClient, base_url, configured_url, secret_for
from blazar.cli.engine import open_shed
from blazar.cli.events import Message
from blazar.cli.main import Context
from blazar.cli.models import open_shelf
from blazar.cli.run import clean
from blazar.config.load import load_config
from blazar.models.catalogue import FIRST_MODEL
from blazar.sources.progress import terminal_progress

STOP_S = 20.0  # the gateway's own drain, and some more
LOOK_AGAIN_S = 0.2  # for the gateway's end
LOOK_S = 2.0  # for a gateway that may be there already
MAX_TOKENS = 256  # a small model may never find an end by itself: the first answer does
SYSTEM = Message("system", "You are a helpful assistant.")


class Card(msgspec.Struct, frozen=True):
    """A model in the gateway's list."""

    id: str


class Cards(msgspec.Struct, frozen=True):
    """Answer of `/v1/models`."""

    data: tuple[Card, ...]


def quickstart(context: Context, options: argparse.Namespace) -> int:
    """Install what is missing, start the gateway, ask the first question."""
    config = load_config(context.dirs.config_file, context.env)  # mistakes come before a download
    model = prepare(context)
    usual = configured_url(config) if config.port else ""
    if url := find_running(context, options.port, model):
        print(f"a gateway is running at {url}", file=sys.stderr)
        first_answer(context, url, model, options.prompt)
        print(next_steps(url, model, usual), flush=True)
        return 0
    with running_gateway(context, options.port) as (url, gateway):
        first_answer(context, url, model, options.prompt)
        if options.once:
            return 0
        try:
            print(f"{next_steps(url, model, usual)}\nCtrl-C stops it; blazar serve starts it again.", flush=True)
            while gateway.poll() is None:  # a signal just before a wait without end would be seen at that end only
                time.sleep(LOOK_AGAIN_S)
            return gateway.returncode
        except KeyboardInterrupt:  # as announced: not a failure
            print(file=sys.stderr)
    return 0


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


def first_answer(context: Context, url: str, model: str, prompt: str) -> None:
    """Ask the first question. Greedy, and not for ever: a first impression is no place for chance."""
    print(f"> {prompt}", flush=True)
    ask = ChatAsk(
        model=model,
        messages=(SYSTEM, Message("user", clean(prompt))),
        stream=True,
        max_tokens=MAX_TOKENS,
        temperature=0.0,
    )
    with GatewayClient(url, secret_for(context)) as client:
        say(client, ask, context.env)


def next_steps(url: str, model: str, usual: str) -> str:
    """What to type next; the address only where client commands would not find it by themselves."""
    where = "" if url == usual else f"--host {url.partition('://')[2]} "
    return (
        f"\nThe gateway serves any OpenAI client at {url}/v1. Next, in another terminal:\n"
        f"  blazar run {where}{model}\n"
        f'  curl {url}/v1/chat/completions -d \'{{"model": "{model}", "messages": '
        f'[{{"role": "user", "content": "Hello"}}]}}\''
    )


def find_running(context: Context, port: int | None, model: str) -> str:
    """The URL of a gateway that is there already and has the model; "" where there is none."""
    config = load_config(context.dirs.config_file, context.env)
    if port is not None:
        config = msgspec.structs.replace(config, port=port)
    if config.port == 0:
        return ""
    url = configured_url(config)
    try:
        with GatewayClient(base_url(url), secret_for(context)) as client:
            cards = client.read(client.ask("GET", "/v1/models", timeout_s=LOOK_S), Cards)
    except BlazarError:  # nothing there, or something else: starting ours will say which
        return ""
    return url if any(card.id == model for card in cards.data) else ""


@contextlib.contextmanager
def running_gateway(context: Context, port: int | None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A gateway in a process group of its own, so that Ctrl-C reaches this command, which stops it in order: once to
    drain, and at once when the user insists. Ending this command by a signal ends the gateway too.

    Raises:
        CommandError: it did not start; it has said why, and the exit status is its own.
    """
    # -P: in a clone, the tree itself must not come before what is installed, which has the kernels.
    argv = [sys.executable, "-P", "-m", "blazar", "serve"]
    if port is not None:
        argv += ["--port", str(port)]
    environment = {
        "BLAZAR_LOG_LEVEL": "warning",
        **context.env,
        "BLAZAR_CONFIG": str(context.dirs.config_file),
        "BLAZAR_DATA_DIR": str(context.dirs.data),
    }
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment, process_group=0) as gateway:
            try:
                assert gateway.stdout is not None
                words = gateway.stdout.readline().split()
                if not words:
                    raise _not_started(gateway.wait(STOP_S))
                yield words[-1], gateway
            finally:
                stop_gateway(gateway)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_gateway(gateway: subprocess.Popen[str]) -> None:
    """End it in order; at once if the user insists, by force if it does not end."""
    for _ in range(2):
        if gateway.poll() is not None:
            return
        gateway.send_signal(signal.SIGTERM)  # a second one does not wait for answers under way
        try:
            gateway.wait(STOP_S)
            return
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            continue
    gateway.kill()


def _not_started(status: int) -> CommandError:
    error = CommandError(f"the gateway did not start (exit status {status})", "the lines above say why")
    error.exit_status = status if status > 0 else 1
    return error


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
