"""Quotas of Kubermatic (`kubermatic.k8c.io/v1`), as its public CRDs describe them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cli.migration import manifests
from cli.migration.manifests import Json, Made, Translated, made, mapping, quantity, text
from common.api.labels import SETTINGS
from master.tenancy.default_policy import usual_name

GROUP = "kubermatic.k8c.io"
DEFAULT_LABEL = "kkp-default-resource-quota"

_RESOURCES = ("cpu", "memory", "storage")


def translated(found: Iterable[Json]) -> Translated:
    return manifests.translated(found, GROUP, {"ResourceQuota": _quota, "KubermaticSetting": _settings})


def _quota(found: Json, _name: str, about: str) -> Made:
    spec = mapping(found.get("spec"))
    subject = mapping(spec.get("subject"))
    kind, project = text(subject.get("kind")) or "project", text(subject.get("name"))
    if mapping(mapping(found.get("metadata")).get("labels")).get(DEFAULT_LABEL) == "true":
        return [], [f"{about}: it follows the default quota, which is in the KubermaticSetting"]
    if kind != "project" or not project:
        return [], [f"{about}: its subject is no project"]
    limits, left = _limits(mapping(spec.get("quota")), about, "spec.quota")
    left += [f"{about}: spec.{field}" for field in spec if field not in ("quota", "subject")]
    if not limits:
        return [], [*left, f"{about}: it limits nothing"]
    quota = made(
        "ResourceQuota", usual_name("project", project), {"subject": {"kind": kind, "name": project}, "quota": limits}
    )
    return [quota], left


def _settings(found: Json, _name: str, about: str) -> Made:
    """Of all settings the default quota; the others are no matter of quotas."""
    default = mapping(mapping(found.get("spec")).get("defaultQuota"))
    limits, left = _limits(mapping(default.get("quota")), about, "spec.defaultQuota.quota")
    if not limits:
        return [], [*left, f"{about}: it has no default quota"]
    return [made("QuotaSettings", SETTINGS, {"defaults": {"project": {"quota": limits}}})], left


def _limits(found: Json, about: str, where: str) -> tuple[dict[str, str | int], list[str]]:
    limits: dict[str, str | int] = {}
    left = []
    for name, raw in found.items():
        amount = quantity(name, raw) if name in _RESOURCES else None
        if amount is None:
            left.append(f"{about}: {where}.{name}")
        else:
            limits[name] = amount
    return limits, left
