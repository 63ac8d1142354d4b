"""What each namespace uses of a quota: `GET /namespaces/QUOTA` on the port of the metrics of the replica that leads.

The report to the master has the largest namespaces only: of a thousand, each count would rewrite an object.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping

import msgspec

from common.api.namespaces_page import (
    MAX_NAMED,
    MAX_PAGE,
    MAX_PROJECT,
    MOST,
    NamespaceLine,
    NamespacesPage,
    Place,
    is_namespace,
)
from common.quota import resources
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.model.quota import Quota
from seed.model.source_key import SourceKey
from seed.usage.source import InNamespaces, UsageSource

_ROOM = MAX_PAGE // 2  # bytes of lines: what stands around them is less

_encode = msgspec.json.Encoder().encode


class NamespacePages:
    """`source`: of a key, while this replica leads; None: there is none. Only the leader counts."""

    def __init__(
        self,
        quota_cache: QuotaCache,
        cluster_cache: ClusterCache,
        source: Callable[[SourceKey], UsageSource | None],
        leads: Callable[[], bool],
    ) -> None:
        self._quota_cache = quota_cache
        self._cluster_cache = cluster_cache
        self._source = source
        self._leads = leads

    def page(self, rest: str, query: Mapping[str, str]) -> bytes | None:
        """As JSON. None: this replica does not lead, or has no such quota."""
        quota = self._quota_cache.quota(rest) if self._leads() else None
        if quota is None:
            return None
        raw = query.get("limit", "")
        limit = min(int(raw), MOST) if raw.isascii() and raw.isdecimal() and len(raw) < 5 else MOST
        after = Place(query.get("cluster", ""), query.get("namespace", ""))
        return _encode(self._page(quota, after, max(limit, 1)))

    def _page(self, quota: Quota, after: Place, limit: int) -> NamespacesPage:
        clusters = sorted(self._cluster_cache.covered(quota))
        sources = {cluster: self._source(SourceKey.of_namespaces(quota.key.uid, cluster)) for cluster in clusters}
        page = NamespacesPage(
            uid=quota.key.uid,
            not_current=[cluster for cluster, each in sources.items() if not _is_current(each)][:MAX_NAMED],
        )
        room = _ROOM
        for line in self._after(quota, after, sources):
            room -= len(_encode(line))
            if len(page.items) == limit or (room < 0 and page.items):
                page.more = True
                break
            page.items.append(line)
        return page

    def _after(self, quota: Quota, after: Place, sources: Mapping[str, UsageSource | None]) -> Iterator[NamespaceLine]:
        for cluster, source in sources.items():
            inside = source.in_namespaces if source is not None else None
            if cluster < after.cluster or inside is None:
                continue
            names = [name for name in inside.totals.by_namespace if (cluster, name) > after and is_namespace(name)]
            heapq.heapify(names)  # the page needs the first few of maybe very many
            while names:
                if (line := self._line(quota, inside, heapq.heappop(names))) is not None:
                    yield line

    def _line(self, quota: Quota, inside: InNamespaces, namespace: str) -> NamespaceLine | None:
        used = resources.only(inside.totals.by_namespace[namespace], quota.limits)
        if not any(used.values()):
            return None
        project = self._cluster_cache.project_in(inside.cluster, inside.labels(namespace))
        return NamespaceLine(
            cluster=inside.cluster,
            namespace=namespace,
            project=project[:MAX_PROJECT],  # of a label that no API server takes
            used=resources.render(used),
        )


def _is_current(source: UsageSource | None) -> bool:
    """Whether a page can have all of it."""
    if source is None or not (source.counted and source.current):
        return False
    inside = source.in_namespaces
    return inside is None or all(map(is_namespace, inside.totals.by_namespace))
