"""Quotas and seeds in the states that the commands show."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from cli.seeds.on_master import Held
from common.api.types import Seed
from common.quota import resources
from master.cache.objects import MasterQuota

NOW = datetime(2026, 11, 20, 10, 0, 3, tzinfo=UTC)

STALE = {
    "type": "UsageCurrent",
    "status": "False",
    "reason": "SeedUnreachable",
    "message": "us-1 last reported 7m ago; its last count is kept",
}
ENFORCED = {"type": "Enforced", "status": "True", "reason": "AllSeeds"}
CURRENT = {"type": "UsageCurrent", "status": "True", "reason": "AllReported"}


def quota(name: str, subject: dict[str, Any], limits: dict[str, Any], **status: Any) -> MasterQuota:
    generation = status.pop("generation", 1)
    found = {
        "metadata": {"name": name, "generation": generation},
        "spec": {"subject": subject, "quota": limits, "enforcement": "deny"},
        "status": {"observedGeneration": 1, "hard": limits, **status} if status else {},
    }
    return msgspec.convert(found, MasterQuota)


ALPHA = quota(
    "project-alpha",
    {"kind": "project", "name": "alpha"},
    {"cpu": "64", "memory": "256Gi", "storage": "4Ti", "machines": "20", "nvidia.com/gpu": "8"},
    globalUsage={"cpu": "60", "memory": "232Gi", "storage": "1Ti", "machines": "12", "nvidia.com/gpu": "0"},
    reserved={"cpu": "2"},
    surge={"hard": {"cpu": "8"}, "used": {}},
    summary={"subject": "project/alpha", "peak": "cpu 93%", "seeds": "1/2"},
    seeds=[
        {
            "name": "us-1",
            "state": "Stale",
            "localUsage": {"cpu": "20"},
            "granted": {"cpu": "20"},
            "lastReportTime": "2026-11-20T09:53:00Z",
        },
        {
            "name": "eu-1",
            "state": "Current",
            "localUsage": {"cpu": "40", "memory": "232Gi"},
            "granted": {"cpu": "44", "memory": "240Gi"},
            "lastReportTime": "2026-11-20T08:00:00Z",
        },
    ],
    seedsOmitted=3,
    conditions=[{"type": "Ready", "status": "True", "reason": "Enforced"}, ENFORCED, STALE],
)
ANN = quota(
    "owner-ann",
    {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}},
    {"pods": "50", "requests.cpu": "20"},
    globalUsage={"pods": "51", "requests.cpu": "1500m"},
    summary={"subject": "namespaces", "peak": "pods 102%", "seeds": "2/2"},
    namespaces=[
        {"cluster": "alpha/c1", "namespace": "web", "used": {"pods": "41", "requests.cpu": "1500m"}},
        {"cluster": "eu-1", "namespace": "db", "used": {"pods": "10"}},
    ],
    namespacesOmitted=1,
    conditions=[
        ENFORCED,
        CURRENT,
        {
            "type": "Exceeded",
            "status": "True",
            "reason": "LimitLowered",
            "message": "pods 51/50: the limit was lowered; nothing is removed, and nothing more is admitted until use "
            "has fallen",
        },
    ],
)
NEW = quota("project-new", {"kind": "project", "name": "new"}, {"cpu": "4"})
NONE = quota(
    "project-none",
    {"kind": "project", "name": "none"},
    {"cpu": 0},
    generation=2,
    globalUsage={"cpu": "2"},
    summary={"peak": "cpu over 0", "seeds": "2/2"},
    conditions=[ENFORCED, CURRENT],
)
GPUS = quota(
    "org-acme",
    {"kind": "organization", "name": "acme"},
    {"gpus": "4", "cpu": "100"},
    globalUsage={"cpu": "10"},
    summary={"peak": "cpu 10%", "seeds": "2/2"},
    conditions=[ENFORCED, CURRENT],
)
QUOTAS = [NEW, GPUS, ALPHA, NONE, ANN]


def seed(name: str, last_seen: str, *conditions: dict[str, str], state: str = "Active") -> Seed:
    status = {"lastSeenTime": last_seen, "conditions": list(conditions)}
    return msgspec.convert({"metadata": {"name": name}, "spec": {"state": state}, "status": status}, Seed)


CONNECTED = {"type": "Connected", "status": "True", "reason": "Connected"}
AWAY = {"type": "Connected", "status": "False", "reason": "Unreachable", "message": "no answer within 10 s"}
SEEDS = [
    seed("eu-1", "2026-11-20T10:00:00Z", CONNECTED, {"type": "Ready", "status": "True", "reason": "Ready"}),
    seed(
        "us-1",
        "2026-11-20T09:53:00Z",
        {**AWAY, "type": "Ready"},
        AWAY,
        {"type": "Synced", "status": "Unknown", "reason": "NotConnected", "message": "the seed cannot be asked"},
    ),
]
HELD = {
    "us-1": {"project-alpha": Held(resources.parse({"cpu": "24"}), known=True)},
    "old-1": {"project-alpha": Held({}, known=False)},
}
