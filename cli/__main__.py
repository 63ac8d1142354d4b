"""`seedquota`, and as a plugin `kubectl seedquota`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import NoReturn

from cli import completion, consumers, denials, describe, explain, top, uninstall, where
from cli.doctor import command as doctor
from cli.fitting import command as fits
from cli.history import command as history
from cli.limits import default_quota, set_quota
from cli.migration import command as migrate
from cli.outcome import DONE, Failed, Printed
from cli.seeds import command as seeds
from cli.terminal import printable
from common.kube.client.errors import ApiError
from common.runtime.metrics import build_version

COMMANDS = (
    top,
    describe,
    consumers,
    fits,
    where,
    denials,
    history,
    set_quota,
    default_quota,
    doctor,
    explain,
    seeds,
    migrate,
    uninstall,
    completion,
)
"""Each declares its parser, which names what runs."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """As every other failure: 2 is for what does not fit."""
        self.print_usage(sys.stderr)
        self.exit(Failed.status, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not completion.asked(arguments, parser):
        sys.exit(run(arguments))


def complete_for_kubectl() -> None:
    """`kubectl_complete-seedquota`: kubectl calls it with the words so far."""
    print(completion.for_kubectl(sys.argv[1:], parser()))


def parser() -> argparse.ArgumentParser:
    made = _Parser(prog="seedquota", description="Ask SeedQuota what it does and why.")
    made.add_argument("--version", action="version", version=f"seedquota {build_version()}")
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.declare(commands)
    return made


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        answer: str | Printed = asyncio.run(options.run(options))
    except Failed as error:
        return _failed(str(error), error.status)
    except ApiError as error:
        return _failed(error.message, Failed.status)
    except KeyboardInterrupt:
        return _failed("interrupted", Failed.status)
    found = Printed(answer, DONE) if isinstance(answer, str) else answer
    print(printable(found.text))
    return found.status


def _failed(why: str, status: int) -> int:
    print(printable(f"seedquota: {why}"), file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
