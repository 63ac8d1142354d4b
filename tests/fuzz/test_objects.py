"""What tenants and their API servers write: reviews, Machines, kubeconfigs, stamps. Nothing fails but as it says."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import given

from common.api.labels import GROUP
from common.kube.client import kubeconfig
from common.kube.client.errors import ApiError, api_error
from common.kube.client.kubeconfig import InvalidKubeconfig
from common.kube.client.meta import ObjectMeta
from common.kube.client.pages import read_page
from common.kube.client.resource import Broken
from seed.kinds.clusters.evaluator import user_clusters
from seed.kinds.clusters.webhook import ClusterWebhook
from seed.kinds.machines.cluster_api_webhook import ClusterApiWebhook
from seed.kinds.machines.scale_webhook import ScaleWebhook
from seed.kinds.machines.webhook import MachineWebhook
from seed.machines import deployments, infrastructure
from seed.machines.footprint import evaluate, least
from seed.machines.infrastructure_kinds import KINDS, Where
from seed.machines.machine_controller import MACHINES, Machine, MachineSpec
from seed.providers import PROVIDERS, kubevirt_instancetypes
from seed.providers.flavour import Lookup, Settings
from seed.providers.size import Footprint, NotSized
from seed.sizing import stamp
from seed.webhooks.review import check, is_named, uid_of
from tests.fuzz.inputs import FUZZ, JSON, YAML, bounded, mangled

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

DISKS = {"primaryDisk": {"size": "10Gi"}, "secondaryDisks": [{"size": "1Gi"}]}
SPECS: dict[str, dict[str, Any]] = {
    "vsphere": {"cpus": 4, "memoryMB": 8192, "diskSizeGB": 50, "templateVMName": "ubuntu"},
    "nutanix": {"cpus": 4, "cpuCores": 2, "memoryMB": 8192, "diskSize": 50},
    "kubevirt": {"virtualMachine": {"template": {"cpus": "2", "memory": "4Gi", **DISKS}}},
    "openstack": {"flavor": {"value": "m1.small"}, "region": "r", "identityEndpoint": {"secretKeyRef": {"name": "n"}}},
    "aws": {"instanceType": "m5.large", "region": "eu-central-1", "diskSize": 50},
    "azure": {"vmSize": "Standard_D2s_v3", "location": "westeurope", "osDiskSize": 50},
    "gce": {"machineType": "n2-custom-4-8192", "zone": "europe-west3-a", "diskSize": 50},
    "hetzner": {"serverType": "cx22"},
    "fake": {"cpu": "4", "memory": "8Gi", "storage": "50Gi", "nvidia.com/gpu": "1"},
}


def review(new: object, old: object, **more: object) -> bytes:
    user = {"username": "ann", "groups": ["g"]}
    request = {"uid": "r-1", "operation": "UPDATE", "name": "m", "namespace": "n", "userInfo": user, "dryRun": True}
    return json.dumps({"request": {**request, "object": new, "oldObject": old, **more}}).encode()


def machine(name: str) -> dict[str, Any]:
    value = {"cloudProvider": name, "cloudProviderSpec": SPECS[name]}
    return {
        "metadata": {"name": "m", "namespace": "n", "uid": "u-1", "labels": {"a": "b"}, "finalizers": ["f"]},
        "spec": {"providerSpec": {"value": value}},
    }


SCALABLE = {
    "metadata": {"name": "d", "namespace": "n", "uid": "u"},
    "spec": {
        "replicas": 3,
        "clusterName": "c",
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"providerSpec": {"value": {}}}},
    },
}
REVIEWS = [
    *(review(machine(name), machine(name)) for name in ("vsphere", "kubevirt")),
    review(SCALABLE, SCALABLE, resource={"group": "cluster.k8s.io", "resource": "machinedeployments"}),
    review(SCALABLE, SCALABLE, resource={"group": "cluster.x-k8s.io", "resource": "machines"}),
    review(SCALABLE, None, operation="CREATE", resource={"group": GROUP, "resource": "userclusters"}),
]
KIND = user_clusters()
WEBHOOKS: list[tuple[Any, Any]] = [
    (MachineWebhook, None),
    (ClusterApiWebhook, None),
    (ScaleWebhook, None),
    (ClusterWebhook, SimpleNamespace(_kinds={(KIND.group, KIND.plural): KIND})),
]


@FUZZ
@given(mangled(REVIEWS, JSON))
def test_reviews(body: bytes) -> None:
    with bounded(), suppress(*UNREADABLE):
        uid_of(body)
    for webhook, itself in WEBHOOKS:
        with bounded(), suppress(*UNREADABLE):
            check(body)
            question = webhook.decode(itself, body)
            assert len(question.head.user_info.username) < 300
            if isinstance(question.new, Machine) and is_named(question.new):
                assert len(question.new.metadata.key) < 400


@FUZZ
@given(
    mangled([json.dumps({"value": machine(name)["spec"]["providerSpec"]["value"]}).encode() for name in SPECS], JSON)
)
def test_specs_of_machines(raw: bytes) -> None:
    made = Machine(metadata=ObjectMeta(name="m"), spec=MachineSpec(provider_spec=msgspec.Raw(raw)))
    with bounded():
        stamp.spec_hash(made)
        least(made)
        try:
            found = evaluate(made)
        except NotSized as error:
            assert len(str(error)) < 1000
            return
    assert isinstance(found, Footprint | Lookup)
    if isinstance(found, Footprint):
        assert all(amount >= 0 for amount in found.resources.values())
    else:
        assert len(found.flavour) < 400


INFRASTRUCTURE = [
    {"numCPUs": 2, "memoryMiB": 2048, "diskGiB": 25, "pciDevices": [{"vendorId": 4318}], "additionalDisksGiB": [1]},
    {"instanceType": "m5.large", "rootVolume": {"size": 8}, "nonRootVolumes": [{"size": 1}]},
    {"vcpusPerSocket": 1, "vcpuSockets": 2, "memorySize": "4Gi", "systemDiskSize": "40Gi", "gpus": [{}]},
    {"virtualMachineTemplate": {"spec": {"template": {"spec": {"domain": {"memory": {"guest": "4Gi"}}}}}}},
    {"flavor": "m1", "rootVolume": {"sizeGiB": 10}, "additionalBlockDevices": [{"sizeGiB": 1}]},
]


@FUZZ
@given(mangled([json.dumps(spec).encode() for spec in INFRASTRUCTURE], JSON))
def test_infrastructure_objects(raw: bytes) -> None:
    for kind in (*KINDS, "VSphereMachineTemplate", "Unheard"):
        with bounded(), suppress(NotSized):
            described = infrastructure.describe(kind, raw, Where("r", "z"))
            evaluate(Machine(metadata=ObjectMeta(name="m"), spec=described))


@FUZZ
@given(mangled([json.dumps(SCALABLE).encode()], JSON), mangled([json.dumps(SCALABLE).encode()], JSON))
def test_machine_deployments(new: bytes, old: bytes) -> None:
    with bounded(), suppress(*UNREADABLE):
        first, second = (msgspec.json.decode(raw, type=deployments.Deployment) for raw in (new, old))
        deployments.surge(first)
        deployments.machine_of(first)
        deployments.cluster_machine_of(first)
        deployments.replaces(first, second)


@FUZZ
@given(mangled([json.dumps({"metadata": {"resourceVersion": "1"}, "items": [machine("fake")] * 3}).encode()], JSON))
def test_lists_and_errors_of_api_servers(content: bytes) -> None:
    items: list[Machine] = []
    broken: list[Broken] = []
    with bounded():
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            asyncio.run(read_page(MACHINES, content, 500, items, broken))
        with suppress(ApiError):
            MACHINES.decode(content)
        assert len(api_error(500, content, "list", content[:50].decode("latin-1")).message) < 10_000


SIGNED = stamp.Stamp(footprint={"cpu": "4", "memory": "8Gi"}, provider="fake", cluster="u", spec="s", seal="x")


@FUZZ
@given(mangled([msgspec.json.encode(SIGNED)], JSON))
def test_stamps(text: bytes) -> None:
    metadata = ObjectMeta(name="m", annotations={"seedquota.io/footprint": text.decode(errors="replace")})
    made = Machine(metadata=metadata)
    for seal in (True, False):
        with bounded():
            state, found = stamp.read(made, "u", lambda _text, _seal, answer=seal: answer)
            assert (found is None) == (state is not stamp.State.VALID)


KUBECONFIGS = [
    b"""apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: n}}]
clusters: [{name: k, cluster: {server: 'https://host.example:6443', tls-server-name: x}}]
users: [{name: u, user: {token: secret}}]
""",
    json.dumps(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "https://host.example"}}],
            "users": [{"name": "u", "user": {"username": "a", "password": "b"}}],
        }
    ).encode(),
]


@FUZZ
@given(mangled(KUBECONFIGS, YAML))
def test_kubeconfigs(raw: bytes) -> None:
    """Who is asked for sizes is whom the connection leads to."""
    text = raw.decode(errors="replace")
    server = endpoint = None
    with bounded(), suppress(InvalidKubeconfig):
        cluster, user = kubeconfig._select(text, None, own=False)
        kubeconfig._authorization(user, None)
        server = kubeconfig._server(cluster, allow_http=False)
    with bounded(), suppress(NotSized):
        endpoint = kubevirt_instancetypes.place(Settings("kubevirt", {"kubeconfig": text})).endpoint
    assert server is None or endpoint is None or server == endpoint


def test_every_provider_whose_spec_tells_much_is_tried() -> None:
    assert set(SPECS) <= set(PROVIDERS)
