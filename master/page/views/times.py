"""Times as people say them, each with the exact one. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from master.quotas import staleness


class Moment(NamedTuple):
    """`text`: "7m ago", and empty where the time is not known. `exact`: RFC 3339, UTC."""

    text: str
    exact: str


NEVER = Moment("", "")


def moment(time: str, now: datetime) -> Moment:
    age = staleness.age(time, now) if time else ""
    if not age:
        return NEVER
    return Moment(f"{age} ago", datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
