"""What a source uses is written into an account, with the reservations that it covers. Pure.

If some kinds cannot be listed, the count is made in part (protocol.md, section 5). What the account has of the
resources that such a kind counts stays, and so does a reservation that has any of them, as a whole: a part of what it
reserves is in no count yet. All other resources are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

import msgspec

from common.quota import account as accounts
from common.quota import guarantees, resources, surge_loans
from common.quota.account import Account, Reservation, ReservationKey
from common.quota.resources import ResourceList
from seed.accounts.publisher import kept_use
from seed.model.quota import Quota
from seed.usage.source import UsageSource


class UncountableError(Exception):
    """Lists from which this account could be counted are not there, or not any more."""


def doubtful(account: Account, source: UsageSource, since: float) -> Set[str] | None:
    """The names of which the totals do not tell all by lists that began after that moment. They keep their last counts.
    None: nothing of the source may be counted.

    A fenced account is counted from all lists or not at all. So is a source with objects that cannot be read: what they
    have is told from the whole of the last count (seed/usage/unsized.py).
    """
    if source.in_namespaces is None:
        return frozenset()
    names = source.in_namespaces.doubtful(since)
    return None if names and (account.fenced or source.totals.guessed) else names


class Told(NamedTuple):
    """What the lists of a source tell of reservations: `seen` and `gone` as for `accounts.count`, of those that it may
    cover. `doubtful`: see there. `ended`: those that go in the same write."""

    seen: Mapping[str, int]
    gone: Set[str]
    doubtful: Set[str]
    ended: Set[str]


def told(
    account: Account,
    source: UsageSource,
    sure: Mapping[str, Reservation],
    doubtful: Set[str],
    released: Set[ReservationKey],
) -> Told:
    """`sure`: the reservations that the count may cover. `released`: those that go on other evidence."""
    seen, gone = source.totals.seen(sure), source.totals.gone(sure)
    ended = {
        uid
        for uid, kept in accounts.of_source(account, source.key).items()
        if uid in gone or seen.get(uid, -1) >= kept.generation or (source.key.text, uid) in released
    }
    return Told(seen, gone, doubtful, ended)


def count(account: Account, term: int, source: UsageSource, quota: Quota, found: ResourceList, told: Told) -> Account:
    """`found`: what the totals say that counts. Raises StaleEpochError."""
    totals = source.totals
    account = owned(account, source, quota)
    used = kept_use(kept(account.used.get(source.key, {}), found, told.doubtful), account, quota)
    lent = surge_loans.of_source(account, source.key)
    sizes = totals.sizes(uid for uid in lent if uid in told.seen)
    if lent:
        account = accounts.receive(account, quota.grant)  # it may have been asked for, to end a loan
    after = surge_loans.count(
        account,
        term,
        source.key.text,
        used,
        seen=told.seen,
        gone=told.gone,
        sizes={uid: resources.only(size, used) for uid, size in sizes.items()},
        present=totals.sizes(loan.replaces for loan in lent.values()),
    )
    return not_raised(account, after, source.key.text, totals.used, told.ended) if quota.promises else after


def not_raised(before: Account, after: Account, key: str, there: ResourceList, ended: Set[str]) -> Account:
    """A base keeps what the account has of the source (rule 4.14), and adds nothing to it. `there`: what is used
    without bases. `ended`: the reservations that go in the same write.

    Who was admitted on top of others found them after the write, so the account had all of that, counted or reserved.
    Where it had less, the request is refused, or nobody waits for it any more, and what is free was given back.
    """
    own, left, used = accounts.of_source(before, key), accounts.of_source(after, key), after.used[key]
    had = resources.add(before.used.get(key, {}), resources.total(kept.amount for kept in own.values()))
    stays = resources.total(kept.amount for uid, kept in left.items() if uid not in ended)
    most = resources.maximum(there, resources.subtract(had, stays))
    kept_there = {name: least for name, amount in used.items() if (least := min(amount, most.get(name, 0)))}
    return after if kept_there == used else msgspec.structs.replace(after, used={**after.used, key: kept_there})


def owned(account: Account, source: UsageSource, quota: Quota) -> Account:
    """With whose the source is, where its project has or had a guarantee. A counter of which nothing was granted yet is
    there with 0, so that the master hears of it. Sources of namespaces may be of several projects."""
    if source.key.quota or not (quota.guarantees or account.owners):
        return account
    project, key = source.consumer.project, source.key.text
    present = [name for name in (*quota.ceilings, *account.granted) if guarantees.is_of(project, name)]
    owner = project if present else None
    if account.owners.get(key) != owner:
        others = {name: whose for name, whose in account.owners.items() if name != key}
        account = msgspec.structs.replace(account, owners=others if owner is None else {**others, key: owner})
    if new := dict.fromkeys((name for name in present if name not in account.granted), 0):
        account = msgspec.structs.replace(account, granted={**account.granted, **new})
    return account


def covered(reservations: Mapping[str, Reservation], doubtful: Set[str], *, live: bool) -> dict[str, Reservation]:
    """Those that a count may cover.

    A backup that is restored there brings back what was deleted, with the generations that it had: unless the source is
    live, what was known before says nothing of an update since. That an object was created stays true.
    """
    known = {uid: held for uid, held in reservations.items() if live or not held.generation}
    return {uid: held for uid, held in known.items() if doubtful.isdisjoint(held.amount)}


def kept(before: ResourceList, found: ResourceList, doubtful: Set[str]) -> ResourceList:
    """What counts of the source, if the account had this of it."""
    told = {name: amount for name, amount in found.items() if name not in doubtful}
    return told | {name: amount for name, amount in before.items() if name in doubtful}
