from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from devcluster.cluster_api import ClusterApi, infrastructure_crd
from devcluster.install import Installation
from devcluster.manifests import apply
from tests.integration.cluster_api.place import SEED, Place

KINDS = ("VSphereMachine", "VSphereMachineTemplate", "VSphereCluster")


@pytest_asyncio.fixture(scope="package")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    """One for all that is here, since it takes its time to start."""
    async with Installation(tmp_path_factory.mktemp("sq"), seeds=1, breakable=True) as installed:
        server = installed.cluster(SEED)
        async with ClusterApi(server, installed.directory) as controllers:
            await apply(server, [infrastructure_crd(kind, "v1beta1") for kind in KINDS])
            yield Place(installed, controllers)
