"""What a quota's status says that a receiver may want to know. Pure.

It is read from the status that everybody can read, and by the same edges as Events: what lasts is said once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from common.api.conditions import short
from common.api.types import Condition
from master.cache.objects import MasterQuota
from master.grants.overrides import SOON, end
from master.quotas.condition_events import UNREACHABLE
from master.quotas.override_conditions import ENDS, text_of

FULL = "Full"
NEAR_LIMIT = "NearLimit"
EXCEEDED = "Exceeded"
EVENTS = (NEAR_LIMIT, FULL, EXCEEDED, UNREACHABLE, ENDS)


class Active(msgspec.Struct, frozen=True, kw_only=True):
    """It began at `since`, and lasts. `subject`: kind/name. `mark` tells two of one event apart. `until`: when nobody
    needs to be told any more, in Unix time; None: as long as it lasts."""

    quota: str
    subject: str
    event: str
    mark: str = ""
    since: str
    message: str
    until: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.quota, self.event, self.mark


def active(quota: MasterQuota) -> tuple[Active, ...]:
    """In a fixed order."""
    subject = _subject(quota)
    found = [
        Active(
            quota=quota.metadata.name,
            subject=subject,
            event=event,
            since=condition.last_transition_time,
            message=short(condition.message),
        )
        for event, condition in _of_conditions(quota.status.conditions)
    ]
    for each in quota.status.overrides:
        at = end(each.until)
        if each.state == "InForce" or at is None:
            continue
        said = "ends" if each.state == "EndsSoon" else "has ended; nothing is removed"
        found.append(
            Active(
                quota=quota.metadata.name,
                subject=subject,
                event=ENDS,
                mark=f"{each.state} {each.until}",
                since=each.until,
                message=short(f"{text_of(each)}: {said}"),
                until=at + SOON,
            )
        )
    return tuple(sorted(found, key=lambda each: each.key))


def _subject(quota: MasterQuota) -> str:
    """`project/alpha`, whichever part of it is limited; of kind namespaces as columns have it."""
    subject = quota.spec.get("subject")
    kind, name = (subject.get("kind"), subject.get("name")) if isinstance(subject, dict) else ("", "")
    return f"{kind}/{name}" if name else quota.status.summary.subject


def _of_conditions(conditions: Iterable[Condition]) -> Iterable[tuple[str, Condition]]:
    for condition in conditions:
        if condition.type in (NEAR_LIMIT, EXCEEDED) and condition.status == "True":
            yield condition.type, condition
            if condition.reason == FULL:
                yield FULL, condition
        elif condition.type == "UsageCurrent" and condition.reason == UNREACHABLE:
            yield UNREACHABLE, condition
