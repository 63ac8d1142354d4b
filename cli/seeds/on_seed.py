"""What a seed says itself: which seed it is, and what its user clusters use."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cli import reading
from cli.clusters import connected
from cli.outcome import Failed
from common.api.types import SEED_COPIES, USER_CLUSTERS, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError


async def name_of(seed: Cluster) -> str:
    """Raises Failed."""
    itself = await reading.every(seed, SEED_COPIES)
    if len(itself) != 1:
        itself = [each for each in itself if each.spec.in_cluster]
    if len(itself) != 1:
        raise Failed(f"{seed.server} does not say which seed it is: is it one, and has the master reached it?")
    return itself[0].metadata.name


async def clusters_of(
    kubeconfigs: Sequence[str], projects: Collection[str]
) -> tuple[dict[str, list[UserCluster]], list[str]]:
    """By seed the user clusters of these projects, and which seeds cannot be asked. Raises Failed."""
    found: dict[str, list[UserCluster]] = {}
    away = []
    for kubeconfig in kubeconfigs:
        async with connected(kubeconfig, None, "seed") as seed:
            try:
                name = await name_of(seed)
                clusters = await reading.every(seed, USER_CLUSTERS)
            except ApiError as error:
                away.append(unreachable(kubeconfig, error))
                continue
        found[name] = [each for each in clusters if each.spec.project in projects]
    return found, away


def unreachable(kubeconfig: str, error: Failed | ApiError) -> str:
    return f"the seed of {kubeconfig} cannot be asked: {reading.problem(error)}"
