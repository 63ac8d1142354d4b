"""An agent beside custom resource definitions of an earlier release, as a real API server enforces them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from cli import definitions
from common.api.account_waits import WaitReason
from common.api.types import RESOURCE_QUOTAS
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.quota.account import Account
from devcluster.controlplane import ControlPlane
from devcluster.manifests import Manifest, apply, load
from devcluster.objects import CHARTS
from seed.accounts.plan import WaitsFor
from seed.accounts.publisher import Publisher
from seed.accounts.waits import Waits
from seed.model.quota import Quota
from tests.integration.installed.site import until
from tests.unit.seed_world import seed_world

pytestmark = pytest.mark.integration

NAME = "project-alpha"
SPEC = {"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "4"}}


def _older() -> Manifest:
    (loaded,) = load(CHARTS / "crds" / "resourcequota.yaml")
    definition: dict[str, Any] = dict(loaded)
    for version in definition["spec"]["versions"]:
        status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        del status["account"]["properties"]["waitsFor"]
        del status["seeds"]["items"]["properties"]["waitsFor"]
    return definition


@pytest_asyncio.fixture(scope="module")
async def seed(control_plane: ControlPlane) -> AsyncIterator[Cluster]:
    """Its definition has no field for what an account waits for."""
    await control_plane.start(["older"])
    server = control_plane.cluster("older")
    await apply(server, load(CHARTS / "crds"))
    await apply(server, [_older()])
    cluster = await Cluster.from_kubeconfig(server.kubeconfig(), name="seed")
    yield cluster
    await cluster.close()
    await server.kill()


async def test_the_master_is_told_the_nonce_where_what_the_account_waits_for_cannot_be_written(seed: Cluster) -> None:
    """Else a definition that is not upgraded would keep each fenced account closed for ever."""
    body = {"apiVersion": RESOURCE_QUOTAS.api_version, "kind": RESOURCE_QUOTAS.kind, "metadata": {"name": NAME}}
    made, waits = await seed.create(RESOURCE_QUOTAS, {**body, "spec": SPEC}), Waits()
    async with seed_world() as world:
        await world.quota(limits="cpu=4")
        known = world.quota_cache.quota(NAME)
        assert isinstance(known, Quota)
        quota = msgspec.structs.replace(known, copy_uid=made.metadata.uid, published_wait=None)
        publisher = Publisher(seed, world.cluster_cache, lambda _quota: (1, {}), waits)
        waits.note(quota, WaitsFor(WaitReason.MASTER_ANSWER))
        await publisher.publish_at_once(quota, Account(incarnation="life", epoch=1, nonce="n"), [])
    said = (await seed.get(RESOURCE_QUOTAS, NAME)).status.account
    assert (said.incarnation, said.state, said.nonce, said.waits_for) == ("life", "Fenced", "n", None)


async def test_the_start_check_names_the_fields_that_older_definitions_lack(
    seed: Cluster, control_plane: ControlPlane
) -> None:
    """An API server refuses a status that has them. It publishes schemas a moment after it serves them."""

    async def says(expected: str) -> None:
        assert re.fullmatch(expected, "\n".join(await definitions.problems(seed)))

    lacking = re.escape(".status.seeds[].waitsFor, .status.account.waitsFor")
    older = r"the definition resourcequotas\.seedquota\.io that the API server has is older than \S+, and "
    await until(partial(says, rf"{older}lacks {lacking}: set crds\.install, or apply charts/crds of this version"), 30)
    status = {"seeds": [{"name": "s", "waitsFor": {"reason": "MasterAnswer"}}]}
    with pytest.raises(ApiError, match=r"status\.seeds.*waitsFor: field not declared in schema"):
        await seed.apply(RESOURCE_QUOTAS, {"metadata": {"name": NAME}, "status": status}, "seedquota-master", "status")
    await apply(control_plane.cluster("older"), load(CHARTS / "crds"))
    await until(partial(says, ""), 30)
