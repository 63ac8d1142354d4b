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
    then = datetime.fromisoformat(time)
    try:
        exact = then.astimezone(UTC) if then.tzinfo is not None else then.replace(tzinfo=UTC)
    except OverflowError:  # it is before the year 1, or after 9999
        return NEVER
    said = exact.isoformat(timespec="milliseconds" if exact.microsecond else "seconds")
    return Moment(f"{age} ago", said.replace("+00:00", "Z"))
