"""Equinix Metal against a server that answers as its last OpenAPI description says.

Cores and memory are those that Kubernetes' autoscaler has for these plans. The later ones that it does not know (m3,
n3, a3, c3.large.arm64) and the API's words for each plan's CPUs and drives cannot be confirmed any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from common.quota import resources
from seed.providers import equinixmetal
from seed.providers.flavour import Lookup
from seed.providers.size import NotSized
from tests.unit.fake_cloud import FakeCloud, cost, fake_cloud, lookup

TOKEN = "metal-t0ken"
PLANS: list[tuple[str, str, int, str, str, list[tuple[int, str]], tuple[int, str] | None]] = [
    ("baremetal_0", "t1.small.x86", 1, "Intel Atom C2550 @ 2.4Ghz", "8GB", [(1, "80GB")], None),
    ("baremetal_1", "c1.small.x86", 1, "Intel E3-1240 v3", "32GB", [(2, "120GB")], None),
    ("baremetal_1e", "x1.small.x86", 1, "Intel Xeon E3-1578L v5", "32GB", [(1, "240GB")], None),
    ("baremetal_2", "m1.xlarge.x86", 2, "Intel Xeon E5-2650 v4 @2.2GHz", "256GB", [(6, "480GB")], None),
    ("baremetal_3", "c1.xlarge.x86", 2, "Intel E5-2640 v3", "128GB", [(2, "120GB"), (1, "1.6TB")], None),
    ("baremetal_2a", "c1.large.arm", 2, "Cavium ThunderX CN8890 @2GHz", "128GB", [(1, "250GB")], None),
    ("c2.large.arm", "c2.large.arm", 1, "Ampere eMAG 8180 32-core @ 3.3Ghz", "128GB", [(1, "480GB")], None),
    ("c2.medium.x86", "c2.medium.x86", 1, "AMD EPYC 7401P 24-Core Processor @ 2.0GHz", "64GB", [(2, "480GB")], None),
    (
        "n2.xlarge.x86",
        "n2.xlarge.x86",
        2,
        "Intel Xeon Gold 5120 14-Core Processor @ 2.20GHz",
        "384GB",
        [(2, "240GB"), (1, "3.8TB")],
        None,
    ),
    (
        "g2.large.x86",
        "g2.large.x86",
        2,
        "Intel Xeon Gold 6126 Processor @ 2.6GHz",
        "192GB",
        [(2, "120GB"), (1, "480GB")],
        (2, "NVIDIA Tesla V100"),
    ),
    (
        "c3.small.x86",
        "c3.small.x86",
        1,
        "Intel Xeon E-2278G 8-Core Processor @ 3.40GHz",
        "32GB",
        [(2, "480GB")],
        (1, "Intel HD Graphics P630"),
    ),
    (
        "c3.medium.x86",
        "c3.medium.x86",
        1,
        "AMD EPYC 7402P 24-Core Processor",
        "64GB",
        [(2, "240GB"), (2, "480GB")],
        None,
    ),
    ("m3.small.x86", "m3.small.x86", 1, "Intel Xeon E-2378G Processor 8-Core @ 2.80GHz", "64GB", [(2, "480GB")], None),
    (
        "m3.large.x86",
        "m3.large.x86",
        1,
        "AMD EPYC 7502P 32-Core @ 2.50GHz",
        "256GB",
        [(2, "240GB"), (2, "3.8TB")],
        None,
    ),
    (
        "s3.xlarge.x86",
        "s3.xlarge.x86",
        2,
        "Intel Xeon Silver 4214 24-Core Processor @ 2.20GHz",
        "192GB",
        [(2, "960GB"), (12, "8TB"), (2, "258GB")],
        None,
    ),
    (
        "n3.xlarge.x86",
        "n3.xlarge.x86",
        1,
        "Intel Xeon Gold 6314U 32-Core Processor @ 2.30GHz",
        "512GB",
        [(2, "240GB"), (2, "3.8TB")],
        None,
    ),
    (
        "a3.large.x86",
        "a3.large.x86",
        2,
        "Intel Xeon Gold 6338 32-Core Processor @ 2.00GHz",
        "1TB",
        [(2, "240GB"), (2, "3.8TB")],
        None,
    ),
    (
        "c3.large.arm64",
        "c3.large.arm64",
        1,
        "Ampere Altra Q80-30 80-Core Processor @ 3.00GHz",
        "256GB",
        [(2, "960GB")],
        None,
    ),
    ("later.model", "later.model", 1, "A CPU of 2027, 96 cores", "1.5TB", [(1, "7.68TB")], None),  # no real plan
    ("unheard.of", "unheard.of", 1, "A CPU nobody knows", "64GB", [(1, "480GB")], None),  # no real plan
]


def documented(
    slug: str, name: str, cpus: int, cpu: str, memory: str, drives: list[tuple[int, str]], gpu: tuple[int, str] | None
) -> dict[str, object]:
    specs: dict[str, object] = {
        "cpus": [{"count": cpus, "type": cpu}],
        "memory": {"total": memory},
        "drives": [{"count": count, "size": size, "type": "SSD", "category": "boot"} for count, size in drives],
        "nics": [{"count": 2, "type": "10Gbps"}],
        "features": {"raid": True, "txt": True, "uefi": False},
    }
    if gpu:
        specs["gpu"] = [{"count": gpu[0], "type": gpu[1]}]
    return {
        "id": "6d1f1ffa-7912-4b78-b50d-88cc7c8ab40f",
        "slug": slug,
        "name": name,
        "description": f"Our {name} configuration",
        "line": "baremetal",
        "specs": specs,
        "legacy": False,
        "deployment_types": ["on_demand", "spot_market"],
        "available_in": [{"href": "/metal/v1/facilities/2b70eb8f-fa18-47c0-aba7-222a842362fd"}],
        "class": slug,
        "pricing": {"hour": 0.5},
    }


STORAGE: dict[str, object] = {"slug": "storage_1", "name": "Standard", "line": "storage", "specs": {}, "pricing": {}}


async def plans(request: web.Request) -> web.StreamResponse:
    if request.headers.get("X-Auth-Token") != TOKEN:
        return web.json_response({"errors": ["Invalid authentication token"]}, status=401)
    if (request.method, request.path) != ("GET", "/metal/v1/plans"):
        return web.json_response({"errors": ["Not found"]}, status=404)
    return web.json_response({"plans": [*(documented(*plan) for plan in PLANS), STORAGE]})


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[FakeCloud]:
    async with fake_cloud(plans, "api.equinix.com") as cloud:
        yield cloud


@pytest.fixture
def cloud(served: FakeCloud) -> FakeCloud:
    served.disturb = None
    served.requests.clear()
    return served


def asked(plan: object = "c3.medium.x86", **more: object) -> Lookup:
    spec = {"instanceType": plan, "metro": "fr", "token": TOKEN, **more}
    return lookup(equinixmetal.size, "equinixmetal", spec)


@pytest.mark.parametrize(
    ("plan", "cores", "memory", "storage", "devices"),
    [
        ("t1.small.x86", 4, "8Gi", "80G", ""),
        ("baremetal_0", 4, "8Gi", "80G", ""),
        ("c1.small.x86", 4, "32Gi", "240G", ""),
        ("x1.small.x86", 4, "32Gi", "240G", ""),
        ("m1.xlarge.x86", 24, "256Gi", "2880G", ""),
        ("c1.xlarge.x86", 16, "128Gi", "1840G", ""),
        ("c1.large.arm", 96, "128Gi", "250G", ""),
        ("c2.large.arm", 32, "128Gi", "480G", ""),
        ("c2.medium.x86", 24, "64Gi", "960G", ""),
        ("n2.xlarge.x86", 28, "384Gi", "4280G", ""),
        ("g2.large.x86", 24, "192Gi", "720G", "nvidia.com/gpu=2"),
        ("c3.small.x86", 8, "32Gi", "960G", ""),
        ("c3.medium.x86", 24, "64Gi", "1440G", ""),
        ("m3.small.x86", 8, "64Gi", "960G", ""),
        ("m3.large.x86", 32, "256Gi", "8080G", ""),
        ("s3.xlarge.x86", 24, "192Gi", "98436G", ""),
        ("n3.xlarge.x86", 32, "512Gi", "8080G", ""),
        ("a3.large.x86", 64, "1Ti", "8080G", ""),
        ("c3.large.arm64", 80, "256Gi", "1920G", ""),
        ("later.model", 96, "1536Gi", "7680G", ""),
    ],
)
async def test_what_real_plans_cost(
    cloud: FakeCloud, plan: str, cores: int, memory: str, storage: str, devices: str
) -> None:
    wanted = asked(plan)
    expected = {"cpu": cores, "memory": memory, "storage": storage, "machines": 1}
    expected |= dict([devices.split("=")]) if devices else {}
    assert cost(wanted, await cloud.ask(equinixmetal.CLOUD, wanted)).resources == resources.parse(expected)


async def test_all_plans_cost_one_call(cloud: FakeCloud) -> None:
    found = await cloud.ask(equinixmetal.CLOUD, asked("no-such-plan"))
    assert {"c3.small.x86", "baremetal_0", "t1.small.x86"} <= set(found.flavours)
    assert "no-such-plan" not in found.flavours
    assert cloud.requests == ["GET api.equinix.com/metal/v1/plans"]


@pytest.mark.parametrize("plan", ["unheard.of", "storage_1"])
async def test_a_plan_that_does_not_tell_its_size_is_not_guessed(cloud: FakeCloud, plan: str) -> None:
    assert plan in (await cloud.ask(equinixmetal.CLOUD, asked(plan))).unreadable


async def test_the_token_of_packet_is_taken_when_there_is_no_other(cloud: FakeCloud) -> None:
    assert (await cloud.ask(equinixmetal.CLOUD, asked(token=None), {"packetToken": TOKEN})).flavours
    assert (await cloud.ask(equinixmetal.CLOUD, asked(), {"packetToken": "wrong-t0ken"})).flavours


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (None, "equinixmetal instanceType is missing"),
        ({"secretKeyRef": {"namespace": "a", "name": "b", "key": "c"}}, "instanceType is a secretKeyRef"),
        ("../x", "equinixmetal instanceType is no name of a plan"),
        ("c" * 101, "equinixmetal instanceType is no name of a plan"),
    ],
)
def test_what_the_spec_must_say(plan: object, message: str) -> None:
    with pytest.raises(NotSized, match=message):
        asked(plan)
