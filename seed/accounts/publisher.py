"""Writes what an account says into the status of the quota's copy, from where the master reads it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from common.api.convert import report_to_wire, wire_quantities
from common.api.labels import SEED_MANAGER
from common.api.namespaces_page import MAX_PROJECT, is_namespace
from common.api.status import NOT_DECLARED
from common.api.types import RESOURCE_QUOTAS, NamespaceLack, NamespaceUse, StaleSource, WireReport
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Conflict, NotFound
from common.quota import account as accounts
from common.quota import blocks, fencing, names, resources
from common.quota.account import Account
from common.quota.escrow import report
from common.quota.largest import largest
from common.quota.resources import ResourceList
from common.runtime.pieces import in_pieces
from seed.accounts.publish import (
    MAX_NAMED,
    QUIET_INTERVAL,
    STALE_STEP,
    Published,
    Sources,
    pause_after,
    publish_in,
    stale_source,
)
from seed.accounts.waits import Waits
from seed.cache.clusters import ClusterCache
from seed.cache.replicas import FRESH
from seed.model.quota import NAMESPACES, Quota
from seed.model.source_key import SourceKey
from seed.usage.source import UsageSource

log = logging.getLogger(__name__)

LOOKED_AT = 64  # namespaces, at a time
UNMADE = 60.0  # seconds that a quota waits for its account before that is said: in a burst each write delays others


Known = tuple[int | None, ResourceList]
"""The generation of a quota's copy that all replicas have, and what overrides have raised of its limits, where a
replica may admit by that."""


class _InNamespaces(NamedTuple):
    """See Sources."""

    largest: tuple[NamespaceUse, ...] = ()
    omitted: int = 0
    without_quota: tuple[NamespaceLack, ...] = ()
    without_quota_omitted: int = 0
    not_served: tuple[str, ...] = ()


class Publisher:
    def __init__(
        self,
        cluster: Cluster,
        cluster_cache: ClusterCache,
        known: Callable[[Quota], Known],
        waits: Waits,
        uncounted: Mapping[tuple[str, str], float] = MappingProxyType({}),
        in_flight_window: float = 0.0,
    ) -> None:
        """`known`: what of the quota all replicas have. `uncounted`: by quota uid and source, since
        when (monotonic) counting fails."""
        self._waits = waits
        self._uncounted = uncounted
        self._cluster = cluster
        self._cluster_cache = cluster_cache
        self._known = known
        self._settling = FRESH + in_flight_window
        self._published: dict[str, Published] = {}  # by quota uid
        self._in_namespaces: dict[str, tuple[float, _InNamespaces]] = {}  # ... with the time of the look (monotonic)

    async def publish(self, quota: Quota, account: Account, sources: Iterable[UsageSource]) -> float | None:
        """Returns in how many seconds to call again, None where only news are a reason to."""
        return await self._publish(quota, account, sources, await self._look(quota, sources))

    async def _publish(
        self, quota: Quota, account: Account, sources: Iterable[UsageSource], looked: tuple[_InNamespaces, float | None]
    ) -> float | None:
        said = report(account)
        said = msgspec.structs.replace(said, used=kept_use(said.used, account, quota))
        now = time.monotonic()
        facts, look_again = self._facts(quota, account, sources, looked, now)
        before = self._before(quota, now)
        wait = publish_in(before, said, facts, quota.published, now)
        if wait is None:
            return _soonest(float(STALE_STEP) if facts.stale else None, look_again)
        if wait > 0:
            return _soonest(wait, look_again)
        status = {
            "account": msgspec.structs.replace(
                report_to_wire(said),
                stale=facts.stale,
                unenforced=facts.unenforced,
                enforced_generation=facts.generation,
                enforced_raised=wire_quantities(facts.raised),
                clusters=facts.clusters,
                not_counted=facts.not_counted,
                namespaces=facts.namespaces,
                namespaces_omitted=facts.namespaces_omitted,
                without_quota=facts.without_quota,
                without_quota_omitted=facts.without_quota_omitted,
                waits_for=facts.waits_for,
                not_served=facts.not_served,
                picked=facts.picked,
                withdrawn=facts.withdrawn,
            ),
            "localUsage": wire_quantities(resources.only(blocks.sure_use(account), quota.ceilings)),
        }
        reserved = account.reservations.keys()
        pause = pause_after(before, said, reserved, now)
        self._published[quota.key.uid] = Published(quota.copy_uid, None, facts, now, pause=pause)
        if not await self._apply(quota, status):
            return 1.0
        self._published[quota.key.uid] = Published(quota.copy_uid, said, facts, now, reserved, pause)
        return look_again

    async def publish_at_once(self, quota: Quota, account: Account, sources: Iterable[UsageSource]) -> None:
        """Whatever was published before, and when."""
        looked = await self._look(quota, sources)
        self._published[quota.key.uid] = Published(quota.copy_uid, None, Sources(), at=float("-inf"))
        await self._publish(quota, account, sources, looked)

    async def publish_wait(self, quota: Quota) -> None:
        """Of a quota that has waited long for its account. What an account has published stays."""
        wait = self._waits.of(quota)
        if wait is None or quota.published is not None or self._waits.seconds(quota) < UNMADE:
            return
        if wait != quota.published_wait:
            await self._apply(quota, {"account": {"waitsFor": wait}})

    async def _apply(self, quota: Quota, status: Mapping[str, object]) -> bool:
        body = {"metadata": {"name": quota.name, "uid": quota.copy_uid}, "status": status}
        try:
            await self._cluster.apply(RESOURCE_QUOTAS, body, manager=SEED_MANAGER, subresource="status")
        except (NotFound, Conflict):
            return False  # the copy was deleted or made anew: the watch will report it
        except ApiError as error:
            account, facts = status["account"], {"quota": quota.name, "error": str(error)}
            if isinstance(account, WireReport) and _has_later_fields(account) and NOT_DECLARED in error.message:
                # What the CRD lacks must not keep the master from the rest: it answers the nonce in it.
                log.warning("account published in part: the CRD is of an earlier release", extra=facts)
                namespaces = tuple(msgspec.structs.replace(each, project="") for each in account.namespaces)
                account = msgspec.structs.replace(
                    account,
                    waits_for=None,
                    not_served=(),
                    not_counted=(),
                    picked=0,
                    namespaces=namespaces,
                    enforced_raised={},
                    projects={},
                )
                return await self._apply(quota, {**status, "account": account})
            log.warning("account not published", extra=facts)
            return False
        return True

    def forget(self, uid: str) -> None:
        self._published.pop(uid, None)
        self._in_namespaces.pop(uid, None)

    def _facts(
        self,
        quota: Quota,
        account: Account,
        sources: Iterable[UsageSource],
        looked: tuple[_InNamespaces, float | None],
        now: float,
    ) -> tuple[Sources, float | None]:
        """And in how many seconds they should be looked at again."""
        if quota.withdrawn:
            # When it limits something here again, every replica has to say once more that it knows it.
            return Sources(generation=0, withdrawn=quota.withdrawn if fencing.is_closed(account) else ""), None
        stale = self._stale(quota, sources, account, now)
        entering, settled = self._entering(quota, account, {source.source for source in stale}, now)
        unenforced = [quota.shown(SourceKey(key)) for key in self._cluster_cache.unenforced(quota)]
        in_namespaces, look_again = looked
        generation, raised = self._known(quota)
        found = Sources(
            stale,
            (*unenforced, *entering)[:MAX_NAMED],
            generation if account.master else quota.published_generation,  # see AccountRegistry.is_new
            len(self._cluster_cache.covered(quota)),
            tuple(self._cluster_cache.not_counted(quota)[:MAX_NAMED]),
            in_namespaces.largest,
            in_namespaces.omitted,
            in_namespaces.without_quota,
            in_namespaces.without_quota_omitted,
            self._waits.of(quota),
            in_namespaces.not_served,
            self._cluster_cache.picked(quota),
            raised=raised,
        )
        return found, _soonest(look_again, settled)

    async def _look(self, quota: Quota, sources: Iterable[UsageSource]) -> tuple[_InNamespaces, float | None]:
        """At all namespaces of the quota, in pieces; or what was seen last, and in how many seconds to look again. It
        may have tens of thousands, and each admission in one of them calls."""
        if not quota.of_objects or quota.withdrawn:
            return _InNamespaces(), None
        known = self._in_namespaces.get(quota.key.uid)
        if known is not None and (left := known[0] + QUIET_INTERVAL - time.monotonic()) > 0:
            return known[1], left
        users, without = await self._largest_namespaces(sources, quota), _without_quota(sources)
        found = _InNamespaces(*users, *without, _not_served(sources, quota))
        self._in_namespaces[quota.key.uid] = time.monotonic(), found
        return found, None

    def _entering(self, quota: Quota, account: Account, stale: Set[str], now: float) -> tuple[list[str], float | None]:
        """The sources in which nothing is admitted yet, since they are not counted (see QuotaClaim), and those in which
        another replica may have admitted by labels, or for projects, from before. And in how many seconds the next of
        these is over. `stale`: of these it is said why they are not counted."""
        names: list[str] = []
        seconds: list[float] = []
        of_part = quota.clusters is not None
        for key in self._cluster_cache.source_keys(quota):
            if not (of_part or key.quota):
                continue
            since = self._cluster_cache.relabelled_at(key.cluster) if of_part else None
            left, shown = since + self._settling - now if since is not None else 0.0, quota.shown(key)
            if key.text not in account.used:
                if shown not in stale:
                    names.append(f"{shown} (not counted yet)")
            elif left > 0:
                names.append(f"{shown} (its labels have changed)")
                seconds.append(left)
        for cluster, since in self._cluster_cache.reassigned.items() if quota.kind != NAMESPACES else ():
            left = since + self._settling - now
            if left > 0 and self._cluster_cache.covers(quota, cluster):
                shown = quota.shown(SourceKey.of_namespaces(quota.key.uid, cluster))
                names.append(f"{shown} (its namespaceProjects has changed)")
                seconds.append(left)
        return names, min(seconds, default=None)

    async def _largest_namespaces(
        self, sources: Iterable[UsageSource], quota: Quota
    ) -> tuple[tuple[NamespaceUse, ...], int]:
        """And how many others there are that use something. What has a name that no API server takes is one of these:
        the whole report would be refused for it."""
        inside = {each.cluster: each for source in sources if (each := source.in_namespaces) is not None}
        users, first = 0, list[tuple[tuple[str, str], ResourceList]]()
        for cluster, counted in inside.items():
            async for some in in_pieces(_some(counted.totals.by_namespace)):
                found = [
                    ((cluster, namespace), limited)
                    for namespace, used in some
                    if (limited := resources.only(used, quota.limits))
                ]
                users += len(found)
                first = largest([*first, *(each for each in found if is_namespace(each[0][1]))], quota.limits)
        lines = tuple(
            NamespaceUse(
                cluster=cluster,
                namespace=namespace,
                project=self._cluster_cache.project_in(cluster, inside[cluster].labels(namespace))[:MAX_PROJECT],
                used=wire_quantities(used),
            )
            for (cluster, namespace), used in first
        )
        return lines, users - len(lines)

    def _stale(
        self, quota: Quota, sources: Iterable[UsageSource], account: Account, now: float
    ) -> tuple[StaleSource, ...]:
        uncounted = self._uncounted
        found = (
            stale_source(each, quota.shown(each.key), account, now, uncounted.get((quota.key.uid, each.key)))
            for each in sources
        )
        return tuple(source for source in found if source is not None)[:MAX_NAMED]

    def _before(self, quota: Quota, now: float) -> Published | None:
        before = self._published.get(quota.key.uid)
        if before is not None and before.copy_uid != quota.copy_uid:
            before = None  # the copy was made anew, without our status
        if before is None and quota.published is not None:
            facts = Sources(
                tuple(quota.published_stale),
                tuple(quota.published_unenforced),
                quota.published_generation,
                quota.published_clusters,
                tuple(quota.published_not_counted),
                waits_for=quota.published_wait,
                raised=quota.published_raised,
            )
            before = Published(quota.copy_uid, quota.published, facts, now)
            self._published[quota.key.uid] = before  # the intervals run from here: a predecessor's clock says nothing
        return before


def _some(by_namespace: Mapping[str, ResourceList]) -> Iterator[list[tuple[str, ResourceList]]]:
    """Those that are there now, some at a time, each with what it uses by then."""
    found = list(by_namespace)
    for begin in range(0, len(found), LOOKED_AT):
        yield [(name, by_namespace[name]) for name in found[begin : begin + LOOKED_AT] if name in by_namespace]


def _soonest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)


def _has_later_fields(account: WireReport) -> bool:
    """Whether it has fields that an earlier release does not know, and its master does not need."""
    of_projects = any(each.project for each in account.namespaces)
    return account.waits_for is not None or bool(
        account.not_served
        or account.not_counted
        or account.picked
        or of_projects
        or account.enforced_raised
        or account.projects
    )


def kept_use(used: ResourceList, account: Account, quota: Quota) -> ResourceList:
    """As much of the use as an account keeps."""
    return names.kept(used, accounts.ever_limited(account, quota.ceilings), names.FURTHER)


def _not_served(sources: Iterable[UsageSource], quota: Quota) -> tuple[str, ...]:
    """Of what the quota limits, that of which no cluster serves the kind."""
    found: frozenset[str] | None = None
    for source in sources:
        if source.in_namespaces is not None:
            here = source.in_namespaces.not_served
            found = here if found is None else found & here
    return tuple(sorted((found or frozenset()) & quota.limits.keys())[:MAX_NAMED])


def _without_quota(sources: Iterable[UsageSource]) -> tuple[tuple[NamespaceLack, ...], int]:
    """The first namespaces that lack a core ResourceQuota for something, and how many more there are."""
    found = sorted(
        (counted.cluster, namespace, lacking)
        for source in sources
        if (counted := source.in_namespaces) is not None
        for namespace, lacking in counted.lacking.items()
    )
    named = [each for each in found if is_namespace(each[1])][:MAX_NAMED]
    lines = (NamespaceLack(cluster=each[0], namespace=each[1], resources=tuple(each[2])) for each in named)
    return tuple(lines), len(found) - len(named)
