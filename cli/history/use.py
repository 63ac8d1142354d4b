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

PARTS = 12
LEAST = 300  # seconds of one part: less than a few scrapes tell nothing
MAX_ANSWER = 4 * 2**20  # bytes
MAX_SAID = 200  # characters of an error
MAX_AMOUNT = 2.0**62  # cores or bytes


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


class _Series(msgspec.Struct):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


class _Matrix(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: list[_Series] = []


class _QueryResponse(msgspec.Struct, rename="camel"):
    status: str
    data: _Matrix = msgspec.field(default_factory=_Matrix)
    error: str = ""


Points = dict[float, dict[str, float]]
"""By time and resource."""


async def parts(url: str, quota: str, now: datetime, since: float) -> list[Part]:
    """The last first; without those of which Prometheus has nothing. Raises Failed."""
    step = max(math.ceil(since / PARTS), LEAST)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def ask(query: str) -> Points:
            end = now.timestamp()
            count = max(math.ceil(since / step), 1)
            wanted = {
                "query": query,
                "start": f"{end - (count - 1) * step:.3f}",
                "end": f"{end:.3f}",
                "step": f"{step}",
            }
            return read(await _get(session, f"{url.rstrip('/')}/api/v1/query_range", wanted))

        chosen = f'quota="{quota}"'
        used = await ask(f"max by (resource) (max_over_time(seedquota_used{{{chosen}}}[{step}s]))")
        least = await ask(f"min by (resource) (min_over_time(seedquota_limit{{{chosen}}}[{step}s]))")
        most = await ask(f"max by (resource) (max_over_time(seedquota_limit{{{chosen}}}[{step}s]))")
        # Seeds without a refusal have no counter of them, but this gauge.
        none = f"0 * count(max_over_time(seedquota_accounts_fenced[{step}s]))"
        refusals = await ask(f"sum(increase(seedquota_refusals_total{{{chosen}}}[{step}s])) or {none}")
    return [_part(time, step, used[time], least, most, refusals) for time in sorted(used, reverse=True)]


async def _get(session: aiohttp.ClientSession, url: str, wanted: Mapping[str, str]) -> bytes:
    try:
        async with session.get(url, params=wanted, allow_redirects=False) as answer:
            content = await answer.content.read(MAX_ANSWER)
            if not answer.content.at_eof():
                raise Failed(f"Prometheus answers more than {MAX_ANSWER} bytes")
            if answer.status not in (200, 400, 422, 503):
                raise Failed(f"Prometheus at {url} answered {answer.status}: is that the URL of its start page?")
            return content
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Failed(f"Prometheus cannot be asked: {error or type(error).__name__}") from None


def read(content: bytes) -> Points:
    """Raises Failed."""
    try:
        answer = msgspec.json.decode(content, type=_QueryResponse)
        if answer.status != "success":
            raise Failed(f"Prometheus refuses the question: {answer.error[:MAX_SAID]}")
        found: Points = {}
        for series in answer.data.result:
            for time, value in series.values:
                amount = float(value)
                if math.isfinite(amount) and 0 <= amount <= MAX_AMOUNT:
                    found.setdefault(time, {})[series.metric.get("resource", "")] = amount
    except (ValueError, RecursionError) as error:
        raise Failed(f"Prometheus answers what cannot be read: {error}") from None
    return found


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
