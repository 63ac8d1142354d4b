"""Azure against a server that speaks its token endpoint and Resource SKUs as documented, under its host names.

Sizes are those of Azure's pages of VM series. What the SKUs say of a part of a GPU is not documented: 0 and 0.125 are
here, and both are one device. There is no bare metal among VM sizes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import cast

import msgspec
import pytest
from aiohttp import web

from common.quota import resources
from seed.providers import azure
from seed.providers.flavour import Answer, CloudError, Flavour, Http, Lookup, Query, Settings, SignIn
from seed.providers.size import NotSized
from tests.cpu import counted_turns, longest_turn, no_garbage_collection, seconds_of
from tests.unit.fake_cloud import FakeCloud, Handler, answering, cost, fake_cloud, lookup, never_logged

SECRET = "8Q~very-secret+value/=&"
TENANT = "11111111-2222-3333-4444-555555555555"
SUBSCRIPTION = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
KEYS = {"subscriptionID": SUBSCRIPTION, "tenantID": TENANT, "clientID": "client", "clientSecret": SECRET}
TOKEN = "eyJ0eXAiOiJKV1Qi.access.token"

SIZES: dict[str, dict[str, str]] = {
    "Basic_A0": {"vCPUs": "1", "MemoryGB": "0.75"},
    "Standard_A1": {"vCPUs": "1", "MemoryGB": "1.75"},
    "Standard_B1ls": {"vCPUs": "1", "MemoryGB": "0.5"},
    "Standard_B2pts_v2": {"vCPUs": "2", "vCPUsAvailable": "2", "MemoryGB": "1", "CpuArchitectureType": "Arm64"},
    "Standard_DS1_v2": {"vCPUs": "1", "vCPUsAvailable": "1", "MemoryGB": "3.5"},
    "Standard_D2s_v3": {"vCPUs": "2", "vCPUsAvailable": "2", "MemoryGB": "8"},
    "Standard_D4s_v5": {"vCPUs": "4", "vCPUsAvailable": "4", "MemoryGB": "16"},
    "Standard_D4ps_v5": {"vCPUs": "4", "vCPUsAvailable": "4", "MemoryGB": "16", "CpuArchitectureType": "Arm64"},
    "Standard_D64pls_v5": {"vCPUs": "64", "vCPUsAvailable": "64", "MemoryGB": "128", "CpuArchitectureType": "Arm64"},
    "Standard_E4-2s_v5": {"vCPUs": "4", "vCPUsAvailable": "2", "MemoryGB": "32"},
    "Standard_M8-2ms": {"vCPUs": "8", "vCPUsAvailable": "2", "MemoryGB": "218.75"},
    "Standard_M416ms_v2": {"vCPUs": "416", "vCPUsAvailable": "416", "MemoryGB": "11400"},
    "Standard_L8s_v3": {"vCPUs": "8", "vCPUsAvailable": "8", "MemoryGB": "64", "MaxResourceVolumeMB": "81920"},
    "Standard_F2s_v2": {"vCPUs": "2", "vCPUsAvailable": "2", "MemoryGB": "4"},
    "Standard_HB120rs_v3": {"vCPUs": "120", "vCPUsAvailable": "120", "MemoryGB": "448"},
    "Standard_NC4as_T4_v3": {"vCPUs": "4", "vCPUsAvailable": "4", "MemoryGB": "28", "GPUs": "1"},
    "Standard_NC24ads_A100_v4": {"vCPUs": "24", "vCPUsAvailable": "24", "MemoryGB": "220", "GPUs": "1"},
    "Standard_ND96asr_v4": {"vCPUs": "96", "vCPUsAvailable": "96", "MemoryGB": "900", "GPUs": "8"},
    "Standard_ND96isr_MI300X_v5": {"vCPUs": "96", "vCPUsAvailable": "96", "MemoryGB": "1850", "GPUs": "8"},
    "Standard_NV6ads_A10_v5": {"vCPUs": "6", "vCPUsAvailable": "6", "MemoryGB": "55", "GPUs": "0"},
    "Standard_NV4as_v4": {"vCPUs": "4", "vCPUsAvailable": "4", "MemoryGB": "14", "GPUs": "0.125"},
    "Standard_NG8ads_V620_v1": {"vCPUs": "8", "vCPUsAvailable": "8", "MemoryGB": "16", "GPUs": "1"},
    "Standard_NP10s": {"vCPUs": "10", "vCPUsAvailable": "10", "MemoryGB": "168"},
}


def sku(name: str, capabilities: dict[str, str]) -> dict[str, object]:
    """As in the documented response."""
    tier, _, size = name.partition("_")
    return {
        "resourceType": "virtualMachines",
        "name": name,
        "tier": tier,
        "size": size,
        "family": "standardFamily",
        "locations": ["westeurope"],
        "locationInfo": [{"location": "westeurope", "zones": ["1", "2"]}],
        "capabilities": [{"name": key, "value": value} for key, value in capabilities.items()],
        "restrictions": [],
    }


USAGES = [  # as in the documented response
    {"limit": limit, "unit": "Count", "currentValue": used, "name": {"value": name, "localizedValue": words}}
    for limit, used, name, words in (
        (2000, 1, "availabilitySets", "Availability Sets"),
        (100, 36, "cores", "Total Regional vCPUs"),
        (25000, 9, "virtualMachines", "Virtual Machines"),
        (50, 36, "standardDSv3Family", "Standard DSv3 Family vCPUs"),
    )
]
DISK: dict[str, object] = {"resourceType": "disks", "name": "Premium_LRS", "size": "P4", "capabilities": None}


def problem(status: int, code: str, text: str = "") -> web.Response:
    return web.json_response({"error": {"code": code, "message": text or f"{code}: {SECRET}"}}, status=status)


def query_answered(body: bytes) -> Query:
    """Its list is this body."""

    class Answering:
        async def request(self, *_: object, **__: object) -> Answer:
            return Answer(200, {}, body)

    async def signed_in(_make: SignIn) -> Mapping[str, str]:
        return {"token": TOKEN}

    settings = Settings(azure.NAME, KEYS)
    place = azure.place(Settings(azure.NAME, {"location": "westeurope"}))
    return Query(place, "Standard_D1", settings, settings, cast(Http, Answering()), signed_in)


async def serve(request: web.Request) -> web.StreamResponse:
    if request.host == "login.microsoftonline.com":
        form = await request.post()
        if form["client_id"] != "client" or form["client_secret"] != SECRET:
            return web.json_response({"error": "invalid_client", "error_description": SECRET}, status=401)
        if request.path != f"/{TENANT}/oauth2/v2.0/token" or form["grant_type"] != "client_credentials":
            return web.json_response({"error": "invalid_request"}, status=400)
        assert form["scope"] == "https://management.azure.com/.default"
        return web.json_response(
            {"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599, "access_token": TOKEN}
        )
    assert request.host == "management.azure.com"
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        return problem(401, "InvalidAuthenticationToken")
    if request.path == f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/westeurope/usages":
        assert request.query["api-version"] == "2021-07-01"
        return web.json_response({"value": USAGES})
    if request.path != f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/skus":
        return problem(404, "SubscriptionNotFound")
    if request.query["api-version"] != "2021-07-01":
        return problem(400, "NoRegisteredProviderFound")
    if request.query["$filter"] != "location eq 'westeurope'":
        return web.json_response({"value": []})
    listed: list[dict[str, object]] = [DISK, *(sku(name, told) for name, told in SIZES.items())]
    half = len(listed) // 2
    if "$skiptoken" in request.query:
        return web.json_response({"value": listed[half:]})
    link = f"https://management.azure.com{request.path_qs}&$skiptoken=page2"
    return web.json_response({"value": listed[:half], "nextLink": link})


nothing_secret_is_logged = never_logged(SECRET, TOKEN)


@pytest.fixture
async def cloud() -> AsyncIterator[FakeCloud]:
    async with fake_cloud(serve, "login.microsoftonline.com", "management.azure.com") as running:
        yield running


def asked(vm_size: object = "Standard_D4s_v5", **more: object) -> Lookup:
    spec = {"vmSize": vm_size, "location": "westeurope", "osDiskSize": 30, **KEYS, **more}
    return lookup(azure.size, "azure", spec)


COSTS = {
    "Basic_A0": "cpu=1,machines=1,memory=768Mi,storage=30Gi",
    "Standard_A1": "cpu=1,machines=1,memory=1792Mi,storage=30Gi",
    "Standard_B1ls": "cpu=1,machines=1,memory=512Mi,storage=30Gi",
    "Standard_B2pts_v2": "cpu=2,machines=1,memory=1Gi,storage=30Gi",
    "Standard_DS1_v2": "cpu=1,machines=1,memory=3584Mi,storage=30Gi",
    "Standard_D2s_v3": "cpu=2,machines=1,memory=8Gi,storage=30Gi",
    "Standard_D4s_v5": "cpu=4,machines=1,memory=16Gi,storage=30Gi",
    "Standard_D4ps_v5": "cpu=4,machines=1,memory=16Gi,storage=30Gi",
    "Standard_D64pls_v5": "cpu=64,machines=1,memory=128Gi,storage=30Gi",
    "Standard_E4-2s_v5": "cpu=2,machines=1,memory=32Gi,storage=30Gi",
    "Standard_M8-2ms": "cpu=2,machines=1,memory=224000Mi,storage=30Gi",
    "Standard_M416ms_v2": "cpu=416,machines=1,memory=11400Gi,storage=30Gi",
    "Standard_L8s_v3": "cpu=8,machines=1,memory=64Gi,storage=30Gi",
    "Standard_F2s_v2": "cpu=2,machines=1,memory=4Gi,storage=30Gi",
    "Standard_HB120rs_v3": "cpu=120,machines=1,memory=448Gi,storage=30Gi",
    "Standard_NC4as_T4_v3": "cpu=4,machines=1,memory=28Gi,nvidia.com/gpu=1,storage=30Gi",
    "Standard_NC24ads_A100_v4": "cpu=24,machines=1,memory=220Gi,nvidia.com/gpu=1,storage=30Gi",
    "Standard_ND96asr_v4": "cpu=96,machines=1,memory=900Gi,nvidia.com/gpu=8,storage=30Gi",
    "Standard_ND96isr_MI300X_v5": "amd.com/gpu=8,cpu=96,machines=1,memory=1850Gi,storage=30Gi",
    "Standard_NV6ads_A10_v5": "cpu=6,machines=1,memory=55Gi,nvidia.com/gpu=1,storage=30Gi",
    "Standard_NV4as_v4": "amd.com/gpu=1,cpu=4,machines=1,memory=14Gi,storage=30Gi",
    "Standard_NG8ads_V620_v1": "amd.com/gpu=1,cpu=8,machines=1,memory=16Gi,storage=30Gi",
    "Standard_NP10s": "cpu=10,machines=1,memory=168Gi,storage=30Gi",
}


async def test_what_real_sizes_cost_out_of_one_list(cloud: FakeCloud) -> None:
    catalogue = await cloud.ask(azure.CLOUD, asked())
    found = {name: resources.text(cost(asked(name), catalogue).resources) for name in COSTS}
    assert found == COSTS
    assert set(catalogue.flavours) == set(COSTS)  # no disks, no snapshots
    assert [request.split("?")[0] for request in cloud.requests] == [
        f"POST login.microsoftonline.com/{TENANT}/oauth2/v2.0/token",
        f"GET management.azure.com/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/skus",
        f"GET management.azure.com/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/skus",
    ]


async def test_usages_of_the_subscription_are_the_totals_of_the_location(cloud: FakeCloud) -> None:
    found = await cloud.account_quota(azure.CLOUD, asked())
    assert resources.text(found.limits) == "cpu=100,machines=25k"
    assert resources.text(found.used) == "cpu=36,machines=9"
    assert len(cloud.requests) == 2


@pytest.mark.parametrize("usage", [{**USAGES[1], "limit": 10**18}, {**USAGES[1], "currentValue": -1}])
async def test_usages_that_no_subscription_has_are_none(cloud: FakeCloud, usage: dict[str, object]) -> None:
    async def usages(request: web.Request) -> web.StreamResponse:
        return web.json_response({"value": [usage]}) if "usages" in request.path else await serve(request)

    cloud.disturb = usages
    with pytest.raises(CloudError, match="that no subscription has"):
        await cloud.account_quota(azure.CLOUD, asked())


@pytest.mark.parametrize(
    ("disks", "costs"),
    [
        ({"dataDiskSize": 100}, "cpu=4,machines=1,memory=16Gi,storage=130Gi"),
        ({"dataDiskSize": 0}, "cpu=4,machines=1,memory=16Gi,storage=30Gi"),
        ({"osDiskSize": 1023, "dataDiskSize": 1}, "cpu=4,machines=1,memory=16Gi,storage=1Ti"),
        ({"osDiskSize": 0, "dataDiskSize": 100}, "cpu=4,machines=1,memory=16Gi"),
        ({"osDiskSize": None}, "cpu=4,machines=1,memory=16Gi"),
    ],
)
async def test_both_disks_count_and_an_image_s_own_is_unknown(
    cloud: FakeCloud, disks: dict[str, object], costs: str
) -> None:
    wanted = asked(**disks)
    footprint = cost(wanted, await cloud.ask(azure.CLOUD, wanted))
    assert resources.text(footprint.resources) == costs
    assert ("storage" in footprint.unknown) == ("storage" not in footprint.resources)


async def test_a_location_is_meant_however_it_is_written(cloud: FakeCloud) -> None:
    assert "Standard_D2s_v3" in (await cloud.ask(azure.CLOUD, asked(location="West Europe"))).flavours
    assert (await cloud.ask(azure.CLOUD, asked(location="atlantis"))).flavours == {}


async def test_a_size_that_does_not_exist_is_not_among_those_that_do(cloud: FakeCloud) -> None:
    found = await cloud.ask(azure.CLOUD, asked("Standard_D5s_v5"))
    assert "Standard_D5s_v5" not in found.flavours
    assert "Standard_D4s_v5" in found.flavours


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"vmSize": None}, "azure vmSize is missing"),
        ({"vmSize": "../x"}, "azure vmSize is no name of a VM size"),
        ({"vmSize": {"configMapKeyRef": {"namespace": "a", "name": "b", "key": "c"}}}, "vmSize is a configMapKeyRef"),
        ({"osDiskSize": -1}, "azure osDiskSize must be from 0"),
        ({"dataDiskSize": "10"}, "azure dataDiskSize must be a whole number"),
    ],
)
def test_what_the_spec_must_say(spec: dict[str, object], message: str) -> None:
    with pytest.raises(NotSized, match=message):
        asked(**spec)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"clientSecret": None}, "azure clientSecret is missing"),
        ({"clientID": None}, "azure clientID is missing"),
        ({"tenantID": None}, "azure tenantID is missing"),
        ({"subscriptionID": None}, "azure subscriptionID is missing"),
        ({"tenantID": "evil/../../x"}, "azure tenantID is malformed"),
        ({"subscriptionID": "x/resourceGroups"}, "azure subscriptionID is malformed"),
    ],
)
async def test_credentials_are_named_when_they_are_missing_or_malformed(
    cloud: FakeCloud, missing: dict[str, object], message: str
) -> None:
    with pytest.raises(NotSized) as caught:
        await cloud.ask(azure.CLOUD, asked(**missing))
    assert str(caught.value) == f"cannot size machine: {message}"


@pytest.mark.parametrize("location", ["west'europe", "x) or true", "", "eu/../x"])
def test_a_location_stays_inside_its_filter(location: str) -> None:
    with pytest.raises(NotSized, match="azure location is"):
        azure.place(Settings("azure", {"location": location}))


async def test_wrong_credentials_are_the_caller_s_fault(cloud: FakeCloud) -> None:
    for wrong in ({"clientSecret": "old"}, {"tenantID": "other.onmicrosoft.com"}, {"subscriptionID": "0" * 36}):
        with pytest.raises(CloudError) as caught:
            await cloud.ask(azure.CLOUD, asked(**wrong))
        assert caught.value.refused


def after_sign_in(handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (serve if request.host.startswith("login") else handler)(request)

    return answer


def listing(*skus: object, **more: object) -> Handler:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"value": skus, **more})

    return after_sign_in(answer)


UNREADABLE = "answers what cannot be read"


@pytest.mark.parametrize(
    ("bad_day", "message"),
    [
        (after_sign_in(answering(200, "<html>")), UNREADABLE),
        (listing(nextLink="https://evil.example/steal"), "continues its list elsewhere"),
        (listing(nextLink="https://management.azure.com@evil.example/"), "continues its list elsewhere"),
        (listing(nextLink="https://management.azure.com/again"), "lists sizes without end"),
    ],
)
async def test_bad_days_are_told_without_secrets(cloud: FakeCloud, bad_day: Handler, message: str) -> None:
    cloud.disturb = bad_day
    with pytest.raises(CloudError) as caught:
        await cloud.ask(azure.CLOUD, asked())
    assert str(caught.value).startswith(message)
    assert not any("evil" in request for request in cloud.requests)
    seen = caught.value.__context__
    assert not any(word in f"{caught.value!r} {seen!r}" for word in (SECRET, TOKEN))


@pytest.mark.parametrize(
    "capabilities",
    [
        {"vCPUs": "two", "MemoryGB": "8"},
        {"vCPUs": "2", "MemoryGB": "8Gi"},
        {"vCPUs": "2"},
        {"vCPUs": "0", "MemoryGB": "8"},
    ],
)
async def test_a_size_that_is_no_number_is_not_believed(cloud: FakeCloud, capabilities: dict[str, str]) -> None:
    cloud.disturb = listing(sku("Standard_D2s_v3", capabilities))
    found = await cloud.ask(azure.CLOUD, asked())
    assert (dict(found.flavours), list(found.unreadable)) == ({}, ["Standard_D2s_v3"])


async def test_a_long_list_is_read_in_pieces_between_which_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2,000 sizes in 9 MiB."""
    read, flavour = Counter[int](), azure._flavour
    told = {f"Capability{number}": "Supported value" for number in range(80)} | {"vCPUs": "4", "MemoryGB": "16"}
    body = msgspec.json.encode({"value": [sku(f"Standard_D{number}", told) for number in range(2000)]})
    async with counted_turns() as turn, longest_turn() as longest:

        def counted(found: azure._Sku) -> Flavour:
            read[turn()] += 1
            return flavour(found)

        monkeypatch.setattr(azure, "_flavour", counted)
        found = await azure.fetch(query_answered(body))
    assert len(found.flavours) == 2000
    assert max(read.values()) < 200, "about ten in a piece"
    assert longest() < seconds_of(lambda: msgspec.json.decode(body)), "what is left in one piece takes a sixth of it"


@pytest.mark.parametrize("value", [b"{}", b"0", b"[]"])
async def test_a_list_of_nothing_but_values_is_refused_before_it_is_decoded(value: bytes) -> None:
    body = b'{"value":[%b]}' % b",".join([value] * 2_000_000)
    with no_garbage_collection():
        before = time.thread_time()
        with pytest.raises(CloudError, match="answers more than 1000000 values"):
            await azure.fetch(query_answered(body))
        took = time.thread_time() - before
    assert took < seconds_of(lambda: msgspec.json.decode(body, type=azure._Page)) / 3  # a tenth
