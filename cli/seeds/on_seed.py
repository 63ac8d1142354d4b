"""What seeds say of their user clusters."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cli import reading
from cli.seeds import fleet
from common.api.types import USER_CLUSTERS, Seed, UserCluster
from common.kube.client.api_client import Cluster


async def clusters_of(
    master: Cluster, seeds: Sequence[Seed], namespace: str, projects: Collection[str]
) -> tuple[dict[str, list[UserCluster]], list[str]]:
    """By seed the user clusters of these projects, and which seeds cannot be asked."""

    async def question(_: Seed, cluster: Cluster) -> list[UserCluster]:
        return [each for each in await reading.every(cluster, USER_CLUSTERS) if each.spec.project in projects]

    found, failed = await fleet.ask(master, seeds, namespace, question)
    return found, [unreachable(seed, why) for seed, why in failed.items()]


def unreachable(seed: str, why: str) -> str:
    return f"seed {seed} cannot be asked: {why}"
