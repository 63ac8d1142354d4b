"""Credentials are found where machine-controller would find them, and what is missing is named, never its value."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest

from common.api.core import Secret
from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden, NotFound, Unavailable
from common.kube.client.meta import ObjectMeta
from common.kube.client.resource import Resource
from seed.instance_types import settings as reading
from seed.instance_types.settings import CONFIG_MAPS, ConfigMap, SettingsReader
from seed.providers.flavour import Lookup, Reference, Setting
from seed.providers.size import NotSized, ProviderUnavailable

SECRET = Reference("Secret", "alpha", "cloud", "token")
CONFIG = Reference("ConfigMap", "alpha", "cloud", "region")


class Api:
    """An API server with Secrets and ConfigMaps by `namespace/name`, that counts what is read."""

    def __init__(self) -> None:
        self.secrets: dict[str, dict[str, str]] = {}
        self.config_maps: dict[str, dict[str, str]] = {}
        self.error: ApiError | None = None
        self.reads: list[str] = []

    async def get(self, resource: Resource, name: str, namespace: str) -> Secret | ConfigMap:
        self.reads.append(f"{resource.kind} {namespace}/{name}")
        if self.error is not None:
            raise self.error
        kept = self.config_maps if resource is CONFIG_MAPS else self.secrets
        data = kept.get(f"{namespace}/{name}")
        if data is None:
            raise NotFound(404, "NotFound", "not found")
        if resource is CONFIG_MAPS:
            return ConfigMap(metadata=ObjectMeta(), data=data)
        return Secret(metadata=ObjectMeta(), data={key: value.encode() for key, value in data.items()})


@pytest.fixture
def api() -> Api:
    return Api()


def reader(api: Api, **environment: str) -> SettingsReader:
    return SettingsReader(cast(Cluster, api), environment=environment)


def cluster(*, credentials: str | None = None, own_source: bool = True) -> UserCluster:
    spec: dict[str, object] = {"project": "alpha", "provider": {"name": "aws"}}
    if credentials is not None:
        spec["provider"] = {"name": "aws", "credentialsSecretRef": {"name": credentials}}
    if not own_source:
        spec["kubeconfigSecretRef"] = {"name": "kubeconfig", "key": "kubeconfig"}
    return msgspec.convert({"metadata": {"name": "c1", "namespace": "alpha", "uid": "u"}, "spec": spec}, UserCluster)


def lookup(endpoint: str = "", where: dict[str, Setting] | None = None, **credentials: Setting) -> Lookup:
    return Lookup("openstack", "m1.small", where or {}, credentials, endpoint)


async def test_a_reference_wins_over_the_environment_as_in_machine_controller(api: Api) -> None:
    api.secrets["alpha/cloud"] = {"token": "from-secret\n"}
    found = await reader(api, TOKEN="from-environment").credentials(
        cluster(),
        lookup(
            referred=Setting(reference=SECRET, variable="TOKEN"),
            inline=Setting("inline", variable="TOKEN"),
            neither=Setting(variable="TOKEN"),
        ),
    )
    assert {name: found[name] for name in ("referred", "inline", "neither")} == {
        "referred": "from-secret",
        "inline": "inline",
        "neither": "from-environment",
    }


async def test_a_reference_that_leads_nowhere_falls_back_to_the_environment(api: Api) -> None:
    found = await reader(api, TOKEN="t").credentials(
        cluster(), lookup(token=Setting(reference=SECRET, variable="TOKEN"))
    )
    assert found["token"] == "t"


async def test_settings_may_stand_in_a_config_map(api: Api) -> None:
    api.config_maps["alpha/cloud"] = {"region": "eu"}
    found = await reader(api).where(cluster(), lookup(where={"region": Setting(reference=CONFIG)}))
    assert found["region"] == "eu"


async def test_the_secret_that_the_user_cluster_names_is_the_environment(api: Api) -> None:
    api.secrets["alpha/aws"] = {"TOKEN": "of-the-cluster"}
    made = reader(api, TOKEN="of-the-program", OTHER="of-the-program")
    found = await made.credentials(
        cluster(credentials="aws"), lookup(token=Setting(variable="TOKEN"), other=Setting(variable="OTHER"))
    )
    assert found["token"] == "of-the-cluster"
    with pytest.raises(NotSized, match="other is missing: set it in the Machine, or OTHER in Secret alpha/aws of the"):
        found["other"]  # never a part of one and a part of the other


async def test_a_file_that_the_environment_names_is_read(api: Api, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("jwt\n")
    setting = Setting(variable="TOKEN_FILE", file=True)
    found = await reader(api, TOKEN_FILE=str(tmp_path / "token")).credentials(cluster(), lookup(token=setting))
    assert found["token"] == "jwt"
    found = await reader(api, TOKEN_FILE=str(tmp_path / "none")).credentials(cluster(), lookup(token=setting))
    with pytest.raises(NotSized, match="token is missing: the file that TOKEN_FILE names cannot be read"):
        found["token"]


async def test_a_secret_chooses_neither_files_of_the_program_nor_whom_it_asks_for_its_own_keys(
    api: Api, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("token of seedquota-seed")
    api.secrets["alpha/aws"] = {"TOKEN_FILE": str(tmp_path / "token"), "KEYS_AT": "https://evil.example"}
    asked = lookup(token=Setting(variable="TOKEN_FILE", file=True), keys=Setting(variable="KEYS_AT", own=True))
    found = await reader(api).credentials(cluster(credentials="aws"), asked)
    assert ("token" in found, "keys" in found) == (False, False)
    found = await reader(api, KEYS_AT="http://127.0.0.1").credentials(cluster(), asked)
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
    found = await reader(api).credentials(cluster(), lookup(token=Setting(reference=SECRET)))
    with pytest.raises(NotSized) as caught:
        found["token"]
    assert str(caught.value) == f"cannot size machine: openstack token is missing: {message}"


async def test_what_no_field_of_a_machine_says_is_not_looked_for_there(api: Api) -> None:
    found = await reader(api).where(cluster(), lookup(where={"role": Setting(variable="ROLE", platform=True)}))
    with pytest.raises(NotSized, match=r"role is missing: set ROLE in seedquota-seed's environment$"):
        found["role"]


async def test_what_cannot_be_read_now_may_be_read_later(api: Api) -> None:
    api.error = Unavailable(0, "Unavailable", "no answer")
    with pytest.raises(ProviderUnavailable, match="Secret alpha/cloud cannot be read now"):
        await reader(api).credentials(cluster(), lookup(token=Setting(reference=SECRET)))


async def test_what_was_read_is_kept_a_while_and_longer_while_it_cannot_be_read(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.secrets["alpha/cloud"] = {"token": "t"}
    made, asked = reader(api), lookup(token=Setting(reference=SECRET))
    for _ in range(3):
        assert (await made.credentials(cluster(), asked))["token"] == "t"
    assert api.reads == ["Secret alpha/cloud"]
    monkeypatch.setattr(reading.time, "monotonic", lambda: 1e9)
    api.error = Unavailable(0, "Unavailable", "no answer")
    assert (await made.credentials(cluster(), asked))["token"] == "t"
    assert len(api.reads) == 2


async def test_on_the_seed_only_secrets_of_the_user_clusters_namespace_are_read(api: Api) -> None:
    api.secrets["seedquota/seedquota-webhook-key"] = {"key": "k"}
    stolen = Reference("Secret", "seedquota", "seedquota-webhook-key", "key")
    found = await reader(api).credentials(cluster(), lookup(token=Setting(reference=stolen)))
    with pytest.raises(NotSized, match="is not in the UserCluster's namespace"):
        found["token"]
    assert api.reads == []


@pytest.mark.parametrize(("endpoint", "sent"), [("https://tenant.example", False), ("https://cloud.example", True)])
async def test_credentials_of_the_environment_go_only_to_the_host_of_the_environment(
    api: Api, endpoint: str, sent: bool
) -> None:
    """Whoever writes a Machine may name the host; the platform's password must not go there."""
    asked = lookup(
        endpoint="identityEndpoint",
        where={"identityEndpoint": Setting(endpoint, variable="OS_AUTH_URL")},
        password=Setting(variable="OS_PASSWORD"),
        inline=Setting("mine"),
    )
    made = reader(api, OS_AUTH_URL="https://cloud.example", OS_PASSWORD="platform")
    found = await made.credentials(cluster(), asked)
    assert found["inline"] == "mine"
    assert ("password" in found) is sent
    if not sent:
        with pytest.raises(
            NotSized, match="are not sent to an identityEndpoint that the Machine names, unless OS_AUTH_URL there is"
        ):
            found["password"]


async def test_no_value_shows(api: Api) -> None:
    api.secrets["alpha/cloud"] = {"token": "s3cret"}
    setting = Setting("s3cret", variable="TOKEN")
    found = await reader(api).credentials(cluster(), lookup(token=Setting(reference=SECRET), inline=setting))
    assert "s3cret" not in repr(found) + repr(setting) + repr(lookup(token=setting)) + str(found)
