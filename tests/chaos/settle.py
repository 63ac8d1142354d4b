"""After the storm: whether every ledger and every status is exactly right, and whether every quota can be filled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import aiohttp
import msgspec

from common.quota import resources
from common.quota.resources import ResourceList
from devcluster.controlplane import ApiServer
from devcluster.install import GROUP_PATH, NAMESPACE
from devcluster.load import Outcome, Tenant
from tests.chaos import allocations, filling, namespaces
from tests.chaos.filling import Asked, End
from tests.chaos.namespaces import NAMESPACED
from tests.chaos.place import Place
from tests.chaos.quotas import HOSTS, PROJECTS, QUOTAS, SMALLEST, Quota

Json = dict[str, Any]
Machines = Mapping[str, Mapping[str, ResourceList]]  # sizes by name, by user cluster; and what counts in namespaces

_LEDGERS = f"{GROUP_PATH}/namespaces/{NAMESPACE}/quotaledgers"
_POLL_SECONDS = 0.5
# More, at most, while what is wrong still changes, and for an API server that gets no CPU: that it does not answer says
# nothing of what is there.
_LONGER = 120.0
_DELETED_SECONDS = 30.0  # until what was deleted is counted no more, as `settled` has it
_ROUNDS = 6  # of tries, each as long as a client is patient; an account may have to be counted again meanwhile
_TIMEOUT = aiohttp.ClientTimeout(total=10)


async def recount(place: Place) -> Machines:
    """From consistent lists, made now."""
    found = await asyncio.gather(*(observer.recount() for observer in place.observers.values()))
    return dict(zip(place.observers, found, strict=True))


async def settled(place: Place, seconds: float) -> tuple[float, list[str]]:
    """Seconds until nothing was wrong any more, or the time that is up and what is wrong then: the same for `seconds`.
    On a machine that is busy, all goes on, and slowly."""
    started = changed = time.monotonic()
    before: set[str] | None = None
    while True:
        try:
            wrong = await differences(place)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            wrong, same = [f"cannot look: {type(error).__name__}: {error}"], False
        else:
            same = before in (None, set(wrong))
            before = set(wrong)
        now = time.monotonic()
        if not same:
            changed = now
        if not wrong or now - changed > seconds or now - started > seconds + _LONGER:
            return now - started, wrong
        await asyncio.sleep(_POLL_SECONDS)


async def differences(place: Place) -> list[str]:
    """What is not as a fresh recount says. Empty where all is exact, open, and nothing is reserved."""
    machines = await recount(place)
    wrong: list[str] = []
    ledgers = await _items(place.installed.master, _LEDGERS)
    masters = {ledger["quota"]["name"]: ledger for ledger in ledgers if "grants" in ledger}
    accounts = {seed: await _accounts(place, seed) for seed in place.seeds}
    shown = await _quotas(place.installed.master)
    copies = {seed: await _quotas(place.installed.cluster(seed)) for seed in place.seeds}
    for quota in (*QUOTAS, *NAMESPACED):
        used = {seed: _used(quota, machines, quota.clusters_on(seed)) for seed in place.seeds}
        wrong += _wrong_status(quota, shown.get(quota.name, {}), resources.total(used.values()))
        for seed in place.seeds:
            copy = copies[seed].get(quota.name, {})
            wrong += _unequal(f"{quota.name}: local use of {seed}", copy.get("localUsage", {}), used[seed])
            everywhere = resources.total(used.values())
            wrong += _unequal(f"{quota.name}: global use shown in {seed}", copy.get("globalUsage", {}), everywhere)
            wrong += _unequal(f"{quota.name}: limit shown in {seed}", copy.get("hard", {}), quota.limit.amounts)
            wrong += _wrong_account(f"{quota.name} on {seed}", accounts[seed].get(quota.name), quota, used[seed])
        wrong += _wrong_grants(quota, masters.get(quota.name), {seed: accounts[seed].get(quota.name) for seed in used})
    return wrong


def _wrong_status(quota: Quota, status: Json, used: ResourceList) -> list[str]:
    wrong = _unequal(f"{quota.name}: global use", status.get("globalUsage", {}), used)
    if any(resources.parse(status.get("reserved", {})).values()):
        wrong.append(f"{quota.name}: reserved {status['reserved']}")
    for condition in status.get("conditions", ()):
        expected = {"Ready": "True", "Enforced": "True", "UsageCurrent": "True", "Exceeded": "False"}
        if condition["status"] != expected.get(condition["type"], condition["status"]):
            wrong.append(f"{quota.name}: {condition['type']} {condition['reason']}: {condition['message']}")
    return wrong


def _wrong_account(what: str, account: Json | None, quota: Quota, used: ResourceList) -> list[str]:
    if account is None:
        return [f"{what}: no account"]
    wrong = []
    if account.get("state") != "Open":
        wrong.append(f"{what}: {account.get('state')}")
    if reservations := account.get("reservations"):
        wrong.append(f"{what}: reservations {str(reservations)[:300]}")
    if any(resources.parse(account.get("reserved", {})).values()):
        wrong.append(f"{what}: reserved {account['reserved']}")
    counted = resources.total(resources.parse(amounts) for amounts in account.get("used", {}).values())
    mine = resources.only(counted, quota.limit.amounts)
    return wrong + _unequal(f"{what}: counted", resources.render(mine), used)


def _wrong_grants(quota: Quota, ledger: Json | None, accounts: Mapping[str, Json | None]) -> list[str]:
    """The master's book covers every seed's, and does not hand out more than there is."""
    if ledger is None:
        return [f"{quota.name}: the master has no ledger"]
    grants = ledger["grants"]
    wrong = []
    if grants.get("learning"):
        wrong.append(f"{quota.name}: the master is learning")
    held: dict[str, int] = {}
    for seed, holding in grants.get("seeds", {}).items():
        granted, returned = resources.parse(holding.get("granted", {})), resources.parse(holding.get("returned", {}))
        held = resources.add(held, resources.subtract(granted, returned))
        account = accounts.get(seed) or {}
        if resources.short(resources.parse(account.get("granted", {})), dict.fromkeys(held, 0) | granted):
            said, known = account.get("granted"), holding.get("granted")
            wrong.append(f"{quota.name}: {seed} was granted {said}, {known} in the master's ledger")
        if resources.short(returned, dict.fromkeys(held, 0) | resources.parse(account.get("returned", {}))):
            wrong.append(f"{quota.name}: {seed} returned {account.get('returned')}, master: {holding.get('returned')}")
    if over := resources.short(held, quota.limit.amounts):
        wrong.append(f"{quota.name}: the master has handed out {resources.text(over)} too much")
    return wrong


def _used(quota: Quota, machines: Machines, clusters: list[str]) -> dict[str, int]:
    zero = dict.fromkeys(quota.limit.amounts, 0)
    every = resources.total(size for name in clusters for size in machines[name].values())
    return resources.only(resources.add(zero, every), zero)


def _free(quota: Quota, machines: Machines) -> dict[str, int]:
    return resources.subtract(quota.limit.amounts, _used(quota, machines, list(quota.limit.clusters)))


def _unequal(what: str, said: Mapping[str, str | int], true: ResourceList) -> list[str]:
    amounts = resources.add(dict.fromkeys(true, 0), resources.only(resources.parse(said), true))
    return [] if amounts == dict(true) else [f"{what}: {resources.text(amounts)}, there is {resources.text(true)}"]


def room(machines: Machines) -> int:
    """How many of the smallest Machines still fit somewhere."""

    def left(quota: Quota) -> int:
        free = resources.only(_free(quota, machines), SMALLEST.amounts)
        return min(max(amount, 0) // SMALLEST.amounts[name] for name, amount in free.items())

    by_name = {quota.name: left(quota) for quota in QUOTAS}
    return max(min(by_name[f"project-{project}"], by_name["org-acme"]) for project in PROJECTS)


async def fill(place: Place) -> tuple[int, list[str]]:
    """Fills what is left, first of alpha, from both seeds in turn. What then is left, and answers that were wrong."""
    tenants = {name: Tenant(place.installed.cluster(name)) for name in HOSTS}
    wrong: list[str] = []
    try:
        before = await recount(place)
        for name in before["user-3"]:
            place.holdings["user-3"].deleting(name)
        await tenants["user-3"].delete(before["user-3"])
        _, wrong = await settled(place, _DELETED_SECONDS)
        for project, clusters in PROJECTS.items():
            asks = {name: partial(one_machine, tenants[name]) for name in clusters}
            wrong += await filling.fill(f"Machines of {project}", asks)
    finally:
        for tenant in tenants.values():
            await tenant.__aexit__(None, None, None)
    wrong += await namespaces.fill(place.installed, place.observers)
    wrong += await allocations.fill(place.installed)
    counted = await recount(place)
    left = [namespaces.room(quota, _used(quota, counted, list(quota.limit.clusters))) for quota in NAMESPACED]
    left.append(allocations.room({quota.name: _free(quota, counted) for quota in QUOTAS}))
    return room(counted) + sum(left), wrong


async def one_machine(tenant: Tenant) -> Asked:
    """A try that nobody decided may have reserved its Machine, also where another try is refused."""
    lost = 0
    for _ in range(_ROUNDS):
        attempt = await tenant.create(SMALLEST)
        decided = attempt.outcome is not Outcome.UNAVAILABLE
        lost += attempt.tries - decided
        if decided:
            break
    match attempt.outcome:
        case Outcome.ADMITTED:
            end = End.MADE
        case Outcome.REFUSED:
            end = filling.refusal(attempt.message)
        case _:
            end = End.WRONG
    return Asked(end, lost, f"{attempt.status} {attempt.message}")


async def _items(server: ApiServer, path: str) -> list[Json]:
    async with server.session() as session, session.get(path, raise_for_status=True, timeout=_TIMEOUT) as answer:
        return list(msgspec.json.decode(await answer.read(), type=Json)["items"])


async def _quotas(server: ApiServer) -> dict[str, Json]:
    """The status of each by its name."""
    found = await _items(server, f"{GROUP_PATH}/resourcequotas")
    return {quota["metadata"]["name"]: quota.get("status", {}) for quota in found}


async def _accounts(place: Place, seed: str) -> dict[str, Json]:
    """The seed's accounts by the quota's name, as they are in its store."""
    if not place.stores:
        found = await _items(place.installed.cluster(seed), _LEDGERS)
        return {ledger["quota"]["name"]: ledger["account"] for ledger in found if "account" in ledger}
    accounts: dict[str, Json] = {}
    redis = place.stores[seed]
    for uid in (await redis.command("HKEYS", f"{{seedquota:{seed}}}:accounts")).decode().split():
        found_object = await redis.command("HGET", f"{{seedquota:{seed}}}:account:{uid}", "object")
        if found_object:
            ledger = msgspec.json.decode(found_object, type=Json)
            accounts[ledger["quota"]["name"]] = ledger["account"]
    return accounts
