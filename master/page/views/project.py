"""What a tenant sees of a project: what the HTTP API answers about its quota, and nothing of others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from common.quota import resources
from master.apiserver.serializers import Quota
from master.page.views import bars, overrides
from master.page.views.bars import Bar
from master.page.views.overrides import OverrideLine
from master.page.views.times import Moment, moment


class ProjectPage(NamedTuple):
    """`quota`: the name of the one that there is; empty where several limit the project, and where there is none.
    `reported`: no seed's last report is older."""

    name: str
    display_name: str
    organization: str
    quota: str
    has_quota: bool
    default: bool
    bars: Sequence[Bar]
    overrides: Sequence[OverrideLine]
    stale: bool
    reported: Moment


def page(name: str, display_name: str, organization: str, quota: Quota | None, now: datetime) -> ProjectPage:
    """`quota`: None where the project has none. `organization`: empty where it has none, or the viewer cannot see it.

    Raises QuantityError."""
    return ProjectPage(
        name=name,
        display_name=display_name,
        organization=organization,
        quota=quota.name if quota is not None else "",
        has_quota=quota is not None,
        default=quota is not None and quota.is_default,
        bars=bars_of(quota) if quota is not None else (),
        overrides=overrides.lines((each, each.state) for each in quota.overrides) if quota is not None else (),
        stale=quota is not None and quota.stale,
        reported=moment(quota.as_of if quota is not None else "", now),
    )


def bars_of(quota: Quota) -> list[Bar]:
    """What seeds hold is not part of what a tenant is told."""
    status = quota.status
    limits, used, reserved = map(resources.parse, (quota.quota, status.global_usage, status.reserved))
    shares = bars.Shares({}, resources.parse(quota.guaranteed), resources.parse(status.guaranteed))
    return bars.bars(limits, used, reserved, shares=shares)
