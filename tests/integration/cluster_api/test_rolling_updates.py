"""Rolling updates at a full quota, made by Cluster API's own controllers: what surge is for, and what it is not."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from common.quota import resources
from devcluster.controlplane import ApiServer
from devcluster.infrastructure import Infrastructure
from devcluster.install import GROUP_PATH, Installation
from devcluster.manifests import apply
from devcluster.objects import named
from devcluster.patience import patient_timeout
from tests.integration.cluster_api.place import SEED, Place
from tests.integration.cluster_api.test_cluster_api import (
    CAPI,
    INFRASTRUCTURE,
    NAMESPACE,
    SIZE,
    Seed,
    cluster,
    deployment,
    machines_of,
    made,
    without_quota,
)
from tests.running import running

pytestmark = pytest.mark.integration

CLUSTER = "rolling"
WORKERS = f"{CAPI}/machinedeployments/workers"
TEMPLATES = {"first": 4, "second": 4, "third": 4, "large": 8}
"""Names of machine templates, and their CPUs."""

ONE = {"cpu": "4", "machines": "1"}
SECONDS = 240.0  # a rollout of four takes a quarter of a minute on free cores
BY_HAND = "by-hand"
CALM_SECONDS = 1.5
"""What was read of a rollout is kept for half a second."""

_numbers = itertools.count(1)


class Rollouts(msgspec.Struct, frozen=True):
    """One seed with Cluster API, and who brings up its machines."""

    installed: Installation
    provider: Infrastructure


@pytest_asyncio.fixture(scope="module")
async def rollouts(place: Place) -> AsyncIterator[Rollouts]:
    installed = place.installed
    await place.controllers.be_prompt()
    server = installed.cluster(SEED)
    templates = [
        made("VSphereMachineTemplate", name, {"template": {"spec": SIZE | {"numCPUs": cpus}}})
        for name, cpus in TEMPLATES.items()
    ]
    await apply(server, [*cluster(CLUSTER), *templates])
    workload = installed.cluster(installed.user_clusters[SEED])
    async with Infrastructure(server, workload, NAMESPACE, CLUSTER) as provider:
        yield Rollouts(installed, provider)


class Watched:
    """All Machines there are, at each revision of the API server, and all that the master shows of the quota."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.most = 0
        self.usage: list[dict[str, int]] = []
        self.lent: list[dict[str, int]] = []

    def machine(self, kind: str, found: Any) -> None:
        name = found["metadata"]["name"]
        (self.now.discard if kind == "DELETED" else self.now.add)(name)
        self.most = max(self.most, len(self.now))

    def quota(self, _kind: str, found: Any) -> None:
        status = found.get("status", {})
        self.usage.append(resources.parse(status.get("globalUsage", {})))
        self.lent.append(resources.parse(status.get("surge", {}).get("used", {})))


class Rolling(Seed):
    """The seed's API server, with a quota that the MachineDeployment `workers` fills."""

    def __init__(
        self, installed: Installation, session: aiohttp.ClientSession, name: str, count: int, watched: Watched
    ) -> None:
        super().__init__(installed.cluster(SEED), session)
        self.name = name
        self.count = count
        self.limits = {"cpu": str(4 * count), "machines": str(count)}
        self.watched = watched
        self._master = installed.master

    async def surge(self, surge: Mapping[str, str]) -> None:
        """The quota now has this surge, and else its limits."""
        subject = {"kind": "project", "name": NAMESPACE}
        more = {"surge": dict(surge)} if surge else {}
        await apply(self._master, [named("ResourceQuota", self.name, subject=subject, quota=self.limits, **more)])

    async def roll(self, template: str) -> None:
        """The deployment is to have Machines of this template."""
        body: Any = deployment("workers", CLUSTER, self.count)
        body["spec"]["template"]["spec"] = machines_of(CLUSTER, "VSphereMachineTemplate", template)
        await apply(self.server, [body])

    async def change(self, path: str, **spec: object) -> None:
        status, why = await self.send("PATCH", path, {"spec": spec})
        assert status == 200, why

    async def rolled_to(self, template: str) -> None:
        """Until there are as many Machines as are wanted, all of this template or made by hand."""
        async with patient_timeout(SECONDS):
            while True:
                made_of, names = await self._made_of(), await self.names()
                if len(names) == self.count and {made_of.get(name, "") for name in names} - {BY_HAND} == {template}:
                    return
                await asyncio.sleep(0.3)

    async def _made_of(self) -> dict[str, str]:
        cloned = "cluster.x-k8s.io/cloned-from-name"
        found = await self.list(f"{INFRASTRUCTURE}/vspheremachines")
        return {one["metadata"]["name"]: one["metadata"].get("annotations", {}).get(cloned, BY_HAND) for one in found}

    async def list(self, path: str) -> list[Any]:
        async with self._session.get(path, raise_for_status=True) as answer:
            return list((await answer.json())["items"])

    async def set_of(self, template: str) -> Any:
        """Its MachineSet, as soon as there is one."""
        async with patient_timeout(SECONDS):
            while True:
                for found in await self.list(f"{CAPI}/machinesets"):
                    if found["spec"]["template"]["spec"]["infrastructureRef"]["name"] == template:
                        return found
                await asyncio.sleep(0.2)

    async def refused(self, template: str) -> None:
        """Until the MachineSet of the template was told that a Machine of it was refused."""
        uid = (await self.set_of(template))["metadata"]["uid"]
        async with patient_timeout(SECONDS):
            while True:
                events = await self.list(f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")
                if any(
                    event["reason"] == "QuotaExceeded" and event.get("regarding", {}).get("uid") == uid
                    for event in events
                ):
                    return
                await asyncio.sleep(0.3)

    async def shows(self, right: Callable[[Watched], bool]) -> None:
        async with patient_timeout(SECONDS):
            while not right(self.watched):
                await asyncio.sleep(0.05)

    async def stays_with(self, machines: int) -> None:
        """There are so many, and a while later still these and no others."""
        before = set(self.watched.now)
        assert len(before) == machines
        await asyncio.sleep(CALM_SECONDS)
        assert self.watched.now == before

    async def lends_one(self) -> None:
        """Until a rollout's first Machine stands on surge."""
        await self.shows(lambda seen: seen.lent[-1] == resources.parse(ONE) and len(seen.now) == self.count + 1)

    async def is_as_before(self) -> None:
        """Until nothing is lent any more. The quota is full, and was never beyond its limit."""
        limits = resources.parse(self.limits)
        await self.shows(lambda seen: not seen.lent[-1] and seen.usage[-1] == limits)
        assert not [use for use in self.watched.usage if resources.short(use, limits)]
        status, why = await self.try_one()
        assert status == 403, why

    async def try_one(self) -> tuple[int, str]:
        """A Machine of four CPUs that somebody makes by hand."""
        name = f"{BY_HAND}-{next(_numbers)}"
        await apply(self.server, [made("VSphereMachine", name, SIZE)])
        metadata = {"name": name, "namespace": NAMESPACE, "labels": {"deployment": "workers"}}
        spec = machines_of(CLUSTER, "VSphereMachine", name)
        body = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "spec": spec}
        return await self.send("POST", f"{CAPI}/machines", {**body, "metadata": metadata})


async def follow(server: ApiServer, path: str, take: Callable[[str, Any], None], **query: str) -> None:
    """Every change from the beginning, until cancelled."""
    forever = aiohttp.ClientTimeout(total=None)
    async with (
        server.session() as session,
        session.get(path, params={"watch": "1", **query}, timeout=forever, raise_for_status=True) as answer,
    ):
        async for line in answer.content:
            event = json.loads(line)
            take(event["type"], event["object"])
    raise AssertionError("the watch ended")


@asynccontextmanager
async def full(rollouts: Rollouts, name: str, count: int, surge: Mapping[str, str]) -> AsyncIterator[Rolling]:
    """A quota that so many Machines of the first template fill. Their deployment starts one before it stops one."""
    installed, watched = rollouts.installed, Watched()
    server = installed.cluster(SEED)
    async with server.session() as session:
        seed = Rolling(installed, session, name, count, watched)
        only = {"fieldSelector": f"metadata.name={name}"}
        try:
            await seed.surge(surge)
            await installed.enforced(name)
            async with running(
                follow(server, f"{CAPI}/machines", watched.machine),
                follow(installed.master, f"{GROUP_PATH}/resourcequotas", watched.quota, **only),
            ) as watching:
                await seed.roll("first")
                await seed.rolled_to("first")
                await seed.shows(lambda seen: seen.usage[-1:] == [resources.parse(seed.limits)])
                yield seed
                assert not [task for task in watching if task.done()]
        finally:
            rollouts.provider.stalled = False
            await seed.clear()
            await without_quota(installed, name)


async def test_a_rollout_at_a_full_quota_waits_until_there_is_surge_and_then_completes(rollouts: Rollouts) -> None:
    async with full(rollouts, "four", 4, {}) as seed:
        await seed.roll("second")
        await seed.refused("second")
        await seed.stays_with(4)

        await seed.surge(ONE)
        await seed.rolled_to("second")
        assert seed.watched.most == 5
        assert resources.parse(ONE) in seed.watched.lent
        assert not [lent for lent in seed.watched.lent if resources.short(lent, resources.parse(ONE))]
        await seed.is_as_before()


async def test_scaling_up_and_pausing_in_the_middle_of_a_rollout_bring_no_more_machines(rollouts: Rollouts) -> None:
    async with full(rollouts, "scaled", 3, ONE) as seed:
        rollouts.provider.stalled = True
        await seed.roll("second")
        await seed.lends_one()

        await seed.change(WORKERS, replicas=6)
        await seed.refused("second")
        await seed.stays_with(4)

        await seed.change(WORKERS, replicas=3, paused=True)
        newer = (await seed.set_of("second"))["metadata"]["name"]
        await seed.change(f"{CAPI}/machinesets/{newer}", replicas=5)
        await seed.stays_with(4)

        rollouts.provider.stalled = False
        await seed.change(WORKERS, paused=False)
        await seed.rolled_to("second")
        assert seed.watched.most == 4
        await seed.is_as_before()


async def test_a_larger_machine_gets_no_surge_and_another_template_in_the_middle_ends_within_the_limit(
    rollouts: Rollouts,
) -> None:
    async with full(rollouts, "changed", 3, {"cpu": "16", "machines": "1"}) as seed:
        await seed.roll("large")
        await seed.refused("large")
        await seed.stays_with(3)

        rollouts.provider.stalled = True
        await seed.roll("second")
        await seed.lends_one()
        await seed.roll("third")
        await seed.set_of("third")
        rollouts.provider.stalled = False
        await seed.rolled_to("third")
        assert seed.watched.most == 4
        await seed.is_as_before()
