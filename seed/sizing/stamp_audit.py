"""Whether clouds still say of stamped Machines what they said when those were stamped.

A Machine that drifted counts at the larger of both sizes: its stamp may be of another place, or of another machine type
by the same name, and its VM may be of either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import msgspec

from common.api.types import UserCluster
from common.quota import resources
from common.quota.resources import ResourceList
from common.runtime.pieces import in_pieces
from seed.machines.machine_controller import Machine
from seed.providers.size import EndpointNotAllowed, Footprint, NotSized, ProviderUnavailable
from seed.sizing.sizer import Sizing
from seed.sizing.stamp import spec_hash

MAX_NAMED = 5
ASK_SECONDS = 30.0


class Drift(msgspec.Struct, frozen=True):
    """How many Machines have another size by now, and a few of them in words.

    `now`: what clouds tell now, by the hash of the spec, where that is not what a stamp says.
    """

    count: int = 0
    named: Sequence[str] = ()
    now: Mapping[str, ResourceList] = {}

    def counted(self, machine: Machine, size: Footprint) -> Footprint:
        """What counts of a Machine of this `size`: the larger amount of each resource."""
        now = self.now.get(spec_hash(machine)) if self.now else None
        if now is None:
            return size
        both = {name: max(size.resources.get(name, 0), now.get(name, 0)) for name in {*size.resources, *now}}
        return replace(size, resources=MappingProxyType(both))


_NO_DRIFT = Drift()


def difference(stamped: ResourceList, now: ResourceList) -> str:
    """`cpu=2,memory=8Gi, now cpu=4,memory=16Gi`; empty where nothing differs."""
    changed = {name for name in {*stamped, *now} if stamped.get(name, 0) != now.get(name, 0)}
    if not changed:
        return ""
    before, after = resources.texts(*({name: amounts.get(name, 0) for name in changed} for amounts in (stamped, now)))
    return f"{before}, now {after}"


async def audit(sizing: Sizing, cluster: UserCluster, machines: Iterable[Machine], before: Drift = _NO_DRIFT) -> Drift:
    """Each distinct spec is looked up once, mostly in the cache.

    A size that is not known now does not differ: what was found `before` stays. A spec that by now leads to an endpoint
    that is not the platform's is named: its stamp is all that is known.
    """
    by_spec: dict[str, list[Machine]] = {}
    async for machine in in_pieces(machines):
        by_spec.setdefault(spec_hash(machine), []).append(machine)
    count = 0
    named: list[str] = []
    drifted: dict[str, ResourceList] = {}
    for digest, alike in by_spec.items():
        why, now = "", before.now.get(digest)
        try:
            deadline = asyncio.get_running_loop().time() + ASK_SECONDS
            now = (await sizing.size(cluster, alike[0], deadline)).footprint.resources
        except EndpointNotAllowed as error:
            why = str(error)
        except (NotSized, ProviderUnavailable):
            if now is None:
                continue
        async for machine in in_pieces(alike):
            _, stamped = sizing.stamped(cluster.metadata.uid, machine)
            if stamped is None:
                continue
            differs = difference(stamped.resources, now) if now is not None else ""
            if now is not None and differs:
                drifted[digest] = now
            if differs or why:
                count += 1
                if len(named) < MAX_NAMED:
                    named.append(f"{machine.metadata.key}: {why or f'stamped {differs}'}")
        await asyncio.sleep(0)
    return Drift(count, named, drifted)
