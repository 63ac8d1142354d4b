"""What owners are told, without Kubernetes: what waits, what fails, what hangs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden, NotFound, Unavailable
from common.kube.client.meta import ObjectMeta, OwnerReference
from common.kube.client.resource import Resource
from common.kube.controller.events import EVENTS, Regarding
from seed.model.consumer import Consumer
from seed.notifications import notifier as module
from seed.notifications.event_series import Occurrence
from seed.notifications.notifier import (
    FREED_ANNOTATION,
    MAX_REFUSED,
    OwnerNotifier,
    Refused,
)
from seed.notifications.owners import DaemonSet, Job, MachineSet, machine_set_of, owner_of, workload_of
from seed.notifications.wake_queue import Waiter
from tests.unit.fake_api_server import eventually

API = "cluster.k8s.io/v1alpha1"


def metadata(owner: str = "pool", kind: str = "MachineSet", api: str = API) -> ObjectMeta:
    reference = OwnerReference(api_version=api, kind=kind, name=owner, uid=f"uid of {owner}", controller=True)
    return ObjectMeta(name="m", namespace="ns", uid="m", owner_references=(reference,))


def regarding(name: str = "pool") -> Regarding:
    return Regarding(api_version=API, kind="MachineSet", namespace="ns", name=name, uid=f"uid of {name}")


def refused(name: str = "pool") -> Refused:
    return Refused(Occurrence(regarding=regarding(name), quota="q", reason="QuotaExceeded", note="no", time="t"), True)


def machine_set(name: str = "pool", *, uid: str = "", replicas: int = 3, has: int = 1, **more: Any) -> MachineSet:
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": uid or f"uid of {name}", "generation": 2, **more},
        "spec": {"replicas": replicas},
        "status": {"replicas": has, "observedGeneration": 2},
    }
    return msgspec.convert(body, MachineSet)


class Server:
    """An API server with MachineSets by name. `error` is what it answers to all that is asked."""

    def __init__(self) -> None:
        self.sets: dict[str, MachineSet | Job] = {}
        self.error: ApiError | None = None
        self.hangs = False
        self.events: list[Mapping[str, Any]] = []
        self.patches: list[tuple[str, Mapping[str, Any]]] = []
        self.reads = 0
        self.plurals: list[str] = []

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Cluster]:
        await self._answer()
        yield cast(Cluster, self)

    async def _answer(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def get(self, resource: Resource[Any], name: str, namespace: str) -> MachineSet | Job:
        await self._answer()
        assert namespace == "ns"
        self.plurals.append(resource.plural)
        self.reads += 1
        if name not in self.sets:
            raise NotFound(404, "NotFound", name)
        return self.sets[name]

    async def merge_patch(self, resource: Resource[Any], name: str, patch: Mapping[str, Any], namespace: str) -> object:
        await self._answer()
        self.patches.append((name, patch))
        return self.sets.get(name)

    async def create(self, resource: Resource[Any], body: Mapping[str, Any]) -> None:
        await self._answer()
        assert resource is EVENTS
        self.events.append(body)

    def about(self) -> list[tuple[str, str, str]]:
        return sorted((body["regarding"]["kind"], body["regarding"]["name"], body["reason"]) for body in self.events)


class World:
    def __init__(self) -> None:
        self.server = Server()
        self.gone: list[Waiter] = []
        self.failed: list[Waiter] = []
        self.counts: Counter[str] = Counter()
        self.owners = OwnerNotifier(
            "c1",
            "replica",
            self.server.connect,
            on_gone=self.gone.append,
            on_failed=self.failed.append,
            count=lambda result, number: self.counts.update({result: number}),
        )

    def wake(self, name: str = "pool") -> Waiter:
        waiter = Waiter("s", regarding(name), "alpha")
        self.owners.wake(waiter)
        return waiter


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.owners.stop()


async def until(world: World, **counts: int) -> None:
    await eventually(lambda: all(world.counts[result] >= number for result, number in counts.items()))


async def test_the_machine_set_and_its_deployment_are_told_and_the_owner_is_read_once(world: World) -> None:
    reference = {"apiVersion": API, "kind": "MachineDeployment", "name": "md", "uid": "md-uid", "controller": True}
    world.server.sets["pool"] = machine_set(ownerReferences=[reference])
    for _ in range(20):
        world.owners.refused(refused())
    await until(world, written=2)
    assert world.server.about() == [
        ("MachineDeployment", "md", "QuotaExceeded"),
        ("MachineSet", "pool", "QuotaExceeded"),
    ]
    assert [body["series"]["count"] for body in world.server.events] == [20, 20]
    world.owners.refused(refused())
    await asyncio.sleep(0.2)
    assert len(world.server.events) == 2 and world.server.reads <= module.AT_ONCE


async def test_another_machine_set_of_that_name_is_not_taken_for_it(world: World) -> None:
    reference = {"apiVersion": API, "kind": "MachineDeployment", "name": "md", "uid": "md-uid", "controller": True}
    world.server.sets["pool"] = machine_set(uid="another", ownerReferences=[reference])
    world.owners.refused(refused())
    waiter = world.wake()
    await until(world, written=1)
    assert world.server.about() == [("MachineSet", "pool", "QuotaExceeded")]
    assert world.gone == [waiter] and world.server.patches == []


async def test_who_waits_is_touched_under_its_uid_and_told(world: World) -> None:
    world.server.sets["pool"] = machine_set()
    world.wake()
    await until(world, woken=1, written=1)
    ((name, patch),) = world.server.patches
    assert name == "pool" and patch["metadata"]["uid"] == "uid of pool"
    assert patch["metadata"]["annotations"][FREED_ANNOTATION].endswith("Z")
    assert world.server.about() == [("MachineSet", "pool", "CapacityFreed")]
    assert world.server.events[0]["type"] == "Normal"


@pytest.mark.parametrize(
    "found",
    [
        None,
        machine_set(has=3),
        machine_set(replicas=0, has=0),
        machine_set(deletionTimestamp="2026-11-20T10:00:00Z"),
    ],
)
async def test_who_has_all_its_machines_or_goes_is_not_touched(world: World, found: MachineSet | None) -> None:
    if found is not None:
        world.server.sets["pool"] = found
    waiter = world.wake()
    await eventually(lambda: world.gone)
    assert world.gone == [waiter] and world.server.patches == []


async def test_a_status_that_is_older_than_the_spec_says_nothing() -> None:
    assert not machine_set(has=3, generation=3).complete


async def test_without_the_right_to_patch_nobody_waits_for_ever(world: World) -> None:
    world.server.sets["pool"] = machine_set()

    async def forbidden(*_arguments: object) -> None:
        raise Forbidden(403, "Forbidden", "may not patch machinesets")

    world.server.merge_patch = forbidden  # type: ignore[assignment,method-assign]
    waiter = world.wake()
    await eventually(lambda: world.gone)
    assert world.gone == [waiter]


async def test_an_api_server_that_is_away_is_tried_again_later_and_wakings_fail_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 3.0)
    world.server.error = Unavailable(0, "Unavailable", "away")
    world.server.sets["pool"] = machine_set()
    world.owners.refused(refused())
    first = world.wake()
    await until(world, failed=1)
    second = world.wake()
    assert world.failed == [first, second]
    world.server.error = None
    await until(world, written=1)
    assert world.server.about() == [("MachineSet", "pool", "QuotaExceeded")]
    world.wake()
    await until(world, woken=1)


async def test_one_that_hangs_holds_a_bounded_number_and_counts_what_it_drops(world: World) -> None:
    world.server.hangs = True
    started = time.process_time()
    for number in range(MAX_REFUSED + 10):
        world.owners.refused(refused(f"pool-{number}"))
    assert world.counts == {"dropped": 10}
    assert time.process_time() - started < 1
    await world.owners.stop()


async def test_one_event_that_is_refused_keeps_no_other_from_being_written(world: World) -> None:
    taken = world.server.create

    async def create(resource: Resource[Any], body: Mapping[str, Any]) -> None:
        if body["regarding"]["name"] == "bad":
            raise Forbidden(403, "Forbidden", "the namespace is being terminated")
        await taken(resource, body)

    world.server.create = create  # type: ignore[method-assign]
    for name in ("bad", "good"):
        world.owners.refused(refused(name))
    await until(world, written=1, failed=1)
    assert world.server.about() == [("MachineSet", "good", "QuotaExceeded")]


def test_only_the_machine_sets_of_known_apis_are_owners() -> None:
    assert machine_set_of(metadata()) == regarding()
    assert machine_set_of(metadata(api="cluster.x-k8s.io/v1beta2")) is not None
    for other in (
        metadata(kind="KubeadmControlPlane"),
        metadata(api="apps/v1"),
        metadata(api="cluster.k8s.io/../secrets"),
        ObjectMeta(name="m", namespace="ns"),
    ):
        assert machine_set_of(other) is None


@pytest.mark.parametrize("field", ["api_version", "kind", "name", "uid"])
def test_an_owner_with_a_very_long_name_is_none(field: str) -> None:
    """Thousands of owners are kept, and nothing bounds what a pod says of its own."""
    known = metadata(kind="ReplicaSet", api="apps/v1")
    assert owner_of(known) is not None
    (reference,) = known.owner_references
    long = msgspec.structs.replace(reference, **{field: "v" * 318})
    assert owner_of(msgspec.structs.replace(known, owner_references=(long,))) is None


def job(spec: Mapping[str, Any], **status: Any) -> Job:
    return msgspec.convert(
        {"metadata": {"name": "pool", "namespace": "ns", "uid": "uid of pool"}, "spec": spec, "status": status}, Job
    )


def daemon_set(strategy: str = "RollingUpdate", **status: Any) -> DaemonSet:
    metadata = {"name": "pool", "namespace": "ns", "uid": "uid of pool", "generation": 2}
    observed = {"observedGeneration": 2, **status}
    spec = {"updateStrategy": {"type": strategy}}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": observed}, DaemonSet)


@pytest.mark.parametrize(
    ("strategy", "observed", "current", "updated", "complete"),
    [
        ("RollingUpdate", 2, 3, 3, True),
        ("RollingUpdate", 2, 2, 2, False),
        ("RollingUpdate", 2, 3, 2, False),
        ("RollingUpdate", 1, 3, 3, False),
        ("OnDelete", 2, 3, 0, True),
        ("OnDelete", 2, 2, 2, False),
    ],
)
def test_a_daemon_set_needs_no_pod_once_each_node_has_one(
    strategy: str, observed: int, current: int, updated: int, complete: bool
) -> None:
    found = daemon_set(
        strategy,
        observedGeneration=observed,
        desiredNumberScheduled=3,
        currentNumberScheduled=current,
        updatedNumberScheduled=updated,
    )
    assert found.complete is complete


@pytest.mark.parametrize(
    ("api", "kind", "plural"),
    [
        ("apps/v1", "ReplicaSet", "replicasets"),
        ("apps/v1", "StatefulSet", "statefulsets"),
        ("apps/v1", "DaemonSet", "daemonsets"),
        ("v1", "ReplicationController", "replicationcontrollers"),
        ("batch/v1", "Job", "jobs"),
    ],
)
async def test_what_makes_pods_is_touched_where_it_is_served(world: World, api: str, kind: str, plural: str) -> None:
    of_kind = {"Job": job({"parallelism": 2}, active=1), "DaemonSet": daemon_set(desiredNumberScheduled=1)}
    world.server.sets["pool"] = of_kind.get(kind) or machine_set()
    owner = workload_of(metadata(kind=kind, api=api))
    assert owner is not None
    world.owners.wake(Waiter("s", owner, Consumer("", "alpha/c1")))
    await until(world, woken=1, written=1)
    assert world.server.plurals == [plural]
    ((name, patch),) = world.server.patches
    assert name == "pool" and FREED_ANNOTATION in patch["metadata"]["annotations"]
    assert world.server.events[0]["note"] == "there is room for a Pod again: it is tried now"


@pytest.mark.parametrize(
    ("spec", "status", "complete"),
    [
        ({}, {}, False),
        ({}, {"active": 1}, True),
        ({"parallelism": 3, "completions": 5}, {"active": 2, "succeeded": 1}, False),
        ({"parallelism": 3, "completions": 5}, {"active": 2, "succeeded": 3}, True),
        ({"parallelism": 0}, {}, True),
        ({"suspend": True}, {}, True),
        ({}, {"conditions": [{"type": "Failed", "status": "True"}]}, True),
        ({}, {"conditions": [{"type": "Suspended", "status": "False"}]}, False),
    ],
)
def test_a_job_needs_no_pod_once_it_has_ended_or_has_as_many_as_it_may(
    spec: dict[str, Any], status: dict[str, Any], complete: bool
) -> None:
    assert job(spec, **status).complete is complete


def test_only_what_makes_pods_by_itself_is_woken_for_a_pod() -> None:
    for api, kind in (("apps/v1", "Deployment"), ("example.com/v1", "ReplicaSet"), ("batch/v1", "../secrets")):
        assert workload_of(metadata(api=api, kind=kind)) is None
