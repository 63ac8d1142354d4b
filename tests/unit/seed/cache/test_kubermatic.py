"""Clusters of Kubermatic as user clusters, on an API server that can be made to change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.kube.controller.discovery import Served
from seed.cache.clusters import ClusterCache
from seed.cache.kubermatic import KubermaticView
from seed.cache.quotas import QuotaCache
from seed.kinds.registry import OF_PROJECTS
from seed.model.cluster_key import is_hosted, is_of_kubermatic
from seed.providers.cloud_account import AccountedCluster
from tests.running import running
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import FakeApiServer, eventually, fake_api_server

KEY = "cluster-abc/kubermatic.k8c.io:abc"
CRD = "clusters.kubermatic.k8c.io"


class Seed:
    def __init__(self, api: FakeApiServer, cluster: Cluster) -> None:
        self.api = api
        self.connection = cluster
        self.cluster_cache = ClusterCache(cluster, QuotaCache(cluster), of_projects=OF_PROJECTS)
        self.told: list[str] = []
        self.cluster_cache.on_user_cluster(self.told.append)
        self.served = Served(cluster)
        self.view = KubermaticView(cluster, self.cluster_cache, self.served)

    async def serve(self, kind: str = "Cluster") -> None:
        plural = f"{kind.lower()}s"
        spec = {
            "group": "kubermatic.k8c.io",
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": True, "storage": True}],
        }
        conditions = {"conditions": [{"type": "Established", "status": "True"}]}
        await self.api.put("customresourcedefinitions", "", f"{plural}.kubermatic.k8c.io", spec=spec, status=conditions)

    async def datacenter(self, url: str) -> None:
        said = {"dc1": {"spec": {"openstack": {"authURL": url, "region": "RegionOne"}}}}
        await self.api.put("seeds", "kubermatic", "seed", spec={"datacenters": said})

    def auth_url(self) -> str | None:
        found = self.cluster_cache.hosted.get(KEY)
        return found.account.values.get("OS_AUTH_URL") if isinstance(found, AccountedCluster) else None

    async def cluster(self, project: str = "alpha", namespace: str = "", **spec: Any) -> str:
        labels = {"labels": {"project-id": project} if project else {}}
        status = {"namespaceName": namespace} if namespace else {}
        made = await self.api.put("clusters", "", "abc", metadata=labels, spec=spec, status=status)
        return str(made["metadata"]["uid"])


@pytest_asyncio.fixture
async def found(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Seed]:
    monkeypatch.setitem(fakes.PLURALS, "clusters", ("kubermatic.k8c.io/v1", "Cluster"))
    monkeypatch.setitem(fakes.PLURALS, "seeds", ("kubermatic.k8c.io/v1", "Seed"))
    monkeypatch.setitem(
        fakes.PLURALS, "customresourcedefinitions", ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    )
    async with fake_api_server() as api:
        cluster = api.cluster()
        found = Seed(api, cluster)
        async with running(found.served.run(), found.view.run()):
            yield found


async def test_a_cluster_is_a_user_cluster_that_its_kubeconfig_leads_to(found: Seed) -> None:
    await found.serve()
    uid = await found.cluster()
    await eventually(lambda: KEY in found.cluster_cache.hosted)
    cluster = found.cluster_cache.followed_as(KEY)
    assert cluster is not None
    assert cluster.metadata.key == KEY
    assert (cluster.spec.project, cluster.metadata.uid) == ("alpha", uid)
    reference = cluster.spec.kubeconfig_secret_ref
    assert reference is not None
    assert (reference.name, reference.key) == ("admin-kubeconfig", "kubeconfig")
    assert found.cluster_cache.followed() == [cluster]
    assert found.cluster_cache.user_cluster_by_uid(uid) == cluster
    assert is_of_kubermatic(KEY)
    assert not is_hosted(KEY), "its Machines are not the seed's"
    assert found.told == [KEY]


async def test_what_says_nothing_new_is_not_told(found: Seed) -> None:
    await found.serve()
    await found.cluster()
    await eventually(lambda: found.told == [KEY])
    await found.cluster(pause=True)
    await found.cluster(namespace="cluster-abc")
    await found.cluster("beta")
    await eventually(lambda: found.told == [KEY, KEY])
    assert found.cluster_cache.hosted[KEY].spec.project == "beta"


async def test_its_cloud_follows_the_datacenter_of_kubermatic_s_seed(found: Seed) -> None:
    await found.serve()
    await found.cluster(cloud={"dc": "dc1", "providerName": "openstack", "openstack": {}})
    await eventually(lambda: KEY in found.cluster_cache.hosted)
    assert found.auth_url() is None, "no Seed is known yet"
    await found.datacenter("https://one.example")
    await found.serve("Seed")
    await eventually(lambda: found.auth_url() == "https://one.example")
    await found.datacenter("https://two.example")
    await eventually(lambda: found.auth_url() == "https://two.example")
    assert await found.view.find_hosted(KEY) == found.cluster_cache.hosted[KEY]
    await found.api.remove("seeds", "kubermatic", "seed")
    await eventually(lambda: found.auth_url() is None)


async def test_it_goes_with_its_label_its_namespace_or_the_whole_api(found: Seed) -> None:
    await found.serve()
    uid = await found.cluster()
    await eventually(lambda: KEY in found.cluster_cache.hosted)
    await found.cluster("")
    await eventually(lambda: not found.cluster_cache.hosted)
    assert found.cluster_cache.user_cluster_by_uid(uid) is None
    assert found.cluster_cache.followed() == []
    await found.cluster(namespace="elsewhere")
    await eventually(lambda: list(found.cluster_cache.hosted) == ["elsewhere/kubermatic.k8c.io:abc"])
    await found.api.remove("customresourcedefinitions", "", CRD)
    await eventually(lambda: not found.cluster_cache.hosted)


async def test_a_fresh_read_tells_whether_it_is_still_counted_here(
    found: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable):
        await KubermaticView(found.connection, found.cluster_cache, Served(found.connection)).find_hosted(KEY)
    await eventually(found.served.crds.synced.is_set)
    assert await found.view.find_hosted(KEY) is None, "there is no such kind"
    await found.serve()
    await found.cluster()
    await eventually(lambda: KEY in found.cluster_cache.hosted)
    known = await found.view.find_hosted(KEY)
    assert known == found.cluster_cache.hosted[KEY]
    await found.cluster("beta")
    moved = await found.view.find_hosted(KEY)
    assert moved is not None
    assert moved.spec.project == "beta"
    await found.cluster(namespace="elsewhere")
    assert await found.view.find_hosted(KEY) is None
    await found.api.remove("clusters", "", "abc")
    assert await found.view.find_hosted(KEY) is None
    monkeypatch.setattr(found.served, "find", lambda _wanted, _now=None: None)  # its watch lags
    with pytest.raises(Unavailable, match="not followed yet"):
        await found.view.find_hosted(KEY)
