"""`run`: one answer, an answer to what comes through a pipe, or a conversation."""

from __future__ import annotations

import argparse
import sys

from blazar.base.errors import CommandError, UsageError
from blazar.cli.client import GatewayClient, find_gateway
from blazar.cli.main import Context

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
MAX_TURNS = 200  # messages that a conversation remembers
HELP = "/clear forgets the conversation, /exit ends it (so does Ctrl-D); Ctrl-C stops an answer"

Messages = list[dict[str, str]]


def run(context: Context, options: argparse.Namespace) -> int:
    """Ask a model."""
    client = find_gateway(context, options)
    system: Messages = [{"role": "system", "content": options.system}] if options.system else []
    prompt = " ".join(options.prompt)
    if not sys.stdin.isatty() and not prompt:
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise UsageError("the pipe was empty", 'give a prompt: blazar run MODEL "prompt"')
    if prompt:
        say(client, options.model, [*system, {"role": "user", "content": prompt}], options.max_tokens)
        return 0
    return converse(client, options.model, system, options.max_tokens)


def say(client: GatewayClient, model: str, messages: Messages, max_tokens: int | None) -> str:
    """Print an answer as it comes; returns what was said. Thinking is dimmed on a terminal, and left out elsewhere
    (B13).
    """
    terminal = sys.stdout.isatty()
    said: list[str] = []
    dimmed = False
    try:
        for piece in client.chat(model, messages, max_tokens):
            if piece.thinking:
                if not terminal:
                    continue
                sys.stdout.write(piece.text if dimmed else DIM + piece.text)
                dimmed = True
            else:
                sys.stdout.write(f"{PLAIN}\n\n{piece.text}" if dimmed else piece.text)
                dimmed = False
                said.append(piece.text)
            sys.stdout.flush()
    finally:
        sys.stdout.write(f"{PLAIN if dimmed else ''}\n")
        sys.stdout.flush()
    return "".join(said)


def converse(client: GatewayClient, model: str, system: Messages, max_tokens: int | None) -> int:
    """Read, ask, print, until the user has enough."""
    import readline  # noqa: F401 - gives input() editing and history

    print(f"talking to {model}; {HELP}", file=sys.stderr)
    messages: Messages = []
    while True:
        try:
            line = input(">>> ").strip()
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            continue
        if line in ("/exit", "/quit", "/bye"):
            return 0
        if line == "/clear":
            messages.clear()
        elif line in ("/help", "/?"):
            print(HELP)
        elif line:
            messages.append({"role": "user", "content": line})
            try:
                answer = say(client, model, [*system, *messages], max_tokens)
            except KeyboardInterrupt:
                messages.pop()
            except CommandError as error:
                print(f"blazar: {error}", file=sys.stderr)
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})
                del messages[:-MAX_TURNS]
