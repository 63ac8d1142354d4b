"""Prints what the Machines in a file cost, and how each size was found. For a Machine that cannot be sized, it prints
the message of the refusal."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import msgspec
import yaml

from common.api.types import USER_CLUSTERS, UserCluster, UserClusterSpec
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.meta import ObjectMeta
from common.kube.client.reach import ANYWHERE
from common.quota import resources
from common.runtime.metrics import build_version
from seed.instance_types.cache import FlavourCache
from seed.instance_types.http_client import InvalidBundle, Transport, trusting
from seed.instance_types.settings import SettingsReader
from seed.machines.machine_controller import GROUP, Machine
from seed.providers.size import NotSized, ProviderUnavailable
from seed.sizing.sizer import Sized, Sizing

SECONDS = 30.0  # admission has two or three; here somebody wants to know what comes after that
MAKERS = frozenset({"MachineSet", "MachineDeployment"})


class UnusableInput(Exception):
    """Says what is wrong with the file or a flag."""


def main(arguments: Sequence[str]) -> int:
    """0: all were sized, 1: some were not, 2: nothing could be done."""
    options = parser().parse_args(arguments)
    logging.basicConfig(handlers=[logging.NullHandler()])  # what goes wrong is printed below, in a user's words
    try:
        machines = list(read(_text(options.filename)))
        transport = Transport(ssl_context=trusting(options.providers_ca_file))
        return asyncio.run(_size_all(machines, transport, options.kubeconfig, options.user_cluster, sys.stdout))
    except (UnusableInput, InvalidBundle, InvalidKubeconfig, ApiError) as error:
        print(f"seedquota-seed size: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="seedquota-seed size", description=__doc__)
    made.add_argument("--version", action="version", version=f"seedquota-seed {build_version()}")
    made.add_argument(
        "-f",
        "--filename",
        required=True,
        help="YAML or JSON with Machines, MachineSets or MachineDeployments, or a List of them; - is stdin",
    )
    made.add_argument("--kubeconfig", help="kubeconfig of the seed; use it together with --user-cluster")
    made.add_argument(
        "--user-cluster",
        metavar="NAMESPACE/NAME",
        help="UserCluster on the seed whose credentials are used; not set: those in the file and the environment",
    )
    made.add_argument(
        "--providers-ca-file",
        type=Path,
        help="certificate authorities for clouds (PEM), in addition to those of the system",
    )
    return made


def _text(filename: str) -> str:
    try:
        return sys.stdin.read() if filename == "-" else Path(filename).read_text()
    except OSError as error:
        raise UnusableInput(f"{filename} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnusableInput(f"{filename} is no text") from error


def read(text: str) -> Iterator[Machine]:
    """The Machines, or the template of whatever makes Machines. Raises UnusableInput."""
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnusableInput(f"no YAML: {error}") from error
    objects = [found for document in documents for found in _objects(document)]
    if not objects:
        raise UnusableInput("there is no Machine in it")
    for found in objects:
        yield _machine(found)


def _objects(document: object) -> Iterator[dict[str, object]]:
    """What `kubectl get` writes is one List."""
    if isinstance(document, dict) and str(document.get("kind")).endswith("List"):
        for item in document.get("items") or ():
            yield from _objects(item)
        return
    if not isinstance(document, dict) or document.get("kind") not in {"Machine", *MAKERS}:
        raise UnusableInput("only Machines, MachineSets and MachineDeployments can be sized")
    group = str(document.get("apiVersion", GROUP)).partition("/")[0]
    if group != GROUP:
        raise UnusableInput(
            f"only those of {GROUP} can be sized: a Machine of {group} costs what its infrastructure object says"
        )
    yield document


def _machine(document: dict[str, object]) -> Machine:
    kind, spec = document["kind"], document.get("spec")
    if kind in MAKERS:
        template = spec.get("template") if isinstance(spec, dict) else None
        if not isinstance(template, dict):
            raise UnusableInput(f"{kind} has no spec.template")
        spec = template.get("spec")
    try:
        body = {"metadata": document.get("metadata") or {}, "spec": spec or {}}
        return msgspec.json.decode(msgspec.json.encode(body), type=Machine)
    except (msgspec.MsgspecError, TypeError) as error:
        raise UnusableInput(f"not a {kind}: {error}") from error


async def _size_all(
    machines: Sequence[Machine], transport: Transport, kubeconfig: str | None, user_cluster: str | None, out: TextIO
) -> int:
    cluster = UserCluster(metadata=ObjectMeta(), spec=UserClusterSpec(project=""))
    if user_cluster is None:
        return await _size_in(cluster, None, machines, transport, out)
    if kubeconfig is None:
        raise UnusableInput("--user-cluster needs the --kubeconfig of its seed")
    namespace, _, name = user_cluster.partition("/")
    if not namespace or not name:
        raise UnusableInput("--user-cluster must be NAMESPACE/NAME")
    seed = await Cluster.from_kubeconfig_file(kubeconfig, name="seed")
    try:
        cluster = await seed.get(USER_CLUSTERS, name, namespace)
        return await _size_in(cluster, seed, machines, transport, out)
    except NotFound as error:
        raise UnusableInput(f"the seed has no UserCluster {user_cluster}") from error
    finally:
        await seed.close()


async def _size_in(
    cluster: UserCluster, seed: Cluster | None, machines: Sequence[Machine], transport: Transport, out: TextIO
) -> int:
    sizing = Sizing(
        FlavourCache(transport), SettingsReader(seed, reach=ANYWHERE), seal=_no_seal, check=lambda _text, _seal: False
    )
    try:
        sized = [await _size(sizing, cluster, machine, out) for machine in machines]
    finally:
        await sizing.close()
    return 0 if all(sized) else 1


def _no_seal(_text: bytes) -> str:
    raise AssertionError("nothing is stamped here")


async def _size(sizing: Sizing, cluster: UserCluster, machine: Machine, out: TextIO) -> bool:
    try:
        sized = await sizing.size(cluster, machine, asyncio.get_running_loop().time() + SECONDS)
        sized.footprint.require()
    except NotSized as error:
        print(f"{_name(machine)}: 422 {error}", file=out)
        return False
    except ProviderUnavailable as error:
        print(f"{_name(machine)}: 503 {error}", file=out)
        return False
    print("\n".join(_lines(machine, sized)), file=out)
    return True


def _lines(machine: Machine, sized: Sized) -> Iterator[str]:
    cost = sized.footprint
    yield f"{_name(machine)}: {resources.text(cost.resources)}"
    for resource, reason in cost.unknown.items():
        yield f"  {resource} is not known: {cost.provider} {reason}; refused where a quota limits {resource}"
    if sized.flavour:
        yield f"  found: {sized.flavour} of {sized.place}, asked {sized.as_of}; the rest stands in the spec"
    else:
        yield f"  found: all of it stands in the spec, as {cost.provider} reads it"


def _name(machine: Machine) -> str:
    return machine.metadata.name or machine.metadata.generate_name or "Machine"
