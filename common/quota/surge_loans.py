"""Loans: a rollout's Machines that stand on a quota's surge until there is room for them. Pure.

A loan is a reservation with `replaces`, the uid of an older Machine of the same rollout. At first the newer one is left
out of the count and its reservation stays, on the surge. As soon as the account holds enough that is free, the newer
one is counted and its reservation dropped, in the same write: it takes the place of what has gone, the older one or,
since a controller chooses by itself, another. The place of its own older one is kept for it even if nobody has seen it
yet, and no other loan goes before: so each loan that goes on has an older one of its own that is still to go, and none
is left once they have gone. What is counted never exceeds what is held on account of a rollout, and no rollout turns
surge into quota.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from common.quota import account as accounts
from common.quota import resources, surge
from common.quota.account import Account, Reservation, ReservationKey
from common.quota.resources import ResourceList


def of_source(account: Account, source: str) -> dict[str, Reservation]:
    """By uid."""
    return {uid: kept for uid, kept in accounts.of_source(account, source).items() if kept.replaces}


def count(
    account: Account,
    epoch: int,
    source: str,
    used: ResourceList,
    seen: Mapping[str, int],
    gone: Collection[str],
    sizes: Mapping[str, ResourceList],
    present: Mapping[str, ResourceList],
) -> Account:
    """`accounts.count` for a source with loans.

    `sizes` are, by uid, what lent Machines take in `used`; `present` is what the replaced ones take that are there.
    Both come from the very state that `used` was summed from. Raises StaleEpochError.
    """
    loans = of_source(account, source)
    if not loans:
        return accounts.count(account, epoch, source, used, seen, gone)
    on_surge = [uid for uid in loans if uid in sizes]
    used = resources.subtract(used, resources.total(sizes[uid] for uid in on_surge))
    seen = {uid: generation for uid, generation in seen.items() if uid not in on_surge}
    after = accounts.count(account, epoch, source, used, seen, gone)
    places = resources.maximum(accounts.held(account), accounts.use(account))
    queued = False  # an older one is gone, and there is no room for its newer one yet
    for uid in sorted(loans, key=lambda uid: loans[uid].replaces in present):
        beside = loans[uid].replaces in present
        if (source, uid) not in after.reservations or (beside and (queued or uid not in sizes)):
            continue
        size = sizes.get(uid, _regular(loans[uid].amount))
        if not has_room(after, loans[uid], size, None if beside else places):
            queued = queued or not beside
        elif uid in sizes:
            used = resources.add(used, sizes[uid])
            seen[uid] = 0
            after = accounts.count(after, epoch, source, used, seen, gone)
        else:
            after = _kept_in_quota(after, (source, uid))
    left = of_source(after, source)
    for uid in sorted(left, key=lambda uid: left[uid].replaces in present):
        after = _kept_beside(after, (source, uid), present.get(left[uid].replaces, {}))
    return after


def has_room(account: Account, loan: Reservation, size: ResourceList, places: ResourceList | None = None) -> bool:
    """Whether a lent Machine of this size could be counted now: the loan's regular part is reserved already. `places`
    are what the account holds, if nothing else is said."""
    free = resources.subtract(accounts.held(account) if places is None else places, accounts.use(account))
    more = resources.subtract(size, surge.regular(loan.amount))
    return not resources.short(more, resources.only(free, surge.regular(account.granted)))


def lacking(account: Account, loan: Reservation, size: ResourceList) -> ResourceList:
    """What a lent Machine of this size takes on surge: the quota itself must have that free before the loan ends."""
    more = resources.at_least_zero(resources.subtract(size, surge.regular(loan.amount)))
    return {name: amount for name, amount in resources.only(more, surge.regular(account.granted)).items() if amount}


def _kept_in_quota(account: Account, key: ReservationKey) -> Account:
    """It is one like any other from now on."""
    kept = account.reservations[key]
    return _with(account, key, msgspec.structs.replace(kept, amount=_regular(kept.amount), replaces=""))


def _kept_beside(account: Account, key: ReservationKey, older: ResourceList) -> Account:
    """The older one may have been made smaller, or has gone while there is no room for all of the newer one: what the
    newer one takes beyond it is kept for the newer one, in the same write that sees it free. Else others take it, and
    the place of the older one is too small when that goes."""
    kept = account.reservations[key]
    free = resources.at_least_zero(resources.subtract(accounts.held(account), accounts.use(account)))
    beyond = resources.at_least_zero(resources.subtract(surge.beyond(kept.amount), older))
    moved = {name: more for name, more in resources.minimum(beyond, free).items() if more}
    if not moved:
        return account
    amount = resources.add(resources.subtract(kept.amount, surge.lent(moved, moved)), moved)
    return _with(account, key, msgspec.structs.replace(kept, amount=accounts.less(amount, {})))


def _with(account: Account, key: ReservationKey, made: Reservation) -> Account:
    """The account with this reservation in place of the one that it has."""
    reserved = resources.add(account.reserved, made.amount)
    return msgspec.structs.replace(
        account,
        reservations={**account.reservations, key: made},
        reserved=accounts.less(reserved, account.reservations[key].amount),
    )


def _regular(lent: ResourceList) -> ResourceList:
    """What it would be without surge."""
    return resources.add(surge.regular(lent), surge.beyond(lent))
