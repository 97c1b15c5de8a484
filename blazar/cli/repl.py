"""The conversation of `run`: read a line, print the answer, remember both."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from blazar.base.errors import CommandError
from blazar.cli.answer import AnswerPrinter, print_all
from blazar.cli.client import ChatAsk, GatewayClient
from blazar.cli.events import Message
from blazar.cli.main import Context

MAX_MESSAGES = 200  # that a conversation remembers
MAX_HISTORY = 1000  # lines that the history file keeps
HELP = """  /clear   forget the conversation
  /help    this text
  /exit    end (so does Ctrl-D)
  Ctrl-C   stop the answer"""
COMMAND = re.compile(r"/[a-z?]+")  # one word: a question may begin with a path


class Conversation:
    """What was said so far, and how to go on.

    Args:
        context: of the command.
        client: the gateway.
        how: the request without its messages: whom to ask, and with which limits.
        system: what the model is told first, every time.
    """

    def __init__(self, context: Context, client: GatewayClient, how: ChatAsk, system: tuple[Message, ...]) -> None:
        self._context = context
        self._client = client
        self._how = how
        self._system = system
        self.messages: list[Message] = []

    def ask(self, question: str) -> None:
        """Print the answer. A question that got none is forgotten; one whose answer was stopped keeps the part."""
        messages = (*self._system, *self.messages, Message("user", question))
        printer = AnswerPrinter(sys.stdout, self._context.env)
        request = msgspec.structs.replace(self._how, messages=messages)
        try:
            print_all(self._client, request, printer)
        except KeyboardInterrupt:
            pass
        except CommandError as error:
            print(f"blazar: {error}", file=sys.stderr)
        if printer.said:
            self.messages += [Message("user", question), Message("assistant", printer.said)]
            del self.messages[:-MAX_MESSAGES]


def converse(context: Context, client: GatewayClient, how: ChatAsk, system: tuple[Message, ...]) -> int:
    """Read, ask, print, until the user has enough.

    Raises:
        CommandError: there is no gateway, or it has no such model: better said before the first question.
    """
    client.ask("GET", f"/v1/models/{quote(how.model, safe='')}")
    print(f"talking to {how.model}: /help for help, /exit to end", file=sys.stderr)
    conversation = Conversation(context, client, how, system)
    with line_editing(context.dirs.data / "history"):
        while True:
            try:
                if not turn(conversation):
                    return 0
            except KeyboardInterrupt:  # at the prompt, or on the way to it
                print()


def turn(conversation: Conversation) -> bool:
    """Read a line and do what it says; returns whether the conversation goes on."""
    try:
        line = input(">>> ").strip()
    except EOFError:
        print()
        return False
    if line in ("/exit", "/quit", "/bye"):
        return False
    if line == "/clear":
        conversation.messages.clear()
        print("forgotten")
    elif line in ("/help", "/?"):
        print(HELP)
    elif COMMAND.fullmatch(line):
        print(f"there is no {line}:\n{HELP}")
    elif line:
        conversation.ask(line.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    return True


@contextlib.contextmanager
def line_editing(history: Path) -> Iterator[None]:
    """Give input() editing and a history that lasts. Without the library, or a place for the file, it goes without."""
    try:
        import readline
    except ImportError:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(MAX_HISTORY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            history.touch(mode=0o600)  # what people ask is nobody else's business
            readline.write_history_file(history)
