"""The evaluator: whatever a Machine holds, it is a footprint or NotSized, and dear only once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.quota.names import MAX_DEVICES
from common.quota.quantity import UNIT
from seed.machines import footprint as evaluator
from seed.machines import machine_controller
from seed.machines.footprint import footprint
from seed.machines.machine_controller import LONGEST_SPEC, MACHINES, SHARED_BYTES, Machine, MachineSpec
from seed.providers import PROVIDERS
from seed.providers.flavour import Flavour, Lookup
from seed.providers.kubevirt_instancetypes import NAME as KUBEVIRT
from seed.providers.size import NotSized
from seed.providers.spec import Spec
from seed.sizing import stamp

FAKE = {"cloudProvider": "fake", "cloudProviderSpec": {"cpu": "1", "memory": "1Gi", "storage": "1Gi"}}


MANY_DISKS = {"primaryDisk": {"size": "1"}, "secondaryDisks": [{"size": "1"}] * 257, "cpus": 1, "memory": 1}


def machine(value: object, name: str = "m", **spec: object) -> Machine:
    body = {
        "metadata": {"name": name, "namespace": "kube-system", "uid": f"uid-{name}", "managedFields": [{}]},
        "spec": {"providerSpec": {"value": value}, "versions": {"kubelet": "1.33.5"}, **spec},
        "status": {"nodeRef": {"name": "node"}},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Machine)


def refusal(subject: Machine) -> NotSized:
    with pytest.raises(NotSized) as caught:
        footprint(subject)
    return caught.value


def test_a_machine_costs_what_its_provider_reads_and_one_machine() -> None:
    assert footprint(machine(FAKE)).resources == {
        "cpu": UNIT,
        "memory": 2**30 * UNIT,
        "storage": 2**30 * UNIT,
        "machines": UNIT,
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "spec.providerSpec.value.cloudProvider is missing"),
        ({}, "spec.providerSpec.value.cloudProvider is missing"),
        ("text", 'spec.providerSpec.value must be an object, got "text"'),
        ({"cloudProvider": 7}, "spec.providerSpec.value.cloudProvider must be a string, got 7"),
        ({"cloudProvider": "fake"}, "fake cpu is missing"),
        ({"cloudProvider": "fake", "cloudProviderSpec": []}, "fake cloudProviderSpec must be an object, got []"),
        (
            {"cloudProvider": "m5.large\n"},
            f'cloudProvider "m5.large\\n" is not supported; supported: {", ".join(sorted(PROVIDERS))}',
        ),
        (
            {"cloudProvider": "packet"},
            "packet became Equinix Metal, which ended on 30 June 2026; use another cloudProvider, "
            "and delete the Machines of this one",
        ),
        (
            {"cloudProvider": "baremetal", "cloudProviderSpec": {"driver": "tinkerbell"}},
            "baremetal names hardware in another cluster, which has no size that can be read",
        ),
        (
            {"cloudProvider": "edge"},
            "edge has no size in its Machine; use cloudProvider external, with cpu, memory and storage",
        ),
        (
            FAKE | {"CloudProvider": "vsphere"},
            'spec.providerSpec.value.cloudProvider must be spelled exactly so, got "CloudProvider"',
        ),
        (
            FAKE | {"cloudproviderspec": {}},
            'spec.providerSpec.value.cloudProviderSpec must be spelled exactly so, got "cloudproviderspec"',
        ),
    ],
)
def test_a_machine_that_cannot_be_sized_says_why(value: object, message: str) -> None:
    assert str(refusal(machine(value))) == f"cannot size machine: {message}"


def test_a_machine_without_a_provider_spec_is_not_sized() -> None:
    bare = msgspec.json.decode(b'{"metadata": {"name": "m"}}', type=Machine)
    assert str(refusal(bare)) == "cannot size machine: spec.providerSpec.value.cloudProvider is missing"


def test_machines_of_one_deployment_share_their_spec_and_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(spec: Spec) -> object:
        calls.append(spec)
        return PROVIDERS["fake"](spec)

    monkeypatch.setattr(evaluator, "PROVIDERS", {"fake": counted})
    value = FAKE | {"sshPublicKeys": ["one deployment"]}
    first, second = machine(value, "a"), machine(value, "b")
    assert first.spec.provider_spec is second.spec.provider_spec
    assert footprint(first) is footprint(second)
    assert len(calls) == 1


def test_a_refusal_is_remembered_and_raised_afresh() -> None:
    subject = machine({"cloudProvider": "fake", "cloudProviderSpec": {"cpu": "none"}})
    first, second = refusal(subject), refusal(subject)
    assert first is not second
    assert (first.provider, first.reason) == (second.provider, second.reason)


def test_a_huge_spec_is_sized_but_not_kept() -> None:
    value = FAKE | {"sshPublicKeys": ["k" * SHARED_BYTES]}
    first, second = machine(value, "a"), machine(value, "b")
    assert first.spec.provider_spec is not second.spec.provider_spec
    before = evaluator._cached.cache_info()
    assert footprint(first) == footprint(second)
    assert evaluator._cached.cache_info() == before


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (FAKE | {"sshPublicKeys": ["k" * LONGEST_SPEC]}, "spec.providerSpec is larger than 64 KiB"),
        (FAKE | {f"k{number}": 1 for number in range(1000)}, "spec.providerSpec.value has more than 512 fields"),
        (
            {"cloudProvider": "kubevirt", "cloudProviderSpec": {"virtualMachine": {"template": MANY_DISKS}}},
            "kubevirt virtualMachine.template.secondaryDisks has more than 256 entries",
        ),
    ],
    ids=["bytes", "fields", "entries"],
)
def test_a_spec_that_is_too_large_is_not_sized(value: object, message: str) -> None:
    assert str(refusal(machine(value))) == f"cannot size machine: {message}"


def test_what_is_kept_of_specs_is_bounded_whoever_writes_them() -> None:
    """By dry runs, each with a spec of its own."""
    for cached in (machine_controller._shared, evaluator._cached, stamp._shared_hash, stamp._parse):
        assert (cached.cache_info().maxsize or 0) * (2 * SHARED_BYTES) <= 32 * 2**20


def test_what_is_kept_of_a_machine_is_bounded() -> None:
    many = {f"l{number}": "v" for number in range(1000)}
    spec = {"providerSpec": {"value": FAKE | {"sshPublicKeys": ["k" * 2**20]}}}
    body = {"metadata": {"labels": many, "annotations": {"a": "x" * 2**18}, "finalizers": ["f"] * 1000}, "spec": spec}
    kept = msgspec.json.decode(msgspec.json.encode(body), type=Machine)
    assert len(msgspec.json.encode(kept)) < 1000
    assert kept.metadata.annotations, "it still has some"
    assert stamp.text_of(kept) is None


def test_a_change_of_a_spec_that_is_too_large_is_seen() -> None:
    first, same, other = (machine(FAKE | {"sshPublicKeys": [letter * 2**20]}) for letter in "aab")
    assert stamp.spec_hash(first) == stamp.spec_hash(same) != stamp.spec_hash(other)
    assert first.spec.provider_spec == same.spec.provider_spec != other.spec.provider_spec


def test_a_stamp_that_is_too_long_is_not_kept() -> None:
    subject = machine(FAKE)
    subject.metadata.annotations["seedquota.io/footprint"] = "x" * (stamp.MAX_LENGTH + 1)
    before = stamp._parse.cache_info()
    assert stamp.read(subject, "uid", lambda _text, _seal: True)[0] is stamp.State.FORGED
    assert stamp._parse.cache_info() == before


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"{",
        b'{"value": {"cloudProvider": "fake\xff"}}',
        b'{"value": {"cloudProvider": "fake", "cloudProviderSpec": {"cpu": 1\xff}}}',
        b'{"value": {"cloudProvider": "\\ud800"}}',
        b'{"value": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"value": {"cloudProvider": "vsphere", "cloudProviderSpec": {"cpus": ' + b"9" * 5000 + b"}}}",
        b'{"value": {"cloudProvider": "vsphere", "cloudProviderSpec": {"cpus": 1e400}}}',
    ],
)
def test_bytes_that_are_no_json_are_not_sized(raw: bytes) -> None:
    error = refusal(Machine(metadata=machine(FAKE).metadata, spec=MachineSpec(provider_spec=msgspec.Raw(raw))))
    assert len(str(error)) < 256


SIZE_FIELDS = st.sampled_from(
    [
        *("cpus", "cpuCores", "memoryMB", "diskSizeGB", "diskSize", "memory", "disks", "size", "sizingPolicy"),
        *("virtualMachine", "template", "vcpus", "cores", "primaryDisk", "secondaryDisks", "instancetype", "flavor"),
        *("cpu", "storage", "nvidia.com/gpu", "name", "value", "secretKeyRef"),
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(1, 64),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.from_regex(r"[0-9]{1,20}(m|Gi|G|e3)?", fullmatch=True),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SIZE_FIELDS | st.text(), inner, max_size=6),
    max_leaves=30,
)


@given(
    provider=st.sampled_from(sorted(PROVIDERS)) | st.text(),
    spec=st.dictionaries(SIZE_FIELDS, JSON, max_size=8) | JSON,
)
def test_any_json_is_a_footprint_of_positive_amounts_or_not_sized(provider: str, spec: object) -> None:
    try:
        size = footprint(machine({"cloudProvider": provider, "cloudProviderSpec": spec}))
    except NotSized as error:
        assert str(error).startswith("cannot size machine: ")
        assert len(str(error)) < 512
    else:
        assert size.resources["machines"] == UNIT
        assert all(amount > 0 for amount in size.resources.values())
        assert {"cpu", "memory", "storage"} <= size.resources.keys() | size.unknown.keys()


@given(value=JSON)
def test_any_provider_spec_is_a_footprint_or_not_sized(value: object) -> None:
    try:
        footprint(machine(value))
    except NotSized as error:
        assert str(error).startswith("cannot size machine: ")


def with_devices(*names: str) -> Machine:
    return machine(
        {"cloudProvider": "fake", "cloudProviderSpec": {**FAKE["cloudProviderSpec"], **dict.fromkeys(names, 1)}}
    )


def test_a_machine_has_a_bounded_number_of_names_and_one_with_more_is_refused() -> None:
    most = [f"example.com/device-{number:02}" for number in range(MAX_DEVICES)]
    footprint(with_devices(*most)).require()
    found = footprint(with_devices(*most, "example.com/one-more"))
    assert found.resources.keys() == {"cpu", "memory", "storage", "machines", *most}, "what exists is counted by these"
    with pytest.raises(NotSized, match="fake takes more than 16 kinds of devices: take fewer"):
        found.require()
    with pytest.raises(NotSized, match="more than 16"):
        found.times(3).require()


@pytest.mark.parametrize(
    "name", ["a/b/c", "UPPER.com/gpu", f"example.com/{'n' * 64}", f"{'p' * 254}/n", "a b/c", "é/x"]
)
def test_a_name_that_is_no_qualified_one_is_refused_and_not_counted(name: str) -> None:
    found = footprint(with_devices("nvidia.com/gpu", name))
    assert found.resources.keys() == {"cpu", "memory", "storage", "machines", "nvidia.com/gpu"}
    with pytest.raises(NotSized, match=r"a name that is not valid: .*; write it like nvidia\.com/gpu") as caught:
        found.require()
    assert len(str(caught.value)) < 200
    assert str(caught.value).isascii()


def test_no_device_takes_what_is_lent_to_rollouts() -> None:
    found = footprint(with_devices("surge.nvidia.com/gpu"))
    assert "surge.nvidia.com/gpu" not in found.resources
    with pytest.raises(NotSized, match="surge"):
        found.require()


def test_devices_that_a_cloud_tells_of_are_bounded_too() -> None:
    lookup = Lookup(KUBEVIRT, "large", {}, {})
    devices = {f"example.com/device-{number}": UNIT for number in range(81)}
    found = lookup.complete(Flavour(cpu=UNIT, memory=UNIT, storage=UNIT, devices=devices))
    assert len(found.resources) == 4 + MAX_DEVICES
    with pytest.raises(NotSized, match="more than 16"):
        found.require()


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"seedquota.io/footprint": "x" * 10_000}},
        {"labels": {f"l{number}": "v" * 60 for number in range(200)}},
        {"finalizers": ["f" * 300] * 50},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u" * 10_000}]},
        {"name": "n" * 10_000},
    ],
    ids=lambda metadata: next(iter(metadata)),
)
def test_what_machines_of_one_user_cluster_take_is_bounded_whatever_it_is_made_of(metadata: dict[str, object]) -> None:
    """100,000 of them, past the webhook, would fill the memory of each leader."""
    body = {"metadata": metadata, "spec": {"providerSpec": {"value": FAKE | {"sshPublicKeys": ["k" * 50_000]}}}}
    kept = msgspec.json.decode(msgspec.json.encode(body), type=Machine)
    assert machine_controller.weigh(kept) > 60_000
    assert MACHINES.weigh is machine_controller.weigh
    assert MACHINES.most is not None and MACHINES.most <= 100 * 2**20
    assert machine_controller.weigh(machine(FAKE)) < 4096
