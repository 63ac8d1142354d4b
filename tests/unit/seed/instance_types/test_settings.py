"""Credentials are found where machine-controller would find them, and go only where the platform sends them.

What is missing is named, never its value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from common.api.core import CONFIG_MAPS, ConfigMap, Secret
from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden, NotFound, Unavailable
from common.kube.client.meta import ObjectMeta
from common.kube.client.resource import Resource
from seed.instance_types import settings as reading
from seed.instance_types.settings import SettingsReader
from seed.providers import kubevirt
from seed.providers.flavour import Lookup, Origin, Reference, Setting, Settings
from seed.providers.size import EndpointNotAllowed, NotSized, ProviderUnavailable
from seed.providers.spec import Spec

SECRET = Reference("Secret", "alpha", "cloud", "token")
CONFIG = Reference("ConfigMap", "alpha", "cloud", "region")


class Api:
    """An API server with Secrets and ConfigMaps by `namespace/name`, that counts what is read."""

    def __init__(self) -> None:
        self.secrets: dict[str, dict[str, str]] = {}
        self.config_maps: dict[str, dict[str, str]] = {}
        self.error: ApiError | None = None
        self.reads: list[str] = []
        self.after_read: Callable[[], None] = lambda: None

    async def get(self, resource: Resource, name: str, namespace: str) -> Secret | ConfigMap:
        if f"{namespace}/{name}" == "alpha/kubeconfig":
            return Secret(metadata=ObjectMeta(), data={"kubeconfig": b"leads to this API server"})
        self.reads.append(f"{resource.kind} {namespace}/{name}")
        if self.error is not None:
            raise self.error
        kept = self.config_maps if resource is CONFIG_MAPS else self.secrets
        data = kept.get(f"{namespace}/{name}")
        if data is None:
            raise NotFound(404, "NotFound", "not found")
        if resource is CONFIG_MAPS:
            return ConfigMap(metadata=ObjectMeta(), data=data)
        found = Secret(metadata=ObjectMeta(), data={key: value.encode() for key, value in data.items()})
        self.after_read()
        return found


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """Both the seed's and the user cluster's."""
    made = Api()

    async def of_tenant(_text: str, **_more: object) -> Cluster:
        return cast(Cluster, made)

    monkeypatch.setattr(Cluster, "of_tenant", of_tenant)
    return made


def reader(api: Api, **environment: str) -> SettingsReader:
    return SettingsReader(cast(Cluster, api), environment=environment)


def cluster(*, credentials: str | None = None, own_source: bool = False, uid: str = "u") -> UserCluster:
    spec: dict[str, object] = {"project": "alpha", "provider": {"name": "aws"}}
    if credentials is not None:
        spec["provider"] = {"name": "aws", "credentialsSecretRef": {"name": credentials}}
    if not own_source:
        spec["kubeconfigSecretRef"] = {"name": "kubeconfig", "key": "kubeconfig"}
    return msgspec.convert({"metadata": {"name": "c1", "namespace": "alpha", "uid": uid}, "spec": spec}, UserCluster)


def lookup(endpoint: str = "", where: dict[str, Setting] | None = None, **credentials: Setting) -> Lookup:
    return Lookup("openstack", "m1.small", where or {}, credentials, endpoint)


async def where_of(made: SettingsReader, asked: Lookup, there: UserCluster | None = None) -> Settings:
    return (await made.access(there or cluster(), asked)).where


async def credentials_of(made: SettingsReader, asked: Lookup, there: UserCluster | None = None) -> Settings:
    return await (await made.access(there or cluster(), asked)).credentials()


async def test_what_the_machine_names_wins_over_the_environment_as_in_machine_controller(api: Api) -> None:
    api.secrets["alpha/cloud"] = {"token": "from-secret\n"}
    found = await credentials_of(
        reader(api, TOKEN="from-environment"),
        lookup(
            referred=Setting(reference=SECRET, variable="TOKEN"),
            inline=Setting("inline", variable="TOKEN"),
        ),
    )
    assert {name: found[name] for name in ("referred", "inline")} == {"referred": "from-secret", "inline": "inline"}
    assert found.origin is Origin.TENANT


async def test_credentials_are_never_a_part_of_the_platform_s_and_a_part_of_the_tenant_s(api: Api) -> None:
    """A role that the Machine names is not assumed with the platform's keys, nor with its ExternalId."""
    made = reader(api, KEY="platform", ROLE="of-the-platform", EXTERNAL_ID="secret", PROJECT="p")
    keys = {
        "key": Setting(variable="KEY"),
        "id": Setting(variable="EXTERNAL_ID"),
        "project": Setting("mine", variable="PROJECT", scope=True),
    }
    of_tenant = await credentials_of(made, lookup(role=Setting("of-the-tenant", variable="ROLE"), **keys))
    assert (of_tenant.origin, of_tenant.items()) == (
        Origin.TENANT,
        (("project", "mine"), ("role", "of-the-tenant")),
    )
    with pytest.raises(NotSized, match="key is missing: set it in the Machine; what the platform has is not used besi"):
        of_tenant["key"]
    role = Setting("of-the-platform", variable="ROLE", identifier=True)
    same = await credentials_of(made, lookup(role=role, **keys))
    assert (same.origin, same["key"], same["id"], same["project"]) == (Origin.PLATFORM, "platform", "secret", "mine")


async def test_a_secret_that_was_guessed_is_answered_like_any_other(api: Api) -> None:
    made = reader(api, KEY="platform", USER="u")
    answers = []
    for guess in ("platform", "wrong"):
        asked = lookup(key=Setting(guess, variable="KEY"), user=Setting(variable="USER"))
        found = await credentials_of(made, asked)
        with pytest.raises(NotSized) as caught:
            found["user"]
        answers.append((found.origin, str(caught.value)))
    assert answers[0] == answers[1]


async def test_a_reference_that_leads_nowhere_falls_back_to_the_environment(api: Api) -> None:
    found = await credentials_of(reader(api, TOKEN="t"), lookup(token=Setting(reference=SECRET, variable="TOKEN")))
    assert found["token"] == "t"
    assert found.origin is Origin.PLATFORM


async def test_settings_may_stand_in_a_config_map(api: Api) -> None:
    api.config_maps["alpha/cloud"] = {"region": "eu"}
    found = await where_of(reader(api), lookup(where={"region": Setting(reference=CONFIG)}))
    assert found["region"] == "eu"


async def test_the_secret_that_the_user_cluster_names_is_the_environment(api: Api) -> None:
    api.secrets["alpha/aws"] = {"TOKEN": "of-the-cluster"}
    found = await credentials_of(
        reader(api, TOKEN="of-the-program", OTHER="of-the-program"),
        lookup(token=Setting(variable="TOKEN"), other=Setting(variable="OTHER")),
        cluster(credentials="aws"),
    )
    assert found["token"] == "of-the-cluster"
    with pytest.raises(NotSized, match="other is missing: set it in the Machine, or OTHER in Secret alpha/aws of the"):
        found["other"]  # never a part of one and a part of the other


async def test_a_file_that_the_environment_names_is_read(api: Api, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("jwt\n")
    asked = lookup(token=Setting(variable="TOKEN_FILE", file=True))
    found = await credentials_of(reader(api, TOKEN_FILE=str(tmp_path / "token")), asked)
    assert found["token"] == "jwt"
    found = await credentials_of(reader(api, TOKEN_FILE=str(tmp_path / "none")), asked)
    with pytest.raises(NotSized, match="token is missing: the file that TOKEN_FILE names cannot be read"):
        found["token"]


async def test_a_secret_chooses_neither_files_of_the_program_nor_whom_it_asks_for_its_own_keys(
    api: Api, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("token of seedquota-seed")
    api.secrets["alpha/aws"] = {"TOKEN_FILE": str(tmp_path / "token"), "KEYS_AT": "https://evil.example"}
    asked = lookup(token=Setting(variable="TOKEN_FILE", file=True), keys=Setting(variable="KEYS_AT", own=True))
    found = await credentials_of(reader(api), asked, cluster(credentials="aws"))
    assert ("token" in found, "keys" in found) == (False, False)
    found = await credentials_of(reader(api, KEYS_AT="http://127.0.0.1"), asked)
    assert found["keys"] == "http://127.0.0.1"


@pytest.mark.parametrize(
    ("present", "error", "message"),
    [
        ({}, None, "Secret alpha/cloud does not exist"),
        ({"alpha/cloud": {"other": "x"}}, None, "Secret alpha/cloud key token is not set"),
        ({}, Forbidden(403, "Forbidden", "no"), "SeedQuota may not read Secret alpha/cloud"),
    ],
)
async def test_what_is_missing_is_named(
    api: Api, present: dict[str, dict[str, str]], error: ApiError | None, message: str
) -> None:
    api.secrets, api.error = present, error
    found = await credentials_of(reader(api), lookup(token=Setting(reference=SECRET)))
    with pytest.raises(NotSized) as caught:
        found["token"]
    assert str(caught.value) == f"cannot size machine: openstack token is missing: {message}"


async def test_what_no_field_of_a_machine_says_is_not_looked_for_there(api: Api) -> None:
    found = await where_of(reader(api), lookup(where={"role": Setting(variable="ROLE", platform=True)}))
    with pytest.raises(NotSized, match=r"role is missing: set ROLE in seedquota-seed's environment$"):
        found["role"]


async def test_what_cannot_be_read_now_may_be_read_later(api: Api) -> None:
    api.error = Unavailable(0, "Unavailable", "no answer")
    with pytest.raises(ProviderUnavailable, match="Secret alpha/cloud cannot be read now"):
        await credentials_of(reader(api), lookup(token=Setting(reference=SECRET)))


async def test_what_was_read_is_kept_a_while_and_longer_while_it_cannot_be_read(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.secrets["alpha/cloud"] = {"token": "t"}
    made, asked = reader(api), lookup(token=Setting(reference=SECRET))
    for _ in range(3):
        assert (await credentials_of(made, asked))["token"] == "t"
    assert api.reads == ["Secret alpha/cloud"]
    monkeypatch.setattr(time, "monotonic", lambda: 1e9)
    api.error = Unavailable(0, "Unavailable", "no answer")
    assert (await credentials_of(made, asked))["token"] == "t"
    assert len(api.reads) == 2


async def test_what_is_in_secrets_of_the_seed_is_neither_sent_nor_shown_because_a_machine_names_it(api: Api) -> None:
    """Not even those of its own namespace: the platform's Secret is there, and who may create a Machine need not be
    allowed to read it."""
    api.secrets["seedquota/seedquota-webhook-key"] = api.secrets["alpha/os"] = {"key": "s3cret"}
    api.config_maps["alpha/os"] = {"key": "s3cret"}
    there, made = cluster(credentials="os", own_source=True), reader(api)
    for kind, namespace, name in (
        ("Secret", "seedquota", "seedquota-webhook-key"),
        ("Secret", "alpha", "os"),
        ("ConfigMap", "alpha", "os"),
    ):
        reference = Setting(reference=Reference(kind, namespace, name, "key"), variable="TOKEN")
        found = await credentials_of(made, lookup(token=reference), there)
        with pytest.raises(
            NotSized, match=f"{kind} {namespace}/{name} key key is not read for a Machine that the seed"
        ):
            found["token"]
        with pytest.raises(
            NotSized, match="is not read for a Machine that the seed itself holds: write it in the Mach"
        ):
            await where_of(made, lookup(where={"region": reference}), there)
    assert set(api.reads) == {"Secret alpha/os"}, "the UserCluster names it, as its environment"


ENDPOINT = Setting(reference=Reference("Secret", "alpha", "endpoint", "url"), variable="OS_AUTH_URL")
PASSWORD = Setting(variable="OS_PASSWORD")
OURS = {"OS_AUTH_URL": "https://cloud.example", "OS_PASSWORD": "platform"}


@pytest.mark.parametrize(
    ("endpoint", "environment"),
    [
        (Setting("https://tenant.example", variable="OS_AUTH_URL"), OURS),
        (ENDPOINT, OURS),
        (Setting("https://tenant.example", variable="OS_AUTH_URL"), {"OS_PASSWORD": "platform"}),
    ],
)
async def test_an_endpoint_of_a_tenant_is_not_asked(api: Api, endpoint: Setting, environment: dict[str, str]) -> None:
    """Neither is the platform's password sent there, nor is a size believed that it tells."""
    api.secrets["alpha/endpoint"] = {"url": "https://tenant.example"}
    for password in (PASSWORD, Setting("mine")):
        asked = lookup("identityEndpoint", {"identityEndpoint": endpoint}, password=password)
        with pytest.raises(EndpointNotAllowed) as caught:
            await reader(api, **environment).access(cluster(), asked)
        assert str(caught.value) == (
            "cannot size machine: openstack identityEndpoint is not one that the platform has named, so its sizes do "
            "not count: use the platform's, or have an administrator set OS_AUTH_URL in seedquota-seed's environment"
        )


@pytest.mark.parametrize("endpoint", ["https://cloud.example", "https://CLOUD.example", ""])
async def test_the_platform_s_own_endpoint_may_be_named(api: Api, endpoint: str) -> None:
    setting = Setting(endpoint, variable="OS_AUTH_URL")
    asked = Lookup(
        "openstack", "f", {"identityEndpoint": setting}, {"password": PASSWORD}, "identityEndpoint", identity=str.lower
    )
    access = await reader(api, **OURS).access(cluster(), asked)
    assert access.where["identityEndpoint"] == "https://cloud.example", "in the platform's words"
    assert (await access.credentials())["password"] == "platform"


async def test_a_reference_is_read_once_and_what_it_holds_later_does_not_matter(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held the platform's endpoint when the host was chosen, and another one when the password was looked for."""
    monkeypatch.setattr(reading, "KEPT_SECONDS", 0.0)
    api.secrets["alpha/endpoint"] = {"url": "https://cloud.example"}
    api.secrets["alpha/account"] = {"id": "a"}

    def change_what_was_read() -> None:
        url, account = ("https://tenant.example", "b")
        api.secrets[api.reads[-1].removeprefix("Secret ")].update(url=url, id=account)

    api.after_read = change_what_was_read
    account = Setting(reference=Reference("Secret", "alpha", "account", "id"), scope=True)
    asked = lookup(
        "identityEndpoint",
        {"identityEndpoint": ENDPOINT, "account": account},
        password=PASSWORD,
        account=account,
    )
    access = await reader(api, **OURS).access(cluster(), asked)
    credentials = await access.credentials()
    assert access.where["identityEndpoint"] == "https://cloud.example"
    assert (credentials["password"], credentials["account"], access.where["account"]) == ("platform", "a", "a")


async def test_no_value_shows(api: Api) -> None:
    api.secrets["alpha/cloud"] = {"token": "s3cret"}
    setting = Setting("s3cret", variable="TOKEN")
    asked = lookup(token=Setting(reference=SECRET), inline=setting)
    access = await reader(api, TOKEN="s3cret").access(cluster(), asked)
    found = await access.credentials()
    assert "s3cret" not in repr(found) + repr(setting) + repr(lookup(token=setting)) + str(found) + repr(access)


async def test_one_tenant_s_references_push_out_nothing_of_another_s(api: Api) -> None:
    """Nor what the platform named for it."""
    api.secrets["alpha/cloud"] = api.secrets["alpha/aws"] = {"token": "t"}
    made, other = reader(api), cluster(credentials="aws")
    asked = lookup(token=Setting(reference=SECRET, variable="TOKEN"))
    await credentials_of(made, asked, other)
    hostile = cluster(uid="hostile")
    for number in range(5000):
        guess = Setting(reference=Reference("Secret", "alpha", f"s{number}", "token"), variable="TOKEN")
        await credentials_of(made, lookup(token=guess), hostile)
    reads = len(api.reads)
    await credentials_of(made, asked, other)
    assert len(api.reads) == reads
    assert len(made._kept._by_owner["hostile", "user cluster"]) == reading.MAX_KEPT


async def test_a_secret_that_is_too_large_is_not_kept(api: Api) -> None:
    api.secrets["alpha/cloud"] = {"token": "t", "more": "x" * reading.MAX_OBJECT}
    made = reader(api)
    found = await credentials_of(made, lookup(token=Setting(reference=SECRET)))
    with pytest.raises(NotSized, match="Secret alpha/cloud has more than 262144 characters"):
        found["token"]
    assert all(not held.data for held in made._kept._by_owner["u", "user cluster"].values())


@pytest.mark.parametrize(
    "of_tenant",
    [
        {"certificate-authority-data": "b2YgdGhlIHRlbmFudA=="},
        {"proxy-url": "https://tenant.example"},
        {"insecure-skip-tls-verify": True, "tls-server-name": "tenant.example"},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_of_a_kubeconfig_for_the_platform_s_server_nothing_is_used(
    api: Api, of_tenant: dict[str, object]
) -> None:
    """Neither its authority nor its way there, and not its token either."""

    def kubeconfig(token: str, **more: object) -> str:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://kubevirt.example:6443", **more}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        return msgspec.json.encode(config).decode()

    of_platform = kubeconfig("platform")
    raw = msgspec.json.encode({"auth": {"kubeconfig": {"value": kubeconfig("tenant", **of_tenant)}}})
    asked = kubevirt.lookup(Spec("kubevirt", raw, ""), "u1.medium", 0)
    made = reader(api, KUBEVIRT_KUBECONFIG=of_platform, KUBEVIRT_NAMESPACE="n")
    assert (await where_of(made, asked))["kubeconfig"] == of_platform
