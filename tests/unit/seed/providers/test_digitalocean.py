"""DigitalOcean against a server that answers as its OpenAPI description says.

Sizes are those of DigitalOcean's pages of Droplets; how the API says the 2 TiB of gpu-h100x8-640gb is unconfirmed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from common.quota import resources
from seed.providers import digitalocean, pages
from seed.providers.flavour import CloudError, Lookup
from seed.providers.size import NotSized
from tests.unit.fake_cloud import FakeCloud, answering, cost, fake_cloud, lookup

TOKEN = "dop_v1_t0ken"
LARGEST_PAGE = 2
SIZES: list[tuple[str, int, int, int, tuple[int, str] | None]] = [
    ("s-1vcpu-512mb-10gb", 1, 512, 10, None),
    ("s-2vcpu-4gb", 2, 4096, 80, None),
    ("gpu-4000adax1-20gb", 8, 32768, 500, (1, "nvidia_rtx4000_ada")),
    ("gpu-h100x1-80gb", 20, 245760, 720, (1, "nvidia_h100")),
    ("gpu-h100x8-640gb", 160, 1966080, 2046, (8, "nvidia_h100")),
    ("gpu-mi300x1-192gb", 20, 245760, 720, (1, "amd_mi300x")),
]


def documented(slug: str, vcpus: int, memory: int, disk: int, gpu: tuple[int, str] | None) -> dict[str, object]:
    disks: list[dict[str, object]] = [{"type": "local", "size": {"amount": disk, "unit": "gib"}}]
    told: dict[str, object] = {
        "slug": slug,
        "memory": memory,
        "vcpus": vcpus,
        "disk": disk,
        "transfer": 0.5,
        "price_monthly": 4.0,
        "price_hourly": 0.00595,
        "regions": ["ams3", "fra1"],
        "available": True,
        "description": "Basic",
        "disk_info": disks,
    }
    if gpu:
        disks.append({"type": "scratch", "size": {"amount": 5, "unit": "tib"}})
        told["gpu_info"] = {"count": gpu[0], "vram": {"amount": 80, "unit": "gib"}, "model": gpu[1]}
    return told


async def sizes(request: web.Request) -> web.StreamResponse:
    limits = {"ratelimit-limit": "5000", "ratelimit-remaining": "4999", "ratelimit-reset": "1763715600"}
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        failure = {"id": "Unauthorized", "message": "Unable to authenticate you"}
        return web.json_response(failure, status=401, headers=limits)
    if (request.method, request.path) != ("GET", "/v2/sizes"):
        return web.json_response({"id": "not_found", "message": "The resource could not be found."}, status=404)
    page, asked = int(request.query.get("page", "1")), int(request.query.get("per_page", "20"))
    assert 1 <= asked <= 200
    of_page = min(asked, LARGEST_PAGE)
    shown = SIZES[(page - 1) * of_page : page * of_page]
    url = f"https://api.digitalocean.com/v2/sizes?page={page + 1}&per_page={of_page}"
    pages = {"next": url, "last": url} if page * of_page < len(SIZES) else {"first": url, "prev": url}
    body = {"sizes": [documented(*size) for size in shown], "links": {"pages": pages}, "meta": {"total": len(SIZES)}}
    return web.json_response(body, headers=limits)


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[FakeCloud]:
    async with fake_cloud(sizes, "api.digitalocean.com") as cloud:
        yield cloud


@pytest.fixture
def cloud(served: FakeCloud) -> FakeCloud:
    served.disturb = None
    served.requests.clear()
    return served


def asked(size: object = "s-2vcpu-4gb", **more: object) -> Lookup:
    return lookup(digitalocean.size, "digitalocean", {"size": size, "region": "fra1", "token": TOKEN, **more})


@pytest.mark.parametrize(
    ("slug", "costs"),
    [
        ("s-1vcpu-512mb-10gb", "cpu=1,machines=1,memory=512Mi,storage=10Gi"),
        ("gpu-4000adax1-20gb", "cpu=8,machines=1,memory=32Gi,nvidia.com/gpu=1,storage=500Gi"),
        ("gpu-h100x1-80gb", "cpu=20,machines=1,memory=240Gi,nvidia.com/gpu=1,storage=720Gi"),
        ("gpu-h100x8-640gb", "cpu=160,machines=1,memory=1920Gi,nvidia.com/gpu=8,storage=2046Gi"),
        ("gpu-mi300x1-192gb", "amd.com/gpu=1,cpu=20,machines=1,memory=240Gi,storage=720Gi"),
    ],
)
async def test_what_real_sizes_cost(cloud: FakeCloud, slug: str, costs: str) -> None:
    wanted = asked(slug)
    assert resources.text(cost(wanted, await cloud.ask(digitalocean.CLOUD, wanted)).resources) == costs


async def test_every_page_is_read_and_tells_all_sizes_at_once(cloud: FakeCloud) -> None:
    found = await cloud.ask(digitalocean.CLOUD, asked("no-such-size"))
    assert set(found.flavours) == {size[0] for size in SIZES}
    assert [line.partition("page=")[2].partition("&")[0] for line in cloud.requests] == ["1", "2", "3"]


async def test_pages_without_end_are_given_up(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_PAGES", 2)
    with pytest.raises(CloudError, match="more than 2 pages"):
        await cloud.ask(digitalocean.CLOUD, asked())


async def test_one_page_without_links_is_all(cloud: FakeCloud) -> None:
    cloud.disturb = answering(200, '{"sizes": [{"slug": "x", "vcpus": 1, "memory": 1, "disk": 1}], "links": {}}')
    assert set((await cloud.ask(digitalocean.CLOUD, asked())).flavours) == {"x"}


async def test_a_size_of_nothing_is_not_believed(cloud: FakeCloud) -> None:
    cloud.disturb = answering(200, '{"sizes": [{"slug": "x", "vcpus": 0, "memory": 1, "disk": 1}]}')
    found = await cloud.ask(digitalocean.CLOUD, asked())
    assert (dict(found.flavours), list(found.unreadable)) == ({}, ["x"])


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (None, "digitalocean size is missing"),
        ({"configMapKeyRef": {"namespace": "a", "name": "b", "key": "c"}}, "size is a configMapKeyRef"),
        ("s-2vcpu 4gb", "digitalocean size is no name of a size"),
        ("s" * 101, "digitalocean size is no name of a size"),
    ],
)
def test_what_the_spec_must_say(size: object, message: str) -> None:
    with pytest.raises(NotSized, match=message):
        asked(size)
