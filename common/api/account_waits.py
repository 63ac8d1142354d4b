"""What an account waits for before it admits anything, in the seed's report and in messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from common.api import conditions
from common.api.types import AccountWait

_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


class WaitReason(StrEnum):
    MASTER_ANSWER = "MasterAnswer"
    IN_FLIGHT_WINDOW = "InFlightWindow"
    SOURCES = "Sources"
    TURN = "Turn"
    LEDGER = "Ledger"


def written(wait: AccountWait) -> AccountWait:
    """As a status can have it: without a time that is none."""
    try:
        is_time = _TIME.fullmatch(wait.until) is not None and bool(datetime.fromisoformat(wait.until))
    except ValueError:
        is_time = False
    return wait if is_time or not wait.until else msgspec.structs.replace(wait, until="")


def text(wait: AccountWait, *, named: bool = True) -> str:
    """Such as `waits for the answer of the master`. `named`: with the names of sources, which not every tenant may
    read. Of a reason of a later release, the reason alone."""
    match wait.reason:
        case WaitReason.MASTER_ANSWER:
            return "waits for the answer of the master"
        case WaitReason.IN_FLIGHT_WINDOW:
            return f"waits until {wait.until}, since what was admitted before may appear until then"
        case WaitReason.SOURCES:
            return f"waits for new lists {_kinds(wait, named=named)}from {_sources(wait, named=named)}"
        case WaitReason.TURN:
            return "waits for its turn, since a limited number of accounts is opened at a time"
        case WaitReason.LEDGER:
            return "waits for its ledger, which cannot be read or written"
    return f"waits ({wait.reason})"


def _sources(wait: AccountWait, *, named: bool) -> str:
    number = len(wait.sources) + wait.sources_omitted
    if not named or not wait.sources:
        return conditions.count(number, "cluster") if number else "its clusters"
    return _some(wait.sources, wait.sources_omitted)


def _kinds(wait: AccountWait, *, named: bool) -> str:
    """Names of sources have them in brackets."""
    return f"of {_some(wait.kinds, wait.kinds_omitted)} " if wait.kinds and not named else ""


def _some(names: Sequence[str], omitted: int) -> str:
    return ", ".join(names) + (f" and {omitted} more" if omitted else "")
