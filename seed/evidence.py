"""When a reservation without an object goes (docs/protocol.md, rule 4.5). Pure.

No reservation goes by age alone: it takes a consistent read of the object, made after the API server's request timeout
has passed on the leader's own clock since the reservation was first seen as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from common.account import Account, Reservation, ReservationKey

FirstSeen = Mapping[ReservationKey, tuple[Reservation, float]]  # monotonic


class Finding(Enum):
    NEVER_CAME = "drop it"
    NEVER_CHANGED = "drop it, and count the source in the same write"
    STILL_UNCLEAR = "look again later"
    THERE = "count the source"


def watched(account: Account, known: FirstSeen, now: float) -> dict[ReservationKey, tuple[Reservation, float]]:
    """Since when each reservation is known. One that another request relies on since begins anew."""
    return {
        key: seen if (seen := known.get(key)) is not None and seen[0] == reservation else (reservation, now)
        for key, reservation in account.reservations.items()
    }


def overdue(known: FirstSeen, window: float, now: float) -> list[tuple[ReservationKey, Reservation]]:
    """Those whose requests have ended one way or the other; only a read can tell which."""
    return [(key, reservation) for key, (reservation, first) in known.items() if now - first > window]


def conclude(reservation: Reservation, generation: int | None, *, countable: bool, counted: bool) -> Finding:
    """`generation` of the object as read now, None if it is not there. `countable`: the source may be counted by this
    leader; `counted`: what would be counted includes the object, at its full size."""
    if generation is None:
        return Finding.NEVER_CAME
    if generation >= reservation.generation or not countable:
        return Finding.THERE
    return Finding.NEVER_CHANGED if counted else Finding.STILL_UNCLEAR
