"""What an organization's quota keeps for its projects, and what of that nobody uses. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from common.quota.names import in_order
from master.cache.objects import MasterQuota
from master.page.views import amounts
from master.page.views.amounts import Amount
from master.quotas import kept_shares


class GuaranteeLine(NamedTuple):
    """`unused`: free for the project alone."""

    project: str
    resource: str
    guaranteed: Amount
    used: Amount
    unused: Amount


def lines(quota: MasterQuota) -> Sequence[GuaranteeLine]:
    return [
        GuaranteeLine(
            each.project,
            name,
            amounts.amount(name, each.hard[name]),
            amounts.amount(name, each.used.get(name, 0)),
            amounts.amount(name, each.unused[name]),
        )
        for each in kept_shares.given(quota)
        for name in in_order(each.hard)
    ]
