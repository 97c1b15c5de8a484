"""Every rule and every reported fault has a test that carries its number, or is listed as not built yet."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.ids import CASES, RULES

TESTS = Path(__file__).parents[1]
KNOWN = {"rule": RULES, "case": CASES}
NOT_YET = Path(__file__).with_name("not_yet.txt")


def marks(source: str) -> Iterator[tuple[str, str]]:
    """The (marker, number) pairs that a module's tests carry: `pytest.mark.rule("V05")`, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id="pytest"), attr="mark"), attr="rule" | "case" as marker
                ),
                args=args,
            ):
                yield from (
                    (marker, arg.value) for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                )


def carried() -> dict[tuple[str, str], str]:
    """What the suite's tests carry, and a file that does."""
    return {
        mark: str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("test_*.py"))
        for mark in marks(path.read_text())
    }


def not_yet() -> list[str]:
    lines = (line.partition("#")[0].strip() for line in NOT_YET.read_text().splitlines())
    return [line for line in lines if line]


def test_every_number_has_a_test_or_is_not_built_yet() -> None:
    tested = {number for _, number in carried()}
    missing = sorted({*RULES, *CASES} - tested - set(not_yet()))
    assert not missing, "no test carries these, and they are not in not_yet.txt"


def test_what_has_a_test_is_not_listed_as_not_built() -> None:
    tested = {number for _, number in carried()}
    assert not sorted(tested & set(not_yet())), "these have a test now: take them out of not_yet.txt"


def test_list_of_the_not_built_names_known_numbers_once() -> None:
    listed = not_yet()
    assert listed == sorted(set(listed))
    assert not set(listed) - {*RULES, *CASES}


def test_tests_carry_known_numbers_only() -> None:
    unknown = {
        f"{marker} {number} in {path}" for (marker, number), path in carried().items() if number not in KNOWN[marker]
    }
    assert not unknown


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('@pytest.mark.rule("V05")\ndef test_a(): ...', [("rule", "V05")]),
        ('pytestmark = [pytest.mark.case("C28"), pytest.mark.engines]', [("case", "C28")]),
        ('pytest.param(1, marks=pytest.mark.rule("T12", "B23"))', [("rule", "T12"), ("rule", "B23")]),
        ("text = 'pytest.mark.rule(\"V05\")'", []),
    ],
)
def test_marks_are_found_wherever_they_stand(source: str, found: list[tuple[str, str]]) -> None:
    assert list(marks(source)) == found
