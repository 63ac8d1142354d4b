"""`seedquota`, and as a plugin `kubectl seedquota`."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from cli import apply, completion, denials, describe, explain, list_consumers, start_check, top, uninstall, where
from cli.doctor import command as doctor
from cli.fitting import command as fits
from cli.history import command as history
from cli.limits import default_quota, set_quota
from cli.migration import command as migrate
from cli.outcome import DONE, Failed, Printed
from cli.seeds import command as seeds
from cli.terminal import printable
from common.kube.client.errors import ApiError, Forbidden
from common.kube.client.resource import InvalidName
from common.runtime.metrics import build_version


class _Command(Protocol):
    """A module: its docstring is the description. `declare` says what runs."""

    HELP: str
    EXAMPLES: str

    def declare(self, parser: argparse.ArgumentParser) -> None: ...


COMMANDS: dict[str, _Command] = {
    "top": top,
    "describe": describe,
    "consumers": list_consumers,
    "fits": fits,
    "where": where,
    "denials": denials,
    "history": history,
    "set": set_quota,
    "default": default_quota,
    "doctor": doctor,
    "explain": explain,
    "seed": seeds,
    "migrate": migrate,
    "apply": apply,
    "start-check": start_check,
    "uninstall": uninstall,
    "completion": completion,
}

_EXAMPLES = """\
examples:
  seedquota top                        # every quota, the fullest first
  seedquota describe project/alpha     # what is used, free, and held by which seed
  seedquota fits -f pool.yaml          # whether it would be admitted, and how many
  seedquota doctor                     # what is wrong, and its cure

Each command has examples: seedquota COMMAND --help. `kubectl seedquota` is the same.
Exit status: 0 done, 1 failed, 2 it does not fit or is denied, 3 done, and something may be out of date or is missing.
"""


class _Parser(argparse.ArgumentParser):
    """Says what was meant, in the words of the command that it is of. Descriptions and examples are printed as they are
    written, also those of the commands in it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            word = rest[0].partition("=")[0]
            near = difflib.get_close_matches(word, self._option_string_actions, n=1)
            self.error(f"{word!r} is no argument here{_meant(*near)}")
        return found, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(each) for each in action.choices]
            near = difflib.get_close_matches(str(value), choices, n=1)
            raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(choices)}{_meant(*near)}")

    def error(self, message: str) -> NoReturn:
        """As every other failure: 2 is for what does not fit."""
        self.print_usage(sys.stderr)
        self.exit(Failed.status, f"{self.prog}: {message}\nSee `{self.prog} --help`, which has examples.\n")


def _meant(near: str = "") -> str:
    return f"; did you mean {near}?" if near else ""


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        status = 0 if completion.asked(arguments, parser) else run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = Failed.status
    sys.exit(status)


def complete_for_kubectl() -> None:
    """`kubectl_complete-seedquota`: kubectl calls it with the words so far."""
    print(completion.for_kubectl(sys.argv[1:], parser()))


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="seedquota",
        description="Shows and changes the quotas, seeds and decisions of SeedQuota.",
        epilog=_EXAMPLES,
    )
    made.add_argument("--version", action="version", version=f"seedquota {build_version()}")
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        said = commands.add_parser(name, help=command.HELP, description=command.__doc__, epilog=command.EXAMPLES)
        command.declare(said)
    return made


def run(arguments: Sequence[str]) -> int:
    if not arguments:
        parser().print_help()
        return DONE
    options = parser().parse_args(arguments)
    try:
        answer: str | Printed = asyncio.run(options.run(options))
    except Failed as error:
        return _failed(str(error), error.status)
    except Forbidden as error:
        return _failed(f"{error.message}; ask an administrator for this right", Failed.status)
    except ApiError as error:
        return _failed(error.message, Failed.status)
    except InvalidName as error:
        return _failed(str(error), Failed.status)
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
