"""The `blazar` command: arguments, dispatch, and the one place where an error becomes a line on stderr and an exit
status.

Exit statuses: 0 done, 1 failed, 2 usage or configuration, 3 port in use, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blazar import __version__
from blazar.base.dirs import Dirs, find_dirs
from blazar.base.errors import BlazarError, ConfigError

INTERRUPTED = 130

INTRO = """A local AI gateway: one address for OpenAI clients, in front of engines that it installs and runs.

To begin with:
  blazar quickstart            install an engine and a small model, start the gateway, get a first answer
  blazar serve                 start the gateway
  blazar run MODEL "prompt"    ask a model
"""


Commands = Any  # argparse keeps the class of a set of subcommands to itself


class Context:
    """What every command gets beside its own arguments."""

    def __init__(self, config: Path | None) -> None:
        self.env = dict(os.environ)
        self.dirs: Dirs = find_dirs(self.env, config=config, warn=lambda text: print(text, file=sys.stderr))


def build_parser() -> argparse.ArgumentParser:
    """Every command with its arguments. `run` names the function as `module:function` below `blazar.cli`."""
    parser = argparse.ArgumentParser(
        prog="blazar", description=INTRO, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"blazar {__version__}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file (BLAZAR_CONFIG)")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    _add_gateway_commands(commands)
    _add_model_commands(commands)
    _add_engine_commands(commands)
    return parser


def _add(commands: Commands, name: str, run: str, about: str, example: str = "") -> argparse.ArgumentParser:
    epilog = f"example:\n  {example}" if example else None
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.set_defaults(run=run)
    return command


def _add_client_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", metavar="ADDRESS", help="the gateway: HOST:PORT or a URL (BLAZAR_HOST)")


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def _add_gateway_commands(commands: Commands) -> None:
    quick = _add(
        commands, "quickstart", "quickstart:quickstart",
        "install what is missing, start the gateway, get a first answer",
        'blazar quickstart "Name three rivers."',
    )  # fmt: skip
    quick.add_argument("prompt", nargs="?", default="What is the capital of France?", help="the first question")
    quick.add_argument("--once", action="store_true", help="stop the gateway after the answer")
    quick.add_argument("--port", type=int, help="port of the gateway")

    serve = _add(commands, "serve", "serve:serve", "start the gateway", "blazar serve --port 8080")
    serve.add_argument("--host", metavar="HOST", help="address to listen on")
    serve.add_argument("--port", type=int, metavar="N", help="port to listen on; 0: a free one")

    run = _add(
        commands, "run", "run:run", "ask a model: once, from a pipe, or in a conversation",
        "echo 'Say hello.' | blazar run smollm2-135m-instruct",
    )  # fmt: skip
    run.add_argument("model", help="the model's name")
    run.add_argument("prompt", nargs="*", help="the question; without one, it is read from the pipe or asked for")
    run.add_argument(
        "--system", metavar="TEXT", default="You are a helpful assistant.", help="what the model is told first"
    )
    run.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")
    _add_client_options(run)

    ps = _add(commands, "ps", "ps:ps", "what is loaded")
    _add_client_options(ps)
    _add_json(ps)
    stop = _add(commands, "stop", "ps:stop", "unload a model; what it is answering is finished first")
    stop.add_argument("model", help="the model's name")
    _add_client_options(stop)


def _add_model_commands(commands: Commands) -> None:
    pull = _add(commands, "pull", "models:pull", "fetch a model of the catalogue", "blazar pull smollm2-135m-instruct")
    pull.add_argument("model", help="its name in the catalogue")
    pull.add_argument("--name", help="its name here")
    import_ = _add(
        commands, "import", "models:import_file", "serve a GGUF file of yours", "blazar import model.gguf --name mine"
    )
    import_.add_argument("file", type=Path, help="the file; it stays where it is")
    import_.add_argument("--name", help="the model's name; by default the file's")
    import_.add_argument(
        "--copy", action="store_true", help="copy the file instead of sharing its content by a hard link"
    )
    _add_json(_add(commands, "list", "models:list_models", "the models"))
    show = _add(commands, "show", "models:show", "what is known of a model, and how it is started")
    show.add_argument("model", help="the model's name")
    _add_json(show)
    remove = _add(commands, "rm", "models:remove", "remove a model and its file")
    remove.add_argument("model", help="the model's name")


def _add_engine_commands(commands: Commands) -> None:
    engine = commands.add_parser("engine", help="install, list, choose and remove engines", allow_abbrev=False)
    parts = engine.add_subparsers(title="commands", metavar="COMMAND", dest="part", required=True)
    install = _add(
        parts, "install", "engine:install", "install an engine and use it",
        "blazar engine install --kind llamacpp --from ~/llama.cpp/build/bin",
    )  # fmt: skip
    install.add_argument("--kind", default="llamacpp", help="kind of engine (default llamacpp)")
    install.add_argument(
        "--from",
        dest="origin",
        default="pypi",
        metavar="pypi|PATH",
        help="where from: the package registry (default), or a local build",
    )
    install.add_argument("--tag", help="its name here")
    _add_json(_add(parts, "list", "engine:list_engines", "the installed engines"))
    for name, run, about in (
        ("use", "engine:use", "make an engine the active one of its kind"),
        ("rm", "engine:remove", "remove an engine"),
    ):
        _add(parts, name, run, about).add_argument("tag", help="the engine's tag")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if not options.command:
        print(INTRO + "\nblazar --help lists all commands.")
        return 0
    module, _, function = options.run.partition(":")
    try:
        status: int = getattr(importlib.import_module(f"blazar.cli.{module}"), function)(
            Context(options.config), options
        )
        sys.stdout.flush()
        return status
    except ConfigError as error:
        print(f"blazar: the configuration has mistakes:\n{error}", file=sys.stderr)
        return error.exit_status
    except BlazarError as error:
        print(f"blazar: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not fail again
        return 0
