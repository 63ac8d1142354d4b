"""Which cluster a kubeconfig leads to, and which UserCluster stands for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from common.api.types import ACCEPT_CLUSTER_ANNOTATION, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, Unavailable
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.kinds.machines.cluster_identity import Identities, judge
from seed.kinds.registry import OF_PROJECTS
from seed.model.cluster_key import KUBERMATIC
from seed.usage.source import Problem
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import FakeApiServer, fake_api_server, status

FIRST, SECOND = "f1f1f1f1-uid", "5e5e5e5e-uid"


class World:
    """A seed, and the cluster to which each kubeconfig leads at that moment."""

    def __init__(self, seed: FakeApiServer, target: FakeApiServer) -> None:
        self.api = seed
        self.target = target
        self.seed = seed.cluster()
        self.cluster = target.cluster()
        self.cluster_cache = ClusterCache(self.seed, QuotaCache(self.seed), of_projects=OF_PROJECTS)
        self.identities = Identities(self.seed, self.cluster_cache)

    async def leads_to(self, uid: str) -> None:
        async def kube_system(request: web.Request) -> web.Response:
            assert request.path == "/api/v1/namespaces/kube-system"
            return web.json_response({"metadata": {"name": "kube-system", "uid": uid}})

        self.target.answers = [kube_system] * 10

    async def user_cluster(self, name: str, *, created: str = "1", accepts: str = "", held: str = "") -> UserCluster:
        made = await self.api.put(
            "userclusters",
            "alpha",
            name,
            metadata={
                "creationTimestamp": f"2026-01-01T00:00:0{created}Z",
                "annotations": {ACCEPT_CLUSTER_ANNOTATION: accepts} if accepts else {},
            },
            spec={"project": "alpha", "kubeconfigSecretRef": {"name": name}},
            status={"clusterUID": held} if held else {},
        )
        return self.seen(made)

    def seen(self, made: dict[str, Any]) -> UserCluster:
        found = msgspec.convert(made, UserCluster)
        self.cluster_cache.user_clusters.store._set(found.metadata.key, found)
        return found

    async def check(self, user_cluster: UserCluster) -> Problem | None:
        return await self.identities.check(user_cluster, self.cluster)

    def recorded(self, name: str) -> str | None:
        found: dict[str, Any] = self.api.objects["userclusters", "alpha", name].get("status", {})
        return found.get("clusterUID")


@asynccontextmanager
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setitem(fakes.PLURALS, "userclusters", ("seedquota.io/v1alpha1", "UserCluster"))
    async with fake_api_server() as seed, fake_api_server() as target:
        made = World(seed, target)

        async def applied(
            self: Cluster, _resource: object, body: Any, manager: str, subresource: str = "", force: bool = True
        ) -> None:
            identity = body["metadata"]
            known = seed.objects["userclusters", identity["namespace"], identity["name"]]
            if identity["resourceVersion"] != known["metadata"]["resourceVersion"]:
                raise Conflict(409, "Conflict", "the object has been modified")
            assert (manager, subresource) == ("seedquota-seed-identity", "status")
            known["status"] = known.get("status", {}) | body["status"]

        monkeypatch.setattr(Cluster, "apply", applied)
        yield made


@pytest_asyncio.fixture
async def there(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with world(monkeypatch) as made:
        yield made


async def test_the_first_cluster_that_is_found_is_recorded_before_it_is_followed(there: World) -> None:
    await there.leads_to(FIRST)
    assert await there.check(await there.user_cluster("c1")) is None
    assert there.recorded("c1") == FIRST


async def test_a_status_that_is_written_at_the_same_time_is_read_anew(
    there: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await there.leads_to(FIRST)
    user_cluster = await there.user_cluster("c1")
    find, finds = Cluster.find, 0

    async def contended(self: Cluster, *arguments: Any) -> Any:
        nonlocal finds
        finds += 1
        found = await find(self, *arguments)
        if finds <= 2:
            there.api.objects["userclusters", "alpha", "c1"]["metadata"]["resourceVersion"] = f"changed-{finds}"
        return found

    monkeypatch.setattr(Cluster, "find", contended)
    assert await there.check(user_cluster) is None
    assert (there.recorded("c1"), finds) == (FIRST, 3)


async def test_another_cluster_is_a_problem_until_it_is_accepted(there: World) -> None:
    await there.leads_to(SECOND)
    problem = await there.check(await there.user_cluster("c1", held=FIRST))
    assert problem is not None and problem.reason == "ClusterChanged"
    assert all(text in problem.message for text in (FIRST, SECOND, f"{ACCEPT_CLUSTER_ANNOTATION}: {SECOND}"))
    problem = await there.check(await there.user_cluster("c1", held=FIRST, accepts="something else"))
    assert problem is not None and problem.reason == "ClusterChanged"
    assert there.recorded("c1") == FIRST
    assert await there.check(await there.user_cluster("c1", held=FIRST, accepts=SECOND)) is None
    assert there.recorded("c1") == SECOND
    await there.leads_to(FIRST)
    problem = await there.check(await there.user_cluster("c1", held=SECOND, accepts=SECOND))
    assert problem is not None and problem.reason == "ClusterChanged", "what was accepted is the other one"


async def test_what_is_recorded_is_read_not_what_a_watch_cache_has(there: World) -> None:
    await there.leads_to(SECOND)
    lagging = await there.user_cluster("c1")
    await there.user_cluster("c1", held=FIRST)
    there.cluster_cache.user_clusters.store._set("alpha/c1", lagging)
    problem = await there.check(lagging)
    assert problem is not None and problem.reason == "ClusterChanged"


async def test_a_user_cluster_that_was_made_again_is_not_recorded_by_its_name(there: World) -> None:
    await there.leads_to(FIRST)
    gone = await there.user_cluster("c1")
    await there.api.remove("userclusters", "alpha", "c1")
    with pytest.raises(Conflict, match="alpha/c1 is gone"):
        await there.check(gone)
    await there.user_cluster("c1")
    with pytest.raises(Conflict, match="alpha/c1 is gone"):
        await there.check(gone)


async def test_of_two_with_one_cluster_the_later_gives_way(there: World) -> None:
    await there.leads_to(FIRST)
    later, earlier = await there.user_cluster("a", created="2"), await there.user_cluster("b", created="1")
    assert await there.check(later) is None, "nobody knows of the other yet"
    assert await there.check(earlier) is None
    assert there.identities.later(earlier) == ["alpha/a"]
    assert there.identities.later(later) == []
    problem = await there.check(later)
    assert problem is not None and problem.reason == "DuplicateCluster"
    assert "alpha/b" in problem.message and FIRST in problem.message
    assert there.identities.is_shared(earlier.metadata.uid)
    there.cluster_cache.user_clusters.store._remove("alpha/b")
    there.identities.forget(earlier.metadata.uid)
    assert not there.identities.is_shared(later.metadata.uid)
    assert await there.check(later) is None


async def test_of_two_made_at_once_the_name_decides(there: World) -> None:
    await there.leads_to(FIRST)
    await there.user_cluster("a", held=FIRST)
    problem = await there.check(await there.user_cluster("b"))
    assert problem is not None and problem.reason == "DuplicateCluster"
    assert there.recorded("b") is None


async def test_a_user_cluster_on_the_seed_itself_is_nobodys_double(there: World) -> None:
    await there.leads_to(FIRST)
    there.seen(await there.api.put("userclusters", "alpha", "a", spec={"project": "alpha"}))
    assert await there.check(await there.user_cluster("b")) is None


async def test_where_kube_system_may_not_be_read_all_is_as_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def forbidden(_request: web.Request) -> web.Response:
        return status(403, "Forbidden")

    async with world(monkeypatch) as there:
        there.target.answers.append(forbidden)
        assert await there.check(await there.user_cluster("c1", held=FIRST)) is None
        assert "may not get namespace kube-system" in caplog.text


async def test_a_cluster_that_does_not_answer_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(_request: web.Request) -> web.Response:
        return status(503, "ServiceUnavailable")

    async with world(monkeypatch) as there:
        there.target.answers.append(unavailable)
        with pytest.raises(Unavailable):
            await there.check(await there.user_cluster("c1", held=FIRST))


async def test_a_cluster_of_kubermatic_is_known_as_long_as_one_leads(there: World) -> None:
    def hosted(**annotations: str) -> UserCluster:
        metadata = {"name": f"{KUBERMATIC}abc", "namespace": "cluster-abc", "uid": "abc", "annotations": annotations}
        spec = {"project": "alpha", "kubeconfigSecretRef": {"name": "admin-kubeconfig"}}
        made = msgspec.convert({"metadata": metadata, "spec": spec}, UserCluster)
        there.cluster_cache.host(made.metadata.key, made)
        return made

    await there.leads_to(FIRST)
    assert await there.check(hosted()) is None
    await there.leads_to(SECOND)
    problem = await there.check(hosted())
    assert problem is not None and problem.reason == "ClusterChanged"
    assert await there.check(hosted(**{ACCEPT_CLUSTER_ANNOTATION: SECOND})) is None
    problem = await there.check(await there.user_cluster("c1"))
    assert problem is not None and problem.reason == "DuplicateCluster", "it was declared once more"


async def test_a_cluster_that_changed_is_told_before_one_that_is_taken(there: World) -> None:
    one, other = await there.user_cluster("a", held=FIRST), await there.user_cluster("b", held=SECOND)
    problem = judge(other, SECOND, FIRST, one)
    assert problem is not None and problem.reason == "ClusterChanged"
