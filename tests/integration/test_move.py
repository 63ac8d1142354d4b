"""The master moves to another cluster with the commands of docs/how-to/move-master.md, in order or after a loss."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from common.api.labels import MASTER_ANNOTATION
from common.quota import resources
from devcluster import binaries
from devcluster.install import Installation
from devcluster.load import Outcome, fill
from devcluster.network import Traffic
from devcluster.objects import named
from tests.integration.installed.site import MACHINES, PROJECT, QUOTA, SMALL, WINDOW, Json, Site, cpus, until
from tests.integration.installed.test_allocations import allocation
from tests.running import running

pytestmark = [pytest.mark.integration, pytest.mark.steps]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "move-master.md"
FIRST, SECOND, THIRD = "master", "new", "newer"  # clusters of the master, one after the other
LIMIT = 12
SETTINGS = {"defaults": {"organization": {"quota": cpus(40)}}}
KINDS = ("organizations", "projects", "quotasettings", "resourcequotas", "resourcequotaallocations", "seeds")


@pytest_asyncio.fixture(scope="module")
async def moving(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """With quotas of each origin: somebody's, a default, and one made of an allocation."""
    if shutil.which("jq") is None:
        pytest.skip("the page's commands need jq, which is not on PATH")
    directory = tmp_path_factory.mktemp("moving")
    async with Installation(directory, breakable=True, organization="acme", in_flight_window=WINDOW) as installed:
        site = Site(installed)
        await site.apply("master", named("QuotaSettings", "default", **SETTINGS), allocation("shared", "ann", 40))
        await site.quota(cpus(LIMIT))
        await installed.enforced("org-acme", 60)
        await until(lambda: site.get("master", "resourcequotas/allocation.shared"), 30)
        yield site
        await site.close()


def commands() -> tuple[str, str]:
    """Those that copy the objects: from the old cluster, and into the new one."""
    first, second = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return first, second


async def prepare(site: Site, new: str) -> None:
    """Another cluster for the master."""
    await site.installed.prepare_master(new)
    site.add(site.server(new))


async def run(site: Site, script: str, old: str, new: str) -> None:
    directory = site.installed.directory
    config = directory / "both.kubeconfig"
    contexts = {"old": old, "new": new}
    configs = {name: yaml.safe_load(site.server(cluster).kubeconfig()) for name, cluster in contexts.items()}
    for name, each in configs.items():
        each["clusters"][0]["name"] = each["users"][0]["name"] = each["contexts"][0]["name"] = name
        each["contexts"][0]["context"].update(cluster=name, user=name)
    both = {key: [each[key][0] for each in configs.values()] for key in ("clusters", "users", "contexts")}
    config.write_text(yaml.safe_dump({**configs["old"], **both}))
    kubectl = (await binaries.ensure(["kubectl"]))["kubectl"]
    path = f"{kubectl.parent}:{os.environ['PATH']}"
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-ec", script],
        cwd=directory,
        env={**os.environ, "KUBECONFIG": str(config), "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def uids(site: Site, cluster: str) -> dict[tuple[str, str], str]:
    return {
        (kind, found["metadata"]["name"]): found["metadata"]["uid"]
        for kind in KINDS
        for found in await site.items(cluster, kind)
    }


def owners(found: Json) -> list[tuple[str, str, str]]:
    given = found["metadata"].get("ownerReferences", ())
    return [(each["kind"], each["name"], each["uid"]) for each in given]


async def everything_is_taken_over(site: Site, new: str, restored: dict[tuple[str, str], str]) -> None:
    """No object was made a second time, and what belongs to another belongs to the new one."""

    async def holds() -> None:
        assert await uids(site, new) == restored
        of_default = await site.get(new, "resourcequotas/org-acme")
        assert owners(of_default) == [("Organization", "acme", restored["organizations", "acme"])]
        of_allocation = await site.get(new, "resourcequotas/allocation.shared")
        owner = ("ResourceQuotaAllocation", "shared", restored["resourcequotaallocations", "shared"])
        assert owners(of_allocation) == [owner]
        for seed in site.installed.seeds:
            for kind in ("organizations", "projects", "quotasettings", "resourcequotas"):
                copies = {each["metadata"]["name"]: each["metadata"] for each in await site.items(seed, kind)}
                assert {name: copy["labels"]["seedquota.io/uid"] for name, copy in copies.items()} == {
                    name: uid for (found, name), uid in restored.items() if found == kind
                }, f"{kind} on {seed}"

    await until(holds, 60)


async def can_be_filled_exactly(site: Site, new: str) -> None:
    for name in (QUOTA, "org-acme"):
        for kind in ("Enforced", "UsageCurrent"):
            await site.comes(new, f"resourcequotas/{name}", kind, "True", seconds=90)
    for seed in site.installed.seeds:
        await site.comes(new, f"seeds/{seed}", "Ready", "True", seconds=60)
    await site.reserves_nothing(*site.installed.seeds, seconds=60)
    more = await fill(site.tenants, SMALL, LIMIT * 5)
    assert {one.outcome for one in more} <= {Outcome.ADMITTED, Outcome.REFUSED}, more[-1].message
    assert sum([len(await site.items(tenant.name, MACHINES)) for tenant in site.tenants]) == LIMIT


async def is_silent(site: Site) -> None:
    """As the former master is after 90 s without a sign, for which no test waits."""
    for seed in site.installed.seeds:
        await site.patch(seed, f"seeds/{seed}", {"metadata": {"annotations": {MASTER_ANNOTATION: None}}})


async def shows_use(site: Site, cluster: str, count: int) -> None:
    async def holds() -> None:
        view = await site.view(QUOTA, cluster)
        assert view.used.get("cpu", 0) == resources.parse(cpus(count))["cpu"] and not view.reserved, view

    await until(holds, 60)


async def copies_of_projects(site: Site) -> dict[str, str]:
    return {seed: (await site.get(seed, f"projects/{PROJECT}"))["metadata"]["uid"] for seed in site.installed.seeds}


async def test_in_order_while_tenants_create(moving: Site) -> None:
    site = moving
    await prepare(site, SECOND)
    await site.admitted("user-1", 3)
    await site.admitted("user-2", 2)
    await site.uses(cpus(5))
    projects = await copies_of_projects(site)
    ended = asyncio.Event()
    outcomes = []

    async def ask() -> None:
        while not ended.is_set():
            for tenant in site.tenants:
                attempt = await tenant.create(SMALL)
                outcomes.append(attempt)
                if attempt.outcome is Outcome.ADMITTED:
                    (last, *_) = [each["metadata"]["name"] for each in await site.items(tenant.name, MACHINES)]
                    await site.delete(tenant.name, f"{MACHINES}/{last}")
            await asyncio.sleep(0.5)

    async with site.no_overshoot(cpus(LIMIT)) as overshoot:
        async with running(ask()) as (asking,):
            await site.stop(site.program(FIRST))
            await run(site, "".join(commands()), FIRST, SECOND)
            restored = await uids(site, SECOND)
            assert restored.keys() == (await uids(site, FIRST)).keys()
            await site.start(site.program(SECOND))
            for seed in site.installed.seeds:
                await site.comes(SECOND, f"seeds/{seed}", "Connected", "False", "OtherMaster", seconds=60)
            await is_silent(site)
            await everything_is_taken_over(site, SECOND, restored)
            ended.set()
            await asking
        assert [one.message for one in outcomes if one.outcome is Outcome.FAILED] == []
        assert await copies_of_projects(site) == projects, "a project was never unknown"
        await site.start(site.program(FIRST))  # somebody starts it again
        for seed in site.installed.seeds:
            await site.comes(FIRST, f"seeds/{seed}", "Connected", "False", "OtherMaster", seconds=60)
        await can_be_filled_exactly(site, SECOND)
        await everything_is_taken_over(site, SECOND, restored)
        await overshoot.look()
    assert overshoot.count == 0


async def test_lost_with_a_seed_that_the_new_master_cannot_reach_at_first(moving: Site) -> None:
    """That seed holds what it does not use, and admits it. The new master knows nothing of that."""
    site = moving
    await prepare(site, THIRD)
    await site.kill(site.program(FIRST), site.server(FIRST))
    for tenant in site.tenants:
        for found in await site.items(tenant.name, MACHINES):
            await site.delete(tenant.name, f"{MACHINES}/{found['metadata']['name']}")
    await shows_use(site, SECOND, 0)
    await run(site, commands()[0], SECOND, THIRD)
    await site.admitted("user-1", 3)
    names = await site.admitted("user-2", 6)
    await shows_use(site, SECOND, 9)
    await site.kill(site.program(SECOND), site.server(SECOND))
    link = site.installed.links["seed-2"]
    await link.set(Traffic.REFUSED)
    async with site.no_overshoot(cpus(LIMIT)) as overshoot:
        for name in names[2:]:
            await site.delete("user-2", f"{MACHINES}/{name}")
        await run(site, commands()[1], SECOND, THIRD)
        await is_silent(site)
        await site.start(site.program(THIRD))
        await site.comes(THIRD, f"resourcequotas/{QUOTA}", "Ready", "Unknown", "Learning", "seed-2", seconds=60)
        await site.comes(THIRD, "seeds/seed-1", "Connected", "True", seconds=60)
        uid = (await uids(site, THIRD))["resourcequotas", QUOTA]

        async def has_a_new_account() -> None:
            assert (await site.ledger("seed-1"))["quota"]["uid"] == uid

        await until(has_a_new_account, 60)
        for _ in range(4):
            answer = await site.create("user-1")
            assert answer.status == 503, answer
        await site.admitted("user-2", 4)
        await overshoot.look()
        await link.set(Traffic.FORWARDED)
        await everything_is_taken_over(site, THIRD, await uids(site, THIRD))
        await can_be_filled_exactly(site, THIRD)
        await overshoot.look()
    assert overshoot.count == 0
