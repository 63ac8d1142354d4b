"""What each source may fill of a room that all sources of an account share, and each tenant of its source's part. Pure.

A tenant can send as many requests as it likes, and an organization has many tenants. So no source may fill alone what
is bounded: the reservations of an account, their text, and the requests that wait for a write. Where the namespaces of
several tenants are one source, none of them may fill alone what that may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from common.quota import resources
from common.quota.account import Account, OverShare, Reservation
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


def of_source(has: int, filled: int, room: int) -> int:
    """The most that a source may have while the others have what they have: its tenants share that."""
    kept = room // KEPT
    return max(kept // FEW, TIMES * (room - kept - filled + has) // (TIMES + 1))


def over(has: Mapping[str, int], wanted: Reservation, more: int, filled: int, room: int) -> OverShare | None:
    """Whether its source or its tenant has too much. `has`: see `add`."""
    of_all = has.get(wanted.source, 0)
    if not may_take(of_all, more, filled, room):
        return OverShare()
    if not wanted.tenant or may_take(has.get(wanted.party, 0), more, of_all, of_source(of_all, filled, room)):
        return None
    return OverShare(wanted.tenant)


def add(has: dict[str, int], reservation: Reservation, more: int) -> None:
    """To what its source has, and to what its tenant has of that."""
    for party in (reservation.source, reservation.party) if reservation.tenant else (reservation.source,):
        has[party] = has.get(party, 0) + more


def rounds(waiting: Sequence[tuple[str, str]]) -> list[int]:
    """In which round each is served, by source and tenant, in the order of the line: the sources take turns, and in
    each of them its tenants."""
    turns: Counter[tuple[str, str]] = Counter()
    of_tenants = []
    for each in waiting:
        of_tenants.append(turns[each])
        turns[each] += 1
    of_sources: Counter[str] = Counter()
    found = [0] * len(waiting)
    for place in sorted(range(len(waiting)), key=of_tenants.__getitem__):
        source, _ = waiting[place]
        found[place] = of_sources[source]
        of_sources[source] += 1
    return found


class Load(msgspec.Struct, frozen=True):
    """How full an account is. `text`: characters of what is reserved and used, as a ledger has it. Of each source, and
    of each tenant in it, `reservations` and `texts` have how much is reserved for it."""

    text: int
    reservations: Mapping[str, int]
    texts: Mapping[str, int]


def measure(account: Account) -> Load:
    """Looks at every reservation."""
    texts: dict[str, int] = {}
    numbers: dict[str, int] = {}
    text = sum([_MARKS + len(source) + _written(used) for source, used in account.used.items()])
    for (_, uid), kept in account.reservations.items():
        length = line_length(uid, kept)
        text += length
        add(texts, kept, length)
        add(numbers, kept, 1)
    return Load(text, numbers, texts)


def line_length(uid: str, kept: Reservation) -> int:
    """At least as many characters as the line has in a ledger."""
    parts = len(word(f"{uid}{kept.source}{kept.object}{kept.replaces}{kept.request}{kept.tenant}"))
    numbers = 0 if kept.generation < 100 > kept.claims else _DIGITS
    written = _written(kept.amount) + (_written(kept.earlier) if kept.earlier else 0)
    return _MARKS + parts + numbers + written + (_written(kept.base) if kept.base else 0)


_MARKS = 17  # what stands between the parts of a line, with a generation and a number of claims that are short
_DIGITS = 32  # ... and more where they are long: a generation has up to 64 bits


def _written(amounts: ResourceList) -> int:
    return _written_once(tuple(amounts.items()))


@lru_cache(maxsize=4096)
def _written_once(amounts: tuple[tuple[str, int], ...]) -> int:
    """Machines come in few sizes."""
    return len(resources.text(dict(amounts)))
