"""Blocks: capacity that one replica reserved in an account before anybody asked. Pure (protocol.md, rule 4.15).

A replica admits from its block in memory, without a write, and its next write names what it admitted. In the account
a block is a reservation of no object, so it is a part of what is used: nobody else can admit it, return it or lose it,
not even a release that knows nothing of blocks.

Who calls what, while capacity goes from a block to a reservation of an object:

* `hold` reserves it for one owner. Each write of the owner changes the number that the block has.
* `named` puts reservations in its place, in a write of the same owner. They are `late`: the leader may have counted
  their objects before, so until it counts once more they may be in the account twice.
* `settled` ends that, in the write of such a count.
* `without` gives back what is left, or takes it from an owner that is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from common.quota import account as accounts
from common.quota import reservations, resources
from common.quota.account import BLOCKS, Account, Reservation, ReservationKey
from common.quota.resources import ResourceList

GOOD_FOR = 1.5  # seconds from the beginning of its owner's last write
TAKEN_AFTER = 3.0  # ... of the leader's clock after which no owner decides by it any more: clocks may differ by half


def of(account: Account, owner: str) -> Reservation | None:
    return account.reservations.get((BLOCKS, owner))


def owners(account: Account) -> dict[str, Reservation]:
    """The blocks by owner."""
    return accounts.of_source(account, BLOCKS)


def together(account: Account) -> ResourceList:
    """What all blocks have: no more can have been admitted and have no name yet."""
    return resources.total(block.amount for block in owners(account).values())


def hold(account: Account, owner: str, amount: ResourceList, number: int) -> Account:
    """The owner has this block from now on, in place of the one before; none if it is of nothing."""
    account = without(account, [owner])
    if not any(more > 0 for more in amount.values()):
        return account
    block = Reservation(source=BLOCKS, object="", amount=amount, generation=number)
    return msgspec.structs.replace(
        account,
        reservations={**account.reservations, (BLOCKS, owner): block},
        reserved=resources.add(account.reserved, amount),
    )


def without(account: Account, gone: Iterable[str]) -> Account:
    return accounts.without(account, [(BLOCKS, owner) for owner in gone])


def named(account: Account, admitted: Mapping[ReservationKey, Reservation]) -> Account:
    """What a replica admitted has its reservations, whatever is free: its block had it until this very write. All of
    them are for creations."""
    if not admitted:
        return account
    kept, more = dict(account.reservations), dict(account.reserved)
    for key, reservation in admitted.items():
        known = kept.get(key)
        if known is None:
            after, extra = reservation, reservation.amount
        elif known.generation:
            after, extra = _below(known, reservation)
        else:
            after, extra = reservations.on_top(known, reservation)
        kept[key] = msgspec.structs.replace(after, late=True)
        more = resources.add(more, extra)
    return msgspec.structs.replace(account, reservations=kept, reserved=more)


def _below(update: Reservation, creation: Reservation) -> tuple[Reservation, ResourceList]:
    """The object came, and another replica admitted an update of it, before its creation had a name. The update needs
    its amount beside that. If the creation has one from another replica, too, it counts twice until the next count."""
    after = msgspec.structs.replace(
        update,
        amount=resources.add(update.amount, creation.amount),
        earlier=resources.add(update.earlier, creation.amount),
        claims=update.claims + 1,
    )
    return after, creation.amount


def settled(account: Account, source: str, counted: Collection[str]) -> Account:
    """The source was counted in this write, and those of the uids that are still reserved do not stand in that."""
    late = {key: kept for key, kept in account.reservations.items() if kept.late and key[0] == source}
    clear = {key: msgspec.structs.replace(kept, late=False) for key, kept in late.items() if key[1] in counted}
    return msgspec.structs.replace(account, reservations={**account.reservations, **clear}) if clear else account


def late_sources(account: Account) -> set[str]:
    return {source for (source, _), kept in account.reservations.items() if kept.late}


def unsettled(account: Account) -> dict[str, int]:
    """What may come to be free without anything being deleted: blocks, and what may be in the account twice."""
    return resources.total(kept.amount for key, kept in account.reservations.items() if kept.late or key[0] == BLOCKS)


def sure_reserved(account: Account) -> ResourceList:
    """What is reserved for objects that are certain not to be counted yet."""
    unsure = unsettled(account)
    return accounts.less(account.reserved, unsure) if unsure else account.reserved


def sure_use(account: Account) -> dict[str, int]:
    """At least so much is counted and admitted. `accounts.use`, by which capacity is given, may be more."""
    unsure = unsettled(account)
    return resources.subtract(accounts.use(account), unsure) if unsure else accounts.use(account)
