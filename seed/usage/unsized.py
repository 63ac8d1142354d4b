"""What an account goes on to count for Machines whose sizes a new leader does not know. Pure.

They were counted at sizes that nobody tells any more, or not yet: a stamp is missing, and their provider was switched
off, or its cloud has to be asked. The account has the sum of their source. What the sized ones have in it is known, so
the rest is theirs. It is counted beside the sized ones from then on, less the part of each that is sized later, until
the last of them is sized or gone. Nobody knows the part of one that goes before: that stays until then.

A replica may have admitted some of the sized ones from its block, and not named them yet (protocol.md, rule 4.15).
Those were never counted, and nothing tells which they are. So what all blocks have is not taken for counted before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from common.quota import resources
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.usage.source import Usage


class Rest(msgspec.Struct, frozen=True):
    """`line` of the tallies that it is about, the Machines by uid, and what they have together."""

    line: object
    uids: frozenset[str] = frozenset()
    amount: ResourceList = {}


def rest(
    known: Rest | None,
    used: ResourceList,
    reservations: Mapping[str, Reservation],
    totals: Usage,
    *,
    ahead: ResourceList,
) -> Rest:
    """`known`: of the count before, if there was one. `used` is what the account has of the source, `reservations` are
    the source's own, by uid, `ahead` is what all blocks of the account have."""
    if known is None or known.line is not totals.line:
        return first(used, reservations, totals, ahead=ahead)
    return then(known, reservations, totals, ahead=ahead)


def first(used: ResourceList, reservations: Mapping[str, Reservation], totals: Usage, *, ahead: ResourceList) -> Rest:
    """At the first count of a source by a leader."""
    uids = frozenset(uid for uid in totals.guessed if not _holds(reservations.get(uid)))
    if not uids:
        return Rest(totals.line)
    sized = resources.subtract(totals.used, resources.total(totals.guessed.values()))
    reserved = totals.sizes(uid for uid in reservations if uid not in totals.guessed)
    new = (resources.subtract(size, _before(size, reservations[uid])) for uid, size in reserved.items())
    before = resources.subtract(sized, resources.total(new))
    return Rest(totals.line, uids, _left(used, before, ahead))


def then(known: Rest, reservations: Mapping[str, Reservation], totals: Usage, *, ahead: ResourceList) -> Rest:
    """At each count after that."""
    uids = known.uids & totals.guessed.keys()
    if uids == known.uids:
        return known
    if not uids:
        return Rest(known.line)
    sized = totals.sizes(known.uids - uids)
    before = resources.total(_before(size, reservations.get(uid)) for uid, size in sized.items())
    return Rest(known.line, uids, _left(known.amount, before, ahead))


def used(
    rest: Rest, reservations: Mapping[str, Reservation], totals: Usage, counted: Collection[str] = ()
) -> ResourceList:
    """What counts of the source. A guess at a Machine takes no place beside what is known to be its own. `counted`: the
    reservations that go in the same write."""
    held = [guess for uid, guess in totals.guessed.items() if _holds(reservations.get(uid))]
    guessed = [guess for uid, guess in totals.guessed.items() if uid in rest.uids]
    more = resources.at_least_zero(resources.subtract(rest.amount, resources.total(guessed)))
    left = {uid: kept for uid, kept in reservations.items() if uid not in counted}
    return resources.add(resources.subtract(totals.used_beside(left), resources.total(held)), more)


def _holds(reservation: Reservation | None) -> bool:
    """The reservation is for all of its object, which was never counted."""
    return reservation is not None and not reservation.generation


def _before(size: ResourceList, reservation: Reservation | None) -> ResourceList:
    """How much of an object was counted before what is reserved for it."""
    if reservation is None:
        return size
    return {} if _holds(reservation) else resources.at_least_zero(resources.subtract(size, reservation.amount))


def _left(amount: ResourceList, gone: ResourceList, ahead: ResourceList) -> ResourceList:
    certain = resources.at_least_zero(resources.subtract(gone, ahead))
    return {name: left for name, had in amount.items() if (left := had - certain.get(name, 0)) > 0}
