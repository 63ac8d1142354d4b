"""Who makes the objects that were refused, as its API server has it: MachineSets, and what makes pods.

All of these controllers look at an object again at once when anything of it changes, even an annotation: ReplicaSet,
ReplicationController, StatefulSet and DaemonSet (`queue.Add` in their update handlers), and Job within a second
(`SyncJobBatchPeriod`). Otherwise they try again after a pause that doubles with each failure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from common.kube.client.meta import Int64, Object, ObjectMeta
from common.kube.client.resource import Resource
from common.kube.controller.events import Regarding
from seed.machines import cluster_api, machine_controller

MAX_TEXT = 253 + 1 + 63  # characters of an owner's names: an API group, a slash and a version

_GROUPS = frozenset({machine_controller.GROUP, cluster_api.GROUP})
_VERSION = re.compile("v[0-9]{1,3}((alpha|beta)[0-9]{1,3})?")


class _Replicas(msgspec.Struct, frozen=True, rename="camel"):
    replicas: Int64 | None = None
    observed_generation: Int64 = 0


class MachineSet(Object, frozen=True, kw_only=True):
    """Also ReplicaSets, ReplicationControllers and StatefulSets are read as this."""

    spec: _Replicas = _Replicas()
    status: _Replicas = _Replicas()

    @property
    def complete(self) -> bool:
        """It has all its Machines, or wants none any more."""
        if self.metadata.deletion_timestamp is not None:
            return True
        wanted = 1 if self.spec.replicas is None else self.spec.replicas
        return self.status.observed_generation >= self.metadata.generation and (self.status.replicas or 0) >= wanted


class _UpdateStrategy(msgspec.Struct, frozen=True):
    type: str = ""


class _DaemonSetSpec(msgspec.Struct, frozen=True, rename="camel"):
    update_strategy: _UpdateStrategy = _UpdateStrategy()


class _DaemonSetStatus(msgspec.Struct, frozen=True, rename="camel"):
    desired_number_scheduled: Int64 = 0
    current_number_scheduled: Int64 = 0
    updated_number_scheduled: Int64 = 0
    observed_generation: Int64 = 0


class DaemonSet(Object, frozen=True, kw_only=True):
    spec: _DaemonSetSpec = _DaemonSetSpec()
    status: _DaemonSetStatus = _DaemonSetStatus()

    @property
    def complete(self) -> bool:
        """Each node that is to have a pod has one, of the present template where it replaces pods by itself."""
        if self.metadata.deletion_timestamp is not None:
            return True
        status = self.status
        have = status.current_number_scheduled
        if self.spec.update_strategy.type != "OnDelete":  # with surge, the former pod is there until the new one is
            have = min(have, status.updated_number_scheduled)
        return status.observed_generation >= self.metadata.generation and have >= status.desired_number_scheduled


class _JobSpec(msgspec.Struct, frozen=True, rename="camel"):
    parallelism: Int64 | None = None
    completions: Int64 | None = None
    suspend: bool | None = None


class _JobCondition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    active: Int64 = 0
    succeeded: Int64 = 0
    conditions: list[_JobCondition] = []


class Job(Object, frozen=True, kw_only=True):
    spec: _JobSpec = _JobSpec()
    status: _JobStatus = _JobStatus()

    @property
    def complete(self) -> bool:
        """It has all pods that it may have now, or has ended."""
        spec, status = self.spec, self.status
        ended = any(found.status == "True" and found.type in ("Complete", "Failed") for found in status.conditions)
        if self.metadata.deletion_timestamp is not None or spec.suspend or ended:
            return True
        wanted = 1 if spec.parallelism is None else spec.parallelism
        if spec.completions is not None:
            wanted = min(wanted, spec.completions - status.succeeded)
        return status.active >= wanted


Owner = MachineSet | DaemonSet | Job

_OF_PODS: dict[tuple[str, str], Resource[Any]] = {
    (made.api_version, made.kind): made
    for made in (
        Resource("apps", "v1", "replicasets", "ReplicaSet", True, MachineSet),
        Resource("apps", "v1", "statefulsets", "StatefulSet", True, MachineSet),
        Resource("apps", "v1", "daemonsets", "DaemonSet", True, DaemonSet),
        Resource("", "v1", "replicationcontrollers", "ReplicationController", True, MachineSet),
        Resource("batch", "v1", "jobs", "Job", True, Job),
    )
}


def machine_set_of(machine: ObjectMeta) -> Regarding | None:
    """The MachineSet that makes this Machine. What a Machine says of its owner is its writer's word."""
    owner = owner_of(machine)
    return owner if owner is not None and owner.kind == "MachineSet" and resource_of(owner) else None


def workload_of(pod: ObjectMeta) -> Regarding | None:
    """What makes this pod, if it is of a kind that can be woken. It is the word of the pod's writer, too."""
    owner = owner_of(pod)
    return owner if owner is not None and (owner.api_version, owner.kind) in _OF_PODS else None


def owner_of(of: ObjectMeta) -> Regarding | None:
    """None also for one that cannot be: what an object says of its owner may be as long as the object."""
    for reference in of.owner_references:
        if reference.controller:
            if max(map(len, (reference.api_version, reference.kind, reference.name, reference.uid))) > MAX_TEXT:
                return None
            return Regarding(
                api_version=reference.api_version,
                kind=reference.kind,
                namespace=of.namespace,
                name=reference.name,
                uid=reference.uid,
            )
    return None


def resource_of(owner: Regarding) -> Resource[Any] | None:
    """Where it is served; None for a kind that nobody here reads."""
    return _OF_PODS.get((owner.api_version, owner.kind)) or _machine_sets(owner.api_version)


@lru_cache(maxsize=64)
def _machine_sets(api_version: str) -> Resource[MachineSet] | None:
    group, _, version = api_version.partition("/")
    if group not in _GROUPS or not _VERSION.fullmatch(version):
        return None
    return Resource(group, version, "machinesets", "MachineSet", True, MachineSet)
