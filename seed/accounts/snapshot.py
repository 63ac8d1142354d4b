"""What a decision was made from. Kept by reference, so that keeping it costs an admission next to nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from common.quota import account as accounts
from common.quota import resources
from common.quota.account import Account, Ask
from common.quota.resources import ResourceList


class OutOfReach(Protocol):
    @property
    def seed(self) -> str: ...
    @property
    def idle(self) -> ResourceList: ...
    @property
    def seconds(self) -> int: ...


class Copy(Protocol):
    """A quota's copy on this seed, see `seed.cache.quotas.Quota`."""

    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> ResourceList: ...
    @property
    def surge(self) -> ResourceList: ...
    @property
    def ceilings(self) -> ResourceList: ...
    @property
    def enforced(self) -> bool: ...
    @property
    def global_usage(self) -> ResourceList: ...
    @property
    def global_reserved(self) -> ResourceList: ...
    @property
    def learning(self) -> bool: ...
    @property
    def draining(self) -> bool: ...
    @property
    def out_of_reach(self) -> Sequence[OutOfReach]: ...


class QuotaSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One quota as a replica sees it at one moment: what the master sent, and the account here.

    It refers to parts of the account and not to it: thousands of reservations would stay alive with each.
    """

    quota: str
    limits: ResourceList
    surge: ResourceList
    ceilings: ResourceList
    enforced: bool
    global_usage: ResourceList
    global_reserved: ResourceList
    learning: bool
    draining: bool
    out_of_reach: Sequence[OutOfReach]
    sequence: int = 0
    open: bool = False  # there is an account, and it is not fenced
    granted: ResourceList = {}
    returned: ResourceList = {}
    reserved: ResourceList = {}
    use: ResourceList = {}
    ask: Ask = Ask()


def snapshot(quota: Copy, account: Account | None, use: ResourceList) -> QuotaSnapshot:
    """`use`: the account's, which whoever asks often has summed up already."""
    seen = QuotaSnapshot(
        quota=quota.name,
        limits=quota.limits,
        surge=quota.surge,
        ceilings=quota.ceilings,
        enforced=quota.enforced,
        global_usage=quota.global_usage,
        global_reserved=quota.global_reserved,
        learning=quota.learning,
        draining=quota.draining,
        out_of_reach=quota.out_of_reach,
    )
    if account is None:
        return seen
    return msgspec.structs.replace(
        seen,
        sequence=account.sequence,
        open=not account.fenced,
        granted=account.granted,
        returned=account.returned,
        reserved=account.reserved,
        use=use,
        ask=account.ask,
    )


def free_here(seen: QuotaSnapshot) -> dict[str, int]:
    """As `accounts.free` of the account."""
    return accounts.unused(resources.subtract(seen.granted, seen.returned), seen.use, seen.ceilings)
