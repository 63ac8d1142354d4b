"""What is written to a terminal, and what is read from it."""

from __future__ import annotations

import json
import sys


def printable(text: str) -> str:
    """Whoever made a Machine chose its names: what a terminal would take for a command is shown as its number."""
    return "".join(letter if letter.isprintable() or letter == "\n" else _number(letter) for letter in text)


def _number(letter: str) -> str:
    """As JSON writes it, so that what was JSON still is."""
    return json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"


def say(text: str) -> None:
    print(printable(text), flush=True)


def ask(question: str) -> str:
    """One line of standard input, without spaces around it; empty at its end."""
    print(printable(question), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def columns(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """As kubectl prints tables."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)
