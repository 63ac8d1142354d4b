"""What the master has of seeds: the objects, and what each seed holds of each quota."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from cli import reading
from cli.connection import connected
from cli.outcome import Failed
from common.api.convert import ledger_from_wire
from common.api.labels import MANAGED_BY_LABEL, MASTER_MANAGER
from common.api.ledger_types import MASTER_LEDGERS, MasterQuotaLedger
from common.api.types import SEEDS, Seed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import TooManyRequests
from common.kube.client.resource import Listing
from common.quota import escrow, resources
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList

_RETRIES = 10
_PAUSE_SECONDS = 1.0


class Held(msgspec.Struct, frozen=True):
    """What one seed holds of one quota, in which account. `known` is false while the master asks the seed after a
    restore."""

    amounts: ResourceList
    known: bool
    account: str = ""

    def text(self) -> str:
        return resources.text(self.amounts) if self.known else "not known until the seed has answered"


@asynccontextmanager
async def master_of(options: argparse.Namespace) -> AsyncIterator[Cluster]:
    async with connected(options, "master") as cluster:
        yield cluster


async def all_seeds(master: Cluster) -> list[Seed]:
    """Raises Failed, also on a seed: there they are copies."""
    found = await reading.every(master, SEEDS)
    reading.refuse_copies(master, found, "Seeds")
    return found


async def the_seed(master: Cluster, name: str) -> Seed:
    """Raises Failed."""
    found = await reading.one(master, SEEDS, name)
    if found is None:
        raise Failed(f"there is no Seed {name} on {master.server}; `seedquota seed list` shows them, --context another")
    reading.refuse_copies(master, [found], "Seeds")
    return found


async def held(master: Cluster, namespace: str) -> dict[str, dict[str, Held]]:
    """By seed and quota, from the ledgers that the master grants by. Raises Failed where one cannot be read."""
    listing = await _ledgers(master, namespace)
    if listing.broken:
        raise Failed(f"the ledger {listing.broken[0].key} cannot be read: {listing.broken[0].error}")
    found: dict[str, dict[str, Held]] = {}
    for each in listing.items:
        if each.grants is None:
            continue
        try:
            ledger = ledger_from_wire(each.grants)
        except QuantityError as error:
            raise Failed(f"the ledger of seedquota/{each.quota.name} cannot be read: {error}") from None
        for seed, holding in ledger.seeds.items():
            amounts = {name: amount for name, amount in escrow.held(holding).items() if amount > 0}
            if amounts or not holding.learned:
                found.setdefault(seed, {})[each.quota.name] = Held(amounts, holding.learned, holding.account)
    return found


async def _ledgers(master: Cluster, namespace: str) -> Listing[MasterQuotaLedger]:
    """Asks again as kubectl does: an API server that has new definitions answers 429 for some seconds."""
    for _ in range(_RETRIES):
        try:
            return await _ledgers_now(master, namespace)
        except TooManyRequests as error:
            await asyncio.sleep(_PAUSE_SECONDS if error.retry_after is None else error.retry_after)
    return await _ledgers_now(master, namespace)


async def _ledgers_now(master: Cluster, namespace: str) -> Listing[MasterQuotaLedger]:
    return await master.list(MASTER_LEDGERS, namespace, label_selector=f"{MANAGED_BY_LABEL}={MASTER_MANAGER}")


def lines(by_quota: Mapping[str, Held]) -> list[str]:
    return [f"  seedquota/{quota}: {by_quota[quota].text()}" for quota in sorted(by_quota)]


def clusters_of(seed: Seed) -> int:
    """As its agent last said."""
    said = seed.status.agent if seed.spec.in_cluster else seed.status
    return said.clusters or 0
