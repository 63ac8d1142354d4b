"""The settings: default quotas and whom they touch, and the catalogue. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from common.api.labels import DEFAULT_LABEL
from common.api.types import CatalogueEntry, DefaultQuota, QuotaSettingsSpec
from common.quota import resources
from common.quota.names import in_order
from master.cache.informers import subject_of
from master.cache.objects import MasterQuota, Named
from master.page.views import amounts
from master.page.views.amounts import Amount

MAX_NAMED = 200


class Default(NamedTuple):
    """`limits`: None: there is no default. `follow`: subjects whose quota follows it. `without`: subjects without any
    quota. Both are sorted; `*_omitted`: how many more there are."""

    kind: str
    limits: Sequence[tuple[str, Amount]] | None
    enforcement: str
    follow: Sequence[str]
    follow_omitted: int
    own: int
    without: Sequence[str]
    without_omitted: int


class SettingsPage(NamedTuple):
    """`error`: why the settings cannot be read; then everything stays as it was."""

    exists: bool
    error: str
    defaults: Sequence[Default]
    catalogue: Sequence[CatalogueEntry]
    scale_check: str
    unknown_projects: str


def page(
    settings: Named | None, quotas: Sequence[MasterQuota], projects: Iterable[str], organizations: Iterable[str]
) -> SettingsPage:
    error, spec = "", QuotaSettingsSpec()
    if settings is not None:
        try:
            spec = msgspec.convert(settings.spec, QuotaSettingsSpec)
        except msgspec.ValidationError as wrong:
            error = str(wrong)
    return SettingsPage(
        exists=settings is not None,
        error=error,
        defaults=[
            _default("project", spec.defaults.project, quotas, projects),
            _default("organization", spec.defaults.organization, quotas, organizations),
        ],
        catalogue=spec.resources,
        scale_check=spec.scale_check,
        unknown_projects=spec.unknown_projects,
    )


def _default(
    kind: str, default: DefaultQuota | None, quotas: Sequence[MasterQuota], subjects: Iterable[str]
) -> Default:
    follow: set[str] = set()
    own: set[str] = set()
    for quota in quotas:
        of, name = subject_of(quota)
        if of == kind:
            (follow if quota.metadata.labels.get(DEFAULT_LABEL) == "true" else own).add(name)
    without = sorted(set(subjects) - follow - own)
    limits = resources.parse(default.quota) if default is not None else None
    return Default(
        kind=kind,
        limits=[(name, amounts.amount(name, limits[name])) for name in in_order(limits)]
        if limits is not None
        else None,
        enforcement=default.enforcement if default is not None else "",
        follow=sorted(follow)[:MAX_NAMED],
        follow_omitted=max(len(follow) - MAX_NAMED, 0),
        own=len(own),
        without=without[:MAX_NAMED],
        without_omitted=max(len(without) - MAX_NAMED, 0),
    )
