"""When an account's counters are in doubt, and how that ends (docs/reference/protocol.md, rule 3.4). Pure."""

from __future__ import annotations

import msgspec

from common.quota import account as accounts
from common.quota import blocks, resources
from common.quota.account import Account, Ask, Grant


def needs_fence(account: Account, grant: Grant) -> bool:
    """Another life of the master's ledger speaks: its counters mean nothing until it answered a fresh nonce."""
    return not account.fenced and bool(grant.incarnation) and grant.incarnation != account.master


def is_superseded(account: Account, grant: Grant) -> bool:
    """The master speaks to another life of an account that is open: a later one, which a restored backup has undone."""
    return not account.fenced and grant.incarnation == account.master and grant.account not in ("", account.incarnation)


def fence(account: Account, nonce: str, *, in_doubt: bool = False) -> Account:
    assert nonce, "a fence needs a fresh nonce"
    return msgspec.structs.replace(
        account, nonce=nonce, fenced_at=account.sequence, in_doubt=in_doubt or account.in_doubt
    )


def went_back(account: Account, grant: Grant) -> bool:
    """The master has seen more of the account than the ledger knows of: it was restored from an older state."""
    if grant.account != account.incarnation:
        return False
    if account.fenced:
        return grant.nonce == account.nonce and grant.seen > account.fenced_at
    return grant.incarnation == account.master and any(
        amount > account.returned.get(name, 0) for name, amount in grant.returned.items()
    )


def rebuild(account: Account, incarnation: str, nonce: str) -> Account:
    """A new life after the ledger went backwards, fenced: its counters are lost, what it counted is a start. Blocks of
    the life before are nobody's: what was admitted from them is counted before it opens."""
    lost = blocks.without(account, blocks.owners(account))
    lost = msgspec.structs.replace(lost, incarnation=incarnation, master="", granted={}, returned={}, ask=Ask())
    return fence(lost, nonce, in_doubt=True)


def answers(account: Account, grant: Grant) -> bool:
    """True if the grant answers the nonce that this account is fenced with, and its ledger did not go back."""
    return (
        account.fenced
        and grant.nonce == account.nonce
        and grant.account == account.incarnation
        and not went_back(account, grant)
    )


def may_close(account: Account, grant: Grant) -> bool:
    """Whether `close` has something to do, and the master's counters are known."""
    speaks = answers(account, grant) or (
        not account.fenced and grant.account == account.incarnation and grant.incarnation == account.master
    )
    return speaks and not (is_closed(account) and resources.maximum(account.granted, grant.granted) == account.granted)


def is_closed(account: Account) -> bool:
    """It holds nothing, and has nothing that was counted before it is opened again."""
    idle = not account.used and not account.reservations
    return account.fenced and idle and not any(accounts.held(account).values())


def close(account: Account, epoch: int, grant: Grant, nonce: str) -> Account:
    """The quota limits nothing on this seed any more: what is there does not count, and all that is held is given back,
    also what the master has granted meanwhile."""
    accounts.check_epoch(account, epoch)
    if not may_close(account, grant):
        return account
    granted = resources.maximum(account.granted, grant.granted)
    closed = msgspec.structs.replace(
        account,
        granted=granted,
        returned=granted,
        used={},
        reserved={},
        reservations={},
        ask=Ask(number=max(account.ask.number, grant.answered)),
        held_back=(),
        scarce=False,
        owners={},
    )
    return fence(closed, nonce)


def reopen(account: Account, epoch: int, grant: Grant) -> Account:
    """Lift the fence with the master's counters. The caller has recounted every source since the fence went up.

    What a restore has undone includes asks that were answered: a later one must not be taken for one of those.
    """
    accounts.check_epoch(account, epoch)
    assert answers(account, grant), "only the answer to its own nonce opens an account"
    return msgspec.structs.replace(
        account,
        nonce="",
        in_doubt=False,
        master=grant.incarnation,
        granted=resources.maximum(account.granted, grant.granted),
        returned=resources.maximum(account.returned, grant.returned),
        ask=account.ask if account.ask.number >= grant.answered else Ask(number=grant.answered),
    )
