"""OpenStack against a server that speaks Keystone v3 and Nova as documented: catalogue, paging, microversions.

Published flavors are those of clouds that publish theirs. Nobody publishes extra specs, only how Nova and
Huawei write them: those of real GPU flavors are written so here, and not confirmed.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from common.quota import resources
from common.quota.quantity import UNIT
from seed.providers import openstack
from seed.providers.flavour import MAX_BODY_OF_ANY_HOST, AccountQuota, CloudError, Lookup, Settings
from seed.providers.size import NotSized
from tests.unit.fake_cloud import FakeCloud, Handler, answering, cost, fake_cloud, lookup, never_logged

PASSWORD = "pass\"word'+&"
TOKEN = "gAAAAABkeystone-token"
APPLICATION_SECRET = "application-secret"
MACHINES_TOKEN = "gAAAAABtoken-of-the-machine"
IDENTITY = "https://keystone.example.com:5000/v3"
KEYS: dict[str, object] = {
    "identityEndpoint": IDENTITY,
    "username": "seed",
    "password": PASSWORD,
    "domainName": "Default",
    "projectName": "workers",
    "region": "RegionOne",
}
APPLICATION: dict[str, object] = {
    "identityEndpoint": IDENTITY,
    "applicationCredentialID": "app-id",
    "applicationCredentialSecret": APPLICATION_SECRET,
    "region": "RegionOne",
}

PUBLISHED: dict[str, tuple[int, int, int, dict[str, str]]] = {
    # DevStack's, and Nova's own until 2016
    "m1.tiny": (1, 512, 1, {}),
    "m1.small": (1, 2048, 20, {}),
    "m1.medium": (2, 4096, 40, {}),
    "m1.xlarge": (8, 16384, 160, {"hw:cpu_policy": "shared"}),
    # OVHcloud: its GB of memory are 1000 MiB
    "d2-2": (1, 2000, 25, {}),
    "b3-8": (2, 8000, 50, {"quota:vif_inbound_average": "62500"}),
    "t1-45": (8, 45000, 400, {"pci_passthrough:alias": "v100:1"}),
    "l40s-90": (15, 90000, 400, {"pci_passthrough:alias": "nvidia-l40s:1,bf3-port:2"}),
    # Sovereign Cloud Stack, standard 0103; L is a crowded core, which is how it calls burstable
    "SCS-1L-1": (1, 1024, 0, {"scs:cpu-type": "crowded-core"}),
    "SCS-2V-4-20s": (2, 4096, 20, {"scs:cpu-type": "shared-core"}),
    "SCS-4V-16-100s": (4, 16384, 100, {"scs:cpu-type": "shared-core"}),
    "SCS-16V-64": (16, 65536, 0, {"scs:cpu-type": "shared-core"}),
    # Jetstream2
    "m3.tiny": (1, 3072, 20, {}),
    "m3.2xl": (64, 256000, 60, {}),
    "r3.xl": (128, 1024000, 60, {}),
    "g3.medium": (8, 30720, 60, {"resources:VGPU": "1"}),
    "g3.xl": (32, 128000, 60, {"pci_passthrough:alias": "a100:1"}),
    # Open Telekom Cloud and Huawei Cloud, the latter one with ARM
    "p2s.2xlarge.8": (
        8,
        65536,
        0,
        {"pci_passthrough:gpu_specs": "v100:direct:1", "pci_passthrough:enable_gpu": "true"},
    ),
    "kc1.large.2": (2, 4096, 0, {"ecs:performancetype": "kunpeng_computing"}),
}
MADE_UP: dict[str, tuple[int, int, int, dict[str, str]]] = {
    "c1.c4r7.5": (4, 7680, 40, {}),
    "arm.large": (4, 8192, 40, {"hw_architecture": "aarch64"}),
    "gpu.a100.8": (96, 983040, 1000, {"pci_passthrough:alias": "a100:8,a100-nvswitch:6,pci_10de_1af1:1"}),
    "gpu.mi300": (64, 524288, 500, {"pci_passthrough:alias": "mi300x:4"}),
    "vgpu.half": (4, 16384, 40, {"resources:VGPU": "1", "trait:CUSTOM_NVIDIA_11": "required"}),
    "gpu.placement": (8, 65536, 100, {"resources1:CUSTOM_PCI_10DE_20B5": "2"}),
    "gpu.huawei": (8, 65536, 40, {"pci_passthrough:gpu_specs": "m60_1q:virt:2"}),
    "gpu.huawei.told.twice": (
        8,
        65536,
        40,
        {"pci_passthrough:gpu_specs": "p100:direct:4", "pci_passthrough:alias": "nvidia-p100:4"},
    ),
    "bm.gold": (
        64,
        262144,
        900,
        {
            "resources:CUSTOM_BAREMETAL_GOLD": "1",
            "resources:VCPU": "0",
            "resources:MEMORY_MB": "0",
            "resources:DISK_GB": "0",
        },
    ),
    "net.sriov": (2, 4096, 20, {"pci_passthrough:alias": "sriov1:2,e810:1", "resources:CUSTOM_NIC": "1"}),
    "große maschine/8": (8, 8192, 80, {}),
}
FLAVORS = PUBLISHED | MADE_UP
IDS = {name: f"00000000-0000-0000-0000-{number:012}" for number, name in enumerate(FLAVORS)}


class Nova:
    """`old`: Nova of before microversion 2.61. `limit`: its osapi_max_limit."""

    def __init__(self) -> None:
        self.old = False
        self.limit = 7
        self.lifetime = "2026-01-01T01:00:00.000000Z"
        # As documented; a quota of -1 has no limit.
        self.absolute: dict[str, object] = {
            "maxImageMeta": 128,
            "maxPersonality": 5,
            "maxPersonalitySize": 10240,
            "maxServerGroupMembers": 10,
            "maxServerGroups": 10,
            "maxServerMeta": 128,
            "maxTotalCores": 20,
            "maxTotalInstances": 10,
            "maxTotalKeypairs": 100,
            "maxTotalRAMSize": 51200,
            "totalCoresUsed": 12,
            "totalInstancesUsed": 3,
            "totalRAMUsed": 24576,
            "totalServerGroupsUsed": 0,
        }

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.host == "keystone.example.com:5000":
            return await self._sign_in(request)
        assert request.host == "nova.example.com:8774", request.host
        if request.headers.get("X-Auth-Token") != TOKEN:
            return web.json_response({"error": {"code": 401, "title": "Unauthorized"}}, status=401)
        newer = request.headers.get("OpenStack-API-Version") == "compute 2.61"
        if newer and self.old:
            fault = {
                "code": 406,
                "message": "Version 2.61 is not supported by the API. Minimum is 2.1 and maximum is 2.38.",
            }
            return web.json_response({"computeFault": fault}, status=406)
        parts = request.path.strip("/").split("/")
        if parts == ["v2.1", "project-id", "limits"]:
            return web.json_response({"limits": {"rate": [], "absolute": self.absolute}})
        assert parts[:3] == ["v2.1", "project-id", "flavors"]
        if parts[-1] == "os-extra_specs":
            name = next(name for name, known in IDS.items() if known == parts[3])
            return web.json_response({"extra_specs": FLAVORS[name][3]})
        assert parts[3] == "detail"
        return self._page(request, newer)

    def _page(self, request: web.Request, newer: bool) -> web.StreamResponse:
        names = list(FLAVORS)
        marker = request.query.get("marker")
        start = 0 if marker is None else [IDS[name] for name in names].index(marker) + 1
        chosen = names[start : start + min(self.limit, int(request.query["limit"]))]
        body: dict[str, object] = {"flavors": [self._described(name, newer) for name in chosen]}
        if start + len(chosen) < len(names):
            href = f"http://nova.internal:8774{request.path}?limit=7&marker={IDS[chosen[-1]]}"
            body["flavors_links"] = [{"rel": "next", "href": href}]
        return web.json_response(body)

    def _described(self, name: str, newer: bool) -> dict[str, object]:
        vcpus, ram, disk, extra_specs = FLAVORS[name]
        told: dict[str, object] = {
            "id": IDS[name],
            "name": name,
            "vcpus": vcpus,
            "ram": ram,
            "disk": disk,
            "swap": "" if self.old else 0,
            "OS-FLV-EXT-DATA:ephemeral": 10,
            "OS-FLV-DISABLED:disabled": False,
            "os-flavor-access:is_public": True,
            "rxtx_factor": 1.0,
            "links": [{"rel": "self", "href": f"http://nova.internal:8774/flavors/{IDS[name]}"}],
        }
        return told | ({"description": None, "extra_specs": extra_specs} if newer else {})

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        if request.path != "/v3/auth/tokens":
            return web.json_response({"error": {"code": 404}}, status=404)
        auth = (await request.json())["auth"]
        (method,) = auth["identity"]["methods"]
        if method == "application_credential":
            known = auth["identity"][method] == {"id": "app-id", "secret": APPLICATION_SECRET} and "scope" not in auth
        elif method == "token":
            known = auth["identity"][method] == {"id": MACHINES_TOKEN} and auth["scope"]["project"] == {
                "id": "project-id"
            }
        else:
            user = auth["identity"]["password"]["user"]
            scope = auth["scope"]["project"]
            known = user == {"name": "seed", "password": PASSWORD, "domain": {"name": "Default"}} and scope in (
                {"id": "project-id"},
                {"name": "workers", "domain": {"name": "Default"}},
            )
        if not known:
            problem = {"code": 401, "message": f"no such user: {PASSWORD}", "title": "Unauthorized"}
            return web.json_response({"error": problem}, status=401)
        compute = [
            {"id": "1", "interface": "internal", "region_id": "RegionOne", "url": "http://10.0.0.1:8774/v2.1"},
            *(
                {"id": "2", "interface": "public", "region": region, "region_id": region, "url": url}
                for region, url in (
                    ("RegionOne", "https://nova.example.com:8774/v2.1/project-id"),
                    ("RegionTwo", "https://nova.two.example.com/v2.1"),
                )
            ),
        ]
        token = {
            "methods": [method],
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "expires_at": self.lifetime,
            "catalog": [
                {"type": "identity", "id": "a", "name": "keystone", "endpoints": []},
                {"type": "compute", "id": "b", "name": "nova", "endpoints": compute},
            ],
        }
        return web.json_response({"token": token}, status=201, headers={"X-Subject-Token": TOKEN})


nothing_secret_is_logged = never_logged(PASSWORD, TOKEN, APPLICATION_SECRET, MACHINES_TOKEN)


@pytest.fixture
def nova() -> Nova:
    return Nova()


@pytest.fixture
async def cloud(nova: Nova) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(nova.serve, "keystone.example.com", "nova.example.com") as running:
        yield running


def asked(flavor: object = "m1.small", **more: object) -> Lookup:
    return lookup(openstack.size, "openstack", {"flavor": flavor, "image": "ubuntu", **KEYS, **more})


COSTS = {
    "m1.tiny": "cpu=1,machines=1,memory=512Mi,storage=1Gi",
    "m1.small": "cpu=1,machines=1,memory=2Gi,storage=20Gi",
    "m1.medium": "cpu=2,machines=1,memory=4Gi,storage=40Gi",
    "m1.xlarge": "cpu=8,machines=1,memory=16Gi,storage=160Gi",
    "d2-2": "cpu=1,machines=1,memory=2000Mi,storage=25Gi",
    "b3-8": "cpu=2,machines=1,memory=8000Mi,storage=50Gi",
    "t1-45": "cpu=8,machines=1,memory=45000Mi,nvidia.com/gpu=1,storage=400Gi",
    "l40s-90": "cpu=15,machines=1,memory=90000Mi,nvidia.com/gpu=1,storage=400Gi",
    "SCS-1L-1": "cpu=1,machines=1,memory=1Gi",
    "SCS-2V-4-20s": "cpu=2,machines=1,memory=4Gi,storage=20Gi",
    "SCS-4V-16-100s": "cpu=4,machines=1,memory=16Gi,storage=100Gi",
    "SCS-16V-64": "cpu=16,machines=1,memory=64Gi",
    "m3.tiny": "cpu=1,machines=1,memory=3Gi,storage=20Gi",
    "m3.2xl": "cpu=64,machines=1,memory=250Gi,storage=60Gi",
    "r3.xl": "cpu=128,machines=1,memory=1000Gi,storage=60Gi",
    "g3.medium": "cpu=8,machines=1,memory=30Gi,nvidia.com/gpu=1,storage=60Gi",
    "g3.xl": "cpu=32,machines=1,memory=125Gi,nvidia.com/gpu=1,storage=60Gi",
    "p2s.2xlarge.8": "cpu=8,machines=1,memory=64Gi,nvidia.com/gpu=1",
    "kc1.large.2": "cpu=2,machines=1,memory=4Gi",
    "c1.c4r7.5": "cpu=4,machines=1,memory=7680Mi,storage=40Gi",
    "arm.large": "cpu=4,machines=1,memory=8Gi,storage=40Gi",
    "gpu.a100.8": "cpu=96,machines=1,memory=960Gi,nvidia.com/gpu=8,storage=1000Gi",
    "gpu.mi300": "amd.com/gpu=4,cpu=64,machines=1,memory=512Gi,storage=500Gi",
    "vgpu.half": "cpu=4,machines=1,memory=16Gi,nvidia.com/gpu=1,storage=40Gi",
    "gpu.placement": "cpu=8,machines=1,memory=64Gi,nvidia.com/gpu=2,storage=100Gi",
    "gpu.huawei": "cpu=8,machines=1,memory=64Gi,nvidia.com/gpu=2,storage=40Gi",
    "gpu.huawei.told.twice": "cpu=8,machines=1,memory=64Gi,nvidia.com/gpu=4,storage=40Gi",
    "bm.gold": "cpu=64,machines=1,memory=256Gi,storage=900Gi",
    "net.sriov": "cpu=2,machines=1,memory=4Gi,storage=20Gi",
    "große maschine/8": "cpu=8,machines=1,memory=8Gi,storage=80Gi",
}


async def test_what_real_flavors_cost_by_name_and_by_id_out_of_one_list(cloud: FakeCloud) -> None:
    catalogue = await cloud.ask(openstack.CLOUD, asked())
    assert {name: resources.text(cost(asked(name), catalogue).resources) for name in COSTS} == COSTS
    assert all(catalogue.flavours[each].name == name for name in COSTS for each in (name, IDS[name]))
    assert {name: resources.text(cost(asked(IDS[name]), catalogue).resources) for name in COSTS} == COSTS
    assert [request.split("?")[0] for request in cloud.requests] == [
        "POST keystone.example.com/v3/auth/tokens",
        *["GET nova.example.com/v2.1/project-id/flavors/detail"] * 5,
    ]


async def test_an_older_nova_is_asked_for_extra_specs_one_by_one(cloud: FakeCloud, nova: Nova) -> None:
    nova.old = True
    catalogue = await cloud.ask(openstack.CLOUD, asked())
    assert {name: resources.text(cost(asked(name), catalogue).resources) for name in COSTS} == COSTS


async def test_limits_of_the_project_are_those_of_compute(cloud: FakeCloud, nova: Nova) -> None:
    found = await cloud.account_quota(openstack.CLOUD, asked())
    assert resources.text(found.limits) == "cpu=20,machines=10,memory=50Gi"
    assert resources.text(found.used) == "cpu=12,machines=3,memory=24Gi"
    nova.absolute |= {"maxTotalCores": -1, "totalInstancesUsed": -1}
    del nova.absolute["maxTotalRAMSize"]
    assert await cloud.account_quota(openstack.CLOUD, asked()) == AccountQuota({}, {}), "no limit, or not told"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answering(404), "answered 404 to the limits of the project"),
        (answering(200, "{}"), "answers what cannot be read"),
        (answering(200, '{"limits": {"absolute": {"maxTotalCores": 1e30}}}'), "answers what cannot be read"),
        (answering(200, '{"limits": {"absolute": {"maxTotalCores": 9999999999999999}}}'), "that no project has"),
        (answering(403), "403"),
    ],
)
async def test_limits_that_cannot_be_read_are_none(cloud: FakeCloud, nova: Nova, answer: Handler, said: str) -> None:
    async def limits(request: web.Request) -> web.StreamResponse:
        return await (answer if request.path.endswith("/limits") else nova.serve)(request)

    cloud.disturb = limits
    with pytest.raises(CloudError, match=said):
        await cloud.account_quota(openstack.CLOUD, asked())


async def test_a_name_goes_before_an_id_as_with_machine_controller(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(IDS, "m1.tiny", "m1.small")
    found = await cloud.ask(openstack.CLOUD, asked())
    assert resources.text(cost(asked("m1.small"), found).resources) == COSTS["m1.small"]


async def test_the_root_disk_is_the_volume_of_the_spec_where_it_says_one(cloud: FakeCloud) -> None:
    for flavor in ("m1.xlarge", "SCS-16V-64"):
        wanted = asked(flavor, rootDiskSizeGB=50)
        footprint = cost(wanted, await cloud.ask(openstack.CLOUD, wanted))
        assert footprint.resources["storage"] == 50 * 2**30 * 10**9
    wanted = asked("SCS-16V-64")
    footprint = cost(wanted, await cloud.ask(openstack.CLOUD, wanted))
    with pytest.raises(NotSized, match=r"rootDiskSizeGB is not set, so .* set it in the spec, because a quota"):
        footprint.require(["storage"])


@pytest.mark.parametrize(
    "credentials",
    [
        {"projectID": "project-id", "projectName": "ignored"},
        {"tenantID": "project-id", "projectName": None},
        {"tenantName": "workers", "projectName": None},
        {"identityEndpoint": "https://keystone.example.com:5000/"},
        {"identityEndpoint": "https://Keystone.example.com:5000/v2.0/"},
        {**APPLICATION, "username": None, "password": None, "domainName": None},
        {"username": None, "password": None, "projectID": "project-id", "tokenId": MACHINES_TOKEN},
        {"tokenId": "ended-long-ago"},  # a password goes before it
        APPLICATION,
    ],
)
async def test_whoever_machine_controller_can_be_may_ask(cloud: FakeCloud, credentials: dict[str, object]) -> None:
    assert (await cloud.ask(openstack.CLOUD, asked(**credentials))).flavours


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"username": None}, "openstack username is missing"),
        ({"password": None}, "openstack password is missing"),
        ({"domainName": None}, "openstack domainName is missing"),
        ({"projectName": None}, "openstack projectName is missing"),
        ({"identityEndpoint": None}, "openstack identityEndpoint is missing"),
        ({"region": None}, "openstack region is missing"),
        ({"region": "RegionThree"}, "openstack region has no compute service that these credentials may use"),
        ({**APPLICATION, "applicationCredentialSecret": None}, "openstack applicationCredentialSecret is missing"),
    ],
)
async def test_what_is_missing_is_named(cloud: FakeCloud, missing: dict[str, object], message: str) -> None:
    with pytest.raises(NotSized) as caught:
        await cloud.ask(openstack.CLOUD, asked(**missing))
    assert str(caught.value) == f"cannot size machine: {message}"


async def test_a_region_is_asked_at_its_own_nova(cloud: FakeCloud) -> None:
    with pytest.raises(CloudError, match="does not prove by its certificate"):  # not among the fake cloud's names
        await cloud.ask(openstack.CLOUD, asked(region="RegionTwo"))
    assert all("nova.example.com" not in request for request in cloud.requests)


@pytest.mark.parametrize("setting", ["ca", "caFile"])
async def test_a_ca_bundle_replaces_the_usual_authorities(cloud: FakeCloud, setting: str) -> None:
    assert (await cloud.ask(openstack.CLOUD, asked(), {setting: cloud.ca})).flavours
    async with fake_cloud(Nova().serve, "keystone.example.com") as other:
        with pytest.raises(CloudError, match="does not prove by its certificate"):
            await cloud.ask(openstack.CLOUD, asked(), {setting: other.ca})
    with pytest.raises(CloudError, match="its CA bundle cannot be read"):
        await cloud.ask(openstack.CLOUD, asked(), {setting: "no PEM"})


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://keystone.example.com:5000/v3",
        "https://user:secret@keystone.example.com/v3",
        "https://keystone.example.com/v3?x=y",
        "https://keystone.example.com/../v3",
        "https://keystone.example.com/v3#",
        "https://[::1",
        "file:///etc/passwd",
        f"https://keystone.example.com/{'x' * 10**6}/v3",
        f"https://keystone.example.com{'/x' * 10**5}/v3",
    ],
    ids=lambda endpoint: endpoint[:50],
)
def test_an_endpoint_is_a_plain_https_url(endpoint: str) -> None:
    where = {"identityEndpoint": endpoint, "region": "RegionOne"}
    if endpoint.endswith("#"):  # an empty fragment is none
        assert openstack.place(Settings("openstack", where)).endpoint == "https://keystone.example.com/v3"
        return
    with pytest.raises(NotSized, match=r"openstack identityEndpoint is no https URL$"):
        openstack.place(Settings("openstack", where))


def test_two_projects_do_not_share_what_they_see() -> None:
    def account(**whose: str) -> str:
        return openstack.place(Settings("openstack", {"identityEndpoint": IDENTITY, **whose})).account

    accounts = [
        account(projectName="a", domainName="x"),
        account(projectName="a", domainName="y"),
        account(projectName="b", domainName="x"),
        account(projectID="a"),
        account(applicationCredentialID="a"),
        account(applicationCredentialID="b"),
    ]
    assert len(set(accounts)) == len(accounts)
    assert account(applicationCredentialID="a", projectName="b") == accounts[4]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"flavor": None}, "openstack flavor is missing"),
        ({"flavor": "a\nb"}, "openstack flavor is no name of a flavor"),
        ({"flavor": {"secretKeyRef": {"namespace": "a", "name": "b", "key": "c"}}}, "flavor is a secretKeyRef"),
        ({"rootDiskSizeGB": 0}, "openstack rootDiskSizeGB must be from 1"),
        ({"rootDiskSizeGB": "50"}, "openstack rootDiskSizeGB must be a whole number"),
    ],
)
def test_what_the_spec_must_say(spec: dict[str, object], message: str) -> None:
    with pytest.raises(NotSized, match=message):
        asked(**spec)


async def test_wrong_credentials_are_the_caller_s_fault(cloud: FakeCloud) -> None:
    for wrong in ({"password": "old"}, {"projectName": "other"}, APPLICATION | {"applicationCredentialSecret": "old"}):
        with pytest.raises(CloudError, match=r"refuses these credentials \(401\)") as caught:
            await cloud.ask(openstack.CLOUD, asked(**wrong))
        assert caught.value.refused
    with pytest.raises(CloudError, match="has no Keystone of version 3 there"):
        await cloud.ask(openstack.CLOUD, asked(identityEndpoint="https://keystone.example.com:5000/identity"))


def after_sign_in(handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (Nova().serve if request.host.startswith("keystone") else handler)(request)

    return answer


def listing(body: str) -> Handler:
    return after_sign_in(answering(200, body))


UNREADABLE = "answers what cannot be read"


@pytest.mark.parametrize(
    ("bad_day", "message"),
    [
        (answering(300), "answered 300: it moved elsewhere"),
        (answering(201, "garbage"), UNREADABLE),
        (answering(201, '{"token": {"issued_at": "2026-01-01T00:00:00Z", "expires_at": "never"}}'), UNREADABLE),
        (
            answering(201, '{"token": {"issued_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T01:00:00Z"}}'),
            UNREADABLE,
        ),
        (answering(201, '{"token": {"issued_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01"}}'), UNREADABLE),
        (after_sign_in(answering(404)), "answered 404 to the list of flavors"),
        (after_sign_in(answering(406)), "does not list its flavors"),
        (after_sign_in(answering(413, Retry_After="60")), "answered 413 to the list of flavors"),
        (
            listing(
                '{"flavors": [{"id": "1", "name": "a", "vcpus": 1, "ram": 1, "disk": 1}], '
                '"flavors_links": [{"rel": "next", "href": ""}]}'
            ),
            "lists flavors without end",
        ),
    ],
)
async def test_bad_days_are_told_without_secrets(cloud: FakeCloud, bad_day: Handler, message: str) -> None:
    cloud.disturb = bad_day
    with pytest.raises(CloudError) as caught:
        await cloud.ask(openstack.CLOUD, asked())
    assert str(caught.value).startswith(message)
    shown = f"{caught.value!r} {caught.value.__context__!r}"
    assert not any(word in shown for word in (PASSWORD, TOKEN))


@pytest.mark.parametrize("text", ["amd", "gpu", "amdgp", "mi", "pci_", "radeo", "a", "nvidi", "resources:", ":"])
def test_names_of_devices_are_read_in_linear_time(text: str) -> None:
    long = text * (200_000 // len(text))
    started = time.process_time()
    for name in (long, f"{long}!"):
        openstack._device(name)
        list(openstack._gpus({long: "0", f"resources:{long}": "0", "pci_passthrough:gpu_specs": name}))
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(("name", "vendor"), [("AMD-Big-GPU", "amd"), ("gpu_of_amd", "amd"), ("biggpu", "nvidia")])
def test_whose_gpu_it_is_does_not_depend_on_the_order_of_words(name: str, vendor: str) -> None:
    assert openstack._device(name) == f"{vendor}.com/gpu"


async def test_an_answer_that_is_too_large_is_not_read(cloud: FakeCloud) -> None:
    cloud.disturb = answering(200, "x" * (MAX_BODY_OF_ANY_HOST + 1))
    with pytest.raises(CloudError, match="answers more than 2 MiB"):
        await cloud.ask(openstack.CLOUD, asked())


@pytest.mark.parametrize(
    "size",
    ['"vcpus": "1"', '"vcpus": -1', '"vcpus": 1, "extra_specs": {"pci_passthrough:alias": "a100:many"}'],
)
async def test_a_size_that_is_no_number_is_not_believed(cloud: FakeCloud, size: str) -> None:
    cloud.disturb = listing(f'{{"flavors": [{{"id": "1", "name": "a", "ram": 1, "disk": 1, {size}}}]}}')
    found = await cloud.ask(openstack.CLOUD, asked())
    assert (dict(found.flavours), sorted(found.unreadable)) == ({}, ["1", "a"])


async def test_an_alias_is_read_as_nova_reads_it(cloud: FakeCloud) -> None:
    flavor: dict[str, object] = {"id": "1", "name": "a", "vcpus": 1, "ram": 1, "disk": 1}
    flavor["extra_specs"] = {"pci_passthrough:alias": "a100: 1, t4 :2"}
    cloud.disturb = listing(json.dumps({"flavors": [flavor]}))
    found = await cloud.ask(openstack.CLOUD, asked())
    assert dict(found.flavours["a"].devices) == {"nvidia.com/gpu": 3 * UNIT}


async def test_of_an_older_nova_one_flavor_without_readable_extra_specs_spoils_no_other(
    cloud: FakeCloud, nova: Nova
) -> None:
    nova.old = True
    plain = cloud.handler

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith(f"{IDS['m1.tiny']}/os-extra_specs"):
            return web.json_response({"extra_specs": {"a": None}})
        return await plain(request)

    cloud.disturb = answer
    found = await cloud.ask(openstack.CLOUD, asked())
    assert "m1.small" in found.flavours
    assert "m1.tiny" in found.unreadable
