"""From which seeds a quota is withdrawn, because `subject.seeds` does not pick them (protocol.md 3.11).

A seed is shown a token. Its leader then closes the account there: everything is given back, and it counts all sources
again before it opens. The seed repeats the token once that is durable. Only then is what it held granted to others, and
the copy goes. A seed that is picked again meanwhile has to finish this first: what was created there while the quota
limited nothing is not counted.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from common.quota import escrow
from common.quota.escrow import MasterLedger
from master.cache.informers import Caches
from master.quotas.state import QuotaState
from master.seeds.link import SeedLink


async def begin(state: QuotaState, ledger: MasterLedger, links: Mapping[str, SeedLink], caches: Caches) -> None:
    """To be called before each decision. Raises ApiError, also where the labels that a cache has prove to be old."""
    for seed, link in links.items():
        account = state.account(seed)
        if link.copies is not None:
            account.has_copy = link.copy(state.name, state.uid) is not None
        if not _is_withdrawn(state, ledger, link):
            account.withdrawn = ""
        elif not account.withdrawn:
            if account.has_copy:
                await caches.confirm("seeds", seed, link.seed)
            account.withdrawn = secrets.token_hex(8)
        account.settled = is_settled(state, ledger, link)


def end(state: QuotaState, ledger: MasterLedger, links: Mapping[str, SeedLink]) -> bool:
    """Copies that nothing depends on any more go, and others stay. `ledger` is durable. True if a seed that is picked
    again has given back everything: it is to be decided once more."""
    again = False
    for seed, link in links.items() if state.spec.subject.seeds is not None else ():
        # Before its copies are listed, the seed may have one, and an account that is open.
        withdrawn = link.copies is not None and bool(state.account(seed).withdrawn)
        over = withdrawn and has_given_back(state, ledger, link)
        again = again or (over and state.picks(link.seed))
        if link.sync is not None:
            link.sync.withdraw(state.name, state.uid if withdrawn else "", over=over)
    return again


def is_settled(state: QuotaState, ledger: MasterLedger, link: SeedLink) -> bool:
    """The quota is withdrawn from this seed, and is not there any more: no decision depends on the seed."""
    if not state.account(link.name).withdrawn or not has_given_back(state, ledger, link):
        return False
    return link.in_cluster or link.copy(state.name, state.uid) is None


def has_given_back(state: QuotaState, ledger: MasterLedger, link: SeedLink) -> bool:
    """The seed holds nothing of the quota, and its account, if it has one, is closed."""
    account, holding = state.account(link.name), ledger.seeds.get(link.name)
    if holding is not None and any(escrow.held(holding).values()):
        return False
    in_doubt = ledger.learning or (state.doubtful and not link.listed)
    if link.copies is None and (in_doubt or account.has_copy):
        return False  # nobody knows what it has
    closed = bool(account.withdrawn) and account.wire.withdrawn == account.withdrawn
    if link.in_cluster:
        return closed or (account.report is None and holding is None)
    return closed or link.copy(state.name, state.uid) is None


def _is_withdrawn(state: QuotaState, ledger: MasterLedger, link: SeedLink) -> bool:
    if link.lost or state.spec.subject.seeds is None:  # whatever a seed has written into its copy
        return False
    account = state.account(link.name)
    begun = bool(account.withdrawn) and not account.settled  # a copy that is there by now is of another time
    return not state.picks(link.seed) or (begun and not has_given_back(state, ledger, link))
