"""Which quotas a command is about, by the words of whoever asks."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from cli import figures, reading
from cli.outcome import Failed
from common.api.labels import GROUP
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden, NotFound
from common.kube.client.resource import Listing
from master.cache.objects import MASTER_QUOTAS, MasterQuota
from master.tenancy.quota_allocations import quota_name

SUBJECTS = ("project", "organization")
NAMED = "name of the quota, or what it limits: project/NAME, organization/NAME or resourcequotaallocation/NAME"
_WORDS = {
    **dict.fromkeys(("seedquota", "seedquotas", "sq", "resourcequota", "resourcequotas"), "seedquota"),
    **dict.fromkeys(("project", "projects", "sqp"), "project"),
    **dict.fromkeys(("organization", "organizations", "sqo"), "organization"),
    **dict.fromkeys(("resourcequotaallocation", "resourcequotaallocations", "sqa"), "resourcequotaallocation"),
}
"""Kinds of objects that have a quota, by their names and short names. Each may have the API group behind it."""


async def listing(master: Cluster) -> Listing[MasterQuota]:
    """Raises Failed, also where the quotas are a seed's copies: these have a part of the figures only."""
    found = await reading.listing(master, MASTER_QUOTAS)
    reading.refuse_copies(master, found.items, "quotas")
    return found


async def every(master: Cluster) -> list[MasterQuota]:
    """As `listing`."""
    return (await listing(master)).items


async def the_one(master: Cluster, named: str) -> MasterQuota:
    """Named as messages do, by its name alone, or by its subject. Raises Failed."""
    kind, name = _kind_and_name(named)
    if kind in SUBJECTS:
        return await _limiting(master, f"{kind}/{name}")
    if kind == "resourcequotaallocation":
        name = quota_name(name)
    try:
        found = await master.get(MASTER_QUOTAS, name)
    except Forbidden as error:
        raise Failed(reading.no_right(MASTER_QUOTAS, "get", error)) from None
    except NotFound:
        names = [each.metadata.name for each in await every(master)]
        raise Failed(f"there is no seedquota/{name} on {master.server}; {_cure(name, names)}") from None
    reading.refuse_copies(master, [found], "quotas")
    return found


def _kind_and_name(named: str) -> tuple[str, str]:
    kind, slash, name = named.rpartition("/")
    found = _WORDS.get(kind.lower().removesuffix(f".{GROUP}")) if slash else "seedquota"
    if found is None or not name:
        raise Failed(
            f"{named!r} names no quota: write NAME, seedquota/NAME, project/NAME, organization/NAME or "
            "resourcequotaallocation/NAME, or a short name of these kinds"
        )
    return found, name


async def of_subject(master: Cluster, subject: str) -> MasterQuota | None:
    """Raises Failed, also where it is not clear which quota is meant."""
    return _only(subject, await every(master))


async def _limiting(master: Cluster, subject: str) -> MasterQuota:
    quotas = await every(master)
    found = _only(subject, quotas)
    if found is None:
        subjects = [figures.subject_of(each) for each in quotas]
        raise Failed(f"no quota limits {subject} on {master.server}; {_cure(subject, subjects)}")
    return found


def _only(subject: str, quotas: Sequence[MasterQuota]) -> MasterQuota | None:
    found = [
        each for each in quotas if figures.subject_of(each) == subject and each.metadata.deletion_timestamp is None
    ]
    if len(found) > 1:
        names = ", ".join(f"seedquota/{each.metadata.name}" for each in found)
        raise Failed(f"several quotas limit {subject}: name one of {names} instead")
    return found[0] if found else None


def _cure(name: str, names: Sequence[str]) -> str:
    near = nearest(name, names)
    return f"did you mean {near}?" if near else "`seedquota top` shows them all, --context another master"


def nearest(name: str, names: Sequence[str]) -> str:
    """Empty: none is near. A quota's name often is its subject's with something before it."""
    near = difflib.get_close_matches(name, names, n=1) or sorted(each for each in names if name in each)
    return near[0] if near else ""
