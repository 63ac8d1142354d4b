"""Bad days of every cloud that is asked, through all that stands between a Machine and its size: one table for all.

What is known goes on serving, what is not is refused in time and told why, nothing counted changes, no secret shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import cast

import msgspec
import pytest
from aiohttp import web
from tenacity.wait import wait_none

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from seed.instance_types import catalogue, gate
from seed.instance_types import http_client as transports
from seed.instance_types.cache import FlavourCache
from seed.instance_types.settings import SettingsReader
from seed.machines.footprint import evaluate
from seed.machines.machine_controller import Machine
from seed.providers import CLOUDS
from seed.providers.flavour import Lookup
from seed.providers.size import CredentialsMissing, CredentialsRejected, FlavourUnknown, ProviderUnavailable
from seed.sizing.sizer import Sizing
from tests.unit.fake_api_server import within
from tests.unit.fake_cloud import FakeCloud, Handler, answering, fake_cloud, hang, machine
from tests.unit.seed.kinds.machines import test_sizes as aws
from tests.unit.seed.providers import test_alibaba as alibaba
from tests.unit.seed.providers import test_azure as azure
from tests.unit.seed.providers import test_digitalocean as digitalocean
from tests.unit.seed.providers import test_gcp as gcp
from tests.unit.seed.providers import test_hetzner as hetzner
from tests.unit.seed.providers import test_kubevirt_instancetypes as kubevirt
from tests.unit.seed.providers import test_linode as linode
from tests.unit.seed.providers import test_openstack as openstack
from tests.unit.seed.providers import test_scaleway as scaleway
from tests.unit.seed.providers import test_vultr as vultr

CLUSTER = msgspec.convert(
    {"metadata": {"name": "c1", "namespace": "alpha", "uid": "c1-uid"}, "spec": {"project": "alpha"}}, UserCluster
)
WEBHOOK_SECONDS = 3.0
IMPATIENT_SECONDS = 0.3
Spec = dict[str, object]


@dataclass(frozen=True)
class Subject:
    """A cloud and a Machine in it, of `flavour` in `field`.

    `place` is how messages call it. `missing` is a field of the credentials, `wrong` credentials that it refuses, where
    it is asked with any. What
    `signs_in` is a host of its own, which may be well while the cloud itself is not.
    """

    provider: str
    place: str
    hosts: tuple[str, ...]
    serve: Callable[[], Handler]
    spec: Callable[[FakeCloud], Spec]
    field: str
    flavour: str
    secrets: tuple[str, ...]
    missing: str = ""
    wrong: Mapping[str, object] = field(default_factory=dict)
    signs_in: str = ""
    unheard_of: str = "x9-huge"

    def machine(self, cloud: FakeCloud, flavour: str = "", **more: object) -> Machine:
        return machine(self.provider, {**self.spec(cloud), self.field: flavour or self.flavour, **more})

    def environment(self, cloud: FakeCloud, **more: object) -> dict[str, str]:
        """The endpoints that the platform names; a size counts from no other."""
        return {"OS_AUTH_URL": openstack.IDENTITY}


async def ec2(request: web.Request) -> web.StreamResponse:
    if "Credential=AKIDEXAMPLE/" not in request.headers["Authorization"]:
        error = f"<Error><Code>AuthFailure</Code><Message>{aws.SECRET}</Message></Error>"
        return web.Response(status=401, text=f"<Response><Errors>{error}</Errors></Response>")
    return await aws.ec2(request)


def kubevirt_spec(cloud: FakeCloud, token: str = kubevirt.TOKEN) -> Spec:
    return {"auth": {"kubeconfig": kubevirt.kubeconfig(cloud, token)}}


class _Instancetype(Subject):
    """Its flavour stands deep in the spec, and its credentials are a kubeconfig that names the server."""

    def machine(self, cloud: FakeCloud, flavour: str = "", **more: object) -> Machine:
        spec: Spec = {"auth": more["auth"]} if "auth" in more else kubevirt_spec(cloud)
        spec["virtualMachine"] = {"instancetype": {"name": flavour or self.flavour}, "template": kubevirt.DISKS}
        return machine(self.provider, spec)

    def environment(self, cloud: FakeCloud, **more: object) -> dict[str, str]:
        """Its kubeconfig is the one that is used."""
        token = str(more.get("token", kubevirt.TOKEN))
        config = "" if "auth" in more else kubevirt.kubeconfig(cloud, token)
        return {"KUBEVIRT_KUBECONFIG": config, "KUBEVIRT_NAMESPACE": kubevirt.NAMESPACE}


SUBJECTS = (
    Subject(
        "alibaba",
        "alibaba eu-central-1",
        ("ecs.eu-central-1.aliyuncs.com",),
        alibaba.Ecs,
        lambda _: {
            "regionID": "eu-central-1",
            "diskSize": "40",
            "accessKeyID": alibaba.ID,
            "accessKeySecret": alibaba.SECRET,
        },
        "instanceType",
        "ecs.g7.large",
        (alibaba.SECRET,),
        "accessKeySecret",
        {"accessKeySecret": "wr0ng-s3cret"},
        unheard_of="ecs.g7.x9",
    ),
    Subject(
        "aws",
        "aws eu-central-1",
        (aws.HOST,),
        lambda: ec2,
        lambda _: {
            "region": "eu-central-1",
            "diskSize": 50,
            "accessKeyId": "AKIDEXAMPLE",
            "secretAccessKey": aws.SECRET,
        },
        "instanceType",
        "m5.large",
        (aws.SECRET, "AKIDEXAMPLE"),
        "secretAccessKey",
        {"accessKeyId": "AKIDOTHER", "secretAccessKey": "wr0ng-s3cret"},
        unheard_of="x9.huge",
    ),
    Subject(
        "azure",
        "azure westeurope",
        ("login.microsoftonline.com", "management.azure.com"),
        lambda: azure.serve,
        lambda _: {"location": "westeurope", "osDiskSize": 30, **azure.KEYS},
        "vmSize",
        "Standard_D4s_v5",
        (azure.SECRET, azure.TOKEN),
        "clientSecret",
        {"clientSecret": "wr0ng-s3cret"},
        "login.microsoftonline.com",
    ),
    Subject(
        "digitalocean",
        "digitalocean api.digitalocean.com",
        ("api.digitalocean.com",),
        lambda: digitalocean.sizes,
        lambda _: {"region": "fra1", "token": digitalocean.TOKEN},
        "size",
        "s-2vcpu-4gb",
        (digitalocean.TOKEN,),
        "token",
        {"token": "wr0ng-s3cret"},
    ),
    Subject(
        "gce",
        f"gce {gcp.ZONE}",
        ("oauth2.googleapis.com", "compute.googleapis.com"),
        lambda: gcp.serve,
        lambda _: gcp.written(""),
        "machineType",
        "e2-standard-4",
        (gcp.TOKEN, gcp.encoded(gcp.ACCOUNT)[:60], gcp.PEM[40:100], gcp.ACCOUNT["private_key_id"]),
        "serviceAccount",
        {"projectID": "other-project"},
        "oauth2.googleapis.com",
    ),
    Subject(
        "hetzner",
        "hetzner api.hetzner.cloud",
        ("api.hetzner.cloud",),
        lambda: hetzner.server_types,
        lambda _: {"location": "fsn1", "token": hetzner.TOKEN},
        "serverType",
        "cax11",
        (hetzner.TOKEN,),
        "token",
        {"token": "wr0ng-s3cret"},
    ),
    _Instancetype(
        "kubevirt",
        "kubevirt https://127.0.0.1:",
        (),
        lambda: kubevirt.serve,
        kubevirt_spec,
        "",
        "u1.medium",
        (kubevirt.TOKEN, "certificate-authority-data"),
        "auth",
        {"token": "wr0ng-s3cret"},
    ),
    Subject(
        "linode",
        "linode api.linode.com",
        ("api.linode.com",),
        lambda: linode.types,
        lambda _: {"region": "eu-west", "token": "l1node-t0ken"},
        "type",
        "g6-standard-2",
        ("l1node-t0ken",),
    ),
    Subject(
        "openstack",
        f"openstack RegionOne at {openstack.IDENTITY}",
        ("keystone.example.com", "nova.example.com"),
        lambda: openstack.Nova().serve,
        lambda _: dict(openstack.KEYS),
        "flavor",
        "m1.small",
        (openstack.PASSWORD, openstack.TOKEN),
        "password",
        {"password": "wr0ng-s3cret"},
        "keystone.example.com",
    ),
    Subject(
        "scaleway",
        f"scaleway {scaleway.ZONE}",
        ("api.scaleway.com",),
        lambda: scaleway.servers,
        lambda _: {"zone": scaleway.ZONE, "secretKey": scaleway.SECRET},
        "commercialType",
        "DEV1-S",
        (scaleway.SECRET,),
        "secretKey",
        {"secretKey": "wr0ng-s3cret"},
    ),
    Subject(
        "vultr",
        "vultr api.vultr.com",
        ("api.vultr.com",),
        lambda: vultr.plans,
        lambda _: {"region": "fra", "apiKey": "vultr-k3y"},
        "plan",
        "vhf-8c-32gb",
        ("vultr-k3y",),
    ),
)


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


UNREADABLE = "answers what cannot be read"
TOO_MANY = "answers too many requests (429)"
BAD_DAYS: dict[str, tuple[Handler, tuple[str, ...], bool]] = {
    "away": (cut, ("cannot be reached",), False),
    "broken": (answering(500, "s3cret"), ("answered 500",), False),
    "overloaded": (answering(503), ("answered 503",), False),
    "throttled": (answering(429, Retry_After="60"), (TOO_MANY, "answered 429"), False),
    "moved": (answering(302, Location="https://elsewhere.example/"), ("answered 302",), True),
    "garbage": (answering(200, "s3cret garbage"), (UNREADABLE,), False),
    "another shape": (answering(200, '{"s3cret": 1}'), (UNREADABLE,), False),
    "revoked": (answering(401, "s3cret is wrong"), ("refuses these credentials (401)",), True),
    "forbidden": (answering(403, "s3cret is weak"), ("refuses these credentials (403)",), True),
    "hanging": (hang, ("has not answered yet", "did not answer"), False),
}


def only(subject: Subject, day: Handler) -> Handler:
    """A bad day of all but those who sign in."""
    serve = subject.serve()

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (serve if request.host.startswith(subject.signs_in) else day)(request)

    return answer


CASES = [
    pytest.param(subject, day, signed_in, id=f"{subject.provider}{' signed in' * signed_in}, {day}")
    for subject in SUBJECTS
    for signed_in in ((False, True) if subject.signs_in else (False,))
    for day in BAD_DAYS
]
EACH = [pytest.param(subject, id=subject.provider) for subject in SUBJECTS]


class World:
    def __init__(self, subject: Subject, cloud: FakeCloud) -> None:
        self.subject = subject
        self.cloud = cloud
        self.cache = FlavourCache(cloud.transport())
        self.environment = subject.environment(cloud)
        self.settings = SettingsReader(cast(Cluster, None), environment=self.environment)
        self.sizing = Sizing(self.cache, self.settings, lambda _text: "", lambda _text, _seal: False)
        self.said: list[str] = []

    async def size(self, subject: Machine, seconds: float = 30.0) -> object:
        return (await self.sizing.size(CLUSTER, subject, asyncio.get_running_loop().time() + seconds)).footprint

    async def refused(self, subject: Machine, expected: type[Exception], seconds: float = 30.0) -> str:
        async with within(min(seconds, WEBHOOK_SECONDS) + 0.5):
            with pytest.raises(expected) as caught:
                await self.size(subject, seconds)
        self.said.append(f"{caught.value} {caught.value!r} {caught.value.__cause__!r}")
        return str(caught.value)

    def shown(self) -> str:
        cache = self.cache
        return repr([self.said, cache._shelves, cache._gates, cache._sessions._kept, cache._fetches])


@pytest.fixture(scope="module")
async def clouds() -> AsyncIterator[dict[str, FakeCloud]]:
    async with AsyncExitStack() as stack:
        yield {
            subject.provider: await stack.enter_async_context(fake_cloud(subject.serve(), *subject.hosts))
            for subject in SUBJECTS
        }


@pytest.fixture
async def world(
    request: pytest.FixtureRequest,
    clouds: dict[str, FakeCloud],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[World]:
    monkeypatch.setattr(transports, "_doubling", wait_none())
    monkeypatch.setattr(catalogue, "MISSING_SECONDS", 0.0)
    monkeypatch.setattr(gate, "REFUSED_SECONDS", 0.0)
    subject: Subject = request.getfixturevalue("subject")
    cloud = clouds[subject.provider]
    cloud.disturb = None
    cloud.requests.clear()
    made = World(subject, cloud)
    with caplog.at_level("DEBUG"):
        yield made
    await made.sizing.close()
    logged = " ".join(str(vars(record)) for record in caplog.get_records("call"))
    assert not any(secret in logged + made.shown() for secret in (*subject.secrets, "wr0ng-s3cret", "s3cret is"))


def test_every_cloud_that_is_asked_is_here() -> None:
    assert [subject.provider for subject in SUBJECTS] == sorted(CLOUDS)


@pytest.mark.parametrize(("subject", "day", "signed_in"), CASES)
async def test_a_bad_day(world: World, subject: Subject, day: str, signed_in: bool) -> None:
    handler, reasons, refused = BAD_DAYS[day]
    patient = world.cache._fetch_seconds
    seconds = world.cache._fetch_seconds = IMPATIENT_SECONDS if handler is hang else patient
    disturbed = only(subject, handler) if signed_in else handler
    known = subject.machine(world.cloud)
    unknown = subject.machine(world.cloud, subject.unheard_of)

    def told(text: str) -> bool:
        start = f"cannot size machine now: {subject.place}"
        return text.startswith(start) and any(reason in text for reason in reasons)

    world.cloud.disturb = disturbed  # at start
    text = await world.refused(known, ProviderUnavailable, seconds)
    assert told(text), text
    with pytest.raises(ProviderUnavailable):
        world.sizing.counted(CLUSTER.metadata.uid, known)

    world.cloud.disturb = None  # it ends
    world.cache._gates = gate.Gates()  # as after the minute for which it wants to be left alone
    world.cache._fetch_seconds = patient
    async with asyncio.timeout(60):
        while True:
            try:
                before = await world.size(known)
                break
            except ProviderUnavailable:
                await asyncio.sleep(0.1)
    world.cloud.requests.clear()

    world.cloud.disturb = disturbed  # later
    world.cache._fetch_seconds = seconds
    assert await world.size(known, 0.0) == before
    assert world.cloud.requests == []
    text = await world.refused(unknown, CredentialsRejected if refused else ProviderUnavailable, seconds)
    assert told(text), text
    assert await world.size(known, 0.0) == before
    assert world.sizing.counted(CLUSTER.metadata.uid, known) == before


@pytest.mark.parametrize("subject", EACH)
async def test_a_cloud_that_throttles_is_asked_again_when_it_says(world: World, subject: Subject) -> None:
    async def once(request: web.Request) -> web.StreamResponse:
        world.cloud.disturb = None
        return await answering(429, Retry_After="1")(request)

    world.cloud.disturb = once
    started = asyncio.get_running_loop().time()
    assert await world.size(subject.machine(world.cloud))
    assert asyncio.get_running_loop().time() - started >= 1


@pytest.mark.parametrize("subject", [each for each in EACH if each.id not in ("linode", "vultr")])
async def test_wrong_credentials_are_told_and_missing_ones_are_named(world: World, subject: Subject) -> None:
    world.environment.update(subject.environment(world.cloud, **subject.wrong))
    text = await world.refused(subject.machine(world.cloud, **subject.wrong), CredentialsRejected)
    assert text.startswith(f"cannot size machine now: {subject.place}")
    world.environment.update(subject.environment(world.cloud, **{subject.missing: None}))
    text = await world.refused(subject.machine(world.cloud, **{subject.missing: None}), CredentialsMissing)
    assert f"{'kubeconfig' if subject.missing == 'auth' else subject.missing} is missing" in text
    world.environment.update(subject.environment(world.cloud))
    assert await world.size(subject.machine(world.cloud))


@pytest.mark.parametrize("subject", EACH)
async def test_a_type_that_does_not_exist_is_told_as_such(
    world: World, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "MISSING_SECONDS", 60.0)
    text = await world.refused(subject.machine(world.cloud, subject.unheard_of), FlavourUnknown)
    assert "has no type" in text


@pytest.mark.parametrize("subject", [each for each in EACH if each.id in ("digitalocean", "hetzner", "linode")])
async def test_a_list_that_is_not_there_is_no_empty_list(world: World, subject: Subject) -> None:
    world.cloud.disturb = answering(404)
    assert (await world.refused(subject.machine(world.cloud), ProviderUnavailable)).endswith("answered 404")


@pytest.mark.parametrize("subject", EACH)
async def test_what_is_asked_and_where_shows_no_secret(world: World, subject: Subject) -> None:
    asked = evaluate(subject.machine(world.cloud))
    assert isinstance(asked, Lookup)
    access = await world.settings.access(CLUSTER, asked)
    where = access.where
    place = CLOUDS[subject.provider].place(where)
    assert str(place).startswith(subject.place)
    credentials = await access.credentials()
    world.said.append(f"{asked!r} {where!r} {place!r} {place} {credentials!r}")
