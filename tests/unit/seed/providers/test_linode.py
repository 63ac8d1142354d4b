"""Linode against a server that answers as its API reference says. Sizes are those of its price list."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from common.quota import resources
from seed.providers import linode, pages
from seed.providers.flavour import CloudError, Lookup
from seed.providers.size import NotSized
from tests.unit.fake_cloud import FakeCloud, cost, fake_cloud, lookup

TYPES: dict[str, tuple[str, int, int, int, int]] = {  # class, vCPUs, MB of memory, MB of disk, GPUs
    "g6-nanode-1": ("nanode", 1, 1024, 25600, 0),
    "g6-standard-1": ("standard", 1, 2048, 51200, 0),
    "g6-standard-2": ("standard", 2, 4096, 81920, 0),
    "g6-dedicated-4": ("dedicated", 4, 8192, 163840, 0),
    "g7-highmem-1": ("highmem", 2, 24576, 20480, 0),
    "g1-gpu-rtx6000-2": ("gpu", 16, 65536, 1310720, 2),
    "g1-accelerated-netint-vpu-t1u1-m": ("accelerated", 12, 24576, 307200, 0),
}
IN_A_PAGE = 3


async def types(request: web.Request) -> web.StreamResponse:
    if (request.method, request.path) != ("GET", "/v4/linode/types"):
        return web.json_response({"errors": [{"reason": "Not found"}]}, status=404)
    assert 25 <= int(request.query["page_size"]) <= 500
    page = int(request.query["page"])
    data = [
        {
            "id": name,
            "label": name,
            "price": {"hourly": 0.0075, "monthly": 5},
            "region_prices": [{"id": "id-cgk", "hourly": 0.009, "monthly": 6}],
            "addons": {"backups": {"price": {"hourly": 0.003, "monthly": 2}, "region_prices": []}},
            "memory": memory,
            "disk": disk,
            "transfer": 1000,
            "vcpus": vcpus,
            "gpus": gpus,
            "accelerated_devices": int(kind == "accelerated"),
            "network_out": 1000,
            "class": kind,
            "successor": None,
        }
        for name, (kind, vcpus, memory, disk, gpus) in list(TYPES.items())[(page - 1) * IN_A_PAGE : page * IN_A_PAGE]
    ]
    pages = -(-len(TYPES) // IN_A_PAGE)
    return web.json_response({"data": data, "page": page, "pages": pages, "results": len(TYPES)})


@pytest.fixture
async def cloud() -> AsyncIterator[FakeCloud]:
    async with fake_cloud(types, "api.linode.com") as running:
        yield running


def asked(kind: object = "g6-standard-2") -> Lookup:
    return lookup(linode.size, "linode", {"type": kind, "region": "eu-west", "token": "l1node-t0ken"})


async def test_what_real_types_cost(cloud: FakeCloud) -> None:
    found = await cloud.ask(linode.CLOUD, asked())
    assert {name: resources.text(cost(asked(name), found).resources) for name in TYPES} == {
        "g6-nanode-1": "cpu=1,machines=1,memory=1Gi,storage=25Gi",
        "g6-standard-1": "cpu=1,machines=1,memory=2Gi,storage=50Gi",
        "g6-standard-2": "cpu=2,machines=1,memory=4Gi,storage=80Gi",
        "g6-dedicated-4": "cpu=4,machines=1,memory=8Gi,storage=160Gi",
        "g7-highmem-1": "cpu=2,machines=1,memory=24Gi,storage=20Gi",
        "g1-gpu-rtx6000-2": "cpu=16,machines=1,memory=64Gi,nvidia.com/gpu=2,storage=1280Gi",
        "g1-accelerated-netint-vpu-t1u1-m": "cpu=12,machines=1,memory=24Gi,storage=300Gi",
    }
    assert len(cloud.requests) == 3


async def test_pages_without_end_are_given_up(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_PAGES", 2)
    with pytest.raises(CloudError, match="more than 2 pages"):
        await cloud.ask(linode.CLOUD, asked())


def test_it_is_asked_without_credentials() -> None:
    assert asked().credentials == {}


@pytest.mark.parametrize("kind", [None, "g6 standard"])
def test_what_the_spec_must_say(kind: object) -> None:
    with pytest.raises(NotSized, match="linode type is"):
        asked(kind)
