"""No file of product code is longer than 400 lines and no function longer than 70, or a reason is beside it here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("common", "master", "seed", "cli", "devcluster")
LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 70

LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}


def files() -> list[Path]:
    return [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))]


def functions(node: ast.AST, outer: str = "") -> Iterator[tuple[str, int]]:
    """All of them, also those in classes and in other functions, with their lines."""
    for child in ast.iter_child_nodes(node):
        name = outer
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{outer}.{child.name}".removeprefix(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            assert child.end_lineno is not None
            yield name, child.end_lineno - child.lineno + 1
        yield from functions(child, name)


def check(found: dict[str, int], bound: int, reasons: dict[str, str]) -> None:
    long = {name: lines for name, lines in found.items() if lines > bound}
    assert [f"{name}: {lines} lines" for name, lines in long.items() if not reasons.get(name)] == []
    assert sorted(reasons.keys() - long.keys()) == [], "these are short now: they need no reason any more"


def test_files_are_short() -> None:
    found = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files()}
    assert len(found) > 100
    check(found, LINES_OF_A_FILE, LONG_FILES)


def test_functions_are_short() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}": lines
        for path in files()
        for name, lines in functions(ast.parse(path.read_text()))
    }
    assert len(found) > 1000
    check(found, LINES_OF_A_FUNCTION, LONG_FUNCTIONS)


def test_what_is_too_long_is_found_also_inside_of_others() -> None:
    body = "\n".join("        x = 1" for _ in range(LINES_OF_A_FUNCTION))
    code = f"class C:\n  def m(self):\n    async def inner():\n{body}\n"
    found = dict(functions(ast.parse(code)))
    assert found == {"C.m": LINES_OF_A_FUNCTION + 2, "C.m.inner": LINES_OF_A_FUNCTION + 1}
    with pytest.raises(AssertionError, match=r"C\.m: 72 lines"):
        check(found, LINES_OF_A_FUNCTION, {})
    with pytest.raises(AssertionError, match="short now"):
        check({"C.m": 3}, LINES_OF_A_FUNCTION, {"C.m": "it was long"})
