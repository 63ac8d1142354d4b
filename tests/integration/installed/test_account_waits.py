"""An account that admits nothing says what it waits for: to the master, to who is refused, and in a metric."""

from __future__ import annotations

import re

import aiohttp
import pytest

from tests.integration.installed.site import LEDGERS, QUOTA, Site, cpus, until

pytestmark = pytest.mark.integration

SEED = "seed-1"


async def waits(site: Site, reason: str) -> None:
    """The seed's report says so, and so does the metric."""
    status = (await site.get(SEED, f"resourcequotas/{QUOTA}"))["status"]
    assert status["account"].get("waitsFor", {}).get("reason", "") == reason, status
    agent = site.program(SEED)
    async with aiohttp.ClientSession() as session, session.get(f"{agent.health}/metrics") as answer:
        samples = re.findall(r'^seedquota_account_waiting_seconds{reason="(\w+)"} (\S+)$', await answer.text(), re.M)
    longest = {name: float(seconds) for name, seconds in samples}
    assert longest.keys() == {"MasterAnswer", "InFlightWindow", "Sources", "Turn", "Ledger"}
    assert [name for name, seconds in longest.items() if seconds] == ([reason] if reason else []), longest


async def test_the_answer_of_the_master_and_lists_that_are_missing_are_named(site: Site) -> None:
    agent, master, user_cluster = site.program(SEED), site.program("master"), site.server("user-1")
    await site.quota(cpus(4))
    await site.admitted("user-1")
    await site.uses(cpus(1))
    await site.kill(master, agent)
    await site.start(agent)
    await until(lambda: waits(site, "MasterAnswer"), 60)

    async def undecided() -> None:
        answer = await site.create("user-1", dryRun="All")
        assert answer.status == 503, answer
        assert "its account is not open yet: it waits for the answer of the master;" in answer.message, answer

    await until(undecided, 60)
    await site.start(master)
    await until(lambda: waits(site, ""), 60)
    await site.installed.enforced(QUOTA, 60)
    # No count can be kept of a cluster that is away where the ledger is lost.
    await site.kill(agent, user_cluster)
    ledger = (await site.ledger(SEED))["metadata"]["name"]
    await site.delete(SEED, f"{LEDGERS}/{ledger}")
    await site.start(agent)
    path, text = f"resourcequotas/{QUOTA}", "seed-1 waits for new lists from alpha/user-1"
    await site.comes("master", path, "Enforced", "False", "AccountFenced", text, seconds=60)
    await until(lambda: waits(site, "Sources"), 30)
    await site.start(user_cluster)
    await site.installed.enforced(QUOTA, 60)
    await until(lambda: waits(site, ""), 30)
    await site.uses(cpus(1), seconds=60)
    await site.admitted("user-1")
