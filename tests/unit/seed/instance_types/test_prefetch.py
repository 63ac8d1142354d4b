"""Catalogues are asked for before a Machine needs them: once for a place, with whoever's credentials are taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from common.api.types import UserCluster
from seed.instance_types import prefetch as prefetching
from seed.instance_types.cache import FlavourCache
from seed.instance_types.gate import Gates
from seed.instance_types.prefetch import Prefetch
from seed.instance_types.settings import SettingsReader
from seed.providers import CLOUDS, PROVIDERS
from seed.providers.flavour import ALL
from seed.providers.size import ProviderUnavailable
from seed.sizing.sizer import Sizing
from tests.running import running
from tests.unit.fake_api_server import eventually
from tests.unit.fake_cloud import FakeCloud, answering, fake_cloud, machine
from tests.unit.seed.providers import test_azure as azure
from tests.unit.seed.providers import test_hetzner as hetzner

AZURE = {"AZURE_SUBSCRIPTION_ID": azure.SUBSCRIPTION, "AZURE_TENANT_ID": azure.TENANT, "AZURE_CLIENT_ID": "client"}
HOSTS = ("login.microsoftonline.com", "management.azure.com")
LISTS = "/providers/Microsoft.Compute/skus"


def cluster(name: str, provider: str = "azure", region: str = "westeurope") -> UserCluster:
    spec = {"project": "alpha", "provider": {"name": provider, "region": region}}
    return msgspec.convert({"metadata": {"name": name, "namespace": "alpha", "uid": name}, "spec": spec}, UserCluster)


class World:
    def __init__(self, cloud: FakeCloud, environment: dict[str, str]) -> None:
        self.cloud = cloud
        self.clusters = [cluster("c1"), cluster("c2")]
        self.cache = FlavourCache(cloud.transport())
        settings = SettingsReader(None, environment=environment)
        self.sizing = Sizing(self.cache, settings, lambda _text: "", lambda _text, _seal: False)
        self.prefetch = Prefetch(self.cache, lambda: self.clusters, self.sizing.catalogue_of)

    def lists(self) -> int:
        return sum(LISTS in request and "skiptoken" not in request for request in self.cloud.requests)

    async def size(self, name: str) -> str:
        spec = {"vmSize": name, "location": "westeurope", "osDiskSize": 30}
        found = await self.sizing.size(self.clusters[0], machine("azure", spec), asyncio.get_running_loop().time() + 30)
        return found.flavour


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(prefetching, "START_SECONDS", 0.0)
    async with fake_cloud(azure.serve, *HOSTS) as cloud:
        made = World(cloud, AZURE | {"AZURE_CLIENT_SECRET": azure.SECRET})
        yield made
        await made.sizing.close()


async def test_a_place_is_listed_once_for_all_its_clusters_and_then_every_size_is_known(world: World) -> None:
    await world.prefetch.look()
    await world.prefetch.look()
    assert world.lists() == 1
    world.cloud.disturb = answering(500)
    for name in azure.COSTS:
        assert await world.size(name) == name
    assert world.lists() == 1
    for each in world.clusters:
        ((_, types),) = world.cache.of_asker(each.metadata.uid)
        assert set(types) >= set(azure.COSTS), "whoever asked, they are the types of this cluster, too"


async def test_a_machine_that_comes_meanwhile_waits_for_the_same_list(world: World) -> None:
    await asyncio.gather(world.prefetch.look(), *(world.size(name) for name in azure.COSTS))
    assert world.lists() == 1


async def test_what_could_not_be_had_is_asked_for_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetching, "AGAIN_SECONDS", 0.0)
    world.cloud.disturb = answering(400)
    await world.prefetch.look()
    world.cloud.disturb = None
    monkeypatch.setattr("seed.instance_types.gate.REFUSED_SECONDS", 0.0)
    world.cache._gates = Gates()
    await world.prefetch.look()
    assert await world.size("Standard_D2s_v3") == "Standard_D2s_v3"
    await world.prefetch.look()
    assert world.lists() == 1


async def test_a_catalogue_is_listed_anew_after_its_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetching, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(prefetching, "FRESH_SECONDS", 0.0)
    for _ in range(3):
        await world.prefetch.look()
    assert world.lists() == 3


async def test_it_runs_in_the_background_and_sees_clusters_that_come_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, "ROUND_SECONDS", 0.01)
    world.clusters = []
    async with running(world.prefetch.run()):
        await asyncio.sleep(0.05)
        assert world.cloud.requests == []
        world.clusters = [cluster("later")]
        await eventually(world.cache.oldest)
    assert await world.size("Standard_D2s_v3") == "Standard_D2s_v3"


async def test_what_cannot_be_prefetched_harms_nothing_else(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    strange = [cluster("x", "unheard-of"), cluster("v", "vsphere"), cluster("k", "kubevirt"), cluster("h", "hetzner")]
    world.clusters = [*strange, cluster("z", region="no region at all!"), cluster("c1")]
    await world.prefetch.look()
    assert world.lists() == 1
    said = [(getattr(record, "cluster", ""), getattr(record, "error", "")) for record in caplog.records]
    assert ("alpha/z", "cannot size machine: azure location is no name of a location") in said
    assert any(who == "alpha/h" and "hetzner token is missing" in why for who, why in said)


async def test_a_provider_that_is_not_enabled_is_neither_sized_nor_prefetched() -> None:
    async with fake_cloud(hetzner.server_types, "api.hetzner.cloud") as cloud:
        cache = FlavourCache(cloud.transport())
        settings = SettingsReader(None, environment={"HZ_TOKEN": hetzner.TOKEN})
        sizing = Sizing(cache, settings, lambda _text: "", lambda _text, _seal: False, enabled=["azure", "gce"])
        where = cluster("c1", "hetzner")
        assert await sizing.catalogue_of(where) is None
        with pytest.raises(
            Exception, match=r"cloudProvider hetzner is not named by --providers .*; those of azure, gce can"
        ):
            await sizing.size(where, machine("hetzner", {"serverType": "cax11"}), asyncio.get_running_loop().time())
        assert cloud.requests == []
        await sizing.close()


@pytest.mark.parametrize("provider", sorted(name for name, cloud in CLOUDS.items() if cloud.least_spec is not None))
async def test_the_least_spec_of_every_provider_leads_to_a_question(provider: str) -> None:
    region = {"gce": "europe-west3-a", "openstack": "RegionOne", "azure": "westeurope", "scaleway": "fr-par-1"}.get(
        provider, "eu-central-1"
    )
    settings = SettingsReader(None, environment={"OS_AUTH_URL": "https://keystone.example.com"})
    cache = FlavourCache(transport=None)  # type: ignore[arg-type]
    sizing = Sizing(cache, settings, lambda _text: "", lambda _text, _seal: False)
    question = await sizing.catalogue_of(cluster("c1", provider, region))
    assert question is not None
    assert (question.flavour, question.place.provider) == (ALL, provider)
    assert set(PROVIDERS) > {provider}


async def test_credentials_that_are_refused_are_tried_with_those_of_another_cluster(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, "AGAIN_SECONDS", 0.0)
    question = await world.sizing.catalogue_of(world.clusters[0])
    assert question is not None
    world.cloud.disturb = answering(401)
    with pytest.raises(ProviderUnavailable, match="refuses these credentials"):
        await world.cache.prefetch(question)
    world.cloud.disturb = None
    await world.prefetch.look()  # c1 is left alone for a while
    world.clusters = [cluster("c2")]
    await world.prefetch.look()
    assert world.lists() == 1
