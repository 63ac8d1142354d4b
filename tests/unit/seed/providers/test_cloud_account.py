"""Each cluster of Kubermatic has a cloud account of its own: what its Cluster and the Seeds' datacenters say."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from common.kube.client.api_client import Cluster as Connection
from common.kube.client.meta import ObjectMeta
from seed.cache.kubermatic_objects import Cluster, datacenters_of, user_cluster_of
from seed.instance_types.cache import FlavourCache
from seed.instance_types.settings import SettingsReader
from seed.providers.cloud_account import AccountedCluster, KubermaticSeed
from seed.providers.flavour import Origin
from seed.providers.size import EndpointNotAllowed, NotSized
from seed.sizing.sizer import Sizing
from tests.unit.fake_cloud import machine
from tests.unit.seed.instance_types.test_settings import Api, api  # noqa: F401 (a fixture)


def seed(name: str = "kubermatic", **datacenters: object) -> KubermaticSeed:
    spec = {"kubeconfig": {"name": "k"}, "datacenters": {dc: {"spec": said} for dc, said in datacenters.items()}}
    return msgspec.convert({"metadata": {"name": name, "namespace": "kubermatic"}, "spec": spec}, KubermaticSeed)


SEED = seed(
    a={"openstack": {"authURL": "https://keystone.a.example/v3", "region": "RegionA", "images": {}}},
    b={"openstack": {"authURL": "https://keystone.b.example:5000/v3", "region": "RegionB", "images": {}}},
    infra={"kubevirt": {"dnsPolicy": "Default"}},
    shared={"kubevirt": {"namespacedMode": {"enabled": True, "name": "workers"}}},
    west={"aws": {"region": "eu-west-1"}},
)


def user_cluster(name: str, provider: str, dc: str, seeds: tuple[KubermaticSeed, ...] = (SEED,), **cloud: Any) -> Any:
    reference = {"credentialsReference": {"name": f"credential-{provider}-{name}", "namespace": "kubermatic"}}
    spec = {"cloud": {"dc": dc, "providerName": provider, provider: {**reference, **cloud}}}
    made = msgspec.convert({"metadata": {"name": name, "labels": {"project-id": "p"}}, "spec": spec}, Cluster)
    found = user_cluster_of(made, datacenters_of(seeds))
    assert isinstance(found, AccountedCluster)
    return found


def sizing(api: Api, **environment: str) -> Sizing:  # noqa: F811
    settings = SettingsReader(cast(Connection, api), environment=environment)
    return Sizing(FlavourCache(cast(Any, None)), settings, lambda _: "", lambda _text, _seal: False)


async def test_two_clusters_ask_two_openstacks_each_with_its_own_credentials(api: Api) -> None:  # noqa: F811
    """And neither asks the one of seedquota-seed's environment."""
    api.secrets["cluster-one/cloud-credentials"] = {
        "username": "u1",
        "password": "p1",
        "domain": "Default",
        "project": "x",
    }
    api.secrets["cluster-two/cloud-credentials"] = {
        "applicationCredentialID": "i2",
        "applicationCredentialSecret": "s2",
        "tenantID": "t2",
    }
    sizes = sizing(api, OS_AUTH_URL="https://other.example", OS_PASSWORD="other", OS_DOMAIN_NAME="other")
    spec = {"flavor": "m1.small", "identityEndpoint": "https://keystone.a.example/v3"}
    lookup = sizes._evaluated(machine("openstack", spec))
    question = await sizes._question(user_cluster("one", "openstack", "a"), lookup)  # type: ignore[arg-type]
    assert (question.place.endpoint, question.place.region) == ("https://keystone.a.example/v3", "RegionA")
    credentials = await question.credentials()
    assert dict(credentials.items()) == {
        "username": "u1",
        "password": "p1",
        "domainName": "Default",
        "projectName": "x",
    }
    assert credentials.origin is Origin.PLATFORM

    two = user_cluster("two", "openstack", "b")
    lookup = sizes._evaluated(machine("openstack", {"flavor": "m1.small"}))
    question = await sizes._question(two, lookup)  # type: ignore[arg-type]
    assert (question.place.endpoint, question.place.region) == ("https://keystone.b.example:5000/v3", "RegionB")
    assert dict((await question.credentials()).items()) == {
        "applicationCredentialID": "i2",
        "applicationCredentialSecret": "s2",
        "projectID": "t2",
    }
    with pytest.raises(EndpointNotAllowed, match=r"set openstack.authURL in spec.datacenters.b of Kubermatic's Seed"):
        await sizes._question(two, sizes._evaluated(machine("openstack", spec)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dc", "namespace"), [("infra", "cluster-one"), ("shared", "workers"), ("not-in-any-seed", None)]
)
def test_the_namespace_of_kubevirt_is_the_cluster_s_own_or_the_datacenter_s(dc: str, namespace: str | None) -> None:
    found = user_cluster("one", "kubevirt", dc)
    assert found.account.values.get("KUBEVIRT_NAMESPACE") == namespace
    assert found.account.keys == {"KUBEVIRT_KUBECONFIG": ("kubeConfig",)}


async def test_a_role_of_the_cluster_goes_with_its_keys(api: Api) -> None:  # noqa: F811
    api.secrets["cluster-one/cloud-credentials"] = {"accessKeyId": "k", "secretAccessKey": "s"}
    sizes = sizing(api, AWS_SESSION_TOKEN="of seedquota-seed")
    there = user_cluster("one", "aws", "west", assumeRoleARN="arn:aws:iam::1:role/r", assumeRoleExternalID="e")
    spec = {"instanceType": "m5.large", "region": "eu-west-1", "diskSize": 5}
    question = await sizes._question(there, sizes._evaluated(machine("aws", spec)))  # type: ignore[arg-type]
    assert dict((await question.credentials()).items()) == {
        "accessKeyId": "k",
        "secretAccessKey": "s",
        "assumeRoleARN": "arn:aws:iam::1:role/r",
        "assumeRoleExternalID": "e",
    }


async def test_what_is_missing_is_named_in_kubermatic_s_words(api: Api) -> None:  # noqa: F811
    sizes = sizing(api)
    there = user_cluster("one", "hetzner", "nowhere")
    lookup = sizes._evaluated(machine("hetzner", {"serverType": "cax11"}))
    question = await sizes._question(there, lookup)  # type: ignore[arg-type]
    with pytest.raises(NotSized, match=r"or token in Secret cluster-one/cloud-credentials$"):
        (await question.credentials())["token"]


def test_a_datacenter_that_two_seeds_describe_differently_names_no_endpoint() -> None:
    other = seed("other", a={"openstack": {"authURL": "https://else.example"}}, b=msgspec.to_builtins(SEED)["spec"])
    found = datacenters_of([SEED, other])
    assert "a" not in found
    assert "OS_AUTH_URL" not in user_cluster("one", "openstack", "a", (SEED, other)).account.values
    assert datacenters_of([SEED, SEED]).keys() == SEED.spec.datacenters.keys()


def test_a_cluster_that_names_no_cloud_has_no_account() -> None:
    made = Cluster(metadata=ObjectMeta(name="one", labels={"project-id": "p"}))
    assert not isinstance(user_cluster_of(made, {}), AccountedCluster)
