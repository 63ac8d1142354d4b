"""The figures of quotas as `top` and `describe` show them, and which of them may be out of date. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from common.api.types import Seed
from common.quota import resources
from master.cache.objects import MasterQuota

SILENT_AFTER = 120.0  # seconds; the master writes when it last reached a connected seed every 30

_FIRST = ("cpu", "memory", "storage", "machines", "clusters")


class Amounts(msgspec.Struct, frozen=True):
    """Of one resource, all in one unit. An empty `used`: it is not counted."""

    used: str
    hard: str
    free: str
    reserved: str


class Stale(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What may be out of date: a seed since its last report, or `why`."""

    seed: str = ""
    last_report_time: str = ""
    why: str = ""

    def text(self, now: datetime) -> str:
        return f"{self.seed} {age(self.last_report_time, now) or 'never'}" if self.seed else self.why


class Figures(msgspec.Struct, frozen=True, rename="camel"):
    """`percent` of the fullest resource: None where none has a limit above 0."""

    name: str
    subject: str
    enforcement: str
    peak: str
    percent: int | None
    resources: dict[str, Amounts]
    seeds: str
    stale: list[Stale]


def of_quota(quota: MasterQuota, silence: str = "") -> Figures:
    """`silence`: how long the master has been silent. Raises QuantityError."""
    status = quota.status
    subject, enforcement = subject_of(quota), str(quota.spec.get("enforcement", "deny"))
    limits = resources.parse(status.hard or limits_of(quota))
    used, reserved = resources.parse(status.global_usage), resources.parse(status.reserved)
    amounts = {name: _amounts(name, used.get(name), limits[name], reserved.get(name, 0)) for name in in_order(limits)}
    percent = max((used.get(name, 0) * 100 // limit for name, limit in limits.items() if limit), default=None)
    return Figures(
        name=quota.metadata.name,
        subject=subject,
        enforcement=enforcement,
        peak=status.summary.peak,
        percent=percent,
        resources=amounts,
        seeds=status.summary.seeds,
        stale=stale_of(quota, silence),
    )


def subject_of(quota: MasterQuota) -> str:
    subject = quota.spec.get("subject")
    if not isinstance(subject, dict):
        return quota.status.summary.subject
    return "/".join(filter(None, (str(subject.get("kind", "")), str(subject.get("name", "")))))


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


def in_order(names: Mapping[str, object]) -> list[str]:
    return [name for name in _FIRST if name in names] + sorted(name for name in names if name not in _FIRST)


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


def limits_of(quota: MasterQuota) -> dict[str, str | int]:
    found = quota.spec.get("quota")
    return msgspec.convert(found, dict[str, str | int]) if found is not None else {}


def _amounts(name: str, used: int | None, limit: int, reserved: int) -> Amounts:
    if used is None:
        return Amounts("", resources.alike(name, limit)[0], "", "")
    return Amounts(*resources.alike(name, used, limit, limit - used, reserved))
