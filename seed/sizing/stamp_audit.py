"""Whether clouds still say of stamped Machines what they said when those were stamped. It changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from common.api.types import UserCluster
from common.quota import resources
from common.quota.resources import ResourceList
from seed.machines.machine_controller import Machine
from seed.providers.size import NotSized, ProviderUnavailable
from seed.sizing.sizer import Sizing
from seed.sizing.stamp import spec_hash

MAX_NAMED = 5
ASK_SECONDS = 30.0


class Drift(msgspec.Struct, frozen=True):
    """How many Machines have another size by now, and a few of them in words."""

    count: int = 0
    named: Sequence[str] = ()


def difference(stamped: ResourceList, now: ResourceList) -> str:
    """`cpu=2,memory=8Gi, now cpu=4,memory=16Gi`; empty where nothing differs."""
    changed = {name for name in {*stamped, *now} if stamped.get(name, 0) != now.get(name, 0)}
    if not changed:
        return ""
    before, after = resources.texts(*({name: amounts.get(name, 0) for name in changed} for amounts in (stamped, now)))
    return f"{before}, now {after}"


async def audit(sizing: Sizing, cluster: UserCluster, machines: Iterable[Machine]) -> Drift:
    """Each distinct spec is looked up once, mostly in the cache. A size that is not known now does not differ."""
    by_spec: dict[str, list[Machine]] = {}
    for machine in machines:
        by_spec.setdefault(spec_hash(machine), []).append(machine)
    count = 0
    named: list[str] = []
    for alike in by_spec.values():
        try:
            deadline = asyncio.get_running_loop().time() + ASK_SECONDS
            now = (await sizing.size(cluster, alike[0], deadline)).footprint.resources
        except (NotSized, ProviderUnavailable):
            continue
        for machine in alike:
            _, stamped = sizing.stamped(cluster.metadata.uid, machine)
            differs = difference(stamped.resources, now) if stamped is not None else ""
            if differs:
                count += 1
                if len(named) < MAX_NAMED:
                    named.append(f"{machine.metadata.key}: stamped {differs}")
        await asyncio.sleep(0)
    return Drift(count, named)
