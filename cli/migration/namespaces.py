"""Quotas of systems that limit namespaces selected by label, as quotas of kind namespaces. Pure.

OpenShift: `quota.openshift.io/v1`. HNC: `hnc.x-k8s.io/v1alpha2`. Capsule: `capsule.clastix.io/v1beta2`. Rancher:
`management.cattle.io/v3`. Each as its public API types have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cli.migration.manifests import Json, Made, Translated, items, made, mapping, quantity, text, translated
from common.quota import object_names

HNC_TREE = ".tree.hnc.x-k8s.io/depth"
CAPSULE_TENANT = "capsule.clastix.io/tenant"
RANCHER_PROJECT = "field.cattle.io/projectId"

_RENAMED = {"openshift.io/imagestreams": "count/imagestreams.image.openshift.io"}
_RANCHER = {
    "pods": "pods",
    "services": "services",
    "replicationControllers": "replicationcontrollers",
    "secrets": "secrets",
    "configMaps": "configmaps",
    "persistentVolumeClaims": "persistentvolumeclaims",
    "servicesNodePorts": "services.nodeports",
    "servicesLoadBalancers": "services.loadbalancers",
    "requestsCpu": "requests.cpu",
    "requestsMemory": "requests.memory",
    "requestsStorage": "requests.storage",
    "limitsCpu": "limits.cpu",
    "limitsMemory": "limits.memory",
}


def _quota(name: str, selector: Json, spec: Json, about: str) -> Made:
    """`spec`: as that of a core ResourceQuota."""
    limits: dict[str, str | int] = {}
    left = []
    for given, raw in mapping(spec.get("hard")).items():
        resource = _RENAMED.get(given, given)
        amount = quantity(resource, raw)
        if amount is None:
            left.append(f"{about}: {given}={raw} is no amount")
        elif (given.startswith("openshift.io/") and resource == given) or not object_names.counted(resource):
            left.append(f"{about}: {given}={raw}: SeedQuota does not count it")
        else:
            limits[resource] = amount
    if not limits:
        return [], [*left, f"{about}: no limit is left"]
    wanted: dict[str, object] = {"subject": {"kind": "namespaces", "selector": selector}, "quota": limits}
    wanted |= {field: spec[field] for field in ("scopes", "scopeSelector") if spec.get(field)}
    return [made("ResourceQuota", name, wanted)], left


def openshift(found: Iterable[Json]) -> Translated:
    return translated(found, "quota.openshift.io", {"ClusterResourceQuota": _cluster_resource_quota})


def _cluster_resource_quota(found: Json, name: str, about: str) -> Made:
    spec = mapping(found.get("spec"))
    selector = mapping(spec.get("selector"))
    if wanted := mapping(selector.get("annotations")):
        chosen = ", ".join(f"{key}={value}" for key, value in wanted.items())
        return [], [f"{about}: it selects by the annotations {chosen}; label these namespaces, and select by the label"]
    labels = mapping(selector.get("labels"))
    if not labels:
        return [], [f"{about}: it has no selector of labels"]
    return _quota(name, labels, mapping(spec.get("quota")), about)


def hnc(found: Iterable[Json]) -> Translated:
    return translated(found, "hnc.x-k8s.io", {"HierarchicalResourceQuota": _hierarchical})


def _hierarchical(found: Json, name: str, about: str) -> Made:
    namespace = text(mapping(found.get("metadata")).get("namespace"))
    if not namespace:
        return [], [f"{about}: it has no namespace, so it is not known which tree it limits"]
    selector = {"matchExpressions": [{"key": f"{namespace}{HNC_TREE}", "operator": "Exists"}]}
    return _quota(f"{namespace}.{name}", selector, mapping(found.get("spec")), f"{about} of namespace {namespace}")


def capsule(found: Iterable[Json]) -> Translated:
    kinds = {"Tenant": _tenant, "GlobalResourceQuota": _global_resource_quota}
    return translated(found, "capsule.clastix.io", kinds)


def _tenant(found: Json, name: str, about: str) -> Made:
    spec = mapping(found.get("spec"))
    of_tenant = {"matchLabels": {CAPSULE_TENANT: name}}
    quotas: list[tuple[str, Json, Json]] = []
    left = []
    budget = mapping(spec.get("resourceQuotas"))
    several = items(budget.get("items"))
    if text(budget.get("scope")) == "Namespace" and several:
        left.append(f"{about}: resourceQuotas of scope Namespace limit each namespace alone; use core ResourceQuotas")
    else:
        quotas += [(name if len(several) == 1 else f"{name}-{at}", of_tenant, each) for at, each in enumerate(several)]
    for rule in items(spec.get("rules")):
        selector = _both(of_tenant, mapping(rule.get("namespaceSelector")))
        quotas += [(f"{name}-{text(each.get('name'))}", selector, each) for each in items(rule.get("quota"))]
    if mapping(spec.get("namespaceOptions")).get("quota") is not None:
        left.append(f"{about}: namespaceOptions.quota; SeedQuota does not count namespaces")
    made_of: list[Json] = []
    for called, selector, quota in quotas:
        objects, why = _quota(called, selector, quota, about)
        made_of += objects
        left += why
    if not made_of:
        left.append(f"{about}: no quota of it is translated")
    return made_of, left


def _global_resource_quota(found: Json, name: str, about: str) -> Made:
    spec = mapping(found.get("spec"))
    selectors = [each for each in items(spec.get("namespaceSelectors")) if each]
    if len(selectors) != 1:
        return [], [f"{about}: it has {len(selectors)} selectors of namespaces; make it select by one, such as a label"]
    return _quota(name, selectors[0], mapping(spec.get("quota")), about)


def _both(a: Json, b: Json) -> Json:
    """Selects what both select."""
    labels = {**mapping(a.get("matchLabels")), **mapping(b.get("matchLabels"))}
    expressions = [*items(a.get("matchExpressions")), *items(b.get("matchExpressions"))]
    return {"matchLabels": labels, **({"matchExpressions": expressions} if expressions else {})}


def rancher(found: Iterable[Json]) -> Translated:
    return translated(found, "management.cattle.io", {"Project": _rancher_project})


def _rancher_project(found: Json, name: str, about: str) -> Made:
    spec = mapping(found.get("spec"))
    limit = mapping(mapping(spec.get("resourceQuota")).get("limit"))
    about = f"{about} ({text(spec.get('displayName')) or 'without a name'}, of cluster {text(spec.get('clusterName'))})"
    if not limit:
        return [], [f"{about}: it has no quota"]
    hard = {_RANCHER[field]: value for field, value in limit.items() if field in _RANCHER}
    left = [f"{about}: {field}" for field in limit if field not in _RANCHER and field != "extended"]
    made_of, why = _quota(
        name,
        {"matchLabels": {RANCHER_PROJECT: name}},
        {"hard": {**hard, **mapping(limit.get("extended"))}},
        about,
    )
    return made_of, left + why


SYSTEMS: Sequence[tuple[str, Callable[[Iterable[Json]], Translated], str]] = (
    (
        "openshift",
        openshift,
        "ClusterResourceQuotas of OpenShift, quota.openshift.io/v1. One that selects by annotation is not translated.",
    ),
    (
        "hnc",
        hnc,
        "HierarchicalResourceQuotas of the Hierarchical Namespace Controller, hnc.x-k8s.io/v1alpha2. The quotas select "
        "the same namespaces, by the labels that HNC writes; HNC must go on to run, or somebody must write them.",
    ),
    (
        "capsule",
        capsule,
        "quotas of Tenants and GlobalResourceQuotas of Capsule, capsule.clastix.io/v1beta2. The quotas of a Tenant "
        "select its namespaces by the label that Capsule writes.",
    ),
    (
        "rancher",
        rancher,
        "quotas of Rancher's Projects, management.cattle.io/v3. The quotas select the namespaces of the Project by the "
        "label that Rancher writes. Rancher's quota limits what the quotas of the namespaces promise; here it limits "
        "what is used.",
    ),
)
