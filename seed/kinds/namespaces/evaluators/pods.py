"""What Pods use: k8s.io/kubernetes/pkg/quota/v1/evaluator/core/pods.go and k8s.io/component-helpers/resource."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import ClassVar, Final

import msgspec

from common.api.types import Quantities
from common.kube.client.meta import Object, ObjectMeta
from common.quota import names, object_names, resources, scopes
from common.quota.object_names import COMPUTE, HUGE_PAGES, LIMITS, PODS, REQUESTS
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from common.quota.scopes import ScopeRequirement
from seed.kinds.namespaces.evaluators.amounts import MOST, amounts
from seed.kinds.namespaces.evaluators.namespaced import CREATE, UPDATE, Counting, Write

MAX_CONTAINERS_NAMED: Final = 32
MAX_CONTAINER_NAME: Final = 63  # characters; an API server has none that is longer
MAX_GRACE: Final = (2**63 - 1) // 10**9
"""Seconds. An API server adds a longer grace period wrongly: the deletion seems to be centuries ago. Such a pod counts
until it is gone."""

_REQUIRED: Final = {
    "cpu": ("requests", "cpu"),
    "memory": ("requests", "memory"),
    "requests.cpu": ("requests", "cpu"),
    "requests.memory": ("requests", "memory"),
    "limits.cpu": ("limits", "cpu"),
    "limits.memory": ("limits", "memory"),
}
"""What each container must say where a quota limits the name (pods.go, validationSet). Kubernetes calls this a mistake
that it does not repeat for other resources."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Has tuples in place of lists: the garbage collector looks at each list, and of pods there may be very many."""


class Requirements(_Part, frozen=True):
    requests: Quantities = {}
    limits: Quantities = {}


class Container(_Part, frozen=True):
    name: str
    resources: Requirements = Requirements()
    restart_policy: str = ""

    @property
    def is_sidecar(self) -> bool:
        """Of an init container: whether it goes on to run beside the others."""
        return self.restart_policy == "Always"


class _Any(_Part, frozen=True):
    pass


class _AffinityTerm(_Part, frozen=True):
    namespaces: tuple[str, ...] = ()
    namespace_selector: _Any | None = None  # {} picks all namespaces

    @property
    def crosses(self) -> bool:
        return bool(self.namespaces) or self.namespace_selector is not None


class _WeightedTerm(_Part, frozen=True):
    pod_affinity_term: _AffinityTerm = _AffinityTerm()


class _AffinityTerms(_Part, frozen=True):
    required_during_scheduling_ignored_during_execution: tuple[_AffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[_WeightedTerm, ...] = ()

    @property
    def crosses(self) -> bool:
        return any(term.crosses for term in self.required_during_scheduling_ignored_during_execution) or any(
            term.pod_affinity_term.crosses for term in self.preferred_during_scheduling_ignored_during_execution
        )


class _Affinity(_Part, frozen=True):
    pod_affinity: _AffinityTerms = _AffinityTerms()
    pod_anti_affinity: _AffinityTerms = _AffinityTerms()


class PodSpec(_Part, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Requirements | None = None
    overhead: Quantities = {}
    active_deadline_seconds: int | None = None
    priority_class_name: str = ""
    affinity: _Affinity = _Affinity()


class ContainerStatus(_Part, frozen=True):
    name: str
    resources: Requirements | None = None
    allocated_resources: Quantities = {}


class _Condition(_Part, frozen=True):
    type: str
    reason: str = ""
    observed_generation: int = 0


class PodStatus(_Part, frozen=True):
    phase: str = ""
    qos_class: str = msgspec.field(name="qosClass", default="")
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resources: Requirements | None = None
    allocated_resources: Quantities = {}
    conditions: tuple[_Condition, ...] = ()


class PodMeta(ObjectMeta, frozen=True, kw_only=True):
    deletion_grace_period_seconds: int | None = None


class Pod(Object, frozen=True, kw_only=True):
    metadata: PodMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodEvaluator(Counting[Pod]):
    resource = PODS
    type = Pod
    # Ephemeral containers cannot name resources, so their writes add nothing.
    asked_of: ClassVar = {"": frozenset({CREATE, UPDATE}), "resize": frozenset({UPDATE})}

    def adds(self, write: Write[Pod]) -> bool:
        """An update of the pod itself adds only where it enters a scope; a resize, always (pods.go, Handles)."""
        old = write.old
        return write.subresource == "resize" or old is None or _is_limited(old) != _is_limited(write.new)

    def usage(self, subject: Pod, now: float) -> dict[str, int]:
        """`count/pods` counts every pod; all other names, pods that have not ended (pods.go, PodUsageFunc)."""
        found = {"count/pods": UNIT}
        if _has_ended(subject, now):
            return found
        found["pods"] = UNIT
        for name, amount in _requests(subject).items():
            for counted in _names_of_request(name):
                found[counted] = min(amount, MOST)
        for name, amount in _limits(subject).items():
            if name in COMPUTE:
                found[LIMITS + name] = min(amount, MOST)
        return found

    def meets(self, requirement: ScopeRequirement, subject: Pod) -> bool:
        """pods.go, podMatchesScopeFunc."""
        match requirement.scope_name:
            case scopes.TERMINATING:
                return _is_limited(subject)
            case scopes.NOT_TERMINATING:
                return not _is_limited(subject)
            case scopes.BEST_EFFORT:
                return _is_best_effort(subject)
            case scopes.NOT_BEST_EFFORT:
                return not _is_best_effort(subject)
            case scopes.PRIORITY_CLASS:
                name = subject.spec.priority_class_name
                return scopes.meets(requirement, {name} if name else ())
            case scopes.CROSS_NAMESPACE_POD_AFFINITY:
                affinity = subject.spec.affinity
                return affinity.pod_affinity.crosses or affinity.pod_anti_affinity.crosses
        return False

    def lacking(self, limited: Collection[str], subject: Pod) -> str:
        """`must specify requests.cpu for: web` (pods.go, Constraints)."""
        if _pod_level(subject):
            return ""
        missing = []
        for name in sorted(limited):
            if name in _REQUIRED:
                side, resource = _REQUIRED[name]
                without = {
                    container.name
                    for container in (*subject.spec.containers, *subject.spec.init_containers)
                    if resource not in getattr(container.resources, side)
                }
                if without:
                    missing.append(f"{name} for: {_some(without)}")
        return f"must specify {'; '.join(missing)}" if missing else ""

    def released_at(self, subject: Pod) -> float | None:
        """A pod that a lost node never ends counts until twice its grace period is over (pods.go, QuotaV1Pod)."""
        deleted, grace = subject.metadata.deletion_timestamp, subject.metadata.deletion_grace_period_seconds
        if deleted is None or grace is None or not 0 <= grace <= MAX_GRACE:
            return None
        try:
            return datetime.fromisoformat(deleted).timestamp() + grace
        except (ValueError, OverflowError):  # no API server of Kubernetes writes that
            return None


def _has_ended(pod: Pod, now: float) -> bool:
    if pod.status.phase in ("Failed", "Succeeded"):
        return True
    released = EVALUATOR.released_at(pod)
    return released is not None and now > released


def _is_limited(pod: Pod) -> bool:
    """In time: what the scope Terminating picks (pods.go, IsTerminating)."""
    deadline = pod.spec.active_deadline_seconds
    return deadline is not None and deadline >= 0


def _is_best_effort(pod: Pod) -> bool:
    """As the API server wrote it; it does when a pod is created (pkg/apis/core/v1/helper/qos, GetPodQOS)."""
    if pod.status.qos_class:
        return pod.status.qos_class == "BestEffort"
    if pod.spec.resources is not None:
        found: Iterable[Requirements] = (pod.spec.resources,)
    else:
        found = (container.resources for container in (*pod.spec.containers, *pod.spec.init_containers))
    return not any(
        name in ("cpu", "memory") and amount > 0
        for requirements in found
        for side in (requirements.requests, requirements.limits)
        for name, amount in amounts(side).items()
    )


def _names_of_request(name: str) -> tuple[str, ...]:
    """Names that count a container's request of that name (pods.go, podComputeUsageHelper)."""
    return _names_of_short(name) if len(name) <= names.MAX_NAME else ()


@lru_cache(maxsize=4096)
def _names_of_short(name: str) -> tuple[str, ...]:
    if name in COMPUTE or name.startswith(HUGE_PAGES):
        return name, REQUESTS + name
    if object_names.is_extended(name):
        return (REQUESTS + name, name) if object_names.is_device(name) else (REQUESTS + name,)
    return ()


def _requests(pod: Pod) -> dict[str, int]:
    """component-helpers/resource/helpers.go, PodRequests."""
    found = _sum(pod, _requested)
    if pod.spec.resources is not None:
        found.update(_of_pod(_effective_requests(pod.spec.resources, pod.status, _is_infeasible(pod))))
    return resources.add(found, amounts(pod.spec.overhead))


def _limits(pod: Pod) -> dict[str, int]:
    """component-helpers/resource/helpers.go, PodLimits. Overhead does not make a limit where there is none."""
    found = _sum(pod, _limited)
    if pod.spec.resources is not None:
        found.update(_of_pod(_effective_limits(pod.spec.resources, pod.status, _is_infeasible(pod))))
    for name, amount in amounts(pod.spec.overhead).items():
        if found.get(name, 0) > 0:
            found[name] += amount
    return found


_Side = Callable[[Container, ContainerStatus | None, bool], ResourceList]


def _sum(pod: Pod, side: _Side) -> dict[str, int]:
    """Of all containers, as they run (helpers.go, AggregateContainerRequests and AggregateContainerLimits).

    Init containers run one after the other, each beside the sidecars that began before it. Only sidecars can be
    resized. No list is copied for each container: a pod may have ten thousand of them and as many names.
    """
    infeasible = _is_infeasible(pod)
    running = _by_name(pod.status.container_statuses)
    running.update(_by_name(pod.status.init_container_statuses))
    total: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(total, side(container, running.get(container.name), infeasible))
    for container in pod.spec.init_containers:
        if container.is_sidecar:
            need = side(container, running.get(container.name), infeasible)
            _add(total, need)
            _add(sidecars, need)
        else:
            for name, amount in side(container, None, infeasible).items():
                most[name] = max(most.get(name, 0), amount + sidecars.get(name, 0))
    return resources.maximum(total, most)


def _requested(container: Container, status: ContainerStatus | None, infeasible: bool) -> ResourceList:
    return _effective_requests(container.resources, status, infeasible)


def _limited(container: Container, status: ContainerStatus | None, infeasible: bool) -> ResourceList:
    return _effective_limits(container.resources, status, infeasible)


def _effective_requests(
    wanted: Requirements, status: ContainerStatus | PodStatus | None, infeasible: bool
) -> ResourceList:
    """While a resize is under way, the most of what is wanted, given and used (helpers.go, determineEffectiveRequests);
    of the pod itself from Kubernetes 1.36 on, where its node says so."""
    if status is None or status.resources is None:
        return amounts(wanted.requests)
    given = resources.maximum(amounts(status.resources.requests), amounts(status.allocated_resources))
    return given if infeasible else resources.maximum(amounts(wanted.requests), given)


def _effective_limits(
    wanted: Requirements, status: ContainerStatus | PodStatus | None, infeasible: bool
) -> ResourceList:
    """helpers.go, determineEffectiveLimits."""
    if status is None or status.resources is None:
        return amounts(wanted.limits)
    given = amounts(status.resources.limits)
    return given if infeasible else resources.maximum(amounts(wanted.limits), given)


def _is_infeasible(pod: Pod) -> bool:
    """Whether the node refused what the spec wants now, so that it is never given.

    Core looks at the condition alone (helpers.go, IsPodResizeInfeasible): until the kubelet has looked at the next
    resize, it would cost nothing. The generation tells which spec the node refused.
    """
    for condition in pod.status.conditions:
        if condition.type == "PodResizePending":
            return condition.reason == "Infeasible" and condition.observed_generation >= max(pod.metadata.generation, 1)
    return False


def _pod_level(pod: Pod) -> bool:
    """helpers.go, IsPodLevelResourcesSet."""
    found = pod.spec.resources
    return found is not None and any(_is_pod_level(name) for name in (*found.requests, *found.limits))


def _of_pod(found: ResourceList) -> dict[str, int]:
    return {name: amount for name, amount in found.items() if _is_pod_level(name)}


def _is_pod_level(name: str) -> bool:
    return name in ("cpu", "memory") or name.startswith(HUGE_PAGES)


def _by_name(statuses: Iterable[ContainerStatus]) -> dict[str, ContainerStatus]:
    return {status.name: status for status in statuses}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _some(found: Collection[str]) -> str:
    first = [name[:MAX_CONTAINER_NAME] for name in sorted(found)[:MAX_CONTAINERS_NAMED]]
    rest = len(found) - len(first)
    return ",".join(first) + (f" and {rest} more" if rest else "")


EVALUATOR: Final = PodEvaluator()
