"""Instancetypes against an API server of an infra cluster, over TLS, reached by the kubeconfig in the Machine."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator

import pytest
import yaml
from aiohttp import web

from common.quota import resources
from seed.providers import kubevirt
from seed.providers.flavour import MAX_BODY_OF_ANY_HOST, CloudError, Lookup, Settings
from seed.providers.size import NotSized
from seed.providers.spec import Spec
from tests.unit.fake_cloud import FakeCloud, answering, cost, fake_cloud, lookup, never_logged

TOKEN = "infra-token"
NAMESPACE = "cluster-x7k2p"
CLUSTER, NAMESPACED = "VirtualMachineClusterInstancetype", "VirtualMachineInstancetype"

Type = tuple[int, str, dict[str, object]]


def gpus(*devices: str) -> dict[str, object]:
    return {"gpus": [{"name": f"gpu{number}", "deviceName": device} for number, device in enumerate(devices)]}


CLUSTER_TYPES: dict[str, Type] = {
    # as github.com/kubevirt/common-instancetypes publishes them
    "u1.nano": (1, "512Mi", {}),
    "u1.micro": (1, "1Gi", {}),
    "u1.medium": (1, "4Gi", {}),
    "u1.2xmedium": (2, "4Gi", {}),
    "u1.8xlarge": (32, "128Gi", {}),
    "o1.small": (1, "2Gi", {"memory": {"guest": "2Gi", "overcommitPercent": 50}}),
    "cx1.medium": (1, "2Gi", {"memory": {"guest": "2Gi", "hugepages": {"pageSize": "2Mi"}}, "ioThreadsPolicy": "auto"}),
    "cx1.8xlarge": (32, "64Gi", {"cpu": {"guest": 32, "dedicatedCPUPlacement": True, "isolateEmulatorThread": True}}),
    "m1.large": (2, "16Gi", {"memory": {"guest": "16Gi", "hugepages": {"pageSize": "2Mi"}}}),
    "m1.8xlarge1gi": (32, "256Gi", {"memory": {"guest": "256Gi", "hugepages": {"pageSize": "1Gi"}}}),
    "n1.large": (4, "8Gi", {"cpu": {"guest": 4, "dedicatedCPUPlacement": True, "isolateEmulatorThread": True}}),
    "n1.xlarge": (8, "16Gi", {"cpu": {"guest": 8, "dedicatedCPUPlacement": True, "isolateEmulatorThread": True}}),
    "rt1.large": (2, "8Gi", {"cpu": {"guest": 2, "realtime": {}, "numa": {"guestMappingPassthrough": {}}}}),
    "d1.large": (2, "8Gi", {"cpu": {"guest": 2, "dedicatedCPUPlacement": True}}),
    "gn1.xlarge": (4, "16Gi", gpus("nvidia.com/A400")),
    "gn1.8xlarge": (32, "128Gi", gpus("nvidia.com/A400")),
    # of nobody: what operators may write
    "arm.large": (2, "4Gi", {"nodeSelector": {"kubernetes.io/arch": "arm64"}}),
    "hotplug.large": (2, "16Gi", {"cpu": {"guest": 2, "dedicatedCPUPlacement": False, "maxSockets": 8}}),
    "gpu.8xlarge": (32, "128Gi", gpus("nvidia.com/GA100_A100_PCIE_40GB", "nvidia.com/GA100_A100_PCIE_40GB")),
    "vgpu.small": (2, "8Gi", gpus("nvidia.com/GRID_T4-2Q")),
    "amd.large": (16, "64Gi", gpus("amd.com/MI210")),
    "intel.large": (4, "16Gi", gpus("intel.com/sriov-gpudevice")),
    "gpu.host": (
        8,
        "32Gi",
        {"hostDevices": [{"name": name, "deviceName": "nvidia.com/GV100GL"} for name in ("one", "two")]},
    ),
    "gpu.plain": (8, "32Gi", {"hostDevices": [{"name": "one", "deviceName": "nvidia.com/gpu"}]}),
    "gpu.dra": (8, "32Gi", {"gpus": [{"name": "one", "claimName": "gpu", "requestName": "gpu"}]}),
    "qat.large": (4, "8Gi", {"hostDevices": [{"name": "qat", "deviceName": "intel.com/qat"}]}),
}
NAMESPACE_TYPES: dict[str, Type] = {  # of nobody, too
    "standard-2": (2, "8Gi", {}),
    "fraction": (3, "1500M", {}),
    "u1.medium": (8, "3.5Gi", {}),
}


def described(kind: str, name: str, told: Type) -> dict[str, object]:
    cpus, memory, more = told
    return {
        "apiVersion": "instancetype.kubevirt.io/v1beta1",
        "kind": kind,
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "labels": {"instancetype.kubevirt.io/vendor": "kubevirt.io"},
        },
        "spec": {"cpu": {"guest": cpus}, "memory": {"guest": memory}, **more},
    }


def status(code: int, reason: str, message: str = "") -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return web.json_response({**body, "metadata": {}, "message": message or reason}, status=code)


async def serve(request: web.Request) -> web.StreamResponse:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        return status(401, "Unauthorized", f"not {TOKEN}")
    version, *parts = request.path.removeprefix("/apis/instancetype.kubevirt.io/").strip("/").split("/")
    if version != "v1beta1":
        return web.Response(status=404, text="404 page not found")
    if parts[0] == "virtualmachineclusterinstancetypes":
        kind, known = CLUSTER, CLUSTER_TYPES
    elif parts[:3] == ["namespaces", NAMESPACE, "virtualmachineinstancetypes"]:
        kind, known = NAMESPACED, NAMESPACE_TYPES
    else:
        return status(403, "Forbidden")
    if parts[-1] not in known:
        return status(404, "NotFound")
    return web.json_response(described(kind, parts[-1], known[parts[-1]]))


nothing_secret_is_logged = never_logged(TOKEN, "certificate-authority-data")


@pytest.fixture
async def infra() -> AsyncIterator[FakeCloud]:
    async with fake_cloud(serve) as running:
        yield running


def kubeconfig(infra: FakeCloud, token: str = TOKEN, **cluster: object) -> str:
    ca = base64.b64encode(infra.ca.encode()).decode()
    where = {"server": f"https://127.0.0.1:{infra.port}", "certificate-authority-data": ca, **cluster}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "infra",
            "contexts": [
                {"name": "infra", "context": {"cluster": "infra", "user": "seed", "namespace": "of-the-tenant"}}
            ],
            "clusters": [{"name": "infra", "cluster": where}],
            "users": [{"name": "seed", "user": {"token": token}}],
        }
    )


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


DISKS = {"primaryDisk": {"size": "10Gi", "storageClassName": "longhorn"}}


def asked(name: object, kind: object = None, *, config: str = "", **more: object) -> Lookup:
    machine = {
        "instancetype": {"name": name, "kind": kind},
        "preference": {"name": "ubuntu", "kind": "VirtualMachineClusterPreference"},
        "template": DISKS,
        **more,
    }
    spec = {"clusterName": "x7k2p", "auth": {"kubeconfig": config}, "virtualMachine": machine}
    return lookup(kubevirt.size, "kubevirt", spec)


COSTS = {
    (CLUSTER, "u1.nano"): "cpu=1,machines=1,memory=512Mi,storage=10Gi",
    (CLUSTER, "u1.micro"): "cpu=1,machines=1,memory=1Gi,storage=10Gi",
    (CLUSTER, "u1.medium"): "cpu=1,machines=1,memory=4Gi,storage=10Gi",
    (CLUSTER, "u1.2xmedium"): "cpu=2,machines=1,memory=4Gi,storage=10Gi",
    (CLUSTER, "u1.8xlarge"): "cpu=32,machines=1,memory=128Gi,storage=10Gi",
    (CLUSTER, "o1.small"): "cpu=1,machines=1,memory=2Gi,storage=10Gi",
    (CLUSTER, "cx1.medium"): "cpu=1,machines=1,memory=2Gi,storage=10Gi",
    (CLUSTER, "cx1.8xlarge"): "cpu=32,machines=1,memory=64Gi,storage=10Gi",
    (CLUSTER, "m1.large"): "cpu=2,machines=1,memory=16Gi,storage=10Gi",
    (CLUSTER, "m1.8xlarge1gi"): "cpu=32,machines=1,memory=256Gi,storage=10Gi",
    (CLUSTER, "n1.large"): "cpu=4,machines=1,memory=8Gi,storage=10Gi",
    (CLUSTER, "n1.xlarge"): "cpu=8,machines=1,memory=16Gi,storage=10Gi",
    (CLUSTER, "rt1.large"): "cpu=2,machines=1,memory=8Gi,storage=10Gi",
    (CLUSTER, "d1.large"): "cpu=2,machines=1,memory=8Gi,storage=10Gi",
    (CLUSTER, "gn1.xlarge"): "cpu=4,machines=1,memory=16Gi,nvidia.com/A400=1,nvidia.com/gpu=1,storage=10Gi",
    (CLUSTER, "gn1.8xlarge"): "cpu=32,machines=1,memory=128Gi,nvidia.com/A400=1,nvidia.com/gpu=1,storage=10Gi",
    (CLUSTER, "arm.large"): "cpu=2,machines=1,memory=4Gi,storage=10Gi",
    (CLUSTER, "hotplug.large"): "cpu=2,machines=1,memory=16Gi,storage=10Gi",
    (CLUSTER, "gpu.8xlarge"): (
        "cpu=32,machines=1,memory=128Gi,nvidia.com/GA100_A100_PCIE_40GB=2,nvidia.com/gpu=2,storage=10Gi"
    ),
    (CLUSTER, "gpu.host"): "cpu=8,machines=1,memory=32Gi,nvidia.com/GV100GL=2,nvidia.com/gpu=2,storage=10Gi",
    (CLUSTER, "gpu.plain"): "cpu=8,machines=1,memory=32Gi,nvidia.com/gpu=1,storage=10Gi",
    (CLUSTER, "vgpu.small"): "cpu=2,machines=1,memory=8Gi,nvidia.com/GRID_T4-2Q=1,nvidia.com/gpu=1,storage=10Gi",
    (CLUSTER, "amd.large"): "amd.com/MI210=1,amd.com/gpu=1,cpu=16,machines=1,memory=64Gi,storage=10Gi",
    (CLUSTER, "intel.large"): "cpu=4,intel.com/sriov-gpudevice=1,machines=1,memory=16Gi,storage=10Gi",
    (CLUSTER, "qat.large"): "cpu=4,intel.com/qat=1,machines=1,memory=8Gi,storage=10Gi",
    (NAMESPACED, "standard-2"): "cpu=2,machines=1,memory=8Gi,storage=10Gi",
    (NAMESPACED, "fraction"): "cpu=3,machines=1,memory=1500000000,storage=10Gi",
    (NAMESPACED, "u1.medium"): "cpu=8,machines=1,memory=3584Mi,storage=10Gi",
}


@pytest.mark.parametrize(("kind", "name"), COSTS)
async def test_what_real_types_cost(infra: FakeCloud, kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (kind, name) == (CLUSTER, "u1.medium"):
        monkeypatch.delitem(NAMESPACE_TYPES, name)
    wanted = asked(name, config=encoded(kubeconfig(infra)))
    found = await infra.ask(kubevirt.CLOUD, wanted, {"namespace": NAMESPACE})
    assert resources.text(cost(wanted, found).resources) == COSTS[kind, name]


async def test_disks_are_those_of_the_machine(infra: FakeCloud) -> None:
    template = {**DISKS, "secondaryDisks": [{"size": "20Gi"}, {"size": "1Ti"}], "cpus": "64", "memory": "1Ti"}
    wanted = asked("u1.micro", config=kubeconfig(infra), template=template)
    found = cost(wanted, await infra.ask(kubevirt.CLOUD, wanted, {"namespace": NAMESPACE}))
    assert resources.text(found.resources) == "cpu=1,machines=1,memory=1Gi,storage=1054Gi"


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("", "virtualmachineclusterinstancetypes/u1.medium"),
        ("VirtualMachineClusterInstancetype", "virtualmachineclusterinstancetypes/u1.medium"),
        ("virtualmachineclusterinstancetypes", "virtualmachineclusterinstancetypes/u1.medium"),
        ("virtualmachineinstancetype", f"namespaces/{NAMESPACE}/virtualmachineinstancetypes/u1.medium"),
        ("VirtualMachineInstancetypes", f"namespaces/{NAMESPACE}/virtualmachineinstancetypes/u1.medium"),
    ],
)
async def test_of_a_virtual_machine_a_kind_is_meant_as_kubevirt_reads_it(
    infra: FakeCloud, kind: str, path: str
) -> None:
    spec = Spec("kubevirt", json.dumps({"auth": {"kubeconfig": kubeconfig(infra)}}).encode(), "")
    matcher = Spec("kubevirt", json.dumps({"name": "u1.medium", "kind": kind}).encode(), "instancetype")
    wanted = kubevirt.lookup(spec, kubevirt.of_kind(matcher), 0)
    assert (await infra.ask(kubevirt.CLOUD, wanted, {"namespace": NAMESPACE})).flavours
    assert infra.requests == [f"GET 127.0.0.1/apis/instancetype.kubevirt.io/v1beta1/{path}"]


async def test_the_namespace_is_the_operator_s_word_not_the_kubeconfig_s(infra: FakeCloud) -> None:
    wanted = asked("u1.medium", NAMESPACED, config=kubeconfig(infra))
    with pytest.raises(NotSized, match="kubevirt namespace is missing"):
        await infra.ask(kubevirt.CLOUD, wanted)
    assert infra.requests == []
    with pytest.raises(NotSized, match="KUBEVIRT_NAMESPACE is no name of a namespace"):
        await infra.ask(kubevirt.CLOUD, wanted, {"namespace": "../x"})


async def test_a_type_that_does_not_exist_is_told_so(infra: FakeCloud) -> None:
    wanted = asked("u1.colossal", config=kubeconfig(infra))
    assert (await infra.ask(kubevirt.CLOUD, wanted, {"namespace": NAMESPACE})).flavours == {}
    root, name = "GET 127.0.0.1/apis/instancetype.kubevirt.io", "u1.colossal"
    assert infra.requests == [  # in the order of machine-controller
        f"{root}/v1beta1/namespaces/{NAMESPACE}/virtualmachineinstancetypes/{name}",
        f"{root}/v1beta1/virtualmachineclusterinstancetypes/{name}",
        f"{root}/v1alpha1/namespaces/{NAMESPACE}/virtualmachineinstancetypes/{name}",
        f"{root}/v1alpha1/virtualmachineclusterinstancetypes/{name}",
    ]


@pytest.mark.parametrize("kind", [None, "", CLUSTER, "virtualmachineclusterinstancetypes", NAMESPACED, "Pod"])
async def test_the_type_of_the_namespace_counts_whatever_kind_or_revision_a_machine_names(
    infra: FakeCloud, kind: str | None
) -> None:
    matcher = {"name": "u1.medium", "kind": kind, "revisionName": "u1.medium-old", "inferFromVolume": "disk"}
    wanted = asked(None, config=kubeconfig(infra), instancetype=matcher)
    found = await infra.ask(kubevirt.CLOUD, wanted, {"namespace": NAMESPACE})
    assert resources.text(cost(wanted, found).resources) == COSTS[NAMESPACED, "u1.medium"]
    assert len(infra.requests) == 1


@pytest.mark.parametrize(
    ("matcher", "message"),
    [
        ({"name": ""}, "virtualMachine.instancetype.name is missing"),
        ({"name": "a/../b"}, 'virtualMachine.instancetype "a/../b" has a name that cannot exist'),
        ({"inferFromVolume": "disk"}, "virtualMachine.instancetype.name is missing"),
        ({"Name": "a", "name": "b"}, 'virtualMachine.instancetype.name must be spelled exactly so, got "Name"'),
    ],
)
def test_what_the_spec_must_say(matcher: dict[str, object], message: str) -> None:
    with pytest.raises(NotSized) as caught:
        asked(None, instancetype=matcher)
    assert str(caught.value).startswith(f"cannot size machine: kubevirt {message}")


@pytest.mark.parametrize(
    ("matcher", "message"),
    [
        ({"name": ""}, "instancetype.name is missing"),
        ({"name": "a/../b"}, 'instancetype "a/../b" has a kind or a name that cannot exist'),
        ({"name": "a", "kind": "Pod"}, 'instancetype "a" has a kind or a name that cannot exist'),
        ({"name": "a", "revisionName": "old"}, "instancetype.revisionName names a size that is not asked for"),
        ({"inferFromVolume": "disk"}, "instancetype.inferFromVolume names a size that is not asked for"),
    ],
)
def test_what_a_virtual_machine_must_say(matcher: dict[str, object], message: str) -> None:
    with pytest.raises(NotSized) as caught:
        kubevirt.of_kind(Spec("kubevirt", json.dumps(matcher).encode(), "instancetype"))
    assert str(caught.value).startswith(f"cannot size machine: kubevirt {message}")


def test_a_machine_without_a_disk_size_is_refused() -> None:
    with pytest.raises(NotSized, match=r"virtualMachine\.template\.primaryDisk\.size is missing"):
        asked("u1.medium", template={})


def endpoint(text: str) -> str:
    return kubevirt.CLOUD.place(Settings("kubevirt", {"kubeconfig": text})).endpoint


def test_the_place_is_the_server_of_the_current_context() -> None:
    config = {
        "current-context": "b",
        "contexts": [{"name": "a", "context": {"cluster": "a"}}, {"name": "b", "context": {"cluster": "b"}}],
        "clusters": [
            {"name": "a", "cluster": {"server": "https://a.example:6443"}},
            {"name": "b", "cluster": {"server": "https://b.example:6443/"}},
        ],
    }
    decoy = "# server: https://a.example:6443\n"
    assert endpoint(decoy + yaml.safe_dump(config)) == "https://b.example:6443"
    assert endpoint(encoded(json.dumps(config))) == "https://b.example:6443"


@pytest.mark.parametrize(
    "server",
    ["http://infra:6443", "https://user:secret@infra", "https://[::1", "infra", None, 7, "https://" + "a" * 600],
)
def test_a_kubeconfig_without_a_plain_https_server_is_refused_without_showing_it(server: object) -> None:
    config = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": server}}],
    }
    for text in (yaml.safe_dump(config), "{", "- a", "current-context: a", "a: " + "x" * 40_000, "[" * 5000):
        with pytest.raises(NotSized) as caught:
            endpoint(text)
        assert str(caught.value) == (
            "cannot size machine: kubevirt auth.kubeconfig is no kubeconfig with the https URL of a server"
        )


@pytest.mark.parametrize(
    "told",
    [
        described(CLUSTER, "u1.micro", (0, "1Gi", {})),
        described(CLUSTER, "u1.micro", (1, "much", {})),
        described(CLUSTER, "u1.micro", (1, "1Gi", gpus("no device"))),
        described(CLUSTER, "u1.micro", CLUSTER_TYPES["gpu.dra"]),
    ],
)
async def test_a_type_that_cannot_be_is_not_believed(infra: FakeCloud, told: dict[str, object]) -> None:
    infra.disturb = answering(200, json.dumps(told))
    wanted = asked("u1.micro", config=kubeconfig(infra))
    found = await infra.ask(kubevirt.CLOUD, wanted, {"namespace": NAMESPACE})
    assert (dict(found.flavours), list(found.unreadable)) == ({}, ["u1.micro"])


@pytest.mark.parametrize(
    "config",
    [
        {"insecure-skip-tls-verify": True},
        {"proxy-url": "https://elsewhere.example"},
        {"certificate-authority": "/etc/ssl/ca.pem"},
    ],
)
async def test_a_kubeconfig_that_would_do_more_than_ask_is_refused(infra: FakeCloud, config: dict[str, object]) -> None:
    with pytest.raises(CloudError, match="cannot be asked: kubeconfig") as caught:
        wanted = asked("u1.micro", config=kubeconfig(infra, **config))
        await infra.ask(kubevirt.CLOUD, wanted, {"namespace": NAMESPACE})
    assert caught.value.refused
    assert infra.requests == []


async def test_an_answer_that_is_too_large_is_not_read(infra: FakeCloud) -> None:
    infra.disturb = answering(200, json.dumps({"junk": "x" * MAX_BODY_OF_ANY_HOST}))
    with pytest.raises(CloudError, match="answers what cannot be read"):
        await infra.ask(kubevirt.CLOUD, asked("u1.micro", config=kubeconfig(infra)), {"namespace": NAMESPACE})


LAUGHS = "\n".join(f"m{level}: &m{level} {{<<: [{', '.join([f'*m{level - 1}'] * 9)}]}}" for level in range(1, 12))


@pytest.mark.parametrize(
    "bomb",
    [
        "a: &a {b: c}\nd: *a\n",
        f"m0: &m0 {{k: v}}\n{LAUGHS}\n",
        "a: [" + "x," * 2000 + "]\n",
        "a: " + "[" * 40 + "]" * 40 + "\n",
    ],
    ids=["alias", "merge keys", "values", "depth"],
)
def test_a_kubeconfig_that_explodes_is_no_kubeconfig(bomb: str) -> None:
    config = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "https://a.example"}}],
    }
    started = time.process_time()
    with pytest.raises(NotSized, match="is no kubeconfig"):
        endpoint(bomb + yaml.safe_dump(config))
    assert time.process_time() - started < 1.0


def test_a_kubeconfig_is_not_decoded_that_is_too_long() -> None:
    with pytest.raises(NotSized, match="is no kubeconfig"):
        endpoint(encoded("a: " + "x" * 100_000))
