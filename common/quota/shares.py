"""What each source may fill of a room that all sources of an account share. Pure.

A tenant can send as many requests as it likes, and an organization has many tenants. So no source may fill alone what
is bounded: the reservations of an account, their text, and the requests that wait for a write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

import msgspec

from common.quota import resources
from common.quota.account import Account, Reservation
from common.quota.ledger_words import word
from common.quota.resources import ResourceList

KEPT = 4  # one part in so many is kept for sources that have little ...
FEW = 50  # ... of which so many find room there, each for as much
TIMES = 3  # a source may have so many times what is left of the rest: three quarters of it, if no other has anything


def may_take(has: int, more: int, filled: int, room: int) -> bool:
    """Whether a source may take `more` of the `room`. It `has` a part of what is `filled`."""
    if filled + more > room:
        return False
    kept = room // KEPT
    return has + more <= max(kept // FEW, TIMES * (room - kept - filled - more))


class Load(msgspec.Struct, frozen=True):
    """How full an account is. `text`: characters of what is reserved and used, as a ledger has it. Of each source,
    `reservations` and `texts` have how much is reserved for it."""

    text: int
    reservations: Mapping[str, int]
    texts: Mapping[str, int]


def measure(account: Account) -> Load:
    """Looks at every reservation."""
    texts: dict[str, int] = {}
    for (source, uid), kept in account.reservations.items():
        texts[source] = texts.get(source, 0) + line_length(uid, kept)
    counted = sum([_MARKS + len(source) + _written(used) for source, used in account.used.items()])
    return Load(counted + sum(texts.values()), Counter([source for source, _ in account.reservations]), texts)


def line_length(uid: str, kept: Reservation) -> int:
    """At least as many characters as the line has in a ledger."""
    parts = len(word(f"{uid}{kept.source}{kept.object}{kept.replaces}{kept.request}"))
    numbers = 0 if kept.generation < 100 > kept.claims else _DIGITS
    written = _written(kept.amount) + (_written(kept.earlier) if kept.earlier else 0)
    return _MARKS + parts + numbers + written + (_written(kept.base) if kept.base else 0)


_MARKS = 16  # what stands between the parts of a line, with a generation and a number of claims that are short
_DIGITS = 32  # ... and more where they are long: a generation has up to 64 bits


def _written(amounts: ResourceList) -> int:
    return _written_once(tuple(amounts.items()))


@lru_cache(maxsize=4096)
def _written_once(amounts: tuple[tuple[str, int], ...]) -> int:
    """Machines come in few sizes."""
    return len(resources.text(dict(amounts)))
