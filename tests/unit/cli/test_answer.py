"""What of an answer reaches a terminal, and what a pipe."""

from __future__ import annotations

import io

import pytest

from blazar.cli.answer import AnswerPrinter
from blazar.cli.events import Piece


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


HM, HM2, YES = Piece("hm", True), Piece(", so", True), Piece("yes", False)


def shown(out: io.StringIO, *pieces: Piece, **env: str) -> str:
    printer = AnswerPrinter(out, env)
    for piece in pieces:
        printer.show(piece)
    printer.end()
    return out.getvalue()


@pytest.mark.rule("B13")
def test_thinking_is_dimmed_on_a_terminal() -> None:
    assert shown(Terminal(), HM, HM2, YES) == "\x1b[2mhm, so\x1b[0m\n\nyes\n"


@pytest.mark.rule("B13")
def test_thinking_is_left_out_of_a_pipe() -> None:
    assert shown(io.StringIO(), HM, HM2, YES) == "yes\n"


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_styles_thinking_is_told_apart_by_words(env: dict[str, str]) -> None:
    assert shown(Terminal(), HM, YES, **env) == "(thinking: hm)\n\nyes\n"


def test_dimming_ends_with_an_answer_that_stops_in_mid_thought() -> None:
    assert shown(Terminal(), HM) == "\x1b[2mhm\x1b[0m\n"


def test_answer_that_never_began_prints_nothing() -> None:
    assert shown(Terminal()) == ""
    assert shown(io.StringIO()) == ""


def test_answer_ends_with_exactly_one_line_end() -> None:
    assert shown(io.StringIO(), Piece("a\n", False)) == "a\n"


def test_control_characters_stay_out_of_a_terminal() -> None:
    assert shown(Terminal(), Piece("a\x1b]0;title\x07\x9b2J\tb\r\nc\x7f", False)) == "a]0;title2J\tb\nc\n"


def test_pipe_gets_every_character() -> None:
    assert shown(io.StringIO(), Piece("a\x1b[2Jb", False)) == "a\x1b[2Jb\n"


def test_what_was_said_is_kept_without_the_thinking() -> None:
    printer = AnswerPrinter(Terminal(), {})
    for piece in (HM, YES, HM, Piece(" no", False)):
        printer.show(piece)
    assert printer.said == "yes no"
