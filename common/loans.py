"""Loans: a rollout's Machines that stand on a quota's surge until what they replace is gone. Pure.

A loan is a reservation with `replaces`, the uid of an older Machine of the same rollout. While both are there, the
newer one is left out of the count and its reservation stays, on the surge. Once the older one is gone, the newer one is
counted and its reservation dropped, in the same write: it takes the place that became free. If it needs more than
that, and the account holds no more, the loan goes on. So what is counted never exceeds what is held on account of a
rollout, and no rollout turns surge into quota.
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
    present: Collection[str],
) -> Account:
    """`accounts.count` for a source with loans.

    `sizes` are, by uid, what lent Machines take in `used`; `present` are the replaced ones that are there. Both come
    from the very state that `used` was summed from. Raises StaleEpochError.
    """
    loans = of_source(account, source)
    if not loans:
        return accounts.count(account, epoch, source, used, seen, gone)
    on_surge = [uid for uid in loans if uid in sizes]
    ended = [uid for uid in on_surge if loans[uid].replaces not in present]
    used = resources.subtract(used, resources.total(sizes[uid] for uid in on_surge))
    seen = {uid: generation for uid, generation in seen.items() if uid not in on_surge}
    after = accounts.count(account, epoch, source, used, seen, gone)
    for uid in ended:
        free = resources.subtract(accounts.held(after), accounts.use(after))
        more = resources.subtract(sizes[uid], surge.regular(loans[uid].amount))
        if not resources.short(more, resources.only(free, surge.regular(after.granted))):
            used = resources.add(used, sizes[uid])
            seen[uid] = 0
            after = accounts.count(after, epoch, source, used, seen, gone)
    return after
