"""What is written to a terminal, and what is read from it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence

import msgspec

from common.runtime.flags import duration

CLEAR = "\x1b[H\x1b[2J"
SHORTEST = 8  # characters that stay of a cell


def printable(text: str) -> str:
    """Whoever made a Machine chose its names: what a terminal would take for a command is shown as its number."""
    return "".join(letter if letter.isprintable() or letter == "\n" else _number(letter) for letter in text)


def _number(letter: str) -> str:
    """As JSON writes it, so that what was JSON still is."""
    return json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"


def add_output(parser: argparse.ArgumentParser, *formats: str) -> None:
    """The option for the format of what is printed. The first of them is the default."""
    named = f"{', '.join(formats[:-1])} or {formats[-1]}"
    parser.add_argument("-o", "--output", choices=formats, default=formats[0], help=f"{named} [default {formats[0]}]")


def seconds(raw: str) -> float:
    try:
        return duration(raw)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def say(text: str) -> None:
    print(printable(text), flush=True)


def refresh(text: str) -> None:
    """In place of what a terminal shows; below it elsewhere."""
    print(f"{CLEAR if sys.stdout.isatty() else ''}{printable(text)}", flush=True)


def ask(question: str) -> str:
    """One line of standard input, without spaces around it; empty at its end."""
    print(printable(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def one_line(text: str) -> str:
    """Whoever chose it cannot end the line: what follows would look like ours."""
    return text.replace("\n", "\\n")


def columns(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """As kubectl prints tables."""
    rows = [tuple(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)


class Column(msgspec.Struct, frozen=True):
    """Where there is no room, the column that `goes` by the highest number is left out first; 0: it stays."""

    head: str
    cells: Sequence[str]
    goes: int = 0


def width() -> int | None:
    """Of the terminal. None: the output is no terminal, so nothing is left out."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fit(table: Sequence[Column], most: int | None) -> tuple[str, list[str]]:
    """The table in at most so many characters, and the heads of the columns that were left out, in their order. If that
    is not enough, the widest cells are cut. The first column never is: other commands take what it has."""
    shown = list(table)
    while most is not None and (excess := _width(shown) - most) > 0:
        first = max(shown, key=lambda column: column.goes)
        if first.goes:
            shown.remove(first)
            continue
        widest = max(range(1, len(shown)), key=lambda number: _widest(shown[number]), default=0)
        length = max(_widest(shown[widest]) - excess, SHORTEST)
        if widest == 0 or length >= _widest(shown[widest]):
            break
        column = shown[widest]
        shown[widest] = Column(_cut(column.head, length), [_cut(cell, length) for cell in column.cells])
    rows = list(zip(*(column.cells for column in shown), strict=True))
    kept = {column.goes for column in shown}
    left_out = [column.head for column in table if column.goes not in kept]
    return columns(tuple(column.head for column in shown), rows), left_out


def wrapped(text: str, most: int | None, indent: str = "") -> str:
    """One paragraph; its lines after the first are indented."""
    if most is None:
        return text
    lines = textwrap.wrap(text, most, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def not_known(what: Sequence[str], most: int | None) -> str:
    """The end of what is shown: each part that is missing, and what would show it."""
    return "\n".join(["Not known from here:", *(wrapped(f"  {each}", most, "    ") for each in what)])


def _widest(column: Column) -> int:
    return max(map(len, (column.head, *column.cells)))


def _width(table: Sequence[Column]) -> int:
    return sum(map(_widest, table)) + 3 * (len(table) - 1)


def _cut(cell: str, length: int) -> str:
    return cell if len(cell) <= length else f"{cell[: length - 3]}..."
