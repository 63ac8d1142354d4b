"""When a reservation without an object goes (protocol.md, rule 4.5), and what is held back until then. Pure.

No reservation goes by age alone: it takes a consistent read of the object, made after the API server's request timeout
has passed on the leader's own clock since the reservation was first seen as it is. And it takes caches that are later
than that: by older ones, the namespace of what was admitted may be none that the quota selects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from enum import Enum

from common.quota import account as accounts
from common.quota import shares
from common.quota.account import Account, Reservation, ReservationKey
from seed.accounts.first_seen import first_seen
from seed.usage.source import Generation, Taken, UsageSource

UNSEEN_AFTER = 5.0  # seconds after which what was created is usually there
MOST_UNSEEN = 16  # of one party; then no more of it is created (rule 4.10)

Entry = tuple[ReservationKey, Reservation]
FirstSeen = Mapping[ReservationKey, tuple[Reservation, float]]  # monotonic
Looked = Mapping[ReservationKey, float]  # when each was looked at last, monotonic


class Finding(Enum):
    NEVER_CAME = "drop it"
    NEVER_CHANGED = "drop it, and count the source in the same write"
    STILL_UNCLEAR = "look again later"
    THERE = "count the source"


def watched(account: Account, known: FirstSeen, now: float) -> dict[ReservationKey, tuple[Reservation, float]]:
    """Since when each reservation is known. One that another request relies on since begins anew."""
    return first_seen(known, account.reservations, now)


def overdue(known: FirstSeen, window: float, now: float, proven: float = math.inf) -> list[Entry]:
    """Those whose requests have ended one way or the other; only a read can tell which. `proven`: nothing that had
    happened by then is missing in the leader's caches."""
    return [
        (key, reservation) for key, (reservation, first) in known.items() if now - first > window and first <= proven
    ]


def in_turn(due: Iterable[Entry], looked: Looked) -> list[Entry]:
    """Those first that were looked at longest ago, the sources in turn, and in each its tenants: what must stay keeps
    no others waiting."""
    first = sorted(due, key=lambda entry: looked.get(entry[0], float("-inf")))
    rounds = shares.rounds([(reservation.source, reservation.tenant) for _, reservation in first])
    return [first[place] for place in sorted(range(len(first)), key=rounds.__getitem__)]


def unseen(
    account: Account, known: FirstSeen, taken: Set[ReservationKey], window: float, now: float
) -> dict[str, list[Entry]]:
    """Creations that should have been seen by now and are not overdue, by party; the oldest first. Those that
    are `taken` were found to have another object under their names: an API server refuses them after their admission,
    and whoever repeats them must not keep others waiting.

    Where a party is held back already, their age does not matter: they were admitted before that, also if this leader
    has known of them for a shorter time.
    """
    found: dict[str, list[Entry]] = {}
    for key, (reservation, first) in sorted(known.items(), key=lambda entry: entry[1][1]):
        young = now - first < UNSEEN_AFTER and accounts.held_back(account, reservation) is None
        if not (reservation.generation or young or now - first > window or key in taken):
            found.setdefault(reservation.party, []).append((key, reservation))
    return found


def asked_next(missed: Mapping[str, Sequence[Entry]], asked: Mapping[str, float]) -> list[str]:
    """Of which parties is asked whether what was admitted came: of those first that were longest ago, and the sources
    in turn."""
    first = sorted(missed, key=lambda party: asked.get(party, float("-inf")))
    rounds = shares.rounds([(missed[party][0][1].source, party) for party in first])
    return [first[place] for place in sorted(range(len(first)), key=rounds.__getitem__)]


def updates(account: Account, sources: Mapping[str, UsageSource]) -> dict[str, bool]:
    """The sources with reservations for updates, and whether one of these has ended: the object has changed since, so a
    count drops what is reserved."""
    found: dict[str, bool] = {}
    for (key, uid), kept in account.reservations.items():
        source = sources.get(key) if kept.generation else None
        if source is not None:
            found[key] = found.get(key, False) or (
                source.live and source.totals.seen([uid]).get(uid, -1) >= kept.generation
            )
    return found


def conclude(reservation: Reservation, generation: Generation, *, countable: bool, counted: bool) -> Finding:
    """`generation` of the object as read now, None or Taken if it is not there. `countable`: the source may be counted
    by this leader; `counted`: what would be counted includes the object, at its full size."""
    if generation is None or isinstance(generation, Taken):
        return Finding.NEVER_CAME  # its request has ended: also if the other goes, it does not come any more
    if generation >= reservation.generation or not countable:
        return Finding.THERE
    return Finding.NEVER_CHANGED if counted else Finding.STILL_UNCLEAR
