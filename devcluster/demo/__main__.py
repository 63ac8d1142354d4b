"""`python -m devcluster.demo`"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path

import aiohttp
import msgspec
import yaml

from devcluster import binaries
from devcluster.demo.screen import Screen
from devcluster.demo.sizes import size
from devcluster.demo.story import QUOTA, DemoError, Story
from devcluster.demo.tenancy import ORGANIZATION, Tenancy, TenancyError
from devcluster.install import Installation, NotReadyError
from devcluster.load import machine
from devcluster.manifests import ManifestError
from devcluster.servers import StartError

_DESCRIPTION = """\
Starts real Kubernetes control planes on this machine, installs SeedQuota on them, applies a quota and lets
many clients create Machines at once. The last line is a result for programs; the exit status is 0 only if
nothing was exceeded and everything could be filled.
"""
_FAILURES = (
    DemoError,
    TenancyError,
    NotReadyError,
    StartError,
    ManifestError,
    binaries.BuildError,
    aiohttp.ClientError,
    OSError,
)


def main() -> int:
    arguments = _parser().parse_args()
    directory = Path(tempfile.mkdtemp(prefix="seedquota-demo-"))
    try:
        status = 0 if asyncio.run(_until_terminated(_demo(arguments, Screen(sys.stdout), directory))) else 1
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except asyncio.CancelledError:
        status = 128 + signal.SIGTERM
    except _FAILURES as error:
        print(f"demo: {error}", file=sys.stderr)
        status = 1
    if status == 1:
        print(f"The logs are kept in {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m devcluster.demo",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    numbers = {
        "machines": (_whole(40, 10_000), 400, "how many Machines are asked for at first"),
        "clients": (_whole(1, 256), 32, "how many clients ask at once"),
        "seeds": (_whole(1, 8), 2, "how many seeds, each with a user cluster"),
    }
    for name, (read, default, what) in numbers.items():
        parser.add_argument(f"--{name}", type=read, default=default, metavar="N", help=f"{what} (default {default})")
    parser.add_argument("--keep", action="store_true", help="leave everything running at the end, until Ctrl-C")
    return parser


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
        return int(text)

    return read


async def _until_terminated(demo: Coroutine[None, None, bool]) -> bool:
    """SIGTERM ends the demo as Ctrl-C does: everything is stopped in good order."""
    task = asyncio.create_task(demo)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


async def _demo(arguments: argparse.Namespace, screen: Screen, directory: Path) -> bool:
    """Whether everything held. Raises one of _FAILURES."""
    screen.plain("SeedQuota: one limit over many Kubernetes clusters, never exceeded and filled to the last unit.")
    screen.step("Real control planes, with SeedQuota installed")
    screen.say(
        f"A master, {arguments.seeds} seeds and a user cluster for each: kube-apiserver and etcd as anywhere, but "
        "without nodes. seedquota-master runs on the master, a seedquota-seed on each seed and on the master, where it "
        "counts Allocations, with the rights in charts/rbac and no more."
    )
    async with Installation(
        directory,
        seeds=arguments.seeds,
        organization=ORGANIZATION,
        master_seed=True,
        api=True,
        progress=screen.progress,
    ) as installed:
        screen.progress("everything runs")
        story = Story(installed, screen, arguments.machines, arguments.clients)
        error: Exception | None = None
        try:
            await story.tell()
            await Tenancy(installed, screen, QUOTA).tell()
        except _FAILURES as failed:
            error = failed
        if arguments.keep:
            explain(installed, screen)
        result = story.result()
        screen.plain("")
        if error is not None:
            screen.plain(f"FAILED: {str(error) or repr(error)}")
        screen.plain(msgspec.json.encode(result).decode())
        if arguments.keep:
            await asyncio.Event().wait()
        return error is None and not result.overshoot and not result.unfilled


def explain(installed: Installation, screen: Screen) -> None:
    """What to type into another terminal."""
    paths = {}
    for server in installed.clusters():
        paths[server.name] = installed.directory / f"{server.name}.kubeconfig"
        paths[server.name].write_text(server.kubeconfig())  # in a directory that only its owner may enter
    sample = installed.directory / "machine.yaml"
    sample.write_text(yaml.safe_dump(machine("one-more", size(4)), sort_keys=False))
    seed, cluster = next(iter(installed.user_clusters.items()))
    found = binaries.find(binaries.PROGRAMS["kubectl"])
    kubectl = "kubectl" if found is None or shutil.which("kubectl") else shlex.quote(str(found))

    def command(server: str, what: str) -> str:
        return f"{kubectl} --kubeconfig {shlex.quote(str(paths[server]))} {what}"

    screen.step("It is all yours, until Ctrl-C")
    screen.say("In a browser, which asks whether it may trust the certificate. Sign in with the token:")
    screen.quote(f"{installed.api_url}/\n{installed.master.tokens['admin']}")
    screen.quote(
        "\n".join(
            (
                command("master", f"get seedquota {QUOTA} -o wide"),
                command("master", f"get seedquota {QUOTA} -o yaml"),
                command("master", "get sqseed"),
                command("master", f"edit seedquota {QUOTA}"),
                command(seed, "get userclusters -A"),
                command(cluster, "get machines -n kube-system"),
                command(cluster, f"create -n kube-system -f {shlex.quote(str(sample))}"),
            )
        )
    )
    if found is None:
        screen.say("There is no kubectl on PATH: `python -m devcluster build` makes one.")
    screen.say(f"Logs of every process are in {installed.directory}.")


if __name__ == "__main__":
    sys.exit(main())
