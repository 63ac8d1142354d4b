"""A quota's use over time, as Prometheus has it: the peaks of each part of the time that is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

import aiohttp
import msgspec

from cli.connection import TIMEOUT
from cli.outcome import Failed
from common.quota import resources
from common.quota.quantity import UNIT
from master.history.prometheus_api import Points, PrometheusError, by_resource, query_range

PARTS = 12
LEAST = 300  # seconds of one part: less than a few scrapes tell nothing


class Peak(msgspec.Struct, frozen=True):
    """Of one resource. `least` and `most` are the limit's in that time, which are the same where it did not change."""

    used: str
    least: str
    most: str


class Part(msgspec.Struct, frozen=True):
    """`refusals` is what Prometheus estimates; None where it has no metrics of any seed."""

    start: str
    end: str
    resources: dict[str, Peak]
    refusals: int | None


async def parts(url: str, quota: str, now: datetime, since: float) -> list[Part]:
    """The last first; without those of which Prometheus has nothing. Raises Failed."""
    step = max(math.ceil(since / PARTS), LEAST)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def ask(query: str) -> Points:
            end, count = now.timestamp(), max(math.ceil(since / step), 1)
            try:
                return by_resource(await query_range(session, url, query, end - (count - 1) * step, end, step))
            except PrometheusError as error:
                raise Failed(str(error)) from None

        chosen = f'quota="{quota}"'
        used = await ask(f"max by (resource) (max_over_time(seedquota_used{{{chosen}}}[{step}s]))")
        least = await ask(f"min by (resource) (min_over_time(seedquota_limit{{{chosen}}}[{step}s]))")
        most = await ask(f"max by (resource) (max_over_time(seedquota_limit{{{chosen}}}[{step}s]))")
        # Seeds without a refusal have no counter of them, but this gauge.
        none = f"0 * count(max_over_time(seedquota_accounts_fenced[{step}s]))"
        refusals = await ask(f"sum(increase(seedquota_refusals_total{{{chosen}}}[{step}s])) or {none}")
    return [_part(time, step, used[time], least, most, refusals) for time in sorted(used, reverse=True)]


def _part(time: float, step: int, used: Mapping[str, float], least: Points, most: Points, refusals: Points) -> Part:
    found = {}
    for name, amount in used.items():
        limits = [points.get(time, {}).get(name) for points in (least, most)]
        known = [limit for limit in limits if limit is not None]
        written = resources.shown(name, *(round(each * UNIT) for each in (amount, *known)))
        found[name] = Peak(written[0], *(written[1:] if len(known) == 2 else ("", "")))
    count = refusals.get(time, {}).get("")
    return Part(_time(time - step), _time(time), found, round(count) if count is not None else None)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
