"""`seedquota`, and as a plugin `kubectl seedquota`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

from cli import explain
from common.runtime.metrics import build_version

FOUND = 0
FAILED = 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """As every other failure: 2 is for what does not fit."""
        self.print_usage(sys.stderr)
        self.exit(FAILED, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def parser() -> argparse.ArgumentParser:
    made = _Parser(prog="seedquota", description="Ask SeedQuota what it does and why.")
    made.add_argument("--version", action="version", version=f"seedquota {build_version()}")
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    explain.declare(commands)
    return made


def printable(text: str) -> str:
    """Whoever made a Machine chose its names: what a terminal would take for a command is shown as its number."""
    return "".join(letter if letter.isprintable() or letter == "\n" else _number(letter) for letter in text)


def _number(letter: str) -> str:
    """As JSON writes it, so that what was JSON still is."""
    return json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        answer: str = asyncio.run(options.run(options))
    except explain.NotExplained as error:
        print(printable(f"seedquota: {error}"), file=sys.stderr)
        return FAILED
    print(printable(answer))
    return FOUND


if __name__ == "__main__":
    main()
