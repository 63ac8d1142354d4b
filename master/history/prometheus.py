"""Use and refusals of the last thirty days, as a Prometheus has them that scrapes the master."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import aiohttp
import msgspec

from common.runtime.lru import LruDict
from master.cache.objects import MasterQuota
from master.grants.overrides import end as unix_time
from master.history import refusal_metrics
from master.history.forecast import Point
from master.history.prometheus_api import (
    Points,
    PrometheusError,
    PrometheusUnreachableError,
    Series,
    by_resource,
    query_range,
)
from master.history.recent_refusals import RecentRefusals
from master.history.refusals import NOTHING_KNOWN, Lately, Refusals, joined
from master.history.store import BUCKET, KEPT

log = logging.getLogger(__name__)

TIMEOUT = 5.0  # seconds, for one question
AT_A_TIME = 4  # quotas that it is asked about; others wait
KEPT_SECONDS = 60.0  # an answer, also for those who look at the same quota ...
FAILED_SECONDS = 10.0  # ... and that there is none; where nobody answers, of all quotas: each page would wait for it
MAX_KEPT = 256  # quotas

Found = dict[str, list[Point]]


class _Past(NamedTuple):
    points: Found
    refusals: Refusals


_NOTHING = _Past({}, NOTHING_KNOWN)


class PrometheusHistory:
    """`run` it. `url`: of its start page. `labels`: those that the metrics of this installation have there. `recent`:
    what it has not scraped yet, or cannot know before the part of now has ended."""

    def __init__(
        self,
        url: str,
        labels: Mapping[str, str],
        recent: RecentRefusals,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._url = url
        self._labels = labels
        self._recent = recent
        self._clock = clock
        self._kept = LruDict[str, tuple[float, _Past]]()  # by the quota's uid, until a monotonic time
        self._asking: dict[str, asyncio.Task[_Past]] = {}
        self._some = asyncio.Semaphore(AT_A_TIME)
        self._unreachable_until = 0.0  # monotonic

    async def run(self) -> None:
        """Until cancelled: what Prometheus is to keep of refusals."""
        await self._recent.run()

    async def points(self, quota: MasterQuota) -> Found:
        """Of the quota, by resource, the oldest first; nothing where nothing is known."""
        return (await self._past(quota)).points

    async def refusals(self, quota: MasterQuota) -> Refusals:
        """Of the quota."""
        return joined((await self._past(quota)).refusals, self._recent.of(quota.metadata.uid))

    async def lately(self) -> Lately:
        return self._recent.lately()

    async def _past(self, quota: MasterQuota) -> _Past:
        uid = quota.metadata.uid
        kept = self._kept.get(uid)
        if kept is not None and time.monotonic() < kept[0]:
            return kept[1]
        asking = self._asking.get(uid)
        if asking is None:  # one question for all who look at the quota
            asking = self._asking[uid] = asyncio.create_task(self._find(quota), name="history")
            asking.add_done_callback(lambda _: self._asking.pop(uid))
        return await asyncio.shield(asking)

    async def _find(self, quota: MasterQuota) -> _Past:
        async with self._some:
            if time.monotonic() < self._unreachable_until:
                return _NOTHING
            try:
                found, seconds = await self._ask(quota), KEPT_SECONDS
            except PrometheusError as error:
                log.warning("the history cannot be read", extra={"error": str(error)})
                found, seconds = _NOTHING, FAILED_SECONDS
                if isinstance(error, PrometheusUnreachableError):
                    self._unreachable_until = time.monotonic() + FAILED_SECONDS
        self._kept.keep(quota.metadata.uid, (time.monotonic() + seconds, found), MAX_KEPT)
        return found

    async def _ask(self, quota: MasterQuota) -> _Past:
        """Raises PrometheusError."""
        now = self._clock().timestamp()
        last = math.ceil(now / BUCKET) * BUCKET
        here = selector(self._labels)
        chosen = selector({"quota": quota.metadata.name, **self._labels})
        created = unix_time(quota.metadata.creation_timestamp or "") or 0.0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as session:

            async def both(*queries: str) -> tuple[list[Series], list[Series]]:
                asked = (query_range(session, self._url, each, last - KEPT, last, BUCKET) for each in queries)
                one, other = await asyncio.gather(*asked)
                return one, other

            used, limits = await both(
                f"max by (resource) (max_over_time(seedquota_used{chosen}[{BUCKET}s]))",
                f"max by (resource) (last_over_time(seedquota_limit{chosen}[{BUCKET}s]))",
            )
            try:
                counts, known = await both(
                    f"max by (resource, part) (max_over_time({refusal_metrics.COUNTS}{chosen}[{BUCKET}s]))",
                    f"max by (part) (max_over_time({refusal_metrics.KNOWN}{here}[{BUCKET}s]))",
                )
                refused = refusal_metrics.read(counts, known, created)
            except PrometheusError as error:  # such as resources that a seed made up, too many for an answer
                log.warning("refusals cannot be read from the history", extra={"error": str(error)})
                refused = NOTHING_KNOWN
        return _Past(points_of(by_resource(used), by_resource(limits), created), refused)


def points_of(used: Points, limits: Points, created: float) -> Found:
    """A value is of the time before it. `created`: before it there may have been another quota of this name."""
    found: Found = {}
    for at in sorted(used):
        begun = at - BUCKET
        for resource, amount in used[at].items():
            limit = limits.get(at, {}).get(resource)
            if limit is not None and resource and begun >= created:
                found.setdefault(resource, []).append(Point(begun, amount, limit))
    return found


def selector(labels: Mapping[str, str]) -> str:
    """In JSON's form, a string of PromQL has the same escapes."""
    return "{" + ",".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in labels.items()) + "}"
