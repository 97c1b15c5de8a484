"""The layers, as the imports have them: downward only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "blazar"
MODULES = sorted(PACKAGE.rglob("*.py"))
KERNELS = sorted(PACKAGE.glob("_fast/*.pyx"))
MAX_LINES = 500  # beyond that there are two ideas in a file

# From the bottom up. What stands in one row does not import one another, unless ALLOWED says so.
LAYERS = (
    ("_fast", "__init__"),
    ("base",),
    ("config",),
    ("store",),
    ("admission", "routing", "dialects"),  # pure: (state, now, input) → decision
    ("sources",),
    ("relay", "supervisor", "engines", "models", "observe"),  # services
    ("flow", "launch"),
    ("api",),
    ("app",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PURE = ("admission", "routing", "dialects")
IMPURE_MODULES = frozenset(
    ("asyncio", "httpx", "logging", "os", "random", "shutil", "socket", "sqlite3", "subprocess", "threading", "time")
)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, by its absolute name, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str:
    """The part of blazar that a module belongs to: its package, or its own name where it stands at the top."""
    return [*module.split("."), "__init__"][1]


def own(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def ids(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_every_part_has_its_place_in_the_layers() -> None:
    assert {own(path) for path in MODULES} <= set(RANK)


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_imports_go_downward(path: Path) -> None:
    here = own(path)
    for module in imports(path):
        there = part_of(module)
        if module.partition(".")[0] != "blazar" or there == here or there not in RANK:
            continue
        assert RANK[there] < RANK[here], f"{here} imports {module}"


@pytest.mark.parametrize("path", [path for path in MODULES if own(path) in PURE], ids=ids)
def test_pure_modules_neither_log_nor_wait_nor_open(path: Path) -> None:
    assert not {module.partition(".")[0] for module in imports(path)} & IMPURE_MODULES
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await)
        assert not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "print", "input")
        )


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("_fast/*.p[yx][xid]*")), ids=ids)
def test_kernels_import_nothing_of_blazar_but_kernels(path: Path) -> None:
    names = re.findall(r"^\s*(?:from|c?import)\s+(blazar[\w.]*)", path.read_text(), re.MULTILINE)
    assert all(name.startswith("blazar._fast") for name in names), names


@pytest.mark.parametrize(
    "path", sorted([*MODULES, *PACKAGE.glob("_fast/*.pyx"), *ROOT.glob("tests/**/*.py")]), ids=lambda path: path.name
)
def test_files_hold_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", [*MODULES, *KERNELS], ids=ids)
def test_modules_say_what_they_own(path: Path) -> None:
    source = path.read_text()
    assert re.match(r'(#.*\n)*\s*[rR]?"""', source), "no docstring"


@pytest.mark.parametrize("path", KERNELS, ids=ids)
def test_kernels_have_types(path: Path) -> None:
    assert path.with_suffix(".pyi").is_file()
