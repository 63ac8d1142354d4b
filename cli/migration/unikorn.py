"""Quotas of Unikorn's identity service, `identity.unikorn-cloud.org/v1alpha1`, as its public CRDs have them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cli.migration.manifests import Json, Translated, made, mapping, quantity, text
from common.api.labels import SETTINGS
from master.tenancy.default_policy import usual_name

GROUP = "identity.unikorn-cloud.org"
NAME_LABEL = "unikorn-cloud.org/name"
ORGANIZATION_LABEL = "unikorn-cloud.org/organization"

COUNTED = ("clusters",)
"""Of the types that Unikorn ships, those that are counted here. Others would be limits that nothing counts."""


def translated(found: Iterable[Json]) -> Translated:
    objects: list[Json] = []
    defaults: dict[str, str | int] = {}
    left: list[str] = []
    for each in found:
        kind, name = text(each.get("kind")), text(mapping(each.get("metadata")).get("name"))
        if text(each.get("apiVersion")).partition("/")[0] != GROUP:
            left.append(f"{kind} {name}: it is not of {GROUP}")
        elif kind == "Organization":
            objects.append(made("Organization", name, _display(each)))
        elif kind == "Project":
            made_of, why = _project(each, name)
            objects += made_of
            left += why
        elif kind == "Quota":
            made_of, why = _quota(each, name)
            objects += made_of
            left += why
        elif kind == "QuotaMetadata":
            left += _default(each, name, defaults)
        else:
            why = (
                "what is allocated is counted from the objects themselves" if kind == "Allocation" else "it is no quota"
            )
            left.append(f"{kind} {name}: {why}")
    if defaults:
        objects.append(made("QuotaSettings", SETTINGS, {"defaults": {"organization": {"quota": defaults}}}))
    order = ("Organization", "Project", "ResourceQuota", "QuotaSettings")
    return Translated(sorted(objects, key=lambda each: order.index(text(each["kind"]))), left)


def _display(found: Json) -> dict[str, str]:
    name = text(_labels(found).get(NAME_LABEL))
    return {"displayName": name} if name else {}


def _labels(found: Json) -> Json:
    return mapping(mapping(found.get("metadata")).get("labels"))


def _project(found: Json, name: str) -> tuple[Sequence[Json], Sequence[str]]:
    organization = text(_labels(found).get(ORGANIZATION_LABEL))
    if not organization:
        return [], [f"Project {name}: it has no label {ORGANIZATION_LABEL}"]
    return [made("Project", name, {**_display(found), "organization": organization})], []


def _quota(found: Json, name: str) -> tuple[Sequence[Json], Sequence[str]]:
    organization = text(_labels(found).get(ORGANIZATION_LABEL))
    if not organization:
        return [], [f"Quota {name}: it has no label {ORGANIZATION_LABEL}, so it is not known whose it is"]
    given = mapping(found.get("spec")).get("quotas")
    limits: dict[str, str | int] = {}
    left = []
    for each in given if isinstance(given, list) else ():
        kind = text(mapping(each).get("kind"))
        amount = quantity(kind, mapping(each).get("quantity")) if kind else None
        if amount is None:
            left.append(f"Quota {name} of organization {organization}: {kind or 'a type without a name'} is no amount")
        elif kind not in COUNTED:
            left.append(f"Quota {name} of organization {organization}: {kind}={amount}: {_uncounted(kind)}")
        else:
            limits[kind] = amount
    if not limits:
        return [], [*left, f"Quota {name} of organization {organization}: no limit is left"]
    subject = {"kind": "organization", "name": organization}
    return [
        made("ResourceQuota", usual_name("organization", organization), {"subject": subject, "quota": limits})
    ], left


def _uncounted(kind: str) -> str:
    return f"SeedQuota counts no {kind} by itself; add it to QuotaSettings.spec.resources, then set this limit"


def _default(found: Json, kind: str, defaults: dict[str, str | int]) -> list[str]:
    amount = quantity(kind, mapping(found.get("spec")).get("default"))
    if amount is None or kind not in COUNTED:
        return [f"QuotaMetadata {kind}: {_uncounted(kind)}"]
    defaults[kind] = amount
    return []
