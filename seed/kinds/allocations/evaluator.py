"""What an Allocation uses of quotas: committed and reserved together. Pure."""

from __future__ import annotations

from collections.abc import Collection

from common.api.types import Allocation
from common.quota import resources
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList


def used(allocation: Allocation) -> ResourceList:
    """In nanos, without types of which nothing is allocated."""
    total = resources.total(
        {found.type: (found.committed + found.reserved) * UNIT} for found in allocation.spec.resources
    )
    return {name: amount for name, amount in total.items() if amount}


def added(new: Allocation, old: Allocation | None) -> ResourceList:
    """What it takes more than before. Empty for an update that lowers only."""
    more = resources.subtract(used(new), used(old)) if old is not None else used(new)
    return {name: amount for name, amount in more.items() if amount > 0}


def unknown(new: Allocation, old: Allocation | None, known: Collection[str]) -> list[tuple[int, str]]:
    """The types that it may not name, with their places in the list. One that it has may stay and be lowered."""
    kept = {found.type for found in old.spec.resources} - added(new, old).keys() if old is not None else set()
    return [
        (place, found.type)
        for place, found in enumerate(new.spec.resources)
        if found.type not in known and found.type not in kept
    ]
