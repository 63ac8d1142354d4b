"""`seedquota seed`: add, list, drain, declare lost and remove seeds."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import Any

from cli.connection import add_cluster, add_namespace
from cli.seeds import add, listing, remove, states

HELP = "add, list, drain, declare lost and remove seeds"
EXAMPLES = """\
examples:
  seedquota seed add eu-2 --seed-kubeconfig eu-2-admin.yaml     # also to replace the token, or after an upgrade
  seedquota seed list
  seedquota seed drain eu-2                                # no more capacity; what runs goes on
  seedquota seed remove eu-2 --seed-kubeconfig eu-2-admin.yaml  # once it holds nothing
  seedquota seed lost eu-2 --dry-run                       # what may be exceeded

The Seed and its Secret are on the master, which --kubeconfig and --context name. --seed-kubeconfig names the
kubeconfig of an admin of the seed.
Exit status: 0 done, 1 failed, 2 denied because it would break a rule.
"""


def declare(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    one = _action(
        actions,
        "add",
        add.run,
        add.__doc__,
        "create or renew a Seed, the rights of the master on the seed, and its token",
    )
    _seeds_kubeconfig(one, "kubeconfig of an admin of the seed", required=True)
    one = _action(actions, "list", listing.run, listing.__doc__, "show every Seed, and what it holds", named=False)
    one.add_argument("-o", "--output", choices=("table", "json"), default="table", help="table or json [default table]")
    _action(actions, "drain", states.drain, states.drain.__doc__, "stop giving capacity to a seed")
    one = _action(
        actions, "lost", states.lost, states.lost.__doc__, "give what a seed holds to others; this cannot be undone"
    )
    one.add_argument("--dry-run", action="store_true", help="only print by how much limits can be exceeded")
    one = _action(actions, "remove", remove.run, remove.__doc__, "delete a Seed that holds nothing")
    _seeds_kubeconfig(
        one, "kubeconfig of an admin of the seed, to remove the master's rights there; not set: they stay"
    )


def _action(
    actions: Any,
    name: str,
    run: Callable[[argparse.Namespace], Awaitable[str]],
    description: str | None,
    what: str,
    *,
    named: bool = True,
) -> argparse.ArgumentParser:
    lines = [line for line in EXAMPLES.splitlines() if line.startswith(f"  seedquota seed {name}")]
    parser: argparse.ArgumentParser = actions.add_parser(
        name,
        help=what,
        description=description,
        epilog="\n".join(["examples:", *lines]),
    )
    if named:
        parser.add_argument("name", metavar="NAME", help="name of the Seed")
    add_cluster(parser)
    add_namespace(parser)
    parser.set_defaults(run=run)
    return parser


def _seeds_kubeconfig(parser: argparse.ArgumentParser, what: str, *, required: bool = False) -> None:
    parser.add_argument("--seed-kubeconfig", metavar="FILE", required=required, help=what)
    parser.add_argument(
        "--seed-context", metavar="CONTEXT", help="context of the seed in that file; not set: its current context"
    )
