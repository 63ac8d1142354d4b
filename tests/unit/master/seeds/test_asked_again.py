"""What the master asks agents again and again, where it may not ask them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.api.types import Seed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden
from common.kube.client.kubeconfig import Access
from master.cache.informers import Caches
from master.seeds.agent_pages import NO_RIGHT, AgentPages
from tests.unit.master.page.builders import seed


class SeedCluster(Cluster):
    """It does not allow the master to list pods, and has `refused` when that is tried."""

    refused: int
    reviewed: list[Any]

    async def request(self, method: str, path: str, body: bytes | None = None, *_: Any, **__: Any) -> bytes:
        if path.endswith("/selfsubjectaccessreviews"):
            self.reviewed.append(json.loads(body or b"")["spec"])
            return b'{"status":{"allowed":false}}'
        self.refused += 1
        raise Forbidden(403, "Forbidden", f"{method} {path}")


class Pages(AgentPages):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__(Caches(cluster, "seedquota"), "seedquota")
        self._to = cluster

    async def _connection(self, seed: Seed) -> Cluster:
        return self._to


@pytest.mark.parametrize(("again", "refused"), [(True, 0), (False, 1)])
async def test_what_is_asked_all_the_time_is_not_refused_all_the_time(again: bool, refused: int) -> None:
    cluster = SeedCluster(Access("http://127.0.0.1:1"), name="eu-1")
    cluster.refused, cluster.reviewed = 0, []
    found = await Pages(cluster).find([(seed("eu-1"), "decisions/refused")], "ann", again=again)
    assert (found.answers, found.not_asked, cluster.refused) == ([], {"eu-1": NO_RIGHT}, refused)
    right = {"verb": "list", "resource": "pods", "namespace": "seedquota"}
    assert cluster.reviewed == ([{"resourceAttributes": right}] if again else [])
