"""`seedquota-seed size`: what the Machines in a file cost and how that was found, or what admission would say."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import msgspec
import yaml

from common import resources
from common.api import USER_CLUSTERS, UserCluster, UserClusterSpec
from common.kube.client import Cluster
from common.kube.errors import ApiError
from common.kube.kubeconfig import InvalidKubeconfig
from common.kube.meta import ObjectMeta
from seed.flavours.cache import FlavourCache
from seed.flavours.settings import SettingsReader
from seed.flavours.transport import Transport
from seed.machines.machine_controller import Machine
from seed.providers.size import NotSized, ProviderUnavailable
from seed.sizing import Sized, Sizing

SECONDS = 30.0  # admission has two or three; here somebody wants to know what comes after that


class UnusableInput(Exception):
    """Says what is wrong with the file or a flag."""


def main(arguments: Sequence[str]) -> int:
    """0: all were sized, 1: some were not, 2: nothing could be done."""
    parser = argparse.ArgumentParser(prog="seedquota-seed size", description=__doc__)
    parser.add_argument(
        "-f", "--filename", required=True, help="YAML with Machines, MachineSets or MachineDeployments; - is stdin"
    )
    parser.add_argument("--kubeconfig", help="of the seed; together with --user-cluster")
    parser.add_argument(
        "--user-cluster",
        metavar="NAMESPACE/NAME",
        help="UserCluster on the seed whose credentials are used; not set: those in the file and the environment",
    )
    options = parser.parse_args(arguments)
    try:
        text = sys.stdin.read() if options.filename == "-" else Path(options.filename).read_text()
        machines = list(read(text))
        return asyncio.run(_size_all(machines, options.kubeconfig, options.user_cluster, sys.stdout))
    except (OSError, UnicodeDecodeError, UnusableInput, InvalidKubeconfig, ApiError) as error:
        print(f"seedquota-seed size: {error}", file=sys.stderr)
        return 2


def read(text: str) -> Iterator[Machine]:
    """The Machines, or the template of whatever makes Machines. Raises UnusableInput."""
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise UnusableInput(f"no YAML: {error}") from error
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") not in {"Machine", "MachineSet", "MachineDeployment"}:
            raise UnusableInput("only Machines, MachineSets and MachineDeployments can be sized")
        if document["kind"] == "Machine":
            yield _machine(document)
            continue
        spec = document.get("spec")
        template = spec.get("template") if isinstance(spec, dict) else None
        if not isinstance(template, dict):
            raise UnusableInput(f"{document['kind']} has no spec.template")
        yield _machine({"metadata": document.get("metadata"), "spec": template.get("spec")})


def _machine(document: dict[str, object]) -> Machine:
    try:
        return msgspec.json.decode(msgspec.json.encode(document), type=Machine)
    except (msgspec.MsgspecError, TypeError) as error:
        raise UnusableInput(f"not a Machine: {error}") from error


async def _size_all(machines: Sequence[Machine], kubeconfig: str | None, user_cluster: str | None, out: TextIO) -> int:
    seed = None
    cluster = UserCluster(metadata=ObjectMeta(), spec=UserClusterSpec(project=""))
    if user_cluster is not None:
        if kubeconfig is None:
            raise UnusableInput("--user-cluster needs the --kubeconfig of its seed")
        seed = await Cluster.from_kubeconfig_file(kubeconfig, name="seed")
        namespace, _, name = user_cluster.partition("/")
        cluster = await seed.get(USER_CLUSTERS, name, namespace)
    sizing = Sizing(FlavourCache(Transport()), SettingsReader(seed), seal=_no_seal, check=lambda _text, _seal: False)
    try:
        sized = [await _size(sizing, cluster, machine, out) for machine in machines]
    finally:
        await sizing.close()
        if seed is not None:
            await seed.close()
    return 0 if all(sized) else 1


def _no_seal(_text: bytes) -> str:
    raise AssertionError("nothing is stamped here")


async def _size(sizing: Sizing, cluster: UserCluster, machine: Machine, out: TextIO) -> bool:
    try:
        sized = await sizing.size(cluster, machine, asyncio.get_running_loop().time() + SECONDS)
    except NotSized as error:
        print(f"{machine.metadata.name}: 422 {error}", file=out)
        return False
    except ProviderUnavailable as error:
        print(f"{machine.metadata.name}: 503 {error}", file=out)
        return False
    print("\n".join(_lines(machine, sized)), file=out)
    return True


def _lines(machine: Machine, sized: Sized) -> Iterator[str]:
    cost = sized.footprint
    yield f"{machine.metadata.name}: {resources.text(cost.resources)}"
    for resource, reason in cost.unknown.items():
        yield f"  {resource} is not known: {cost.provider} {reason}; refused where a quota limits {resource}"
    if sized.flavour:
        yield f"  found: {sized.flavour} of {sized.place}, asked {sized.as_of}; the rest stands in the spec"
    else:
        yield f"  found: all of it stands in the spec, as {cost.provider} reads it"
