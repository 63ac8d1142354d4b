"""The Leases of a program, in whichever namespaces it is or was installed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from cli import reading
from cli.doctor import signs
from cli.outcome import Failed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden
from common.kube.client.resource import by_name
from common.kube.controller.leader_election import LEASES, LeaseObject


class Leases(msgspec.Struct, frozen=True):
    """`everywhere`: all namespaces were looked at, not only those that were named."""

    program: str
    found: Sequence[LeaseObject]
    everywhere: bool

    def leading(self, now: datetime) -> list[LeaseObject]:
        return [each for each in self.found if signs.leads(each, now)]

    def namespace(self, now: datetime) -> str:
        """In which the program leads, or did last. Empty: in none."""
        newest = max(self.leading(now) or self.found, key=lambda each: each.spec.renew_time or "", default=None)
        return newest.metadata.namespace if newest is not None else ""


async def of_account(cluster: Cluster, program: str, namespaces: Sequence[str], now: datetime) -> Leases:
    """As `leases`, for the master's account on a seed, which may not look in all namespaces and need not if the program
    leads in one of these."""
    try:
        found = await _in(cluster, program, namespaces)
    except Failed:
        return await leases(cluster, program, namespaces)
    return found if found.leading(now) else await leases(cluster, program, namespaces)


async def leases(cluster: Cluster, program: str, namespaces: Sequence[str]) -> Leases:
    """`namespaces`: where to look if you may not look in all of them. Raises Failed, ApiError."""
    try:
        listing = await cluster.list(LEASES, field_selector=by_name(program))
    except Forbidden:
        return await _in(cluster, program, namespaces)
    if listing.broken:
        raise Failed(f"Lease {listing.broken[0].key} cannot be read: {listing.broken[0].error}")
    return Leases(program, listing.items, everywhere=True)


async def _in(cluster: Cluster, program: str, namespaces: Sequence[str]) -> Leases:
    found, forbidden = [], []
    for namespace in namespaces:
        try:
            found.append(await reading.one(cluster, LEASES, program, namespace))
        except Failed as error:
            forbidden.append(error)
    if len(forbidden) == len(namespaces):
        raise forbidden[0]
    there = [each for each in found if each is not None]
    if not there:
        where = " and ".join(f"{namespace}/{program}" for namespace in namespaces)
        raise Failed(f"there is no Lease {where}, and you may not list those of other namespaces: -n names another")
    return Leases(program, there, everywhere=False)
