"""Quotas and writes that Hypothesis makes up, for tests/integration/test_core_quotas.py.

Most of them are valid: what an API server refuses before it comes to quotas proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st

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
    "deployments": "/apis/apps/v1",
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
    "services": ("1", "2", "4"),
    "count/services": ("1", "3"),
    "services.nodeports": ("1", "3"),
    "services.loadbalancers": ("0", "1"),
    "persistentvolumeclaims": ("1", "2"),
    "count/persistentvolumeclaims": ("1", "2"),
    "requests.storage": ("2Gi", "5G", "11Gi"),
    "gold.storageclass.storage.k8s.io/requests.storage": ("1Gi", "11Gi"),
    "gold.storageclass.storage.k8s.io/persistentvolumeclaims": ("0", "2"),
    "gpu.deviceclass.resource.k8s.io/devices": ("0", "3", "34"),
    "count/resourceclaims.resource.k8s.io": ("1", "2"),
    "configmaps": ("0", "1"),
    "count/configmaps": ("0", "1"),
    "secrets": ("0", "1"),
    "replicationcontrollers": ("0", "1"),
    "resourcequotas": ("0", "1"),
    "count/leases.coordination.k8s.io": ("0", "1"),
    "count/deployments.apps": ("0", "1"),
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
    ("count/leases.coordination.k8s.io", "count/deployments.apps", "count/things.example.com", "count/events"),
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
    """`version`: of the API; empty for the usual one."""

    plural: str
    body: Body
    dry_run: bool = False
    version: str = ""


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


Made = Callable[[Random], Any]
Draw = Callable[[Made], Any]


def one_of(*choices: Any) -> Made:
    return lambda random: random.choice(choices)


def some_of(choices: Sequence[Any], least: int, most: int) -> Made:
    return lambda random: random.sample(choices, random.randint(least, min(most, len(choices))))


def number(least: int, most: int) -> Made:
    return lambda random: random.randint(least, most)


def composite(make: Callable[..., Any]) -> Callable[..., Made]:
    return lambda *args, **named: lambda random: make(lambda made: made(random), *args, **named)


@composite
def two(draw: Draw, amounts: tuple[str, ...]) -> tuple[str, str]:
    """A request and a limit that is not below it."""
    low = draw(number(0, len(amounts) - 1))
    return amounts[low], amounts[draw(number(low, len(amounts) - 1))]


@composite
def requirements(draw: Draw, *, complete: bool) -> Body:
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


@composite
def container(draw: Draw, name: str, *, complete: bool) -> Body:
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


OF_WHOLE_PODS: tuple[Body, ...] = (
    {"requests": {"cpu": "20", "memory": "20Gi"}, "limits": {"cpu": "20", "memory": "20Gi"}},
    {"limits": {"cpu": "20"}},
    {"requests": {"memory": "20Gi"}},
    {"requests": {"cpu": "4500m"}, "limits": {"cpu": "20", "memory": "20Gi"}},
    {"limits": {"cpu": "4", "memory": "4500Mi", HUGE: "16Mi"}},
    {"requests": {"cpu": "4", HUGE: "16Mi"}, "limits": {"memory": "20Gi", HUGE: "16Mi"}},
)


@composite
def pods(draw: Draw) -> Body:
    complete = draw(one_of(True, True, True, False))
    spec: Body = {
        "terminationGracePeriodSeconds": 1,
        "containers": [draw(container(f"c{i}", complete=complete)) for i in range(draw(one_of(1, 1, 2, 3)))],
    }
    if draw(one_of(False, True)):
        spec["initContainers"] = []
        for i in range(draw(one_of(1, 2, 3))):
            made = draw(container(f"i{i}", complete=complete))
            spec["initContainers"].append(made | draw(one_of({}, {"restartPolicy": "Always"})))
    if draw(one_of(False, False, False, True)):
        spec["overhead"] = {"cpu": "100m", "memory": "16Mi"}
    if draw(one_of(False, False, False, False, True)):
        spec["resources"] = draw(one_of(*OF_WHOLE_PODS))
    if draw(one_of(False, False, True)):
        spec["activeDeadlineSeconds"] = 3600
    if draw(one_of(False, True)):
        spec["priorityClassName"] = draw(one_of("high", "low"))
    if draw(one_of(False, False, True)):
        spec["affinity"] = draw(one_of(*AFFINITIES))
    if draw(one_of(False, True)):
        spec["nodeName"] = "nowhere"  # then it does not go at once
    return {"spec": spec}


@composite
def services(draw: Draw) -> Body:
    kind = draw(one_of("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"))
    if kind == "ExternalName":
        return {"spec": {"type": kind, "externalName": "example.com"}}
    ports = [{"name": f"p{i}", "port": 80 + i} for i in range(draw(one_of(1, 2, 3)))]
    spec: Body = {"type": kind, "ports": ports}
    if kind == "ClusterIP":
        spec["clusterIP"] = "None"
    if kind == "LoadBalancer" and draw(one_of(False, True)):
        spec["allocateLoadBalancerNodePorts"] = draw(one_of(False, True))
    return {"spec": spec}


@composite
def volume_claims(draw: Draw) -> Body:
    spec: Body = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": draw(one_of(*SIZES))}},
    }
    metadata: Body = {}
    if draw(one_of(False, True)):
        spec["storageClassName"] = draw(one_of("gold", "silver", ""))
    elif draw(one_of(False, True)):
        metadata = {"annotations": {"volume.beta.kubernetes.io/storage-class": draw(one_of("gold", "silver"))}}
    if draw(one_of(False, True)):
        spec["volumeAttributesClassName"] = draw(one_of("fast", "slow"))
    return {"metadata": metadata, "spec": spec}


@composite
def device_claims(draw: Draw) -> Body:
    @composite
    def devices(draw: Draw, *, admin: bool = False) -> Body:
        found: Body = {"deviceClassName": draw(one_of("gpu", "nic"))}
        if admin and draw(one_of(False, False, True)):
            found["adminAccess"] = True
        if draw(one_of(False, False, False, True)):
            return found | {"allocationMode": "All"}
        return found | draw(one_of({}, {"count": 1}, {"count": 3}))

    requests: list[Body] = []
    for i in range(draw(one_of(1, 2))):
        if draw(one_of(False, True)):
            requests.append({"name": f"r{i}", "exactly": draw(devices(admin=True))})
        else:
            several = [{"name": f"s{j}"} | draw(devices()) for j in range(draw(one_of(1, 2, 3)))]
            requests.append({"name": f"r{i}", "firstAvailable": several})
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
    "deployments": {
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "none"}]},
            },
        }
    },
    "things": {"apiVersion": "example.com/v1", "kind": "Thing"},
}


CREATED = (
    *["pods"] * 8,
    *["services"] * 3,
    *["persistentvolumeclaims"] * 3,
    *["resourceclaims"] * 4,
    *OTHERS,
)


@composite
def creations(draw: Draw) -> Create:
    plural = draw(one_of(*CREATED))
    made: dict[str, Made] = {
        "pods": pods(),
        "services": services(),
        "persistentvolumeclaims": volume_claims(),
        "resourceclaims": device_claims(),
    }
    body = draw(made[plural]) if plural in made else OTHERS[plural]
    dry_run, version = draw(one_of(*[False] * 9, True)), ""
    if plural == "resourceclaims":
        version = draw(one_of("", "v1beta2", "v1beta1"))
        if version == "v1beta1":  # what is in `exactly` is of the request itself
            requests = body["spec"]["devices"]["requests"]
            body["spec"]["devices"]["requests"] = [each | each.pop("exactly", {}) for each in requests]
    return Create(plural, body, dry_run, version)


@composite
def pod_changes(draw: Draw) -> Change:
    which = draw(number(0, 2))  # the same ones several times
    cpu, memory = draw(one_of("2m", "1500m", "3", "3500m")), draw(one_of("1Mi", "1.5Gi", "3Gi"))
    resized = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": "4", "memory": "4Gi"}}
    resizes = ("resize", "resize", "resize", "running", "running")
    match draw(one_of(*resizes, "deadline", "deadline", "ended", "label", "debug")):
        case "resize":
            container = {"name": "c0", "resources": resized}
            return Change("pods", which, {"spec": {"containers": [container]}}, "resize")
        case "running":
            given = {
                "name": draw(one_of("c0", "c1")),
                "resources": resized,
                "allocatedResources": {"cpu": draw(one_of(*CPU[2:])), "memory": draw(one_of(*MEMORY[2:]))},
                **RUNNING,
            }
            status: Body = {"phase": "Running", "containerStatuses": [given]}
            if draw(one_of(False, True)):
                status["initContainerStatuses"] = [given | {"name": draw(one_of("i0", "i1"))}]
            if draw(one_of(False, True)):
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
        case "debug":
            debugger = {"name": f"debug{draw(number(0, 9))}", "image": "none"}
            return Change("pods", which, {"spec": {"ephemeralContainers": [debugger]}}, "ephemeralcontainers")
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


@composite
def service_changes(draw: Draw) -> Change:
    which = draw(number(0, 20))
    kind = draw(one_of("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"))
    spec: Body = {"type": kind}
    if kind == "ExternalName":
        spec |= {"externalName": "example.com", "clusterIP": None, "clusterIPs": None}
    else:
        spec |= {"ports": [{"name": f"p{i}", "port": 80 + i} for i in range(draw(one_of(1, 4)))]}
    if kind == "LoadBalancer":
        spec |= draw(one_of({}, {"allocateLoadBalancerNodePorts": True}, {"allocateLoadBalancerNodePorts": False}))
    return Change("services", which, {"spec": spec})


@composite
def claim_changes(draw: Draw) -> Change:
    which = draw(number(0, 2))
    size = {"storage": draw(one_of(*SIZES))}
    classes = one_of("fast", "slow")
    match draw(one_of("size", "size", "class", "status", "status")):
        case "size":
            return Change("persistentvolumeclaims", which, {"spec": {"resources": {"requests": size}}})
        case "class":
            return Change("persistentvolumeclaims", which, {"spec": {"volumeAttributesClassName": draw(classes)}})
    changed: Body = draw(
        one_of(
            {"allocatedResources": {"storage": "20Gi"}},
            {"allocatedResources": size},
            {"currentVolumeAttributesClassName": draw(classes)},
            {"modifyVolumeStatus": {"targetVolumeAttributesClassName": draw(classes), "status": "Pending"}},
        )
    )
    return Change("persistentvolumeclaims", which, {"status": changed}, "status")


@composite
def deletions(draw: Draw) -> Delete:
    plural = draw(one_of("pods", "pods", "services", "persistentvolumeclaims", "resourceclaims", "configmaps"))
    return Delete(plural, draw(number(0, 20)), draw(one_of(None, 1, 3600)) if plural == "pods" else None)


SCOPES = (
    scopes.TERMINATING,
    scopes.NOT_TERMINATING,
    scopes.BEST_EFFORT,
    scopes.NOT_BEST_EFFORT,
    scopes.CROSS_NAMESPACE_POD_AFFINITY,
    scopes.PRIORITY_CLASS,
    scopes.VOLUME_ATTRIBUTES_CLASS,
)
CLASSES = {scopes.PRIORITY_CLASS: ("high", "low"), scopes.VOLUME_ATTRIBUTES_CLASS: ("fast", "slow")}


@composite
def selections(draw: Draw, scope: str) -> ScopeRequirement:
    operator = draw(one_of(scopes.IN, scopes.NOT_IN, scopes.EXISTS, scopes.DOES_NOT_EXIST))
    if operator in (scopes.EXISTS, scopes.DOES_NOT_EXIST):
        return ScopeRequirement(scope, operator)
    return ScopeRequirement(scope, operator, draw(one_of(CLASSES[scope], CLASSES[scope][:1])))


@composite
def quotas(draw: Draw, family: tuple[str, ...]) -> Quota:
    """Only such that can count something."""
    possible = [scope for scope in SCOPES if _in_scope(family, [ScopeRequirement(scope)])]
    named: tuple[str, ...] = ()
    selector: tuple[ScopeRequirement, ...] = ()
    if possible and draw(one_of(False, True)):
        named = tuple(draw(some_of(possible, 1, 2)))
    chosen = [scope for scope in possible if scope in CLASSES]
    if chosen and draw(one_of(False, True)):
        selector = (draw(selections(draw(one_of(*chosen)))),)
    names = _in_scope(family, scopes.requirements(named, selector))
    if not names:
        names, named, selector = list(family), (), ()
    limited = draw(some_of(names, 1, len(names)))
    return Quota({name: draw(one_of(*LIMITS[name])) for name in limited}, named, selector)


def _in_scope(family: tuple[str, ...], wanted: Sequence[ScopeRequirement]) -> list[str]:
    return [name for name in family if not scopes.problem([name], wanted)]


@composite
def changes(draw: Draw) -> Step:
    what = draw(one_of("pod", "pod", "pod", "service", "claim", "claim", "deletion"))
    return draw(
        {"pod": pod_changes(), "service": service_changes(), "claim": claim_changes(), "deletion": deletions()}[what]
    )


@composite
def entered(draw: Draw) -> Quota:
    """What updates lead into."""
    if draw(one_of(False, True)):
        return Quota({"pods": draw(one_of("1", "3")), "count/pods": "3"}, scopes=(scopes.TERMINATING,))
    fast = ScopeRequirement(scopes.VOLUME_ATTRIBUTES_CLASS, scopes.IN, ("fast",))
    return Quota({"persistentvolumeclaims": draw(one_of("1", "3")), "requests.storage": "11Gi"}, selector=(fast,))


@composite
def scenarios(draw: Draw) -> Scenario:
    families = draw(some_of(FAMILIES, 5, 8))
    steps: list[Step] = [draw(creations()) for _ in range(4)]
    steps += [draw(draw(one_of(creations, changes))()) for _ in range(draw(number(12, 24)))]
    return Scenario([draw(entered()), *(draw(quotas(family)) for family in families)], steps)


@composite
def any_requirements(draw: Draw) -> ScopeRequirement:
    operator = draw(one_of(scopes.IN, scopes.NOT_IN, scopes.EXISTS, scopes.DOES_NOT_EXIST))
    return ScopeRequirement(draw(one_of(*SCOPES, "Other")), operator, draw(one_of((), ("high",))))


@composite
def any_quotas(draw: Draw) -> Quota:
    """Also such that no API server accepts."""
    names = draw(some_of(list(LIMITS), 1, 2))
    return Quota(
        {name: LIMITS[name][0] for name in names},
        tuple(draw(some_of((*SCOPES, "Other"), 0, 2))),
        tuple(draw(any_requirements()) for _ in range(draw(number(0, 2)))),
    )


def examples(made: Made) -> st.SearchStrategy[Any]:
    """Hypothesis only seeds them: of what is so long, it would repeat parts instead of making up others."""
    return st.builds(made, st.randoms(use_true_random=True))


def resource_of(plural: str) -> GroupResource:
    path = PATHS[plural]
    group = path.split("/")[2] if path.startswith("/apis/") else ""
    return GroupResource(plural, group)


def path_of(plural: str, namespace: str, *rest: str, version: str = "") -> str:
    served = f"{PATHS[plural].rpartition('/')[0]}/{version}" if version else PATHS[plural]
    return "/".join((served, "namespaces", namespace, plural, *(part for part in rest if part)))


assert all(object_names.counted(name) for name in LIMITS if name != "count/events")
