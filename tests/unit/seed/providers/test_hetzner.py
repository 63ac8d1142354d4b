"""Hetzner Cloud against a server that answers as its API reference says. Sizes are those of its price lists; it sells
neither GPUs nor bare metal there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from common.quota import resources
from seed.providers import hetzner, pages
from seed.providers.flavour import CloudError, Lookup
from seed.providers.size import NotSized
from tests.unit.fake_cloud import FakeCloud, answering, cost, fake_cloud, lookup

TOKEN = "hz-t0ken"
LARGEST_PAGE = 2
TYPES: list[tuple[int, str, int, str, int, str, str]] = [
    (1, "cx11", 1, "2.0", 20, "shared", "x86"),
    (23, "cpx21", 3, "4.0", 80, "shared", "x86"),
    (45, "cax11", 2, "4.0", 40, "shared", "arm"),
    (101, "ccx63", 48, "192.0", 960, "dedicated", "x86"),
    (900, "fraction", 1, "0.6", 10, "shared", "x86"),  # no real type: memory is a JSON number with a fraction
]


def documented(id: int, name: str, cores: int, memory: str, disk: int, cpu_type: str, architecture: str) -> str:
    """By hand, because memory's own digits matter."""
    deprecation = '{"unavailable_after": "2024-12-31T00:00:00Z"}' if name == "cx11" else "null"
    return (
        f'{{"id": {id}, "name": "{name}", "description": "{name.upper()}", "category": "Shared vCPU", '
        f'"cores": {cores}, "memory": {memory}, "disk": {disk}, "deprecated": {str(name == "cx11").lower()}, '
        f'"prices": [{{"location": "fsn1", "price_hourly": {{"net": "0.0052", "gross": "0.0061"}}}}], '
        f'"storage_type": "local", "cpu_type": "{cpu_type}", "architecture": "{architecture}", '
        f'"included_traffic": 21990232555520, "deprecation": {deprecation}}}'
    )


async def server_types(request: web.Request) -> web.StreamResponse:
    limits = {"RateLimit-Limit": "3600", "RateLimit-Remaining": "3599", "RateLimit-Reset": "1763715600"}
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        failure = {"error": {"code": "unauthorized", "message": "the token you have provided is invalid"}}
        return web.json_response(failure, status=401, headers=limits)
    if (request.method, request.path) != ("GET", "/v1/server_types"):
        return web.json_response({"error": {"code": "not_found", "message": "not found"}}, status=404)
    page, asked = int(request.query.get("page", "1")), int(request.query.get("per_page", "25"))
    assert 1 <= asked <= 50
    of_page = min(asked, LARGEST_PAGE)
    shown = TYPES[(page - 1) * of_page : page * of_page]
    last = -(-len(TYPES) // of_page)
    meta = (
        f'{{"pagination": {{"page": {page}, "per_page": {of_page}, "previous_page": {page - 1 or "null"}, '
        f'"next_page": {page + 1 if page < last else "null"}, "last_page": {last}, "total_entries": {len(TYPES)}}}}}'
    )
    body = f'{{"server_types": [{", ".join(documented(*kind) for kind in shown)}], "meta": {meta}}}'
    return web.Response(text=body, content_type="application/json", headers=limits)


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[FakeCloud]:
    async with fake_cloud(server_types, "api.hetzner.cloud") as cloud:
        yield cloud


@pytest.fixture
def cloud(served: FakeCloud) -> FakeCloud:
    served.disturb = None
    served.requests.clear()
    return served


def asked(server_type: object = "cax11", **more: object) -> Lookup:
    spec = {"serverType": server_type, "location": "fsn1", "token": TOKEN, **more}
    return lookup(hetzner.size, "hetzner", spec)


@pytest.mark.parametrize(
    ("server_type", "costs"),
    [
        ("cx11", "cpu=1,machines=1,memory=2Gi,storage=20Gi"),  # deprecated
        ("ccx63", "cpu=48,machines=1,memory=192Gi,storage=960Gi"),
        ("45", "cpu=2,machines=1,memory=4Gi,storage=40Gi"),  # cax11 by its id
        ("fraction", "cpu=1,machines=1,memory=644245094400m,storage=10Gi"),
    ],
)
async def test_what_real_types_cost(cloud: FakeCloud, server_type: str, costs: str) -> None:
    wanted = asked(server_type)
    assert resources.text(cost(wanted, await cloud.ask(hetzner.CLOUD, wanted)).resources) == costs


async def test_a_type_has_its_name_also_where_it_is_asked_for_by_its_id(cloud: FakeCloud) -> None:
    found = await cloud.ask(hetzner.CLOUD, asked("45"))
    assert found.flavours["45"].name == found.flavours["cax11"].name == "cax11"


async def test_every_page_is_read_and_tells_all_types_at_once(cloud: FakeCloud) -> None:
    found = await cloud.ask(hetzner.CLOUD, asked("no-such-type"))
    assert {kind[1] for kind in TYPES} <= set(found.flavours)
    assert "no-such-type" not in found.flavours
    assert [line.partition("page=")[2].partition("&")[0] for line in cloud.requests] == ["1", "2", "3"]


async def test_pages_without_end_are_given_up(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_PAGES", 2)
    with pytest.raises(CloudError, match="more than 2 pages"):
        await cloud.ask(hetzner.CLOUD, asked())


@pytest.mark.parametrize("memory", ["0", "-1.0", "1e999999999", "1e-400", '"NaN"', "null", "9007199254740993"])
async def test_memory_that_no_server_has_is_not_believed(cloud: FakeCloud, memory: str) -> None:
    kind = documented(1, "cax11", 2, memory, 40, "shared", "arm")
    cloud.disturb = answering(200, f'{{"server_types": [{kind}], "meta": {{"pagination": {{"next_page": null}}}}}}')
    found = await cloud.ask(hetzner.CLOUD, asked())
    assert (dict(found.flavours), sorted(found.unreadable)) == ({}, ["1", "cax11"])


@pytest.mark.parametrize(
    ("server_type", "message"),
    [
        (None, "hetzner serverType is missing"),
        ({"secretKeyRef": {"namespace": "a", "name": "b", "key": "c"}}, "serverType is a secretKeyRef"),
        ("cax11\n", "hetzner serverType is no name of a server type"),
        ("c" * 10**6, "hetzner serverType is no name of a server type"),
    ],
)
def test_what_the_spec_must_say(server_type: object, message: str) -> None:
    with pytest.raises(NotSized, match=message):
        asked(server_type)
