"""The dashboard of an organization: capacity, free, allocated as committed and reserved, and by project. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from master.apiserver.capacity import OrganizationQuotas
from master.cache.allocations import Use
from master.page.views.bars import Level, level_of
from master.page.views.overrides import OverrideLine

WARN_AT_PERCENT = 90


class Line(NamedTuple):
    """One type. `capacity`: None: it is unlimited. `allocated`: None: it is limited, and not counted yet. `kept`: of
    what is free, what is guaranteed to projects, and free for these alone."""

    type: str
    level: Level
    capacity: int | None
    allocated: int | None
    committed: int
    reserved: int
    free: int | None
    kept: int
    percent: int | None
    committed_share: float
    reserved_share: float


class ProjectLine(NamedTuple):
    """What a project has of each type that somebody has, in the order of `types`."""

    project: str
    display_name: str
    uses: tuple[Use | None, ...]


class OrganizationPage(NamedTuple):
    """`projects`: those that the viewer may see."""

    name: str
    display_name: str
    quotas: Sequence[str]
    lines: Sequence[Line]
    overrides: Sequence[OverrideLine]
    types: Sequence[str]
    projects: Sequence[ProjectLine]
    version: str


def page(
    name: str,
    display_name: str,
    quotas: Sequence[str],
    shown: OrganizationQuotas,
    projects: Mapping[str, Mapping[str, Use]],
    display_names: Mapping[str, str],
    version: str,
    overrides: Sequence[OverrideLine] = (),
) -> OrganizationPage:
    """`quotas`: their names. `projects`: of those that the viewer may see what is allocated, by type."""
    types = sorted({type for uses in projects.values() for type in uses})
    return OrganizationPage(
        name=name,
        display_name=display_name,
        quotas=quotas,
        lines=lines(shown),
        overrides=overrides,
        types=types,
        projects=[
            ProjectLine(each, display_names.get(each, ""), tuple(uses.get(type) for type in types))
            for each, uses in sorted(projects.items())
        ],
        version=version,
    )


def lines(shown: OrganizationQuotas) -> list[Line]:
    capacity = {each.type: each.amount for each in shown.capacity}
    free = {each.type: each.amount for each in shown.free}
    kept = {each.type: each.amount for each in shown.kept or ()}
    allocated = {each.type: each for each in shown.allocated}
    found = []
    for type in sorted(capacity.keys() | allocated.keys()):
        limit, use = capacity.get(type), allocated.get(type)
        whole = max(limit or 0, use.amount if use is not None else 0)
        found.append(
            Line(
                type=type,
                level=_level(use.amount if use is not None else None, limit),
                capacity=limit,
                allocated=use.amount if use is not None else None,
                committed=use.committed if use is not None else 0,
                reserved=use.reserved if use is not None else 0,
                free=free.get(type),
                kept=kept.get(type, 0),
                percent=use.amount * 100 // limit if use is not None and limit else None,
                committed_share=round(use.committed * 100 / whole, 3) if use is not None and whole and limit else 0.0,
                reserved_share=round(use.reserved * 100 / whole, 3) if use is not None and whole and limit else 0.0,
            )
        )
    return found


def _level(used: int | None, limit: int | None) -> Level:
    if used is None:
        return "unknown"
    return level_of(used, limit, WARN_AT_PERCENT) if limit is not None else "fine"
