"""A stamp is of one place. Where a spec refers to another place by now, it is not trusted, and drift counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change, Store
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.instance_types import settings as reading
from seed.instance_types.cache import FlavourCache
from seed.instance_types.settings import SettingsReader
from seed.kinds.machines.source import Source
from seed.kinds.registry import OF_PROJECTS
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION as ANNOTATION
from seed.machines.machine_controller import Machine
from seed.providers.size import EndpointNotAllowed, ProviderUnavailable
from seed.registration.token import seal
from seed.sizing.sizer import Sizing
from seed.sizing.stamp_audit import audit
from seed.sizing.stamper import Stamping
from tests.unit.fake_api_server import eventually
from tests.unit.fake_cloud import FakeCloud, fake_cloud, machine
from tests.unit.seed.instance_types.test_settings import Api, api, cluster  # noqa: F401 (a fixture)
from tests.unit.seed.kinds.machines.test_sizes import ec2
from tests.unit.seed_world import nanos

SMALL, LARGE = "eu-central-1", "us-east-1"
REGION = {"secretKeyRef": {"namespace": "alpha", "name": "place", "key": "region"}}
SPEC = {"instanceType": "m5.large", "region": REGION, "diskSize": 5, "accessKeyId": "a", "secretAccessKey": "s"}
IN_SMALL, IN_LARGE = (nanos(f"cpu={cores},memory=8Gi,storage=5Gi,machines=1,instances.m5.large=1") for cores in (2, 32))


async def by_region(request: web.Request) -> web.StreamResponse:
    """The same type is larger in one of two regions, as flavors of private clouds are."""
    answer = await ec2(request)
    assert isinstance(answer, web.Response)
    cpus = "32" if LARGE in request.host else "2"
    return web.Response(text=str(answer.text).replace("<defaultVCpus>2<", f"<defaultVCpus>{cpus}<"))


class World:
    def __init__(self, server: Api, cloud: FakeCloud) -> None:
        self.api = server
        self.cloud = cloud
        self.cluster: UserCluster = cluster()
        self.api.secrets["alpha/place"] = {"region": SMALL}
        settings = SettingsReader(cast(Cluster, server), environment={})
        self.sizing = Sizing(FlavourCache(cloud.transport()), settings, sealed, lambda text, got: sealed(text) == got)

    async def stamped(self, name: str) -> Machine:
        made = machine("aws", SPEC, name)
        sized = await self.sizing.size(self.cluster, made, soon())
        made.metadata.annotations[ANNOTATION] = self.sizing.make_stamp("u", made, sized)
        return made

    def copied(self, stamped: Machine, name: str) -> Machine:
        """The same spec and stamp, on a new Machine."""
        made = machine("aws", SPEC, name)
        made.metadata.annotations[ANNOTATION] = stamped.metadata.annotations[ANNOTATION]
        return made


def sealed(text: bytes) -> str:
    return seal(b"k" * 32, text)


def soon() -> float:
    return asyncio.get_running_loop().time() + 10


@pytest.fixture
async def world(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:  # noqa: F811
    monkeypatch.setattr(reading, "KEPT_SECONDS", 0.0)
    async with fake_cloud(by_region, f"ec2.{SMALL}.amazonaws.com", f"ec2.{LARGE}.amazonaws.com") as cloud:
        made = World(api, cloud)
        yield made
        made.sizing._settings._connections.clear()
        await made.sizing.close()


async def test_a_stamp_of_this_place_is_trusted_and_no_cloud_is_asked(world: World) -> None:
    made = await world.stamped("m")
    asked = len(world.cloud.requests)
    found = await world.sizing.admitted(world.cluster, world.copied(made, "other"), soon())
    assert found.resources == IN_SMALL
    assert len(world.cloud.requests) == asked


async def test_a_copied_stamp_of_another_place_is_not_trusted(world: World) -> None:
    copied = world.copied(await world.stamped("m"), "other")
    world.api.secrets["alpha/place"]["region"] = LARGE
    assert (await world.sizing.admitted(world.cluster, copied, soon())).resources == IN_LARGE
    cluster = cast(Cluster, SimpleNamespace(name="seed"))
    cluster_cache = ClusterCache(cluster, QuotaCache(cluster), of_projects=OF_PROJECTS)
    cluster_cache.user_clusters.store._set("alpha/c1", world.cluster)
    anew = await Stamping(cluster_cache, world.sizing).stamp("u", copied, None, soon())
    assert anew is not None
    copied.metadata.annotations[ANNOTATION] = anew
    _, found = world.sizing.stamped("u", copied)
    assert found is not None
    assert found.resources == IN_LARGE


async def test_a_stamp_whose_place_cannot_be_read_now_is_not_trusted(world: World) -> None:
    copied = world.copied(await world.stamped("m"), "other")
    world.sizing._settings._kept._by_owner.clear()
    world.api.error = Unavailable(0, "Unavailable", "no answer")
    with pytest.raises(ProviderUnavailable, match="Secret alpha/place cannot be read now"):
        await world.sizing.admitted(world.cluster, copied, soon())


async def test_a_machine_counts_at_the_larger_size_of_both_places(world: World) -> None:
    made = await world.stamped("m")
    assert not (await audit(world.sizing, world.cluster, [made])).count
    world.api.secrets["alpha/place"]["region"] = LARGE
    drift = await audit(world.sizing, world.cluster, [made])
    assert drift.named == ["kube-system/m: stamped cpu=2, now cpu=32"]
    assert drift.counted(made, world.sizing.counted("u", made)).resources == IN_LARGE
    smaller = world.copied(made, "other")
    back = await audit(world.sizing, world.cluster, [smaller], drift)
    assert back.counted(smaller, world.sizing.counted("u", smaller)).resources == IN_LARGE
    world.api.secrets["alpha/place"]["region"] = SMALL
    again = await audit(world.sizing, world.cluster, [made], drift)
    assert (again.count, again.now) == (0, {})


async def test_what_drifted_stays_larger_while_its_place_cannot_be_asked(world: World) -> None:
    made = await world.stamped("m")
    world.api.secrets["alpha/place"]["region"] = LARGE
    drift = await audit(world.sizing, world.cluster, [made])
    world.sizing._settings._kept._by_owner.clear()
    world.api.error = Unavailable(0, "Unavailable", "no answer")
    assert await audit(world.sizing, world.cluster, [made], drift) == drift


async def test_a_stamped_machine_that_leads_to_a_tenant_s_endpoint_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await world.stamped("m")

    async def elsewhere(*_: object) -> None:
        raise EndpointNotAllowed("openstack", "identityEndpoint is not one that the platform has named")

    monkeypatch.setattr(world.sizing, "size", elsewhere)
    drift = await audit(world.sizing, world.cluster, [made])
    assert (drift.count, drift.now) == (1, {})
    assert drift.named[0].startswith("kube-system/m: cannot size machine: openstack identityEndpoint is not one")


async def test_the_sum_of_a_source_follows_what_the_audit_found(world: World) -> None:
    made = await world.stamped("m")
    changes: list[bool] = []
    there = Source(
        cast(Cluster, world.api),
        world.cluster,
        on_change=lambda _source, freed: changes.append(freed),
        on_state=lambda _source: None,
        sizing=world.sizing,
    )
    await there.stop()
    machines: Store[Machine] = Store({})
    machines._set("kube-system/m", made)
    there.totals = type(there.totals)(size=there._counted)
    there.totals.apply(Change(None, made))
    assert there.totals.used == IN_SMALL
    world.api.secrets["alpha/place"]["region"] = LARGE
    listed = cast(Reflector[Machine], SimpleNamespace(store=machines))
    auditing = asyncio.create_task(there._audit(listed))
    await eventually(lambda: there.totals.used == IN_LARGE)
    assert changes == [False]
    auditing.cancel()
