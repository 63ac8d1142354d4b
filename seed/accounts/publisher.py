"""Writes what an account says into the status of the quota's copy, from where the master reads it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from common.api.convert import report_to_wire, wire_quantities
from common.api.labels import SEED_MANAGER
from common.api.types import RESOURCE_QUOTAS, NamespaceLack, NamespaceUse, StaleSource
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Conflict, NotFound
from common.quota import account as accounts
from common.quota import names, resources
from common.quota.account import Account
from common.quota.escrow import report
from common.quota.largest import largest
from common.quota.resources import ResourceList
from seed.accounts.publish import MAX_NAMED, STALE_STEP, Published, Sources, publish_in, stale_source
from seed.cache.clusters import ClusterCache
from seed.cache.quota import Quota
from seed.cache.source_keys import shown
from seed.usage.namespaced_objects import NamespacedSource
from seed.usage.source import UsageSource

log = logging.getLogger(__name__)


class Publisher:
    def __init__(self, cluster: Cluster, cluster_cache: ClusterCache, known: Callable[[Quota], int | None]) -> None:
        """`known`: which generation of the quota's copy all replicas have."""
        self._cluster = cluster
        self._cluster_cache = cluster_cache
        self._known = known
        self._published: dict[str, Published] = {}  # by quota uid

    async def publish(self, quota: Quota, account: Account, sources: Iterable[UsageSource]) -> float | None:
        """Returns in how many seconds to call again, None where only news are a reason to."""
        said = report(account)
        said = msgspec.structs.replace(said, used=kept_use(said.used, account, quota))
        unenforced = tuple(map(shown, self._cluster_cache.unenforced(quota)[:MAX_NAMED]))
        now = time.monotonic()
        facts = Sources(
            _stale(sources, account, now),
            unenforced,
            self._known(quota),
            len(self._cluster_cache.covered(quota)),
            *_largest_namespaces(sources, quota),
            *_without_quota(sources),
        )
        before = self._before(quota, now)
        wait = publish_in(before, said, facts, quota.published, now)
        if wait is None:
            return float(STALE_STEP) if facts.stale else None
        if wait > 0:
            return wait
        status = {
            "account": msgspec.structs.replace(
                report_to_wire(said),
                stale=list(facts.stale),
                unenforced=list(facts.unenforced),
                enforced_generation=facts.generation,
                clusters=facts.clusters,
                namespaces=list(facts.namespaces),
                namespaces_omitted=facts.namespaces_omitted,
                without_quota=list(facts.without_quota),
                without_quota_omitted=facts.without_quota_omitted,
            ),
            "localUsage": wire_quantities(resources.only(accounts.use(account), quota.ceilings)),
        }
        self._published[quota.key.uid] = Published(quota.copy_uid, None, facts, now)
        body = {"metadata": {"name": quota.name, "uid": quota.copy_uid}, "status": status}
        try:
            await self._cluster.apply(RESOURCE_QUOTAS, body, manager=SEED_MANAGER, subresource="status")
        except (NotFound, Conflict):
            return 1.0  # the copy was deleted or made anew: the watch will report it
        except ApiError as error:
            log.warning("account not published", extra={"quota": quota.name, "error": str(error)})
            return 1.0
        self._published[quota.key.uid] = Published(quota.copy_uid, said, facts, now)
        return None

    async def publish_at_once(self, quota: Quota, account: Account, sources: Iterable[UsageSource]) -> None:
        """Whatever was published before, and when."""
        self._published[quota.key.uid] = Published(quota.copy_uid, None, Sources(), at=float("-inf"))
        await self.publish(quota, account, sources)

    def forget(self, uid: str) -> None:
        self._published.pop(uid, None)

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
            )
            before = Published(quota.copy_uid, quota.published, facts, now)
            self._published[quota.key.uid] = before  # the intervals run from here: a predecessor's clock says nothing
        return before


def kept_use(used: ResourceList, account: Account, quota: Quota) -> ResourceList:
    """As much of the use as an account keeps."""
    return names.kept(used, accounts.ever_limited(account, quota.ceilings), names.FURTHER)


def _stale(sources: Iterable[UsageSource], account: Account, now: float) -> tuple[StaleSource, ...]:
    found = (stale_source(source, account, now) for source in sources)
    return tuple(source for source in found if source is not None)[:MAX_NAMED]


def _largest_namespaces(sources: Iterable[UsageSource], quota: Quota) -> tuple[tuple[NamespaceUse, ...], int]:
    """And how many others there are that use something."""
    found = [
        ((source.cluster, namespace), limited)
        for source in sources
        if isinstance(source, NamespacedSource)
        for namespace, used in source.totals.by_namespace.items()
        if (limited := resources.only(used, quota.limits))
    ]
    lines = tuple(
        NamespaceUse(cluster=cluster, namespace=namespace, used=wire_quantities(used))
        for (cluster, namespace), used in largest(found, quota.limits)
    )
    return lines, len(found) - len(lines)


def _without_quota(sources: Iterable[UsageSource]) -> tuple[tuple[NamespaceLack, ...], int]:
    """The first namespaces that lack a core ResourceQuota for something, and how many more there are."""
    found = sorted(
        (source.cluster, namespace, lacking)
        for source in sources
        if isinstance(source, NamespacedSource)
        for namespace, lacking in source.lacking.items()
    )
    lines = (NamespaceLack(cluster=each[0], namespace=each[1], resources=each[2]) for each in found[:MAX_NAMED])
    return tuple(lines), max(len(found) - MAX_NAMED, 0)
