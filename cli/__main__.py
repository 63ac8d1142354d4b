"""`seedquota`, and as a plugin `kubectl seedquota`."""

from __future__ import annotations

import argparse
import asyncio
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


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        answer: str = asyncio.run(options.run(options))
    except explain.NotExplained as error:
        print(f"seedquota: {error}", file=sys.stderr)
        return FAILED
    print(answer)
    return FOUND


if __name__ == "__main__":
    main()
