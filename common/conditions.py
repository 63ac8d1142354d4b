"""Conditions as Kubernetes keeps them: the time of transition moves only when the status does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from common.api import Condition

MAX_MESSAGE = 1024  # characters


def now(offset: float = 0.0) -> str:
    """The wall clock, `offset` seconds on, as objects show it. For people only: no decision reads it."""
    return (datetime.now(UTC) + timedelta(seconds=offset)).strftime("%Y-%m-%dT%H:%M:%SZ")


def transition(before: Iterable[Condition], after: Sequence[Condition], time: str) -> list[Condition]:
    """`after` with the times of transition that follow from `before`, in the order of `after`."""
    known = {condition.type: condition for condition in before}
    return [_transition(known.get(condition.type), condition, time) for condition in after]


def _transition(old: Condition | None, new: Condition, time: str) -> Condition:
    kept = old.last_transition_time if old is not None and old.status == new.status else ""
    return msgspec.structs.replace(new, last_transition_time=kept or time)


def short(message: str) -> str:
    """For messages that hold what others wrote."""
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."
