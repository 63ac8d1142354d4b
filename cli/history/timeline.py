"""What the API still tells of a quota's past: who wrote its limits, conditions that turned, Events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from cli import figures
from cli.denials import Denied, Event
from common.api.types import Condition
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from common.quota.names import in_order
from master.cache.objects import MASTER_QUOTAS, MasterQuota
from master.quotas import staleness
from master.quotas.events import CONTROLLER

KIND = "ResourceQuota"


class Manager(msgspec.Struct, frozen=True, rename="camel"):
    """A program that owns fields, and when it last changed one of them."""

    manager: str = ""
    time: str = ""
    subresource: str = ""
    fields_v1: dict[str, object] = msgspec.field(default_factory=dict, name="fieldsV1")


class ManagedMeta(ObjectMeta, frozen=True, kw_only=True):
    managed_fields: list[Manager] = []


class Managed(Object, frozen=True, kw_only=True):
    """A quota with those who wrote it."""

    metadata: ManagedMeta


MANAGED = Resource(
    MASTER_QUOTAS.group, MASTER_QUOTAS.version, MASTER_QUOTAS.plural, MASTER_QUOTAS.kind, namespaced=False, type=Managed
)


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """`since` is set where it happened `count` times, first then."""

    time: str
    what: str
    detail: str
    since: str = ""
    count: int = 1


def of_writers(managed: Managed) -> list[Entry]:
    """Of each program only the last write is known: the API server keeps no more."""
    found = []
    for each in managed.metadata.managed_fields:
        names = _limits(each)
        if names and not each.subresource:
            found.append(Entry(each.time, "LimitsWritten", f"by {each.manager}, which owns {', '.join(names)}"))
    return found


def _limits(manager: Manager) -> list[str]:
    spec = manager.fields_v1.get("f:spec")
    quota = spec.get("f:quota") if isinstance(spec, dict) else None
    names = [key.removeprefix("f:") for key in quota if key.startswith("f:")] if isinstance(quota, dict) else []
    return in_order(dict.fromkeys(names))


def of_quota(quota: MasterQuota) -> list[Entry]:
    """When it was created, and when each of its conditions turned to what it is."""
    created = quota.metadata.creation_timestamp
    found = [Entry(created, "Created", figures.subject_of(quota))] if created else []
    return found + [
        Entry(each.last_transition_time, f"{each.type}={each.status}", _said(each))
        for each in quota.status.conditions
        if each.last_transition_time
    ]


def _said(condition: Condition) -> str:
    return f"{condition.reason}: {condition.message}" if condition.message else condition.reason


def of_events(events: Iterable[Event], quota: MasterQuota) -> list[Entry]:
    """Of this quota, not of an earlier one of its name."""
    found = []
    for event in events:
        about = event.regarding
        mine = (about.kind, about.name, about.uid) == (KIND, quota.metadata.name, quota.metadata.uid)
        if event.reporting_controller == CONTROLLER and mine:
            time = event.event_time or event.metadata.creation_timestamp or ""
            found.append(Entry(time, event.reason, event.note))
    return found


def of_refusals(refused: Mapping[str, Sequence[Denied]]) -> list[Entry]:
    """By the seed that they are of."""
    return [
        Entry(
            time=each.last,
            what=each.reason,
            detail=f"{each.object} on {seed}: {each.message}",
            since=each.first if each.count > 1 else "",
            count=each.count,
        )
        for seed, found in refused.items()
        for each in found
    ]


def ordered(entries: Iterable[Entry], now: datetime, since: float) -> list[Entry]:
    """The last first, and none older than is asked. Raises ValueError."""
    found = [each for each in entries if each.time and staleness.seconds_since(each.time, now) <= since]
    return sorted(found, key=lambda each: (datetime.fromisoformat(each.time), each.what, each.detail), reverse=True)
