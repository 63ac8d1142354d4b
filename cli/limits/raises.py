"""What `seedquota set --until` writes: an override, which raises limits until a time. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec

from cli.limits.changes import Changes
from cli.outcome import Failed
from common.api.types import Quantities
from master.cache.objects import MasterQuota, Override
from master.grants.overrides import in_force

_DURATION = re.compile(r"(?P<number>[1-9][0-9]{0,4})(?P<unit>[mhd])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def end(text: str, now: datetime) -> str:
    """Of `2026-12-31T00:00:00Z`, or `7d` from now on. Raises Failed."""
    if match := _DURATION.fullmatch(text):
        found = now + int(match["number"]) * _UNITS[match["unit"]]
    else:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            found = now.replace(tzinfo=None)
        if found.tzinfo is None:
            raise Failed(f"--until {text!r} is no time: write such as 2026-12-31T00:00:00Z, or 90m, 36h, 7d")
    if found <= now:
        raise Failed(f"--until {text!r} has passed")
    return found.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def patched(quota: MasterQuota, wanted: Changes, until: str, reason: str) -> dict[str, object]:
    """The spec's part of a merge patch: the overrides that have not ended, and this one. Raises Failed."""
    amounts: Quantities = {}
    for name, amount in wanted.items():
        if amount is None:
            raise Failed(f"{name}-: with --until limits are raised; write {name}=AMOUNT")
        amounts[name] = amount
    given = msgspec.convert(quota.spec.get("overrides", []), list[Override])
    ended = {each.until for each in quota.status.overrides if each.state == "Ended"}
    kept = [each for each in given if each.until not in ended and each.until != until]
    return {"overrides": msgspec.to_builtins([*kept, Override(until=until, quota=amounts, reason=reason)])}


def limits(quota: MasterQuota, now: datetime) -> Quantities:
    """Those in force, by this machine's clock: the master has not said yet what it makes of the change."""
    return msgspec.convert(in_force(quota, quota.status.overrides, now.timestamp()).spec["quota"], Quantities)
