"""Agents on the network of their node, as where the API server cannot reach addresses of pods."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from devcluster import isolation
from devcluster.objects import namespace
from tests.e2e.cluster import NAMESPACE, PATIENT, Cluster, site


@pytest_asyncio.fixture(scope="module")
async def home(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with site(tmp_path_factory.mktemp("host")) as started:
        try:
            yield await started.cluster("home", isolation.FIRST)
        except BaseException:
            await started.explain()
            raise


async def test_a_release_on_the_network_of_nodes_enforces(home: Cluster) -> None:
    """Two replicas do not fit on one node: each needs the same ports."""
    await home.apply(namespace(NAMESPACE))
    ports = {"webhook__port": 19443, "healthPort": 18081}
    await home.install("seed", seedName="home", hostNetwork=True, replicas=1, **ports, **PATIENT)
    (pod,) = (await home.get(f"/api/v1/namespaces/{NAMESPACE}/pods"))["items"]
    assert pod["spec"]["hostNetwork"] is True
    assert pod["status"]["podIP"] == pod["status"]["hostIP"]
    await home.restart("seedquota-seed")
    await home.helm("uninstall", "seedquota-seed", "-n", NAMESPACE, "--wait")
    assert await home.kubectl("get", "validatingwebhookconfigurations", "-o", "name") == ""
