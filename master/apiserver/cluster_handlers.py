"""Answers which user clusters use most of a quota. The seeds are asked: the master watches no user clusters."""

from __future__ import annotations

from common.kube.client.api_client import Cluster
from master.apiserver import cluster_lists
from master.apiserver.asked_seeds import asked_seeds, not_asked, too_many
from master.apiserver.auth import LIST_QUOTAS, Right, Rights
from master.apiserver.call import Call, RouteResponse
from master.apiserver.cluster_lists import COUNTED_CLUSTERS, CountedCluster
from master.apiserver.problem import ProblemError
from master.cache import picked_seeds
from master.cache.informers import BY_ORGANIZATION, Caches, subject_of
from master.cache.objects import MasterQuota
from master.seeds.agent_pages import TIMEOUT, AgentPages, Found

LIMIT = 10
_NO_RIGHT = "the master may not list UserClusters there"


class ClusterHandlers:
    """Each raises ProblemError."""

    def __init__(self, caches: Caches, rights: Rights, agents: AgentPages) -> None:
        self._caches = caches
        self._rights = rights
        self._agents = agents

    async def list_quota_clusters(self, call: Call) -> RouteResponse:
        name, user = call.parameters["name"], call.user
        await self._rights.require(user, Right(verb="get", resource="resourcequotas", name=name))
        quota = self._caches.quotas.store.get(name)
        if quota is None:
            raise ProblemError(404, f"there is no quota {name}")
        limit, projects = int(call.query.get("limit", LIMIT)), self._projects_of(quota)
        seeds = asked_seeds(self._caches.seeds.store.values(), call.query.get("seed"))
        seeds = [seed for seed in seeds if picked_seeds.limits_on(quota, seed)] if projects else []
        if why := too_many(seeds):
            return RouteResponse(cluster_lists.together(quota, projects, {}, limit, why))
        clusters: dict[str, list[CountedCluster]] = {}

        async def ask(seed: str, cluster: Cluster) -> None:
            clusters[seed] = (await cluster.list(COUNTED_CLUSTERS, timeout=TIMEOUT)).items

        found = Found(not_asked=await self._agents.on_each(seeds, user.username, ask, _NO_RIGHT))
        why = not_asked(found, len(seeds), everything=await self._rights.has(user, LIST_QUOTAS))
        return RouteResponse(cluster_lists.together(quota, projects, clusters, limit, why))

    def _projects_of(self, quota: MasterQuota) -> set[str]:
        """None of a quota of namespaces: it counts no Machines."""
        kind, subject = subject_of(quota)
        if kind == "organization":
            return {each.metadata.name for each in self._caches.projects.store.by_index(BY_ORGANIZATION, subject)}
        return {subject} if kind == "project" else set()
