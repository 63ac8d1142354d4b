"""Scaleway against a server that answers as its API reference says. Sizes are those of its price list."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from common.quota import resources
from seed.providers import scaleway
from seed.providers.flavour import CloudError, Lookup
from seed.providers.size import NotSized
from tests.unit.fake_cloud import FakeCloud, cost, fake_cloud, lookup

SECRET = "5ca1e3a7-0000-4000-8000-5ec3e7000000"
ZONE = "fr-par-1"
NVIDIA = {"gpu_manufacturer": "NVIDIA", "gpu_name": "L4", "gpu_memory": 25769803776}
TYPES: dict[str, dict[str, object]] = {
    "DEV1-S": {"ncpus": 2, "ram": 2147483648, "gpu": 0},
    "DEV1-M": {"ncpus": 3, "ram": 4294967296, "gpu": None},
    "PRO2-XXS": {"ncpus": 2, "ram": 8589934592},
    "L4-2-24G": {"ncpus": 16, "ram": 103079215104, "gpu": 2, "gpu_info": NVIDIA},
    "H100-SXM-PART": {"ncpus": 4, "ram": 8589934592, "gpu": 0, "gpu_info": NVIDIA, "mig_profile": "1g.10gb"},
    "NPU-1": {"ncpus": 4, "ram": 8589934592, "gpu": 1, "gpu_info": {**NVIDIA, "gpu_manufacturer": "Acme"}},
    "NOTHING": {"ncpus": 0, "ram": 0},
}


async def servers(request: web.Request) -> web.StreamResponse:
    if request.headers.get("X-Auth-Token") != SECRET:
        denied = {"type": "denied_authentication", "method": "api_key", "reason": "invalid_argument"}
        return web.json_response({"message": "authentication is denied", **denied}, status=401)
    if (request.method, request.path) != ("GET", f"/instance/v1/zones/{ZONE}/products/servers"):
        return web.json_response({"message": "resource is not found", "type": "unknown_resource"}, status=404)
    page, asked = int(request.query["page"]), int(request.query["per_page"])
    assert asked <= 100
    shown = {
        name: {
            "monthly_price": 6.42,
            "hourly_price": 0.0088,
            "alt_names": [],
            "per_volume_constraint": {"l_ssd": {"min_size": 1000000000, "max_size": 20000000000}},
            "volumes_constraint": {"min_size": 0, "max_size": 20000000000},
            "gpu_info": None,
            "mig_profile": None,
            "arch": "x86_64",
            "baremetal": False,
            "network": {"ipv6_support": True, "interfaces": []},
            **told,
        }
        for name, told in list(TYPES.items())[(page - 1) * asked : page * asked]
    }
    return web.json_response({"servers": shown}, headers={"X-Total-Count": str(len(TYPES))})


@pytest.fixture
async def cloud() -> AsyncIterator[FakeCloud]:
    async with fake_cloud(servers, "api.scaleway.com") as running:
        yield running


def asked(kind: object = "DEV1-S", **more: object) -> Lookup:
    spec = {"commercialType": kind, "zone": ZONE, "accessKey": "SCWXXXXXXXXXXXXXXXXX", "secretKey": SECRET, **more}
    return lookup(scaleway.size, "scaleway", spec)


@pytest.mark.parametrize("in_a_page", [2, 100])
async def test_what_real_types_cost(cloud: FakeCloud, in_a_page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaleway, "PER_PAGE", in_a_page)
    found = await cloud.ask(scaleway.CLOUD, asked())
    assert {name: resources.text(cost(asked(name), found).resources) for name in found.flavours} == {
        "DEV1-S": "cpu=2,machines=1,memory=2Gi",
        "DEV1-M": "cpu=3,machines=1,memory=4Gi",
        "PRO2-XXS": "cpu=2,machines=1,memory=8Gi",
        "L4-2-24G": "cpu=16,machines=1,memory=96Gi,nvidia.com/gpu=2",
        "H100-SXM-PART": "cpu=4,machines=1,memory=8Gi,nvidia.com/gpu=1",
    }
    assert sorted(found.unreadable) == ["NOTHING", "NPU-1"]


async def test_a_root_volume_as_big_as_its_image_is_refused_where_storage_is_limited(cloud: FakeCloud) -> None:
    found = cost(asked(), await cloud.ask(scaleway.CLOUD, asked()))
    found.require(["cpu"])
    with pytest.raises(NotSized, match=r"cannot say how big its root volume is, .* because a quota limits storage"):
        found.require(["storage"])


async def test_wrong_and_missing_credentials_are_told(cloud: FakeCloud) -> None:
    with pytest.raises(CloudError, match=r"refuses these credentials \(401\)") as caught:
        await cloud.ask(scaleway.CLOUD, asked(secretKey="wrong"))
    assert caught.value.refused
    with pytest.raises(NotSized, match="scaleway secretKey is missing"):
        await cloud.ask(scaleway.CLOUD, asked(secretKey=None))


@pytest.mark.parametrize("zone", ["", "fr-par-1/../..", "FR-PAR-1"])
async def test_a_zone_stays_inside_its_path(cloud: FakeCloud, zone: str) -> None:
    with pytest.raises(NotSized, match="scaleway zone is"):
        await cloud.ask(scaleway.CLOUD, asked(zone=zone))
    assert cloud.requests == []


@pytest.mark.parametrize("kind", [None, "DEV1 S"])
def test_what_the_spec_must_say(kind: object) -> None:
    with pytest.raises(NotSized, match="scaleway commercialType is"):
        asked(kind)
