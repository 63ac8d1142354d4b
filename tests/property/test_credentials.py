"""No request goes to a host with credentials that the platform did not pair with that host.

Over all clouds, and over everything that a Machine can say or refer to: values, Secrets and ConfigMaps of its own, the
platform's Secret, what is not there, and what changes between two reads.
"""

from __future__ import annotations

import asyncio
import base64
import re
import uuid
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock
from urllib.parse import unquote_plus, urlencode, urlsplit

import msgspec
import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from common.api.core import CONFIG_MAPS, ConfigMap, Secret
from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.kube.client.meta import ObjectMeta
from common.kube.client.resource import Resource
from seed.instance_types import settings as reading
from seed.instance_types.cache import FlavourCache
from seed.instance_types.http_client import Transport
from seed.instance_types.settings import SettingsReader
from seed.machines.footprint import evaluate
from seed.providers import CLOUDS
from seed.providers.cloud_account import AccountedCluster, CloudAccount
from seed.providers.flavour import Answer, Headers, Lookup, Origin, Setting
from seed.providers.size import NotSized, ProviderUnavailable
from seed.sizing.sizer import Sizing
from tests.unit.fake_cloud import machine

NOTHING: Mapping[str, str] = {}
PLATFORM, TENANT, IN_OTHER_WORDS = "platform", "tenant", "the tenant, of the platform's host"
ABSENT = "absent"
WAYS = (ABSENT, "tenant's value", "platform's value", "tenant's Secret", "tenant's ConfigMap", "platform's Secret")
WAYS += (
    "nowhere",
    "the platform's host in the tenant's words",
    "platform's, then tenant's",
    "tenant's, then platform's",
)
HOSTS = {
    "alibaba": r"ecs\.[a-z0-9-]+\.aliyuncs\.com",
    "aws": r"(ec2|sts)\.[a-z0-9-]+\.amazonaws\.com|169\.254\.169\.254",
    "azure": r"login\.microsoftonline\.com|management\.azure\.com",
    "digitalocean": r"api\.digitalocean\.com",
    "gce": r"oauth2\.googleapis\.com|compute\.googleapis\.com",
    "hetzner": r"api\.hetzner\.cloud",
    "kubevirt": r"infra\.platform\.example",
    "linode": r"api\.linode\.com",
    "openstack": r"(keystone|nova)\.platform\.example",
    "scaleway": r"api\.scaleway\.com",
    "vultr": r"api\.vultr\.com",
}
PLACES = {"region": "eu-central-1", "regionID": "eu-central-1", "location": "westeurope", "zone": "europe-west3-a"}
PEM = (
    rsa.generate_private_key(public_exponent=65537, key_size=2048)
    .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    .decode()
)


def marker(owner: str, name: str) -> str:
    """A value that is found again wherever it is sent."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{owner} {name}"))


def value_of(owner: str, name: str) -> str:
    """One that the provider takes. `name` is a field's of the Machine."""
    if name in PLACES:
        return PLACES[name]
    if name == "identityEndpoint" and owner == IN_OTHER_WORDS:
        return "https://KEYSTONE.platform.example:443/v2.0"
    if name == "identityEndpoint":
        return f"https://keystone.{owner}.example/v3"
    if name == "kubeconfig":
        host = PLATFORM if owner == IN_OTHER_WORDS else owner
        cluster = {"name": "c", "cluster": {"server": f"https://infra.{host}.example"}}
        user = {"name": "u", "user": {"token": marker(owner, name)}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config = {"current-context": "x", "contexts": [context], "clusters": [cluster], "users": [user]}
        return yaml.safe_dump(config).strip()
    if name == "serviceAccount":
        fields = {"project_id": owner, "private_key_id": "1", "private_key": PEM, "client_email": marker(owner, name)}
        return base64.b64encode(msgspec.json.encode(fields)).decode()
    return marker(owner, name)


def spec_of(provider: str) -> dict[str, Any]:
    """The least that leads to a question."""
    least = CLOUDS[provider].least_spec
    if least is not None:
        return {**least("eu-central-1")}
    disks = {"primaryDisk": {"size": "10Gi"}}
    return {"virtualMachine": {"instancetype": {"name": "u1.medium"}, "template": disks}}


def with_field(provider: str, spec: Mapping[str, Any], name: str, given: object) -> dict[str, Any]:
    return {**spec, "auth": {name: given}} if provider == "kubevirt" else {**spec, name: given}


def lookup_of(provider: str, spec: Mapping[str, Any]) -> Lookup:
    found = evaluate(machine(provider, spec))
    assert isinstance(found, Lookup)
    return found


def settings_of(provider: str) -> dict[str, Setting]:
    lookup = lookup_of(provider, spec_of(provider))
    return {**lookup.where, **lookup.credentials}


def fields_of(provider: str) -> list[str]:
    """Every field of the Machine that may hold a reference."""
    spec = spec_of(provider)
    found = []
    for name in settings_of(provider):
        lookup = lookup_of(provider, with_field(provider, spec, name, "probe"))
        if {**lookup.where, **lookup.credentials}[name].value == "probe":
            found.append(name)
    return found


FIELDS = {provider: fields_of(provider) for provider in CLOUDS}
VARIABLES = {
    setting.variable: name
    for provider in CLOUDS
    for name, setting in settings_of(provider).items()
    if setting.variable and not (setting.file or setting.own) and setting.variable.split("_")[1] != "ENDPOINT"
    if setting.variable != "AWS_EC2_METADATA_SERVICE_ENDPOINT"
}
ENVIRONMENT = {variable: value_of(PLATFORM, name) for variable, name in VARIABLES.items()}


def test_every_cloud_has_fields_that_hold_references() -> None:
    assert set(FIELDS) == set(HOSTS)
    assert {provider for provider, fields in FIELDS.items() if not fields} == {"linode", "vultr"}, "ask without any"
    assert {"identityEndpoint", "password", "region"} <= set(FIELDS["openstack"])
    assert FIELDS["kubevirt"] == ["kubeconfig"]
    assert {"accessKeyId", "assumeRoleARN", "assumeRoleExternalID"} <= set(FIELDS["aws"])


class Api:
    """The seed's API server, or the user cluster's, where the tenant is admin. No Secret stays as it was read."""

    def __init__(self, provider: str, *, of_tenant: bool) -> None:
        self._of_tenant = of_tenant
        self._names = FIELDS[provider]
        self._reads: dict[str, int] = {}

    async def get(self, resource: Resource, name: str, namespace: str) -> Secret | ConfigMap:
        reads = self._reads[name] = self._reads.get(name, 0) + 1
        data: dict[str, str] = {}
        if not self._of_tenant and name == "environment":
            data = {**ENVIRONMENT, "kubeconfig": "leads to the user cluster"}
        elif name == "tenants":
            data = {field: value_of(TENANT, field) for field in self._names}
        elif name in ("platform-tenant", "tenant-platform"):
            owner = name.split("-")[0 if reads <= len(self._names) else 1]
            data = {
                field: value_of(owner, field) for field in self._names if field in ("identityEndpoint", "kubeconfig")
            }
        if not data:
            raise NotFound(404, "NotFound", "not found")
        if resource is CONFIG_MAPS:
            return ConfigMap(metadata=ObjectMeta(), data=data)
        return Secret(metadata=ObjectMeta(), data={key: text.encode() for key, text in data.items()})


def given_by(way: str, name: str, variable: str) -> object:
    owners = {"tenant's value": TENANT, "platform's value": PLATFORM}
    owner = owners.get(way, IN_OTHER_WORDS if way.endswith("words") else "")
    if owner:
        return value_of(owner, name)
    kind = "configMapKeyRef" if "ConfigMap" in way else "secretKeyRef"
    target = {
        "tenant's Secret": "tenants",
        "tenant's ConfigMap": "tenants",
        "platform's Secret": "environment",
        "platform's, then tenant's": "platform-tenant",
        "tenant's, then platform's": "tenant-platform",
    }.get(way, "nowhere")
    # not only what is meant for the field: any credential of the platform
    key = variable if target == "environment" else name
    return {kind: {"namespace": "alpha", "name": target, "key": key}}


class Recorder:
    """Fits `seed.providers.flavour.Http`, and answers so that the next request is made."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []  # host, everything that was sent
        self.trouble = ""

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = NOTHING,
        query: Mapping[str, str] = NOTHING,
        body: bytes = b"",
        **_: Any,
    ) -> Answer:
        made = headers() if callable(headers) else headers
        host = urlsplit(url).hostname or ""
        self.sent.append((host, unquote_plus(f"{url} {dict(made)} {urlencode(query)} {body.decode()}")))
        if host.startswith("keystone."):
            times = {"issued_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T01:00:00Z"}
            nova = {"interface": "public", "url": "https://nova.platform.example", "region": PLACES["region"]}
            token = {"token": {**times, "catalog": [{"type": "compute", "endpoints": [nova]}]}}
            return Answer(201, {"x-subject-token": "t"}, msgspec.json.encode(token))
        if host in ("login.microsoftonline.com", "oauth2.googleapis.com"):
            return Answer(200, {}, b'{"access_token": "t", "expires_in": 3600}')
        if host.startswith("sts."):
            keys = "<AccessKeyId>A</AccessKeyId><SecretAccessKey>S</SecretAccessKey><SessionToken>T</SessionToken>"
            return Answer(200, {}, f"<r><Credentials>{keys}</Credentials></r>".encode())
        return Answer(404, {}, b"")

    async def kubernetes(self, kubeconfig: str, *_: object) -> None:
        config = yaml.safe_load(kubeconfig)
        self.sent.append((urlsplit(config["clusters"][0]["cluster"]["server"]).hostname or "", kubeconfig))


def cluster_of(kind: str) -> UserCluster:
    reference = {"name": "environment", "key": "kubeconfig"}
    spec: dict[str, object] = {"project": "alpha"}
    if kind != "on the seed":
        spec["kubeconfigSecretRef"] = reference
    if kind in ("with a Secret", "on the seed"):
        spec["provider"] = {"name": "any", "credentialsSecretRef": {"name": "environment"}}
    made = {"metadata": {"name": "c1", "namespace": "alpha", "uid": "u"}, "spec": spec}
    if kind != "of Kubermatic":
        return msgspec.convert(made, UserCluster)
    account = CloudAccount("abc", dict(ENVIRONMENT), {}, {})
    return AccountedCluster(**{**vars_of(msgspec.convert(made, UserCluster)), "account": account})


def vars_of(cluster: UserCluster) -> dict[str, Any]:
    return {"metadata": cluster.metadata, "spec": cluster.spec}


KINDS = ("with a Secret", "of the environment", "on the seed", "of Kubermatic")


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    """A provider, a kind of cluster, and a spec."""
    provider = draw(st.sampled_from(sorted(CLOUDS)))
    spec = spec_of(provider)
    for name in FIELDS[provider]:
        way = draw(st.sampled_from(WAYS))
        if way != ABSENT:
            spec = with_field(provider, spec, name, given_by(way, name, draw(st.sampled_from(sorted(ENVIRONMENT)))))
        elif name in PLACES:
            spec = with_field(provider, spec, name, PLACES[name])
    return provider, draw(st.sampled_from(KINDS)), spec


@pytest.fixture(autouse=True, scope="module")
def nothing_is_kept() -> Any:
    with mock.patch.object(reading, "KEPT_SECONDS", 0.0):
        yield


def reader(provider: str, kind: str) -> SettingsReader:
    environment = ENVIRONMENT if kind == "of the environment" else {}
    return SettingsReader(cast(Cluster, Api(provider, of_tenant=False)), environment=environment)


def user_cluster_api(provider: str) -> Any:
    async def of_tenant(_text: str, **_more: object) -> Cluster:
        return cast(Cluster, Api(provider, of_tenant=True))

    return mock.patch.object(Cluster, "of_tenant", of_tenant)


@given(cases())
@settings(deadline=None, max_examples=300)
def test_no_host_is_sent_what_was_not_paired_with_it(case: tuple[str, str, dict[str, Any]]) -> None:
    provider, kind, spec = case
    recorder = Recorder()

    async def size() -> None:
        transport = cast(Transport, SimpleNamespace(within=lambda _deadline: recorder, close=mock.AsyncMock()))
        sizing = Sizing(FlavourCache(transport), reader(provider, kind), lambda _: "", lambda _text, _seal: False)
        try:
            await sizing.size(cluster_of(kind), machine(provider, spec), asyncio.get_running_loop().time() + 10)
        except (NotSized, ProviderUnavailable) as error:
            shown = str(error)
            assert not [variable for variable in ENVIRONMENT if marker(PLATFORM, VARIABLES[variable]) in shown]
        finally:
            sizing._settings._connections.clear()
            await sizing.close()

    with user_cluster_api(provider):
        asyncio.run(size())
    allowed = {setting.variable for setting in settings_of(provider).values()}
    paired = {VARIABLES[variable] for variable in allowed if variable in VARIABLES}  # by field: two may be alike
    known = repr(spec)  # to whoever wrote the Machine
    secrets = {marker(PLATFORM, name) for name in VARIABLES.values() if name not in paired}
    for host, text in recorder.sent:
        assert re.fullmatch(HOSTS[provider], host), f"{host} is not the platform's"
        assert not [secret for secret in secrets if secret in text and secret not in known], host


@given(cases())
@settings(deadline=None, max_examples=300)
def test_credentials_are_one_set_of_one_origin(case: tuple[str, str, dict[str, Any]]) -> None:
    provider, kind, spec = case
    lookup = lookup_of(provider, spec)

    async def decided() -> tuple[Mapping[str, str], Mapping[str, str], Origin]:
        access = await reader(provider, kind).access(cluster_of(kind), lookup)
        credentials = await access.credentials()
        return dict(access.where.items()), dict(credentials.items()), credentials.origin

    with user_cluster_api(provider):
        try:
            where, credentials, origin = asyncio.run(decided())
        except (NotSized, ProviderUnavailable):
            return
    if lookup.endpoint:
        assert where[lookup.endpoint] == value_of(PLATFORM, lookup.endpoint)
    for name, setting in lookup.credentials.items():
        given = credentials.get(name, "")
        if origin is Origin.TENANT:
            assert given == "" or setting.value == given or setting.reference is not None, name
            assert given != ENVIRONMENT.get(setting.variable, " ") or setting.value == given, name
        elif not setting.scope and given:
            assert given == ENVIRONMENT.get(setting.variable), name
        if name in lookup.where:
            assert where.get(name, "") == given, "the place and the credentials are of one account"
