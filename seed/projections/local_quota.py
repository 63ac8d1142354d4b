"""What a LocalResourceQuota says: the totals of a quota, and what is used of it in one cluster or namespace. Pure.

What a ResourceQuotaAllocation says in a namespace is a LocalResourceQuotaAllocation, with the same fields.

Tenants read it. It has no name and no amount of any other namespace, cluster, project or seed beyond the totals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from common.api.convert import wire_quantities
from common.api.labels import GROUP, MANAGED_BY_LABEL, SEED_MANAGER, SUBJECT_KIND_LABEL, UID_LABEL, VERSION
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.quota import account as accounts
from common.quota import blocks, names, resources
from common.quota.account import Account, Reservation
from common.quota.resources import ResourceList
from common.quota.use_text import usage_text
from seed.model.quota import NAMESPACES, Quota
from seed.model.reserved_object import parse_object

LOCAL_QUOTAS = Resource(GROUP, VERSION, "localresourcequotas", "LocalResourceQuota", True, Object)
LOCAL_ALLOCATIONS = Resource(
    GROUP, VERSION, "localresourcequotaallocations", "LocalResourceQuotaAllocation", True, Object
)

MASTER_SILENT = 90.0  # seconds; master/seeds/replicator.py gives three signs in them


class KnownQuota(msgspec.Struct, frozen=True, kw_only=True):
    """What the seed knows of a quota and of one cluster that it counts.

    `sources`: the keys of what is counted there. `followed`: it is being read. `master_silent`: seconds since the
    last sign of the master; None: there was none yet.
    """

    quota: Quota
    account: Account | None
    sources: Sequence[str]
    followed: bool
    master_silent: float | None


class LocalQuota(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: of the quota's subject, and of what is for one namespace NAMESPACES. `of_objects`: what it limits in
    namespaces. `allocation`: the name of the ResourceQuotaAllocation, if it is of one. `here`:
    None while it is not known. `stale`: why an amount may be old; empty while all of them are current."""

    name: str
    uid: str  # of the quota on the master
    kind: str
    of_objects: frozenset[str] = frozenset()
    allocation: str = ""
    hard: ResourceList
    used: ResourceList
    here: ResourceList | None
    stale: str = ""

    @property
    def resource(self) -> Resource[Object]:
        return LOCAL_ALLOCATIONS if self.allocation else LOCAL_QUOTAS


def desired(known: KnownQuota) -> LocalQuota:
    quota, account = known.quota, known.account
    counted = [name for name in quota.limits if name in quota.of_objects or names.of_machines(name)]
    own = blocks.sure_use(account) if account is not None else {}
    used = resources.maximum(quota.global_usage, own)
    # Of what only Allocations have, the master's sum is 0 also where nothing counts it.
    shown = [name for name in quota.limits if name in counted or used.get(name)]
    return LocalQuota(
        name=quota.name,
        uid=quota.key.uid,
        kind=quota.kind,
        of_objects=quota.of_objects,
        allocation=quota.allocation,
        hard=quota.limits,
        used={name: used[name] for name in shown if name in quota.global_usage},
        here=_here(account, known.sources, counted) if account is not None else None,
        stale=_stale(known),
    )


def in_namespace(local: LocalQuota, here: ResourceList) -> LocalQuota:
    """What it says in one of its namespaces. `here`: what that uses."""
    used = {name: here.get(name, 0) for name in local.hard if name in local.of_objects}
    return msgspec.structs.replace(local, kind=NAMESPACES, here=used)


def by_namespace(
    counted: Mapping[str, ResourceList], reservations: Mapping[str, Reservation], seen: Mapping[str, int]
) -> dict[str, ResourceList]:
    """What each namespace uses, with what is being created there. `seen`: of which generation objects are counted, by
    uid."""
    found: dict[str, ResourceList] = dict(counted)
    for uid, kept in reservations.items():
        if seen.get(uid, -1) < kept.generation:
            namespace = parse_object(kept.object)[1]
            found[namespace] = resources.add(found.get(namespace, {}), kept.amount)
    return found


def manifest(local: LocalQuota, namespace: str, current_time: str) -> dict[str, object]:
    """The object. `current_time`: when all amounts were last known to be current, RFC 3339; empty if never."""
    total = {"hard": wire_quantities(local.hard), "used": wire_quantities(local.used)}
    unknown = local.hard.keys() - local.used.keys()  # nothing counts it, or the master has not said it yet
    summary = {"usage": usage_text(local.used, local.hard, unknown), "here": _here_text(local)}
    status: dict[str, object] = {"total": total, "summary": summary}
    if local.here is not None:
        status["here"] = {"used": wire_quantities(local.here)}
    if current_time:
        status["currentTime"] = current_time
    if local.stale:
        status["stale"] = local.stale
    labels = {MANAGED_BY_LABEL: SEED_MANAGER, UID_LABEL: local.uid}
    if local.kind == NAMESPACES:
        labels[SUBJECT_KIND_LABEL] = NAMESPACES
    name = local.allocation or local.name
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "status": status}


def _here(account: Account, sources: Sequence[str], counted: list[str]) -> ResourceList | None:
    """None before anything there was counted."""
    if account.fenced and account.used.keys().isdisjoint(sources):
        return None
    reserved = (kept.amount for source in sources for kept in accounts.of_source(account, source).values())
    used = resources.total((*(account.used.get(source, {}) for source in sources), *reserved))
    return {name: used.get(name, 0) for name in counted if name not in names.OF_NO_CLUSTER}


def _stale(known: KnownQuota) -> str:
    quota, account = known.quota, known.account
    if not quota.grant.incarnation or known.master_silent is None:
        return "the master has not said yet what is used"
    if known.master_silent > MASTER_SILENT:
        return "the master has not answered lately; its last sum is kept"
    if quota.learning:
        return "the master is learning what is used"
    if quota.usage_stale:
        return "a part of what is used was not reported lately; its last count is kept"
    if account is None or account.fenced:
        return "what is used is being counted again"
    if not known.followed:
        if quota.kind == NAMESPACES:
            return "not all that is in this cluster can be listed now; the last count is kept"
        return "the Machines of this cluster cannot be read now; their last count is kept"
    return ""


def _here_text(local: LocalQuota) -> str:
    here = local.here
    if here is None:
        return ", ".join(f"{name} ?" for name in names.in_order(local.hard) if name not in names.OF_NO_CLUSTER)
    return ", ".join(f"{name} {resources.about(name, here[name])}" for name in names.in_order(here))
