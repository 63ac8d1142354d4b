"""Vultr against a server that answers as its API reference says. Sizes are those of its price list."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from common.quota import resources
from seed.providers import vultr
from seed.providers.flavour import CloudError, Lookup
from seed.providers.size import NotSized
from tests.unit.fake_cloud import FakeCloud, answering, cost, fake_cloud, lookup

PLANS: dict[str, dict[str, object]] = {
    "vc2-1c-2gb": {"vcpu_count": 1, "ram": 2048, "disk": 55},
    "vhf-8c-32gb": {"vcpu_count": 8, "ram": 32768, "disk": 512},
    "voc-s-8c-64gb-1280s-amd": {"vcpu_count": 8, "ram": 65536, "disk": 640, "disk_count": 2},
    "vcg-a16-2c-8g-2vram": {"vcpu_count": 2, "ram": 8192, "disk": 50, "gpu_vram_gb": 2, "gpu_type": "NVIDIA_A16"},
    "vcg-a100-24c-240g-160vram": {
        "vcpu_count": 24,
        "ram": 245760,
        "disk": 1400,
        "gpu_vram_gb": 160,
        "gpu_type": "NVIDIA_A100",
    },
    "vcg-new": {"vcpu_count": 2, "ram": 8192, "disk": 50, "gpu_vram_gb": 20, "gpu_type": "NVIDIA_Z900"},
}
METAL: dict[str, dict[str, object]] = {
    "vbm-4c-32gb": {"cpu_count": 4, "cpu_threads": 8, "cpu_model": "E3-1270v6", "ram": 32768, "disk": 240},
    "vbm-112c-2048gb-8-h100-gpu": {
        "cpu_count": 112,
        "cpu_threads": 224,
        "cpu_model": "Platinum 8480+",
        "ram": 2097152,
        "disk": 960,
    },
    "vbm-256c-2048gb-8-mi300x-gpu": {
        "cpu_count": 256,
        "cpu_threads": 512,
        "cpu_model": "EPYC",
        "ram": 2097152,
        "disk": 480,
    },
    "vbm-gpu-some": {"cpu_count": 4, "cpu_threads": 8, "cpu_model": "x", "ram": 32768, "disk": 240},
}


async def plans(request: web.Request) -> web.StreamResponse:
    which = {"/v2/plans": ("plans", PLANS), "/v2/plans-metal": ("plans_metal", METAL)}.get(request.path)
    if which is None or request.method != "GET":
        return web.json_response({"error": "Invalid route", "status": 404}, status=404)
    key, known = which
    names = list(known)
    start = names.index(request.query["cursor"]) if "cursor" in request.query else 0
    shown = names[start : start + 4]
    following = names[start + 4] if start + 4 < len(names) else ""
    listed = [
        {
            "id": name,
            "disk_count": 1 if key == "plans" else 2,
            "bandwidth": 2048,
            "monthly_cost": 10,
            "type": name.partition("-")[0],
            "locations": ["ewr", "fra"],
            **known[name],
        }
        for name in shown
    ]
    meta = {"total": len(names), "links": {"next": following, "prev": ""}}
    return web.json_response({key: listed, "meta": meta})


@pytest.fixture
async def cloud() -> AsyncIterator[FakeCloud]:
    async with fake_cloud(plans, "api.vultr.com") as running:
        yield running


def asked(plan: object = "vc2-1c-2gb", **more: object) -> Lookup:
    return lookup(vultr.size, "vultr", {"plan": plan, "region": "fra", "apiKey": "vultr-k3y", "osId": "215", **more})


async def test_what_real_plans_cost(cloud: FakeCloud) -> None:
    found = await cloud.ask(vultr.CLOUD, asked())
    assert {name: resources.text(cost(asked(name), found).resources) for name in found.flavours} == {
        "vc2-1c-2gb": "cpu=1,machines=1,memory=2Gi,storage=55Gi",
        "vhf-8c-32gb": "cpu=8,machines=1,memory=32Gi,storage=512Gi",
        "voc-s-8c-64gb-1280s-amd": "cpu=8,machines=1,memory=64Gi,storage=1280Gi",
        "vcg-a16-2c-8g-2vram": "cpu=2,machines=1,memory=8Gi,nvidia.com/gpu=1,storage=50Gi",
        "vcg-a100-24c-240g-160vram": "cpu=24,machines=1,memory=240Gi,nvidia.com/gpu=2,storage=1400Gi",
        "vbm-4c-32gb": "cpu=8,machines=1,memory=32Gi,storage=480Gi",
        "vbm-112c-2048gb-8-h100-gpu": "cpu=224,machines=1,memory=2Ti,nvidia.com/gpu=8,storage=1920Gi",
        "vbm-256c-2048gb-8-mi300x-gpu": "amd.com/gpu=8,cpu=512,machines=1,memory=2Ti,storage=960Gi",
    }
    assert dict(found.unreadable) == {
        "vcg-new": "its GPUs are of a model that is not known",
        "vbm-gpu-some": "its name has no number of GPUs",
    }
    assert [line.partition("?")[0].rpartition("/")[2] for line in cloud.requests] == ["plans", "plans", "plans-metal"]


async def test_an_answer_without_its_list_is_no_empty_list(cloud: FakeCloud) -> None:
    cloud.disturb = answering(200, '{"meta": {"links": {"next": ""}}}')
    with pytest.raises(CloudError, match="answers what cannot be read"):
        await cloud.ask(vultr.CLOUD, asked())


def test_it_is_asked_without_credentials_for_virtual_and_physical_machines() -> None:
    assert asked().credentials == asked("vbm-4c-32gb", physicalMachine=True).credentials == {}


@pytest.mark.parametrize("plan", [None, "vc2 1c"])
def test_what_the_spec_must_say(plan: object) -> None:
    with pytest.raises(NotSized, match="vultr plan is"):
        asked(plan)
