"""Quotas of Unikorn's identity service, `identity.unikorn-cloud.org/v1alpha1`, as its public CRDs have them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cli.migration.manifests import Json, Translated, items, made, mapping, quantity, text
from common.api.labels import SETTINGS
from master.apiserver.visibility import namespace_of
from master.tenancy.default_policy import usual_name

GROUP = "identity.unikorn-cloud.org"
NAME_LABEL = "unikorn-cloud.org/name"
ORGANIZATION_LABEL = "unikorn-cloud.org/organization"
PROJECT_LABEL = "unikorn-cloud.org/project"
KIND_LABEL = "resource.unikorn-cloud.org/kind"
ID_LABEL = "resource.unikorn-cloud.org/id"

CLUSTERS = "clusters"
"""Counted from the objects themselves, not from Allocations."""
ALLOCATED = ("servers", "gpus")
"""Counted from Allocations, where the catalogue names them."""
KNOWN = (CLUSTERS, *ALLOCATED)
UNKNOWN = (
    "quotas of organizations here limit clusters, servers, gpus, and names with a slash; choose such a name for it"
)
NOTES = (
    "Apply the Allocations after the rest: SeedQuota makes their namespaces for the Organizations, and a Seed with "
    "inCluster must admit them.",
    "Clusters are counted from the objects themselves, so the Allocations do not name them.",
)

Made = tuple[Sequence[Json], Sequence[str]]


def translated(found: Iterable[Json]) -> Translated:
    objects: list[Json] = []
    defaults: dict[str, str | int] = {}
    catalogue: dict[str, Json] = {}
    left: list[str] = []
    kinds = {"Project": _project, "Quota": _quota, "Allocation": _allocation}
    for each in found:
        kind, name = text(each.get("kind")), text(mapping(each.get("metadata")).get("name"))
        if text(each.get("apiVersion")).partition("/")[0] != GROUP:
            left.append(f"{kind} {name}: it is not of {GROUP}")
        elif kind == "Organization":
            objects.append(made("Organization", name, _display(each)))
        elif kind in kinds:
            made_of, why = kinds[kind](each, name)
            objects += made_of
            left += why
        elif kind == "QuotaMetadata":
            left += _type(each, name, defaults, catalogue)
        else:
            left.append(f"{kind} {name}: it is no quota")
    for name in ALLOCATED:
        if name not in catalogue and any(_names(each, name) for each in objects):
            catalogue[name] = {"name": name, "countFrom": "Allocations"}
    settings = {
        **({"defaults": {"organization": {"quota": defaults}}} if defaults else {}),
        **({"resources": list(catalogue.values())} if catalogue else {}),
    }
    if settings:
        objects.append(made("QuotaSettings", SETTINGS, settings))
    order = ("Organization", "Project", "QuotaSettings", "ResourceQuota", "Allocation")
    allocations = any(each["kind"] == "Allocation" for each in objects)
    return Translated(
        sorted(objects, key=lambda each: order.index(text(each["kind"]))), left, NOTES if allocations else ()
    )


def _names(found: Json, resource: str) -> bool:
    """Whether the quota limits it, or the Allocation is of it."""
    spec = mapping(found.get("spec"))
    return resource in mapping(spec.get("quota")) or any(
        each.get("type") == resource for each in items(spec.get("resources"))
    )


def _display(found: Json) -> dict[str, str]:
    name = text(_labels(found).get(NAME_LABEL))
    return {"displayName": name} if name else {}


def _labels(found: Json) -> Json:
    return mapping(mapping(found.get("metadata")).get("labels"))


def _project(found: Json, name: str) -> Made:
    organization = text(_labels(found).get(ORGANIZATION_LABEL))
    if not organization:
        return [], [f"Project {name}: it has no label {ORGANIZATION_LABEL}"]
    return [made("Project", name, {**_display(found), "organization": organization})], []


def _quota(found: Json, name: str) -> Made:
    organization = text(_labels(found).get(ORGANIZATION_LABEL))
    if not organization:
        return [], [f"Quota {name}: it has no label {ORGANIZATION_LABEL}, so it is not known whose it is"]
    limits: dict[str, str | int] = {}
    left = []
    for each in items(mapping(found.get("spec")).get("quotas")):
        kind = text(each.get("kind"))
        amount = quantity(kind, each.get("quantity")) if kind else None
        if amount is None:
            left.append(f"Quota {name} of organization {organization}: {kind or 'a type without a name'} is no amount")
        elif kind not in KNOWN:
            left.append(f"Quota {name} of organization {organization}: {kind}={amount}: {UNKNOWN}")
        else:
            limits[kind] = amount
    if not limits:
        return [], [*left, f"Quota {name} of organization {organization}: no limit is left"]
    subject = {"kind": "organization", "name": organization}
    return [
        made("ResourceQuota", usual_name("organization", organization), {"subject": subject, "quota": limits})
    ], left


def _type(found: Json, name: str, defaults: dict[str, str | int], catalogue: dict[str, Json]) -> list[str]:
    spec = mapping(found.get("spec"))
    if name not in KNOWN:
        return [f"QuotaMetadata {name}: {UNKNOWN}"]
    words = {field: text(spec.get(field)) for field in ("displayName", "description")}
    side = "Objects" if name == CLUSTERS else "Allocations"
    catalogue[name] = {"name": name, **{field: said for field, said in words.items() if said}, "countFrom": side}
    amount = quantity(name, spec.get("default"))
    if amount is None:
        return [f"QuotaMetadata {name}: its default is no amount"]
    defaults[name] = amount
    return []


def _allocation(found: Json, name: str) -> Made:
    labels = _labels(found)
    whose = [text(labels.get(label)) for label in (ORGANIZATION_LABEL, PROJECT_LABEL, KIND_LABEL, ID_LABEL)]
    if not all(whose):
        needed = ", ".join((ORGANIZATION_LABEL, PROJECT_LABEL, KIND_LABEL, ID_LABEL))
        return [], [f"Allocation {name}: it needs the labels {needed}"]
    organization, project, kind, thing = whose
    resources: list[Json] = []
    left = []
    for each in items(mapping(found.get("spec")).get("allocations")):
        of = text(each.get("kind"))
        amounts = {part: quantity(of, each.get(part) or 0) for part in ("committed", "reserved")} if of else {}
        numbers = {
            part: int(amount) for part, amount in amounts.items() if amount is not None and str(amount).isdigit()
        }
        if of == CLUSTERS:
            continue
        if of not in ALLOCATED:
            left.append(f"Allocation {name}: {of or 'a type without a name'}: {UNKNOWN}")
        elif len(numbers) < 2:
            left.append(f"Allocation {name}: {of} is no number")
        else:
            resources.append({"type": of, **numbers})
    if not resources:
        return [], left
    spec = {"organization": organization, "project": project, "kind": kind, "id": thing, "resources": resources}
    return [made("Allocation", name, spec, namespace_of(organization))], left
