"""docs/how-to/seeds.md on real nodes: a second seed is added, drained, removed and replaced; the first one is lost.

The commands are those of the page, literally, and so is what they print.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from devcluster import isolation
from devcluster.objects import namespace, project, quota
from tests.e2e.cluster import NAMESPACE, until
from tests.e2e.fleet import PROJECT, Fleet, clusters
from tests.how_to import CONFIRMATION, commands, is_shown, outputs

PAGE, QUOTA = "seeds.md", "project-alpha"
MASTER, FIRST, SECOND, THIRD = "master", "eu-1", "eu-2", "eu-3"
REMOVE = "seedquota seed remove eu-2 --seed-kubeconfig eu-2-admin.yaml"
DENIED = 2
MACHINES = {MASTER: isolation.FIRST, SECOND: isolation.THIRD, FIRST: isolation.SECOND}


@pytest_asyncio.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with clusters(tmp_path_factory.mktemp("seed"), MACHINES, ["c1", "c2"]) as found:  # short: sockets are below
        await found.nodes[MASTER].apply(namespace(NAMESPACE))
        await found.nodes[MASTER].install("master", release="seedquota")
        await found.nodes[MASTER].apply(project(PROJECT), quota(QUOTA, PROJECT, {"cpu": "4", "memory": "16Gi"}))
        yield found


async def prints(fleet: Fleet, command: str, *, seed: str = SECOND, status: int = 0) -> str:
    """What the page shows for `command`, which is the page's, about `seed` in place of its eu-2."""
    script = command.replace(SECOND, seed)
    said = await fleet.run(script, context=MASTER, types=f"{CONFIRMATION}\n", status=status)
    is_shown(said, PAGE, command)
    return said


async def add(fleet: Fleet, seed: str, user: str, *, cluster: str = "") -> None:
    """`cluster` is the context if it has another name than the seed."""
    context = cluster or seed
    await fleet.install_seed(context, MACHINES[context], name=seed)
    (fleet.directory / f"{seed}-admin.yaml").write_text(fleet.nodes[context].server.kubeconfig())
    said = await prints(fleet, "seedquota seed add eu-2 --seed-kubeconfig eu-2-admin.yaml", seed=seed)
    await fleet.run(said.partition("wait for it with: ")[2], context=MASTER)
    await fleet.add_user_cluster(user, seed=context)
    await fleet.run(f"kubectl -n {PROJECT} wait --for=condition=Ready uc/{user} --timeout=120s", context=context)


async def test_a_second_seed_is_added(fleet: Fleet) -> None:
    await add(fleet, FIRST, "c1")
    await add(fleet, SECOND, "c2")
    await fleet.nodes[MASTER].enforced(QUOTA)
    await until(fleet.machines("c1").admitted, 60)
    for _ in range(2):
        await until(fleet.machines("c2").admitted, 60)
    shown = outputs(PAGE, "kubectl get sqseed")[0].splitlines()[0]
    said = await fleet.run("kubectl get sqseed", context=MASTER)
    assert said.splitlines()[0].split() == shown.split()


async def test_it_is_drained_and_removed(fleet: Fleet) -> None:
    await prints(fleet, "seedquota seed drain eu-2")
    await until(partial(prints, fleet, "seedquota seed list"), 60)
    await prints(fleet, REMOVE, status=DENIED)
    await prints(fleet, "seedquota seed lost eu-2 --dry-run")
    await fleet.run("kubectl -n kube-system delete machines --all", context="c2")
    await fleet.run(f"kubectl -n {PROJECT} delete uc/c2 secret/c2", context=SECOND)
    await until(partial(prints, fleet, REMOVE), 120)
    await fleet.run(commands(PAGE, "helm --kube-context eu-2 uninstall"), context=MASTER)
    left = (await fleet.run("kubectl get sqseed -o name", context=MASTER)).split()
    assert left == [f"seed.seedquota.io/{FIRST}"]


async def test_its_cluster_is_added_again_and_has_what_a_lost_seed_held(fleet: Fleet) -> None:
    await fleet.machines("c2").admitted()  # nothing enforces there
    await add(fleet, THIRD, "c2", cluster=SECOND)
    for _ in range(2):
        await until(fleet.machines("c2").admitted, 60)
    await until(fleet.machines("c2").refused, 60)
    first = fleet.nodes[FIRST]
    await first.node.kill()
    await fleet.site.plane.manager_of(FIRST).kill()
    await first.server.kill()
    assert (await fleet.machines("c2").create()).status in (403, 503)
    await prints(fleet, "seedquota seed lost eu-2", seed=FIRST)
    await prints(fleet, "seedquota seed remove eu-2", seed=FIRST)
    await until(fleet.machines("c2").admitted, 60)
    assert "used: cpu=4, limited: cpu=4" in (await fleet.machines("c2").refused()).message
