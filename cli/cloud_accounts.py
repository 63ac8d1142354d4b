"""How many of a shape the cloud accounts of user clusters have room for, by what the clouds told. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.api.types import UserCluster
from common.quota import resources
from common.quota.names import in_order
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from master.quotas.placing import Shaped

NOT_TOLD = "the cloud does not tell, or was not asked yet"


class Account(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Of a user cluster, as of a time. `count` is None where it is not known; `problem` says why, or why the cloud told
    nothing later."""

    cluster: str
    count: int | None
    place: str = ""
    limited_by: str = ""
    as_of: str = ""
    problem: str = ""


def accounts(clusters: Sequence[UserCluster], size: ResourceList) -> list[Account]:
    """Raises QuantityError."""
    return [_account(cluster, size) for cluster in sorted(clusters, key=lambda each: each.metadata.key)]


def _account(cluster: UserCluster, size: ResourceList) -> Account:
    told = cluster.status.cloud_quota
    if told is None or not told.as_of:
        why = told.problem if told is not None else ""
        return Account(cluster.metadata.key, None, problem=why or NOT_TOLD)
    free = resources.subtract(resources.parse(told.limits), resources.parse(told.used))
    rooms = {
        name: max(free[name], 0) // size[name]
        for name in in_order(told.limits)
        if size.get(name, 0) > 0 and name in free
    }
    least = min(rooms, key=lambda name: rooms[name], default="")
    return Account(
        cluster=cluster.metadata.key,
        count=rooms.get(least),
        place=told.place,
        limited_by=least,
        as_of=told.as_of,
        problem=told.problem or ("" if rooms else "the cloud tells no limit of what one needs"),
    )


def size_of_one(shaped: Sequence[Shaped]) -> ResourceList:
    """What one takes of a cloud: the most that some quota counts, and it is a machine."""
    size: ResourceList = {"machines": UNIT}
    for each in shaped:
        size = resources.maximum(size, each.size)
    return size
