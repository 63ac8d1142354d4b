"""The user clusters that use most of a quota. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from common.quota import resources
from common.quota.names import in_order
from master.apiserver.cluster_lists import QuotaClusters
from master.page.views import amounts
from master.page.views.amounts import Amount
from master.page.views.times import Moment, moment

Amounts = tuple[tuple[str, Amount], ...]


class ClusterLine(NamedTuple):
    cluster: str
    project: str
    seed: str
    used: Amounts
    counted: Moment


def lines(found: QuotaClusters, now: datetime) -> Sequence[ClusterLine]:
    return [
        ClusterLine(each.cluster, each.project, each.seed, shown(each.used), moment(each.as_of, now))
        for each in found.items
    ]


def shown(used: Mapping[str, str | int]) -> Amounts:
    """Without what is not used."""
    found = resources.parse(used)
    return tuple((name, amounts.amount(name, found[name])) for name in in_order(found) if found[name])
