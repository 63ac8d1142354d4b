"""One quota at one moment: what the master sent, and the account here. Kept with decisions. Pure."""

from __future__ import annotations

import msgspec

from common.quota import account as accounts
from common.quota import blocks, resources
from common.quota.account import Account, Ask
from common.quota.resources import ResourceList
from seed.model.quota import Quota


class QuotaSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """It refers to parts of the account and not to it: thousands of reservations would stay alive with each."""

    quota: Quota
    sequence: int = 0
    open: bool = False  # there is an account, and it is not fenced
    granted: ResourceList = {}
    returned: ResourceList = {}
    reserved: ResourceList = {}
    use: ResourceList = {}
    unsettled: ResourceList = {}  # beside that: what is reserved ahead, and what may be counted already
    ask: Ask = Ask()

    @property
    def used(self) -> ResourceList:
        """Everywhere, as the master showed it last, and no less than what is used here."""
        return resources.maximum(self.quota.global_usage, self.use)

    @property
    def held(self) -> ResourceList:
        return resources.subtract(self.granted, self.returned)

    @property
    def free(self) -> ResourceList:
        """Here, without asking anybody."""
        return accounts.unused(self.held, resources.add(self.use, self.unsettled), self.quota.ceilings)


def snapshot(quota: Quota, account: Account | None, use: ResourceList) -> QuotaSnapshot:
    """`use`: the account's, which whoever asks often has summed up already."""
    if account is None:
        return QuotaSnapshot(quota=quota)
    return QuotaSnapshot(
        quota=quota,
        sequence=account.sequence,
        open=not account.fenced,
        granted=account.granted,
        returned=account.returned,
        reserved=blocks.sure_reserved(account),
        use=use,
        unsettled=blocks.unsettled(account),
        ask=account.ask,
    )
