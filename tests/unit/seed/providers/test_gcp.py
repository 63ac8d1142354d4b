"""Google Cloud against a server that speaks its token endpoint and machineTypes as documented, under its host names."""

from __future__ import annotations

import base64
import dataclasses
import json
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from common.quota import resources
from seed.providers import gcp
from seed.providers.flavour import ALL, CloudError, Lookup, Settings
from seed.providers.size import Footprint, NotSized
from seed.providers.spec import Spec
from tests.unit.fake_cloud import FakeCloud, Handler, answering, cost, fake_cloud, lookup, never_logged

KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
ACCOUNT = {
    "type": "service_account",
    "project_id": "quota-project",
    "private_key_id": "0123456789abcdef",
    "private_key": PEM,
    "client_email": "seed@quota-project.iam.gserviceaccount.com",
    "client_id": "1",
    "auth_uri": "https://accounts.google.com/o/oauth2/auth",
    "token_uri": "https://evil.example/token",
}
TOKEN = "ya29.c.access-token"
ZONE = "europe-west3-a"

TYPES: dict[str, tuple[int, int, tuple[str, int] | None]] = {
    "f1-micro": (1, 614, None),
    "e2-standard-4": (4, 16384, None),
    "m1-ultramem-160": (160, 3936256, None),
    "g2-standard-4": (4, 16384, ("nvidia-l4", 1)),
    "ct5lp-hightpu-4t": (112, 196608, ("ct5lp", 4)),
    "w9-future-2": (2, 4096, ("not-known-yet", 1)),  # no real type
}
UNLISTED = {"g2-custom-24-98304": (24, 98304, ("nvidia-l4", 2))}


def described(name: str, cpus: int, mib: int, accelerator: tuple[str, int] | None) -> dict[str, object]:
    """As in the documented resource."""
    link = f"https://www.googleapis.com/compute/v1/projects/quota-project/zones/{ZONE}/machineTypes/{name}"
    told: dict[str, object] = {
        "kind": "compute#machineType",
        "id": "801016",
        "creationTimestamp": "1969-12-31T16:00:00.000-08:00",
        "name": name,
        "description": f"{cpus} vCPUs",
        "guestCpus": cpus,
        "memoryMb": mib,
        "imageSpaceGb": 0,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "zone": ZONE,
        "selfLink": link,
        "isSharedCpu": name.endswith(("micro", "small", "medium")),
    }
    if accelerator is not None:
        told["accelerators"] = [{"guestAcceleratorType": accelerator[0], "guestAcceleratorCount": accelerator[1]}]
    return told


def problem(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"code": status, "message": message, "errors": []}}, status=status)


def unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def token(request: web.Request) -> web.StreamResponse:
    form = await request.post()
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    header, claims, signature = str(form["assertion"]).split(".")
    try:
        signed = f"{header}.{claims}".encode()
        KEY.public_key().verify(unpadded(signature), signed, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return web.json_response({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, status=400)
    assert json.loads(unpadded(header)) == {"alg": "RS256", "typ": "JWT", "kid": ACCOUNT["private_key_id"]}
    told = json.loads(unpadded(claims))
    assert told["iss"] == ACCOUNT["client_email"]
    assert told["aud"] == "https://oauth2.googleapis.com/token"
    assert told["scope"] == "https://www.googleapis.com/auth/compute.readonly"
    assert abs(told["iat"] - time.time()) < 60
    assert told["exp"] - told["iat"] == 3600
    return web.json_response({"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"})


async def serve(request: web.Request) -> web.StreamResponse:
    if request.host == "oauth2.googleapis.com":
        return await token(request)
    assert request.host == "compute.googleapis.com"
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        return problem(401, "Request had invalid authentication credentials.")
    parts = request.path.strip("/").split("/")
    assert parts[:3] == ["compute", "v1", "projects"]
    if parts[3] != "quota-project":
        return problem(404, f"The resource 'projects/{parts[3]}' was not found")
    assert (parts[4], parts[6]) == ("zones", "machineTypes")
    if parts[5] != ZONE:
        return problem(400, f"Invalid value for field 'zone': '{parts[5]}'. Unknown zone.")
    if len(parts) == 8:
        known = TYPES | UNLISTED
        if parts[7] not in known:
            return problem(404, f"The resource '{parts[7]}' was not found")
        return web.json_response(described(parts[7], *known[parts[7]]))
    assert request.query["maxResults"] == "500"
    names = list(TYPES)
    start = int(request.query.get("pageToken", "0"))
    page = {"kind": "compute#machineTypeList", "items": [described(n, *TYPES[n]) for n in names[start : start + 4]]}
    if start + 4 < len(names):
        page["nextPageToken"] = str(start + 4)
    return web.json_response(page)


@pytest.fixture
async def cloud() -> AsyncIterator[FakeCloud]:
    async with fake_cloud(serve, "oauth2.googleapis.com", "compute.googleapis.com") as running:
        yield running


def encoded(account: object) -> str:
    return base64.b64encode(json.dumps(account).encode()).decode()


nothing_secret_is_logged = never_logged(TOKEN, "PRIVATE KEY", PEM[40:100], encoded(ACCOUNT)[:60])


def written(machine_type: object, **more: object) -> dict[str, object]:
    return {"machineType": machine_type, "zone": ZONE, "diskSize": 50, "serviceAccount": encoded(ACCOUNT), **more}


def asked(machine_type: object = "e2-standard-4", **more: object) -> Lookup:
    return lookup(gcp.size, "gce", written(machine_type, **more))


def footprint(machine_type: str, **more: object) -> Footprint:
    found = gcp.size(Spec("gce", json.dumps(written(machine_type, **more)).encode(), ""))
    assert isinstance(found, Footprint)
    return found


COSTS = {
    "f1-micro": "cpu=1,machines=1,memory=614Mi,storage=50Gi",
    "e2-standard-4": "cpu=4,machines=1,memory=16Gi,storage=50Gi",
    "m1-ultramem-160": "cpu=160,machines=1,memory=3844Gi,storage=50Gi",
    "g2-standard-4": "cpu=4,machines=1,memory=16Gi,nvidia.com/gpu=1,storage=50Gi",
    "ct5lp-hightpu-4t": "cpu=112,google.com/tpu=4,machines=1,memory=192Gi,storage=50Gi",
    "w9-future-2": "cpu=2,machines=1,memory=4Gi,storage=50Gi",
}


@pytest.mark.parametrize("name", COSTS)
async def test_what_real_types_cost(cloud: FakeCloud, name: str) -> None:
    wanted = asked(name)
    assert resources.text(cost(wanted, await cloud.ask(gcp.CLOUD, wanted)).resources) == COSTS[name]
    assert cloud.requests == [
        "POST oauth2.googleapis.com/token",
        f"GET compute.googleapis.com/compute/v1/projects/quota-project/zones/{ZONE}/machineTypes/{name}",
    ]


async def test_a_custom_type_with_gpus_is_asked_by_its_name(cloud: FakeCloud) -> None:
    wanted = asked("g2-custom-24-98304")
    found = cost(wanted, await cloud.ask(gcp.CLOUD, wanted))
    assert resources.text(found.resources) == "cpu=24,machines=1,memory=96Gi,nvidia.com/gpu=2,storage=50Gi"


@pytest.mark.parametrize(
    ("machine_type", "costs"),
    [
        ("n2-custom-4-8192", "cpu=4,machines=1,memory=8Gi,storage=50Gi"),
        ("custom-1-1024", "cpu=1,machines=1,memory=1Gi,storage=50Gi"),
        ("n1-custom-2-13312-ext", "cpu=2,machines=1,memory=13Gi,storage=50Gi"),
        ("n2d-custom-8-5376", "cpu=8,machines=1,memory=5376Mi,storage=50Gi"),
        ("n4-custom-80-655360", "cpu=80,machines=1,memory=640Gi,storage=50Gi"),
        ("n4a-custom-2-4096", "cpu=2,machines=1,memory=4Gi,storage=50Gi"),
        ("e2-custom-6-3072", "cpu=6,machines=1,memory=3Gi,storage=50Gi"),
        ("e2-custom-micro-1280", "cpu=2,machines=1,memory=1280Mi,storage=50Gi"),
        ("e2-custom-medium-8192", "cpu=2,machines=1,memory=8Gi,storage=50Gi"),
    ],
)
def test_a_custom_type_is_read_from_its_name(machine_type: str, costs: str) -> None:
    assert resources.text(footprint(machine_type).resources) == costs


T4: dict[str, object] = {"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 2}
T4_URL: dict[str, object] = {
    "acceleratorType": f"projects/p/zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4-vws",
    "acceleratorCount": 1,
}


async def test_accelerators_of_the_spec_are_added_to_those_of_the_type(cloud: FakeCloud) -> None:
    custom = footprint("custom-4-8192", guestAccelerators=[T4, T4_URL])
    assert resources.text(custom.resources) == "cpu=4,machines=1,memory=8Gi,nvidia.com/gpu=3,storage=50Gi"
    wanted = asked("g2-standard-4", guestAccelerators=[T4])
    found = cost(wanted, await cloud.ask(gcp.CLOUD, wanted))
    assert resources.text(found.resources) == "cpu=4,machines=1,memory=16Gi,nvidia.com/gpu=3,storage=50Gi"


@pytest.mark.parametrize("disk", [None, 0])
def test_a_disk_that_is_not_set_is_as_big_as_machine_controller_makes_it(disk: object) -> None:
    assert footprint("n2-custom-4-8192", diskSize=disk).resources["storage"] == 25 * 2**30 * 10**9


async def test_a_type_that_does_not_exist_is_not_among_those_that_do(cloud: FakeCloud) -> None:
    found = await cloud.ask(gcp.CLOUD, asked("e2-standard-5"))
    assert "e2-standard-5" not in found.flavours
    assert set(found.flavours) == set(TYPES)  # of two pages


async def test_all_types_of_a_zone_are_listed(cloud: FakeCloud) -> None:
    found = await cloud.ask(gcp.CLOUD, dataclasses.replace(asked(), flavour=ALL))
    assert set(found.flavours) == set(TYPES)
    assert resources.text(cost(asked("g2-standard-4"), found).resources) == COSTS["g2-standard-4"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"machine_type": None}, "gce machineType is missing"),
        ({"machine_type": "e2/../../x"}, "gce machineType is no name of a machine type"),
        ({"machine_type": "n2-custom-0-8192"}, "gce machineType is a custom type without cpus or memory"),
        ({"diskSize": -1}, "gce diskSize must be from 0"),
        ({"guestAccelerators": [{"acceleratorType": "x", "acceleratorCount": 1}]}, "accelerator that is not known"),
        (
            {"guestAccelerators": [{"acceleratorType": "nvidia-l4"}]},
            r"guestAccelerators\[0\].acceleratorCount is missing",
        ),
    ],
)
def test_what_the_spec_must_say(spec: dict[str, object], message: str) -> None:
    with pytest.raises(NotSized, match=message):
        asked(**spec)


@pytest.mark.parametrize("zone", ["europe", "eu/../x", "a-b-c@evil.example", "EUROPE-WEST3-A", "europe-west3-a?x"])
def test_a_zone_leads_nowhere_but_to_google(zone: str) -> None:
    with pytest.raises(NotSized, match="gce zone is no name of a zone"):
        gcp.place(Settings("gce", {"zone": zone}))


def elliptic() -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


@pytest.mark.parametrize(
    "account",
    [
        "not base64!",
        base64.b64encode(b"not json").decode(),
        encoded({"project_id": "p"}),
        encoded(ACCOUNT | {"private_key": PEM[:200]}),
        encoded(ACCOUNT | {"private_key": elliptic()}),
        encoded(ACCOUNT | {"private_key": PEM + "x" * 4096}),
    ],
)
async def test_a_service_account_that_is_none_is_refused_without_showing_it(cloud: FakeCloud, account: str) -> None:
    with pytest.raises(NotSized) as caught:
        await cloud.ask(gcp.CLOUD, asked(serviceAccount=account))
    assert str(caught.value) == ("cannot size machine: gce serviceAccount is no service account key in JSON, in base64")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


async def test_a_missing_service_account_is_named(cloud: FakeCloud) -> None:
    with pytest.raises(NotSized, match="gce serviceAccount is missing"):
        await cloud.ask(gcp.CLOUD, asked(serviceAccount=None))
    with pytest.raises(NotSized, match="gce projectID is no name of a project"):
        await cloud.ask(gcp.CLOUD, asked(projectID="a/../../b"))


async def test_the_environment_may_hold_the_json_itself(cloud: FakeCloud) -> None:
    found = await cloud.ask(gcp.CLOUD, asked(serviceAccount=None), {"serviceAccount": json.dumps(ACCOUNT)})
    assert found.flavours


async def test_a_project_or_zone_that_is_not_there_is_no_missing_type(cloud: FakeCloud) -> None:
    for wrong in ({"projectID": "other-project"}, {"zone": "europe-west9-z"}):
        with pytest.raises(CloudError, match="does not know the zone or the project") as caught:
            await cloud.ask(gcp.CLOUD, asked(**wrong))
        assert caught.value.refused


async def test_a_key_that_was_revoked_is_the_caller_s_fault(cloud: FakeCloud) -> None:
    other = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(CloudError, match=r"refuses these credentials \(400\)") as caught:
        await cloud.ask(gcp.CLOUD, asked(serviceAccount=encoded(ACCOUNT | {"private_key": other.decode()})))
    assert caught.value.refused


def after_sign_in(handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (token if request.host.startswith("oauth2") else handler)(request)

    return answer


def told(**machine_type: object) -> Handler:
    return after_sign_in(answering(200, json.dumps(machine_type)))


async def endless(request: web.Request) -> web.StreamResponse:
    if request.path.endswith("machineTypes"):
        return web.json_response({"items": [], "nextPageToken": "again"})
    return problem(404, "not found")


UNREADABLE = "answers what cannot be read"


@pytest.mark.parametrize(
    ("bad_day", "message"),
    [
        (after_sign_in(answering(200, "[]")), UNREADABLE),
        (told(guestCpus=2, memoryMb=1024), UNREADABLE),
        (after_sign_in(endless), "lists machine types without end"),
    ],
)
async def test_bad_days_are_told_without_secrets(cloud: FakeCloud, bad_day: Handler, message: str) -> None:
    cloud.disturb = bad_day
    with pytest.raises(CloudError) as caught:
        await cloud.ask(gcp.CLOUD, asked())
    assert str(caught.value).startswith(message)
    shown = f"{caught.value!r} {caught.value.__context__!r}"
    assert not any(word in shown for word in (TOKEN, "PRIVATE KEY", ACCOUNT["private_key_id"]))


@pytest.mark.parametrize("size", [{"guestCpus": "2"}, {"guestCpus": 2.5}, {"guestCpus": 0}, {"memoryMb": None}])
async def test_a_size_that_is_no_number_is_not_believed(cloud: FakeCloud, size: dict[str, object]) -> None:
    cloud.disturb = told(**{"name": "e2-micro", "guestCpus": 2, "memoryMb": 1024, **size})
    found = await cloud.ask(gcp.CLOUD, asked("e2-micro"))
    assert (dict(found.flavours), list(found.unreadable)) == ({}, ["e2-micro"])
