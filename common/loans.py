"""Loans: a rollout's Machines that stand on a quota's surge until there is room for them. Pure.

A loan is a reservation with `replaces`, the uid of an older Machine of the same rollout. At first the newer one is left
out of the count and its reservation stays, on the surge. As soon as the account holds enough that is free, the newer
one is counted and its reservation dropped, in the same write: it takes the place of what has gone, the older one or,
since a controller chooses by itself, another. So what is counted never exceeds what is held on account of a rollout,
and no rollout turns surge into quota.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from common import account as accounts
from common import resources, surge
from common.account import Account, Reservation
from common.resources import ResourceList


def of_source(account: Account, source: str) -> dict[str, Reservation]:
    return {uid: kept for uid, kept in account.reservations.items() if kept.replaces and kept.source == source}


def count(
    account: Account,
    epoch: int,
    source: str,
    used: ResourceList,
    seen: Mapping[str, int],
    gone: Collection[str],
    sizes: Mapping[str, ResourceList],
) -> Account:
    """`accounts.count` for a source with loans.

    `sizes` are, by uid, what lent Machines take in `used`, from the very state that it was summed from. Raises
    StaleEpochError.
    """
    loans = of_source(account, source)
    if not loans:
        return accounts.count(account, epoch, source, used, seen, gone)
    on_surge = [uid for uid in loans if uid in sizes]
    used = resources.subtract(used, resources.total(sizes[uid] for uid in on_surge))
    seen = {uid: generation for uid, generation in seen.items() if uid not in on_surge}
    after = accounts.count(account, epoch, source, used, seen, gone)
    for uid in on_surge:
        free = resources.subtract(accounts.held(after), accounts.use(after))
        more = resources.subtract(sizes[uid], surge.regular(loans[uid].amount))
        if not resources.short(more, resources.only(free, surge.regular(after.granted))):
            used = resources.add(used, sizes[uid])
            seen[uid] = 0
            after = accounts.count(after, epoch, source, used, seen, gone)
    return after
