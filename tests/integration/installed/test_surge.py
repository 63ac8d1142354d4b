"""Surge for rollouts in user clusters, whose objects are made here as machine-controller makes them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from devcluster.load import machine
from tests.integration.installed.site import (
    MACHINES,
    PROJECT,
    QUOTA,
    SMALL,
    Answer,
    Json,
    Site,
    cpus,
    named,
    until,
)

pytestmark = pytest.mark.integration

ONE, TWO = "user-1", "user-2"
API = "cluster.k8s.io/v1alpha1"
PATH = f"/apis/{API}/namespaces/kube-system"


class Rollout:
    """A MachineDeployment in a user cluster, with a MachineSet that goes and one that comes."""

    def __init__(self, site: Site, cluster: str, older: Json, newer: Json) -> None:
        self.old: list[str] = []
        self._site = site
        self._cluster = cluster
        self._older = older
        self._newer = newer

    @classmethod
    async def of(cls, site: Site, cluster: str, machines: int) -> Rollout:
        """All of its Machines are old ones."""
        name = f"workers-{uuid.uuid4().hex[:8]}"  # others import this module by another name, into the same clusters
        template = {"metadata": {"labels": {"workers": name}}, "spec": machine(name, SMALL)["spec"]}
        spec = {"replicas": machines, "selector": {"matchLabels": {"workers": name}}, "template": template}
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": machines, "maxUnavailable": 0}}
        deployment = await _made(site, cluster, "MachineDeployment", name, {**spec, "strategy": rolling})
        older, newer = [
            await _made(site, cluster, "MachineSet", f"{name}-{which}", {**spec, "replicas": 0}, deployment)
            for which in ("older", "newer")
        ]
        rollout = cls(site, cluster, older, newer)

        async def one_more() -> None:
            answer = await rollout._machine(older)
            assert answer.status == 201, answer
            rollout.old.append(answer.body["metadata"]["name"])

        for _ in range(machines):
            await until(one_more, 60)
        return rollout

    async def one_comes(self) -> Answer:
        return await self._machine(self._newer)

    async def one_goes(self) -> None:
        await self._site.delete(self._cluster, f"{MACHINES}/{self.old.pop()}")

    async def _machine(self, owner: Json) -> Answer:
        labels = owner["spec"]["selector"]["matchLabels"]
        name = f"machine-{uuid.uuid4().hex[:8]}"
        metadata = {"name": name, "labels": labels, "ownerReferences": [_reference(owner)]}
        return await self._site.decided(self._cluster, {**machine(name, SMALL), "metadata": metadata})


async def _made(site: Site, cluster: str, kind: str, name: str, spec: Json, owner: Json | None = None) -> Json:
    metadata = {"name": name, "ownerReferences": [_reference(owner)] if owner is not None else []}
    body = {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}
    answer = await site.call(cluster, "POST", f"{PATH}/{kind.lower()}s", body)
    assert answer.status == 201, answer
    return answer.body


def _reference(owner: Json) -> Json:
    name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
    return {"apiVersion": API, "kind": owner["kind"], "name": name, "uid": uid, "controller": True}


async def in_force(site: Site, quota: Mapping[str, str], surge: Mapping[str, str]) -> None:
    subject = {"kind": "project", "name": PROJECT}
    await site.apply("master", named("ResourceQuota", QUOTA, subject=subject, quota=quota, surge=surge))
    await site.installed.enforced(QUOTA, 60)


async def shown(site: Site, cpu: int, lent: int) -> None:
    """Waits until the master shows this use of the limit, and of the surge."""

    async def holds() -> None:
        status = (await site.get("master", f"resourcequotas/{QUOTA}"))["status"]
        assert status["globalUsage"] == cpus(cpu)
        assert status["surge"].get("used", {}) == (cpus(lent) if lent else {})

    await until(holds, 60)


def is_beyond_surge(answer: Answer) -> bool:
    return answer.status == 403 and "its rollout may use surge, but of that too: " in answer.message


async def test_one_machine_at_a_time_over_all_seeds_stands_on_surge_while_what_it_replaces_is_there(site: Site) -> None:
    await in_force(site, cpus(4), cpus(1))
    here, there = await Rollout.of(site, ONE, 2), await Rollout.of(site, TWO, 2)
    await site.uses(cpus(4))
    assert (await site.asked(ONE)).status == 403  # a Machine of no rollout

    answer = await site.that_fits(here.one_comes)
    assert answer.status == 201, answer
    assert is_beyond_surge(again := await here.one_comes()), again
    assert is_beyond_surge(elsewhere := await there.one_comes()), elsewhere
    await shown(site, 4, 1)
    assert (await site.get("master", f"resourcequotas/{QUOTA}"))["status"]["surge"]["hard"] == cpus(1)

    async def on_the_seed() -> None:
        status = (await site.get("seed-1", f"resourcequotas/{QUOTA}"))["status"]
        assert status["localUsage"] == {"cpu": "2", "surge.cpu": "1"}
        assert status["globalUsage"] == {"cpu": "4", "surge.cpu": "1"}

    await until(on_the_seed, 30)

    await here.one_goes()
    await shown(site, 4, 0)
    assert (await site.asked(ONE)).status == 403
    answer = await site.that_fits(there.one_comes)
    assert answer.status == 201, answer
    await there.one_goes()
    await shown(site, 4, 0)
    assert (await site.asked(TWO)).status == 403


async def test_what_is_lent_outlives_a_killed_agent_and_is_given_back_by_its_successor(site: Site) -> None:
    await in_force(site, cpus(3), cpus(2))
    rollout = await Rollout.of(site, ONE, 3)
    await site.uses(cpus(3))
    for _ in range(2):
        answer = await site.that_fits(rollout.one_comes)
        assert answer.status == 201, answer
    await shown(site, 3, 2)
    await site.kill(site.program("seed-1"))
    await rollout.one_goes()
    await site.start(site.program("seed-1"))
    await shown(site, 3, 1)

    assert (await site.asked(ONE)).status == 403
    answer = await site.that_fits(rollout.one_comes)
    assert answer.status == 201, answer
    assert (await rollout.one_comes()).status == 403
    await rollout.one_goes()
    await rollout.one_goes()
    await shown(site, 3, 0)
    assert (await site.asked(ONE)).status == 403
