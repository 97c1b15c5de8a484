"""`run`: one answer, an answer to what comes through a pipe, or a conversation."""

from __future__ import annotations

import argparse
import os
import stat
import sys

import msgspec

from blazar.base.errors import UsageError
from blazar.cli.answer import say
from blazar.cli.client import ChatAsk, find_gateway
from blazar.cli.events import Message
from blazar.cli.main import Context

MAX_PIPE_BYTES = 50 * 1024 * 1024  # a request's body (L01) cannot hold more


def run(context: Context, options: argparse.Namespace) -> int:
    """Ask a model."""
    system = (Message("system", clean(options.system)),) if options.system else ()
    prompt = "\n\n".join(part for part in (clean(" ".join(options.prompt)), piped_text(bool(options.prompt))) if part)
    how = ChatAsk(
        model=options.model,
        messages=(),
        stream=True,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
    )
    with find_gateway(context, options) as client:
        if prompt:
            say(client, msgspec.structs.replace(how, messages=(*system, Message("user", prompt))), context.env)
            return 0
        if not sys.stdin.isatty():
            raise UsageError("there is no question: the pipe was empty", 'give one: blazar run MODEL "prompt"')
        if not sys.stdout.isatty():
            raise UsageError(
                "a conversation needs a terminal, and the output goes elsewhere",
                'give a question: blazar run MODEL "prompt"',
            )
        from blazar.cli.repl import converse

        return converse(context, client, how, system)


def piped_text(has_prompt: bool) -> str:
    """What comes on stdin, if it is no terminal.

    Args:
        has_prompt: then only a pipe or a file is read, to go with it; anything else, such as a socket that a parent
            left open, might never end.

    Raises:
        UsageError: it is too long for any request.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    if has_prompt:
        mode = os.fstat(sys.stdin.fileno()).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
            return ""
    data = sys.stdin.buffer.read(MAX_PIPE_BYTES + 1)
    if len(data) > MAX_PIPE_BYTES:
        raise UsageError(f"the pipe holds more than {MAX_PIPE_BYTES >> 20} MiB", "send less")
    return data.decode("utf-8", "replace").strip()


def clean(text: str) -> str:
    """An argument as text that JSON can carry: bytes that are no UTF-8 become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
