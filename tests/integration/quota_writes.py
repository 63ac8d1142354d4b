"""Quotas and writes that Hypothesis makes up, for tests/integration/test_core_quotas.py.

Most of them are valid: what an API server refuses before it comes to quotas proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from common.quota import object_names, scopes
from common.quota.object_names import GroupResource
from common.quota.scopes import ScopeRequirement

Body = dict[str, Any]

PATHS = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "configmaps": "/api/v1",
    "secrets": "/api/v1",
    "replicationcontrollers": "/api/v1",
    "resourcequotas": "/api/v1",
    "events": "/api/v1",
    "resourceclaims": "/apis/resource.k8s.io/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "things": "/apis/example.com/v1",
}

# From less to more.
CPU = ("0", "1n", "1m", "100100u", "0.25", "500m", "1", "1.5", "2e0")
MEMORY = ("0", "1", "1500m", "1k", "64Mi", "100M", "0.5Gi", "1Gi", "1.5Gi")
DISK = ("0", "1", "100Mi", "1G", "1Gi")
SIZES = ("1", "1500m", "1k", "1Gi", "1.1Gi", "2G", "3Gi", "10Gi")
GPU = "example.com/gpu"
HUGE = "hugepages-2Mi"

LIMITS: dict[str, tuple[str, ...]] = {
    "cpu": ("1", "3", "5"),
    "memory": ("1Gi", "3Gi", "5G"),
    "requests.cpu": ("1", "3", "5500m"),
    "requests.memory": ("1Gi", "3Gi", "5G"),
    "limits.cpu": ("2", "4", "7"),
    "limits.memory": ("1Gi", "3Gi", "7Gi"),
    "pods": ("2", "4", "9"),
    "count/pods": ("2", "4", "9"),
    "ephemeral-storage": ("1Gi", "3Gi"),
    "requests.ephemeral-storage": ("1Gi", "3Gi"),
    "limits.ephemeral-storage": ("1Gi", "4Gi"),
    f"requests.{GPU}": ("1", "3"),
    HUGE: ("2Mi", "8Mi"),
    f"requests.{HUGE}": ("2Mi", "8Mi"),
    "services": ("2", "4"),
    "count/services": ("2", "4"),
    "services.nodeports": ("1", "3"),
    "services.loadbalancers": ("0", "1"),
    "persistentvolumeclaims": ("1", "3"),
    "count/persistentvolumeclaims": ("1", "3"),
    "requests.storage": ("2Gi", "11Gi", "15G"),
    "gold.storageclass.storage.k8s.io/requests.storage": ("1Gi", "11Gi"),
    "gold.storageclass.storage.k8s.io/persistentvolumeclaims": ("0", "2"),
    "gpu.deviceclass.resource.k8s.io/devices": ("1", "4", "34"),
    "count/resourceclaims.resource.k8s.io": ("1", "3"),
    "configmaps": ("0", "2"),
    "count/configmaps": ("1", "2"),
    "secrets": ("0", "1"),
    "replicationcontrollers": ("0", "1"),
    "resourcequotas": ("0", "1"),
    "count/leases.coordination.k8s.io": ("0", "1"),
    "count/things.example.com": ("0", "1"),
    "count/events": ("0",),
}
FAMILIES = (
    ("cpu", "memory", "limits.cpu", "limits.memory", "pods"),
    ("requests.cpu", "requests.memory", "count/pods"),
    ("pods", "count/pods"),
    ("ephemeral-storage", "requests.ephemeral-storage", "limits.ephemeral-storage", f"requests.{GPU}"),
    (HUGE, f"requests.{HUGE}", "limits.cpu"),
    ("services", "count/services", "services.nodeports", "services.loadbalancers"),
    ("persistentvolumeclaims", "count/persistentvolumeclaims", "requests.storage"),
    tuple(name for name in LIMITS if ".storageclass." in name),
    ("gpu.deviceclass.resource.k8s.io/devices", "count/resourceclaims.resource.k8s.io"),
    ("configmaps", "count/configmaps", "secrets", "replicationcontrollers", "resourcequotas"),
    ("count/leases.coordination.k8s.io", "count/things.example.com", "count/events"),
)


@dataclass(frozen=True)
class Quota:
    hard: dict[str, str]
    scopes: tuple[str, ...] = ()
    selector: tuple[ScopeRequirement, ...] = ()

    @property
    def requirements(self) -> tuple[ScopeRequirement, ...]:
        return scopes.requirements(self.scopes, self.selector)

    @property
    def spec(self) -> Body:
        spec: Body = {"hard": self.hard}
        if self.scopes:
            spec["scopes"] = list(self.scopes)
        if self.selector:
            spec["scopeSelector"] = {
                "matchExpressions": [
                    {"scopeName": one.scope_name, "operator": one.operator}
                    | ({"values": list(one.values)} if one.values else {})
                    for one in self.selector
                ]
            }
        return spec


@dataclass(frozen=True)
class Create:
    plural: str
    body: Body
    dry_run: bool = False


@dataclass(frozen=True)
class Change:
    """Of the object of that kind that is `which`, counted modulo how many there are."""

    plural: str
    which: int
    patch: Body
    subresource: str = ""


@dataclass(frozen=True)
class Delete:
    plural: str
    which: int
    grace: int | None = None


Step = Create | Change | Delete


@dataclass(frozen=True)
class Scenario:
    quotas: list[Quota]
    steps: list[Step] = field(default_factory=list)


def one_of(*choices: Any) -> SearchStrategy[Any]:
    return st.sampled_from(choices)


@st.composite
def two(draw: st.DrawFn, amounts: tuple[str, ...]) -> tuple[str, str]:
    """A request and a limit that is not below it."""
    low = draw(st.integers(0, len(amounts) - 1))
    return amounts[low], amounts[draw(st.integers(low, len(amounts) - 1))]


@st.composite
def requirements(draw: st.DrawFn, *, complete: bool) -> Body:
    """`complete`: with all that a quota may require."""
    requests, limits = {}, {}
    for name, choices in (("cpu", CPU), ("memory", MEMORY), ("ephemeral-storage", DISK)):
        has = "both" if complete and name != "ephemeral-storage" else draw(one_of("", "", "requests", "limits", "both"))
        request, limit = draw(two(choices))
        if has in ("requests", "both"):
            requests[name] = request
        if has in ("limits", "both"):
            limits[name] = limit
    if draw(one_of(False, False, False, True)):
        requests[GPU] = limits[GPU] = draw(one_of("1", "2"))
    if "memory" in limits and draw(one_of(False, False, False, True)):
        requests[HUGE] = limits[HUGE] = draw(one_of("2Mi", "4Mi"))
    return {"requests": requests, "limits": limits}


@st.composite
def container(draw: st.DrawFn, name: str, *, complete: bool) -> Body:
    return {"name": name, "image": "none", "resources": draw(requirements(complete=complete))}


AFFINITY_TERM = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
AFFINITIES: tuple[Body, ...] = (
    {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [AFFINITY_TERM]}},
    {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [AFFINITY_TERM | {"namespaces": ["other"]}]}},
    {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": AFFINITY_TERM | {"namespaceSelector": {}}}
            ]
        }
    },
)


@st.composite
def pods(draw: st.DrawFn) -> Body:
    complete = draw(one_of(True, True, True, False))
    spec: Body = {
        "terminationGracePeriodSeconds": 1,
        "containers": [draw(container(f"c{i}", complete=complete)) for i in range(draw(one_of(1, 1, 2, 3)))],
    }
    if draw(st.booleans()):
        spec["initContainers"] = []
        for number in range(draw(one_of(1, 2, 3))):
            made = draw(container(f"i{number}", complete=complete))
            spec["initContainers"].append(made | draw(one_of({}, {"restartPolicy": "Always"})))
    if draw(one_of(False, False, False, True)):
        spec["overhead"] = {"cpu": "100m", "memory": "16Mi"}
    if draw(one_of(False, False, False, False, True)):
        spec["resources"] = draw(
            one_of(
                {"requests": {"cpu": "20", "memory": "20Gi"}, "limits": {"cpu": "20", "memory": "20Gi"}},
                {"limits": {"cpu": "20"}},
                {"requests": {"memory": "20Gi"}},
            )
        )
    if draw(one_of(False, False, True)):
        spec["activeDeadlineSeconds"] = 3600
    if draw(one_of(False, True)):
        spec["priorityClassName"] = draw(one_of("high", "low"))
    if draw(one_of(False, False, True)):
        spec["affinity"] = draw(one_of(*AFFINITIES))
    if draw(one_of(False, True)):
        spec["nodeName"] = "nowhere"  # then it does not go at once
    return {"spec": spec}


@st.composite
def services(draw: st.DrawFn) -> Body:
    kind = draw(one_of("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"))
    if kind == "ExternalName":
        return {"spec": {"type": kind, "externalName": "example.com"}}
    ports = [{"name": f"p{number}", "port": 80 + number} for number in range(draw(one_of(1, 2, 3)))]
    spec: Body = {"type": kind, "ports": ports}
    if kind == "ClusterIP":
        spec["clusterIP"] = "None"
    if kind == "LoadBalancer" and draw(st.booleans()):
        spec["allocateLoadBalancerNodePorts"] = draw(st.booleans())
    return {"spec": spec}


@st.composite
def volume_claims(draw: st.DrawFn) -> Body:
    spec: Body = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": draw(one_of(*SIZES))}},
    }
    metadata: Body = {}
    if draw(st.booleans()):
        spec["storageClassName"] = draw(one_of("gold", "silver", ""))
    elif draw(st.booleans()):
        metadata = {"annotations": {"volume.beta.kubernetes.io/storage-class": draw(one_of("gold", "silver"))}}
    if draw(st.booleans()):
        spec["volumeAttributesClassName"] = draw(one_of("fast", "slow"))
    return {"metadata": metadata, "spec": spec}


@st.composite
def device_claims(draw: st.DrawFn) -> Body:
    @st.composite
    def devices(draw: st.DrawFn) -> Body:
        found: Body = {"deviceClassName": draw(one_of("gpu", "nic"))}
        if draw(one_of(False, False, False, True)):
            return found | {"allocationMode": "All"}
        return found | draw(one_of({}, {"count": 1}, {"count": 3}))

    requests: list[Body] = []
    for number in range(draw(one_of(1, 2))):
        if draw(st.booleans()):
            requests.append({"name": f"r{number}", "exactly": draw(devices())})
        else:
            several = [{"name": f"s{i}"} | draw(devices()) for i in range(draw(one_of(1, 2, 3)))]
            requests.append({"name": f"r{number}", "firstAvailable": several})
    return {"spec": {"devices": {"requests": requests}}}


OTHERS: dict[str, Body] = {
    "configmaps": {},
    "secrets": {},
    "replicationcontrollers": {
        "spec": {
            "selector": {"a": "b"},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "none"}]},
            },
        }
    },
    "resourcequotas": {"spec": {"hard": {"count/nothing.example.com": "1"}}},
    "events": {"involvedObject": {}},
    "leases": {},
    "things": {},
}


@st.composite
def creations(draw: st.DrawFn) -> Create:
    plural = draw(one_of(*["pods"] * 5, *["services"] * 2, *["persistentvolumeclaims"] * 2, "resourceclaims", *OTHERS))
    made: dict[str, SearchStrategy[Body]] = {
        "pods": pods(),
        "services": services(),
        "persistentvolumeclaims": volume_claims(),
        "resourceclaims": device_claims(),
    }
    body = draw(made[plural]) if plural in made else OTHERS[plural]
    return Create(plural, body, dry_run=draw(one_of(*[False] * 9, True)))


@st.composite
def pod_changes(draw: st.DrawFn) -> Change:
    which = draw(st.integers(0, 20))
    cpu, memory = draw(one_of(*CPU[2:])), draw(one_of(*MEMORY[2:]))
    resized = {"requests": {"cpu": cpu, "memory": memory}}
    match draw(one_of("resize", "resize", "running", "running", "deadline", "ended", "label")):
        case "resize":
            container = {"name": "c0", "resources": draw(one_of(resized, {"requests": {"cpu": cpu}}))}
            return Change("pods", which, {"spec": {"containers": [container]}}, "resize")
        case "running":
            given = {
                "name": draw(one_of("c0", "c1")),
                "resources": resized | {"limits": {"cpu": "2", "memory": "2Gi"}},
                "allocatedResources": {"cpu": draw(one_of(*CPU[2:])), "memory": draw(one_of(*MEMORY[2:]))},
                **RUNNING,
            }
            status: Body = {"phase": "Running", "containerStatuses": [given]}
            if draw(st.booleans()):
                status["initContainerStatuses"] = [given | {"name": draw(one_of("i0", "i1"))}]
            if draw(st.booleans()):
                # The node has seen whatever comes: see test_a_resize_after_one_that_was_infeasible_costs
                status["conditions"] = [
                    {
                        "type": "PodResizePending",
                        "status": "True",
                        "reason": draw(one_of("Infeasible", "Deferred")),
                        "observedGeneration": 1000,
                    }
                ]
            return Change("pods", which, {"status": status}, "status")
        case "deadline":
            return Change("pods", which, {"spec": {"activeDeadlineSeconds": 600}})
        case "ended":
            return Change("pods", which, {"status": {"phase": draw(one_of("Succeeded", "Failed"))}}, "status")
    return Change("pods", which, {"metadata": {"labels": {"a": "b"}}})


RUNNING: Body = {
    "image": "none",
    "imageID": "none",
    "ready": True,
    "restartCount": 0,
    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
}


@st.composite
def service_changes(draw: st.DrawFn) -> Change:
    which = draw(st.integers(0, 20))
    kind = draw(one_of("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"))
    spec: Body = {"type": kind}
    if kind == "ExternalName":
        spec |= {"externalName": "example.com", "clusterIP": None, "clusterIPs": None}
    else:
        spec |= {"ports": [{"name": f"p{number}", "port": 80 + number} for number in range(draw(one_of(1, 4)))]}
    return Change("services", which, {"spec": spec})


@st.composite
def claim_changes(draw: st.DrawFn) -> Change:
    which = draw(st.integers(0, 20))
    size = {"storage": draw(one_of(*SIZES))}
    classes = one_of("fast", "slow")
    match draw(one_of("bound", "bound", "size", "size", "class", "status")):
        case "bound":
            capacity = {"storage": "1"}
            return Change(
                "persistentvolumeclaims", which, {"status": {"phase": "Bound", "capacity": capacity}}, "status"
            )
        case "size":
            return Change("persistentvolumeclaims", which, {"spec": {"resources": {"requests": size}}})
        case "class":
            return Change("persistentvolumeclaims", which, {"spec": {"volumeAttributesClassName": draw(classes)}})
    changed: Body = draw(
        one_of(
            {"allocatedResources": size},
            {"currentVolumeAttributesClassName": draw(classes)},
            {"modifyVolumeStatus": {"targetVolumeAttributesClassName": draw(classes), "status": "Pending"}},
        )
    )
    return Change("persistentvolumeclaims", which, {"status": changed}, "status")


@st.composite
def deletions(draw: st.DrawFn) -> Delete:
    plural = draw(one_of("pods", "pods", "services", "persistentvolumeclaims", "resourceclaims", "configmaps"))
    return Delete(plural, draw(st.integers(0, 20)), draw(one_of(None, 1, 3600)) if plural == "pods" else None)


SELECTED = st.builds(
    ScopeRequirement,
    one_of(scopes.PRIORITY_CLASS, scopes.VOLUME_ATTRIBUTES_CLASS),
    one_of(scopes.IN, scopes.NOT_IN),
    one_of(("high",), ("high", "low"), ("fast",), ("slow", "fast")),
) | st.builds(
    ScopeRequirement,
    one_of(scopes.PRIORITY_CLASS, scopes.VOLUME_ATTRIBUTES_CLASS),
    one_of(scopes.EXISTS, scopes.DOES_NOT_EXIST),
)
SCOPES = (
    scopes.TERMINATING,
    scopes.NOT_TERMINATING,
    scopes.BEST_EFFORT,
    scopes.NOT_BEST_EFFORT,
    scopes.CROSS_NAMESPACE_POD_AFFINITY,
    scopes.PRIORITY_CLASS,
    scopes.VOLUME_ATTRIBUTES_CLASS,
)


@st.composite
def quotas(draw: st.DrawFn) -> Quota:
    """Only such that can count something."""
    named = tuple(draw(st.lists(one_of(*SCOPES), max_size=2, unique=True))) if draw(st.booleans()) else ()
    selector = (draw(SELECTED),) if draw(one_of(False, False, True)) else ()
    family = draw(one_of(*FAMILIES))
    wanted = scopes.requirements(named, selector)
    possible = [name for name in family if not scopes.problem([name], wanted)]
    if not possible:
        family, named, selector = ("pods", "requests.cpu"), (draw(one_of(*SCOPES[:2])),), ()
        possible = list(family)
    names = draw(st.lists(one_of(*possible), min_size=1, unique=True))
    return Quota({name: draw(one_of(*LIMITS[name])) for name in names}, named, selector)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    steps = st.one_of(
        creations(),
        creations(),
        creations(),
        pod_changes(),
        pod_changes(),
        service_changes(),
        claim_changes(),
        deletions(),
    )
    return Scenario(
        draw(st.lists(quotas(), min_size=3, max_size=6)),
        draw(st.lists(steps, min_size=12, max_size=24)),
    )


@st.composite
def any_quotas(draw: st.DrawFn) -> Quota:
    """Also such that no API server accepts."""
    requirement = st.builds(
        ScopeRequirement,
        one_of(*SCOPES, "Other"),
        one_of(scopes.IN, scopes.NOT_IN, scopes.EXISTS, scopes.DOES_NOT_EXIST),
        one_of((), ("high",)),
    )
    names = draw(st.lists(one_of(*LIMITS), min_size=1, max_size=2, unique=True))
    return Quota(
        {name: LIMITS[name][0] for name in names},
        tuple(draw(st.lists(one_of(*SCOPES, "Other"), max_size=2, unique=True))),
        tuple(draw(st.lists(requirement, max_size=2))),
    )


def resource_of(plural: str) -> GroupResource:
    path = PATHS[plural]
    group = path.split("/")[2] if path.startswith("/apis/") else ""
    return GroupResource(plural, group)


def path_of(plural: str, namespace: str, *rest: str) -> str:
    return "/".join((PATHS[plural], "namespaces", namespace, plural, *(part for part in rest if part)))


assert all(object_names.counted(name) for name in LIMITS if name != "count/events")
