"""The cloud account of a user cluster of Kubermatic, by the names of machine-controller's variables. Pure.

Kubermatic's `Cluster` (spec.cloud) says which cloud, which datacenter and which credentials, and a `Seed` has the
datacenters (spec.datacenters). Kubermatic copies the Secret that `credentialsReference` names to `cloud-credentials` in
the namespace of the cluster's control plane, and runs machine-controller with the same variables as here
(k8c.io/kubermatic, pkg/resources/data.go, GetEnvVars; sdk/apis/kubermatic/v1/cluster.go and datacenter.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from common.api.types import UserCluster
from common.kube.client.meta import Object
from seed.providers.kubevirt_instancetypes import ENVIRONMENT_NAMESPACE

SECRET = "cloud-credentials"  # noqa: S105 (no password)
KUBEVIRT = "kubevirt"

_KEYS: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "alibaba": {
            "ALIBABA_ACCESS_KEY_ID": ("accessKeyId",),
            "ALIBABA_ACCESS_KEY_SECRET": ("accessKeySecret",),
        },
        "aws": {"AWS_ACCESS_KEY_ID": ("accessKeyId",), "AWS_SECRET_ACCESS_KEY": ("secretAccessKey",)},
        "azure": {
            "AZURE_CLIENT_ID": ("clientID",),
            "AZURE_CLIENT_SECRET": ("clientSecret",),
            "AZURE_SUBSCRIPTION_ID": ("subscriptionID",),
            "AZURE_TENANT_ID": ("tenantID",),
        },
        "digitalocean": {"DO_TOKEN": ("token",)},
        "gcp": {"GOOGLE_SERVICE_ACCOUNT": ("serviceAccount",)},
        "hetzner": {"HZ_TOKEN": ("token",)},
        KUBEVIRT: {"KUBEVIRT_KUBECONFIG": ("kubeConfig",)},
        "openstack": {
            "OS_APPLICATION_CREDENTIAL_ID": ("applicationCredentialID",),
            "OS_APPLICATION_CREDENTIAL_SECRET": ("applicationCredentialSecret",),
            "OS_DOMAIN_NAME": ("domain",),
            "OS_PASSWORD": ("password",),
            "OS_PROJECT_ID": ("projectID", "tenantID"),
            "OS_PROJECT_NAME": ("project", "tenant"),
            "OS_USER_NAME": ("username",),
        },
    }
)
"""By Kubermatic's name of the cloud, then by variable: keys of the Secret, of which the first that is set counts."""


class _Aws(msgspec.Struct, frozen=True):
    role: str = msgspec.field(name="assumeRoleARN", default="")
    external_id: str = msgspec.field(name="assumeRoleExternalID", default="")


class CloudSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Of a Cluster."""

    dc: str = ""
    provider_name: str = ""
    aws: _Aws | None = None


class _OpenStack(msgspec.Struct, frozen=True):
    auth_url: str = msgspec.field(name="authURL", default="")
    region: str = ""


class _NamespacedMode(msgspec.Struct, frozen=True):
    enabled: bool = False
    name: str = "kubevirt-workload"


class _KubeVirt(msgspec.Struct, frozen=True, rename="camel"):
    namespaced_mode: _NamespacedMode | None = None


class DatacenterSpec(msgspec.Struct, frozen=True):
    openstack: _OpenStack | None = None
    kubevirt: _KubeVirt | None = None


class Datacenter(msgspec.Struct, frozen=True):
    spec: DatacenterSpec = DatacenterSpec()


class SeedSpec(msgspec.Struct, frozen=True):
    datacenters: dict[str, Datacenter] = {}


class KubermaticSeed(Object, frozen=True, kw_only=True):
    spec: SeedSpec = SeedSpec()


class CloudAccount(msgspec.Struct, frozen=True):
    """`values` by variable; `keys` by variable, of the Secret `cloud-credentials` in the user cluster's namespace;
    `places`: where a variable stands, for messages."""

    cluster: str
    values: dict[str, str]
    keys: dict[str, tuple[str, ...]]
    places: dict[str, str]


class AccountedCluster(UserCluster, frozen=True, kw_only=True):
    """A user cluster that has a cloud account of its own."""

    account: CloudAccount


def account_of(name: str, namespace: str, cloud: CloudSpec, datacenter: Datacenter | None) -> CloudAccount | None:
    """Of the Cluster with this name and control plane. None where it names no cloud.

    A datacenter that is not known names no endpoint.
    """
    provider = cloud.provider_name
    if not provider:
        return None
    values: dict[str, str] = {}
    of_datacenter = f"spec.datacenters.{cloud.dc} of Kubermatic's Seed"
    if provider == "aws" and cloud.aws is not None:
        values["AWS_ASSUME_ROLE_ARN"] = cloud.aws.role
        values["AWS_ASSUME_ROLE_EXTERNAL_ID"] = cloud.aws.external_id
    if datacenter is not None and provider == "openstack" and datacenter.spec.openstack is not None:
        values["OS_AUTH_URL"] = datacenter.spec.openstack.auth_url
        values["OS_REGION_NAME"] = datacenter.spec.openstack.region
    if datacenter is not None and provider == KUBEVIRT:
        mode = datacenter.spec.kubevirt.namespaced_mode if datacenter.spec.kubevirt is not None else None
        values[ENVIRONMENT_NAMESPACE] = mode.name if mode is not None and mode.enabled else namespace
    keys = dict(_KEYS.get(provider, {}))
    places = {variable: f"{names[0]} in Secret {namespace}/{SECRET}" for variable, names in keys.items()}
    places["OS_AUTH_URL"] = f"openstack.authURL in {of_datacenter}"
    places["OS_REGION_NAME"] = f"openstack.region in {of_datacenter}"
    places[ENVIRONMENT_NAMESPACE] = of_datacenter
    return CloudAccount(name, {key: value for key, value in values.items() if value}, keys, places)
