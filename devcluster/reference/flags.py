"""The flags and the exit status of each program and command."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable, Iterator

import cli.__main__ as cli
from cli import outcome
from common.runtime.flags import CommonOptions, declared
from common.server import program
from devcluster.reference.markdown import code, table
from master.__main__ import MasterOptions
from seed import size_command
from seed.ledger.backend import PASSWORD_VARIABLE
from seed.options import SeedOptions

_HEAD = """\
# Flags and exit status

A flag of a program wins over its environment variable. An empty variable is not set. Durations are written `15s`,
`1m30s` or `250ms`.
Every program and command also has `--help` and `--version`.
"""


def page() -> str:
    return "\n".join(
        [
            _HEAD,
            _program("seedquota-master", MasterOptions),
            _program("seedquota-seed", SeedOptions),
            f"The environment variable `{PASSWORD_VARIABLE}` has Redis' password where no file is named.\n",
            _exit(
                "Exit status of both programs",
                [
                    (program.CLEAN, "The program ended after SIGTERM or SIGINT, with nothing cut off."),
                    (program.FAILED, "The program failed, or open work was cut off. The log says why."),
                    (program.USAGE, "The flags or files cannot be used. The last line says which."),
                ],
            ),
            _command("seedquota-seed size", size_command.parser()),
            _exit(
                "Exit status of seedquota-seed size",
                [(0, "All Machines were sized."), (1, "Some cannot be sized."), (2, "Nothing could be done.")],
            ),
            *(_command(name, parser) for name, parser in _commands(cli.parser())),
            _exit(
                "Exit status of seedquota",
                [
                    (outcome.DONE, "It is done, or the decision was found."),
                    (
                        outcome.Failed.status,
                        "It failed, was not found or not finished, or the flags cannot be used; or `doctor` found "
                        "something wrong. The output says what to do.",
                    ),
                    (
                        outcome.Denied.status,
                        "It does not fit. Or it would break a rule: a seed still holds something, or is another one.",
                    ),
                    (
                        outcome.STALE,
                        "It is done, but a figure may be out of date, a part could not be checked or translated, or it "
                        "cannot be told now.",
                    ),
                ],
            ),
        ]
    )


def _program(name: str, options: type[CommonOptions]) -> str:
    rows = [
        (
            code(entry.option),
            code(entry.variable),
            "required" if entry.default is None else code(entry.default) or "not set",
            entry.flag.what,
        )
        for entry in declared(options)
    ]
    return f"## {name}\n\n{table(('flag', 'environment variable', 'default', 'what it is'), rows)}\n"


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    rows = list(_arguments(parser))
    said = inspect.cleandoc(parser.description or "")
    return f"## {name}\n\n{said}\n\n{table(('argument', 'what it is'), rows)}\n"


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.dest not in ("help", "version"):
            name = action.metavar or "|".join(map(str, action.choices or ())) or action.dest
            yield ", ".join(map(code, action.option_strings or [str(name)])), action.help or ""


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Those that do something, with their whole name."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield parser.prog, parser
    for action in inner:
        for found in action.choices.values():
            yield from _commands(found)


def _exit(title: str, meanings: Iterable[tuple[int, str]]) -> str:
    return f"### {title}\n\n{table(('status', 'meaning'), [(str(status), what) for status, what in meanings])}\n"
