"""Connects to seeds as the master does: by the kubeconfig in the Secret of each Seed. The seed in the master's own
cluster, if there is one, is the master."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from cli import reading
from cli.connection import NAMESPACE, TIMEOUT
from cli.outcome import Failed
from cli.quotas import nearest
from common.api.cluster_identity import KUBE_SYSTEM, NAMESPACES, is_another
from common.api.core import SECRETS, kubeconfig_text
from common.api.types import Seed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden
from common.kube.client.kubeconfig import InvalidKubeconfig

AT_ONCE = 16
PATIENCE = 25.0  # seconds for one seed
WITHIN = 60.0  # ... and for all of them

T = TypeVar("T")


def add_seeds(parser: argparse.ArgumentParser, what: str) -> None:
    """`what`: to do what with them."""
    parser.add_argument(
        "--seed",
        dest="seeds",
        metavar="NAME",
        action="append",
        default=[],
        help=f"name of a Seed, to {what}, by the kubeconfig in its Secret; it can be repeated; not set: none",
    )
    parser.add_argument("--all-seeds", action="store_true", help="all Seeds that are not Lost, as if --seed named them")


def is_asked(options: argparse.Namespace) -> bool:
    """Whether `add_seeds` was used."""
    return bool(options.seeds or options.all_seeds)


def add_master_namespace(parser: argparse.ArgumentParser) -> None:
    """Where --namespace is that of something else."""
    parser.add_argument(
        "--master-namespace",
        metavar="NAMESPACE",
        default=NAMESPACE,
        help=f"namespace of the Secrets that the Seeds name [default {NAMESPACE}]",
    )


def chosen(options: argparse.Namespace, seeds: Sequence[Seed]) -> list[Seed]:
    """Of `add_seeds`. Each once. Raises Failed for one that is not there."""
    names = [each.metadata.name for each in seeds]
    for name in options.seeds:
        if name not in names:
            near = nearest(name, names)
            raise Failed(f"there is no Seed {name}; {f'did you mean {near}?' if near else '`seedquota seed list`'}")
    return [
        each
        for each in seeds
        if each.metadata.name in options.seeds or (options.all_seeds and each.spec.state != "Lost")
    ]


async def ask(
    master: Cluster,
    seeds: Sequence[Seed],
    namespace: str,
    question: Callable[[Seed, Cluster], Awaitable[T]],
    within: float = WITHIN,
) -> tuple[dict[str, T], dict[str, str]]:
    """By seed the answers, and why there is none. No seed keeps others from being asked. `namespace`: of Secrets."""
    turns = asyncio.Semaphore(AT_ONCE)
    until = asyncio.get_running_loop().time() + within
    answers: dict[str, T] = {}
    failed: dict[str, str] = {}

    async def one(seed: Seed) -> None:
        name, why = seed.metadata.name, f"it could not be asked within {within:g} s: others took that long"
        try:
            async with asyncio.timeout_at(until), turns:
                why = "it took too long to answer"
                async with asyncio.timeout(PATIENCE), reached(master, seed, namespace) as cluster:
                    answers[name] = await question(seed, cluster)
        except TimeoutError:
            failed[name] = why
        except (ApiError, Failed) as error:
            failed[name] = reading.problem(error)

    await asyncio.gather(*map(one, seeds))
    names = [seed.metadata.name for seed in seeds]
    return {name: answers[name] for name in names if name in answers}, {
        name: failed[name] for name in names if name in failed
    }


@asynccontextmanager
async def reached(master: Cluster, seed: Seed, namespace: str) -> AsyncIterator[Cluster]:
    """Raises Failed, also where it is another cluster than the master knows; ApiError."""
    if seed.spec.in_cluster:
        yield master
        return
    cluster = await _by_secret(master, seed, namespace)
    try:
        await _is_it(cluster, seed)
        yield cluster
    finally:
        await cluster.close()


async def _by_secret(master: Cluster, seed: Seed, namespace: str) -> Cluster:
    try:
        text = await kubeconfig_of(master, seed, namespace)
        return await Cluster.from_kubeconfig(text, name="seed", timeout=TIMEOUT)
    except InvalidKubeconfig as error:
        raise Failed(str(error)) from None


async def kubeconfig_of(master: Cluster, seed: Seed, namespace: str) -> str:
    """Raises Failed, InvalidKubeconfig."""
    reference = seed.spec.kubeconfig_secret_ref
    if reference is None:
        raise Failed("it names no Secret with a kubeconfig")
    return kubeconfig_text(await reading.one(master, SECRETS, reference.name, namespace), namespace, reference)


async def _is_it(cluster: Cluster, seed: Seed) -> None:
    """As the master, which serves a seed whose identity it may not read. Raises Failed."""
    try:
        uid = (await cluster.get(NAMESPACES, KUBE_SYSTEM)).metadata.uid
    except Forbidden:
        return
    if is_another(seed, seed.status.cluster_uid, uid):
        raise Failed(f"the kubeconfig in its Secret leads to another cluster ({uid}) than {seed.status.cluster_uid}")
