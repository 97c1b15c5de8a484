"""The `blazar` command: arguments, dispatch, and the one place where an error becomes a line on stderr and an exit
status.

Exit statuses: 0 done, 1 failed, 2 usage or configuration, 3 port in use, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from blazar import __version__
from blazar.base.dirs import Dirs, find_dirs
from blazar.base.errors import BlazarError, ConfigError, UsageError

INTERRUPTED = 130
MAX_COUNT = 2**31 - 1
MAX_LIMIT = 2**48
MAX_PORT = 65535
MAX_TEMPERATURE = 2.0  # as in OpenAI's API

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
        if config is not None and not config.is_file():  # a slip here would serve without the keys that it holds
            raise UsageError(f"--config {config}: there is no such file", "check the path, or leave it out")
        self.env = dict(os.environ)
        self.dirs: Dirs = find_dirs(self.env, config=config, warn=lambda text: print(text, file=sys.stderr))


class Parser(argparse.ArgumentParser):
    """Reports mistakes as everything else here: one line and a remedy."""

    def error(self, message: str) -> NoReturn:
        word = re.match(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if word is None:
            raise UsageError(message, f"for its usage: {self.prog} --help")
        import difflib  # only a mistake pays for it

        near = difflib.get_close_matches(word[1], self.commands(), n=1)
        raise UsageError(
            f"{self.prog} {word[1]} is no command",
            "".join(f"did you mean {self.prog} {name}? " for name in near) + f"for the usage: {self.prog} --help",
        )

    def commands(self) -> list[str]:
        """The names of this parser's subcommands."""
        return [name for action in self._actions if action.metavar == "COMMAND" for name in action.choices or ()]


def port_number(text: str) -> int:
    """An argument as a port."""
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port, which is 0..={MAX_PORT}")
    return int(text)


def count(text: str) -> int:
    """An argument as a number from 1."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_COUNT):
        raise argparse.ArgumentTypeError(f"{text!r} is no number in 1..={MAX_COUNT}")
    return int(text)


def limit(text: str) -> int:
    """An argument as a limit: 0 is none."""
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_LIMIT):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, 0..={MAX_LIMIT}")
    return int(text)


def temperature(text: str) -> float:
    """An argument as a temperature."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_TEMPERATURE:
        raise argparse.ArgumentTypeError(f"{text!r} is no number in 0..={MAX_TEMPERATURE:g}")
    return value


def build_parser() -> Parser:
    """Every command with its arguments. `run` names the function as `module:function` below `blazar.cli`."""
    parser = Parser(
        prog="blazar", description=INTRO, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"blazar {__version__}")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file (BLAZAR_CONFIG)")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    _add_gateway_commands(commands)
    _add_key_commands(commands)
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
    quick.add_argument("--port", type=port_number, metavar="N", help="port of the gateway; 0: a free one")

    serve = _add(commands, "serve", "serve:serve", "start the gateway", "blazar serve --port 8080")
    serve.add_argument("--host", metavar="HOST", help="address to listen on")
    serve.add_argument("--port", type=port_number, metavar="N", help="port to listen on; 0: a free one")

    run = _add(
        commands, "run", "run:run", "ask a model: once, from a pipe, or in a conversation",
        "echo 'Say hello.' | blazar run smollm2-135m-instruct",
    )  # fmt: skip
    run.add_argument("model", help="the model's name")
    run.add_argument("prompt", nargs="*", help="the question; without one, it is read from the pipe or asked for")
    run.add_argument(
        "--system", metavar="TEXT", default="You are a helpful assistant.", help="what the model is told first"
    )
    run.add_argument("--max-tokens", type=count, metavar="N", help="longest answer")
    run.add_argument(
        "--temperature", type=temperature, metavar="T", help="how freely it answers; 0: the likeliest words"
    )
    _add_client_options(run)

    ps = _add(commands, "ps", "ps:ps", "what is loaded")
    _add_client_options(ps)
    _add_json(ps)
    doctor = _add(commands, "doctor", "doctor:doctor", "what is wrong, and what to do about it")
    _add_client_options(doctor)
    _add_json(doctor)
    stop = _add(commands, "stop", "ps:stop", "unload a model; what it is answering is finished first")
    stop.add_argument("model", help="the model's name")
    _add_client_options(stop)


def _add_key_commands(commands: Commands) -> None:
    keys = commands.add_parser("keys", help="list, add, remove and rotate clients' keys", allow_abbrev=False)
    parts = keys.add_subparsers(title="commands", metavar="COMMAND", dest="part", required=True)
    listing = _add(parts, "list", "keys:list_keys", "the keys, with today's use")
    add = _add(
        parts, "add", "keys:add", "add a key and print its secret, once",
        "blazar keys add team --model smollm2-135m-instruct --rpm 60 --daily-tokens 1000000",
    )  # fmt: skip
    add.add_argument("name", help="who it is: letters, digits, `.`, `_`, `-`")
    add.add_argument("--model", action="append", metavar="NAME", help="a model that it may use; may be repeated")
    add.add_argument("--admin", action="store_true", help="it may use every model, and manage the gateway")
    add.add_argument("--rpm", type=limit, default=0, metavar="N", help="requests a minute")
    add.add_argument("--tpm", type=limit, default=0, metavar="N", help="tokens a minute")
    add.add_argument("--daily-tokens", type=limit, default=0, metavar="N", help="tokens a day (UTC)")
    add.add_argument("--max-concurrent", type=limit, default=0, metavar="N", help="requests at once")
    add.add_argument("--weight", type=limit, default=1, metavar="N", help="its share of a queue (default 1)")
    add.add_argument(
        "--max-priority", choices=("high", "normal", "low"), default="high", help="the best it may ask for"
    )
    remove = _add(parts, "rm", "keys:remove", "remove a key, at once")
    rotate = _add(parts, "rotate", "keys:rotate", "give a key another secret; the old one ends at once")
    for command in (remove, rotate):
        command.add_argument("name", help="the key's name")
    for command in (listing, add, remove, rotate):
        _add_client_options(command)
    for command in (listing, add, rotate):
        _add_json(command)


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


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line.

    Raises:
        UsageError: they make no sense.
        SystemExit: they asked for help or the version, which is printed.
    """
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    parser = build_parser()
    options, rest = parser.parse_known_args(argv)
    # argparse takes the words of a question before an option or after it, not both: `run MODEL --max-tokens 9 hello`.
    if rest and options.command == "run" and (rest[0] == "--" or not any(word.startswith("-") for word in rest)):
        options.prompt += rest[rest[0] == "--" :]
    elif rest:
        raise UsageError(f"unrecognized arguments: {' '.join(rest)}", f"for its usage: blazar {options.command} --help")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    make_streams_safe()
    try:
        status = run_command(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except ConfigError as error:
        return report(f"the configuration has mistakes:\n{error}", error.exit_status)
    except BlazarError as error:
        return report(str(error), error.exit_status)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return 0
    except OSError as error:  # a full disk, a directory that may not be read: not worth a traceback
        drop_output()
        return report(str(error), 1)


def run_command(argv: list[str]) -> int:
    """Find the command's function and call it."""
    try:
        options = parse(argv)
    except SystemExit as end:  # help or version was printed
        return int(end.code or 0)
    if not options.command:
        print(INTRO + "\nblazar --help lists all commands.")
        return 0
    module, _, function = options.run.partition(":")
    status: int = getattr(importlib.import_module(f"blazar.cli.{module}"), function)(Context(options.config), options)
    return status


def report(text: str, status: int) -> int:
    """Say what went wrong; returns the exit status. On a terminal, what a progress bar has left of its line goes."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{clear}blazar: {text}", file=sys.stderr)
    return status


def make_streams_safe() -> None:
    """Streams that are closed become empty ones, and a character that the terminal cannot show becomes `?`."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - as long as the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def drop_output() -> None:
    """Nobody takes our output any more: the flush at exit must not fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
