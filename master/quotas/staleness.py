"""Which figures of a quota may be out of date, and since when. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from common.api.types import Seed
from master.cache.objects import MasterQuota

SILENT_AFTER = 120.0  # seconds; the master writes when it last reached a connected seed every 30


class Stale(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What may be out of date: a seed since its last report, or `why`."""

    seed: str = ""
    last_report_time: str = ""
    why: str = ""

    def text(self, now: datetime) -> str:
        return f"{self.seed} {age(self.last_report_time, now) or 'never'}" if self.seed else self.why


def stale_of(quota: MasterQuota, silence: str) -> list[Stale]:
    status = quota.status
    if not status.conditions:
        return [Stale(why="no report")]
    found = [Stale(why=f"master silent for {silence}")] if silence else []
    seeds = [Stale(each.name, each.last_report_time) for each in status.seeds if each.state == "Stale"]
    current = next((each for each in status.conditions if each.type == "UsageCurrent"), None)
    if not seeds and (current is None or current.status != "True"):
        seeds = [Stale(why=current.reason if current is not None else "UsageCurrent is not known")]
    return [*found, *seeds]


def silence_of_master(seeds: Sequence[Seed], now: datetime) -> str:
    """How long ago the master last reached a seed of those that it calls connected. Empty: not long, or not known."""
    times = [
        seed.status.last_seen_time
        for seed in seeds
        if seed.status.last_seen_time
        and any(each.type == "Connected" and each.status == "True" for each in seed.status.conditions)
    ]
    last = max(times, default="")
    return age(last, now) if last and seconds_since(last, now) > SILENT_AFTER else ""


def seconds_since(time: str, now: datetime) -> float:
    """Raises ValueError."""
    then = datetime.fromisoformat(time)
    return (now - (then if then.tzinfo is not None else then.replace(tzinfo=UTC))).total_seconds()


def age(time: str, now: datetime) -> str:
    """As kubectl shows ages, in one unit. Empty where there is no time."""
    try:
        seconds = max(int(seconds_since(time, now)), 0)
    except ValueError:
        return ""
    for unit, length, longest in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 48 * 3600)):
        if seconds < longest:
            return f"{seconds // length}{unit}"
    return f"{seconds // 86400}d"
