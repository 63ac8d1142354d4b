"""Conditions as Kubernetes keeps them: the time of transition moves only when the status does. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Sized
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from common.api.bounded import LONGEST_MESSAGE
from common.api.types import Condition

MAX_MESSAGE = 1024  # characters
NAMED = 3  # seeds or clusters that a message names

_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_WORDS: dict[bool | None, Literal["True", "False", "Unknown"]] = {True: "True", False: "False", None: "Unknown"}


def now(offset: float = 0.0) -> str:
    """The wall clock, `offset` seconds on, as objects show it. For people only: no decision reads it."""
    return (datetime.now(UTC) + timedelta(seconds=offset)).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: bool | None, reason: str, message: str) -> Condition:
    """`message`: as much of it as a condition can have, whatever others wrote."""
    return Condition(type=kind, status=_WORDS[status], reason=reason, message=message[:LONGEST_MESSAGE])


def check_reasons(found: Iterable[Condition]) -> None:
    """Of conditions that others wrote, as the schema has them. Raises msgspec.ValidationError."""
    if wrong := [each.type for each in found if not _REASON.fullmatch(each.reason)]:
        raise msgspec.ValidationError(f"the reason of {wrong[0]!a} is no word")


def transition(before: Iterable[Condition], after: Sequence[Condition], time: str) -> list[Condition]:
    """`after` with the times of transition that follow from `before`, in the order of `after`."""
    known = {each.type: each for each in before}
    return [_transition(known.get(each.type), each, time) for each in after]


def _transition(old: Condition | None, new: Condition, time: str) -> Condition:
    kept = old.last_transition_time if old is not None and old.status == new.status else ""
    return msgspec.structs.replace(new, last_transition_time=kept or time)


def short(message: str) -> str:
    """For messages that hold what others wrote."""
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."


def some(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    return ", ".join(names[:NAMED]) + more(names)


def count(number: int, thing: str) -> str:
    """`1 machine`, `2 machines`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def more(things: Sized) -> str:
    """How many are left where the first few are named."""
    return f" and {len(things) - NAMED} more" if len(things) > NAMED else ""
