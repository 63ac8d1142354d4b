"""Quotas and seeds as the caches have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from common.api.types import Seed
from master.cache.objects import MasterQuota

NOW = datetime(2026, 11, 20, 10, 0, 0, tzinfo=UTC)
Json = dict[str, Any]

ENFORCED = ("Enforced", "True", "AllSeeds")
CURRENT = ("UsageCurrent", "True", "AllReported")


def condition(type: str, status: str, reason: str, message: str = "") -> Json:
    return {
        "type": type,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-20T09:00:00Z",
    }


def quota(
    name: str = "project-alpha",
    hard: Mapping[str, str] = {"cpu": "64"},
    used: Mapping[str, str] | None = None,
    *,
    reserved: Mapping[str, str] = {},
    subject: tuple[str, str] = ("project", "alpha"),
    seeds: Sequence[Json] = (),
    conditions: Sequence[tuple[str, str, str]] = (ENFORCED, CURRENT),
    **spec: Any,
) -> MasterQuota:
    """`used` None: no master has counted it."""
    counted = used is not None
    status = {
        "observedGeneration": 1,
        "hard": hard,
        "globalUsage": used,
        "reserved": reserved,
        "seeds": seeds,
        "conditions": [condition(*each) for each in conditions],
    }
    given = {
        "metadata": {"name": name, "uid": name, "generation": 1},
        "spec": {"subject": {"kind": subject[0], "name": subject[1]}, "quota": hard, **spec},
        "status": status if counted else {},
    }
    return msgspec.convert(given, MasterQuota)


def seed(name: str, *conditions: tuple[str, str, str], seen: str = "2026-11-20T09:59:57Z", **spec: Any) -> Seed:
    status = {"lastSeenTime": seen, "conditions": [condition(*each) for each in conditions]}
    given = {"metadata": {"name": name, "uid": name}, "spec": {"inCluster": True, **spec}, "status": status}
    return msgspec.convert(given, Seed)


HEALTHY = (("Ready", "True", "Ready"), ("Connected", "True", "Connected"), ("WebhookServing", "True", "CanaryDenied"))
