"""Cluster API's own controllers make Machines on the seed, and its quota holds for them as for any other Machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from common.quota import resources
from devcluster.cluster_api import INFRASTRUCTURE_GROUP
from devcluster.controlplane import ApiServer
from devcluster.install import GROUP_PATH, Installation
from devcluster.load import Size, machine
from devcluster.manifests import Manifest, apply
from devcluster.objects import quota
from devcluster.observe import quota_on
from devcluster.patience import patient_timeout
from tests.integration.cluster_api.place import SEED, Place
from tests.unit.fake_api_server import within

pytestmark = pytest.mark.integration

NAMESPACE = "alpha"
CAPI = f"/apis/cluster.x-k8s.io/v1beta2/namespaces/{NAMESPACE}"
OLD_CAPI = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}"
INFRASTRUCTURE = f"/apis/{INFRASTRUCTURE_GROUP}/v1beta1/namespaces/{NAMESPACE}"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/seedquota-cluster-api"
LIMITS = {"cpu": "18", "memory": "1Ti"}
"""Four machines of four CPUs, and no fifth."""

SIZE = {"numCPUs": 4, "memoryMiB": 4096, "diskGiB": 20}
SECONDS = 60.0
CALM_SECONDS = 4.0
PAUSE_SECONDS = 0.2  # between looks
BACKOFF_SECONDS = 43.0  # a controller that fails pauses for 5 ms, and then twice as long each time: now for 40.96 s
WAKING_SECONDS = 19.0  # by its own pause it would come 81.9 s after it began to fail, or later


def infrastructure(kind: str, name: str) -> dict[str, str]:
    return {"apiGroup": INFRASTRUCTURE_GROUP, "kind": kind, "name": name}


def cluster(name: str, project: str = "alpha") -> list[Manifest]:
    endpoint = {"host": "127.0.0.1", "port": 6443}
    metadata = {"name": name, "namespace": NAMESPACE}
    return [
        made("VSphereCluster", name, {"controlPlaneEndpoint": endpoint}),
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Cluster",
            "metadata": {**metadata, "labels": {"seedquota.io/project": project} if project else {}},
            "spec": {"infrastructureRef": infrastructure("VSphereCluster", name), "controlPlaneEndpoint": endpoint},
        },
    ]


def made(kind: str, name: str, spec: object) -> Manifest:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": f"{INFRASTRUCTURE_GROUP}/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}


def machines_of(cluster_name: str, kind: str, name: str) -> dict[str, Any]:
    return {
        "clusterName": cluster_name,
        "bootstrap": {"dataSecretName": "none"},
        "infrastructureRef": infrastructure(kind, name),
    }


def deployment(name: str, cluster_name: str, replicas: int) -> Manifest:
    labels = {"deployment": name}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "MachineDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "clusterName": cluster_name,
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": machines_of(cluster_name, "VSphereMachineTemplate", "small"),
            },
        },
    }


class Seed:
    """The seed's API server, as its admin."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._session = session

    async def names(self, selector: str = "") -> set[str]:
        """An API server answers 404 or 429 for a moment when a definition has changed."""
        async with patient_timeout(SECONDS):
            while True:
                async with self._session.get(f"{CAPI}/machines", params={"labelSelector": selector}) as answer:
                    if answer.status == 200:
                        return {found["metadata"]["name"] for found in (await answer.json())["items"]}
                await asyncio.sleep(PAUSE_SECONDS)

    async def items(self, plural: str) -> list[dict[str, Any]]:
        async with self._session.get(f"{CAPI}/{plural}") as answer:
            return list((await answer.json())["items"])

    async def send(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = json.dumps(body) if body is not None else None
        async with self._session.request(method, path, data=data, headers={"Content-Type": kind}) as answer:
            return answer.status, str((await answer.json()).get("message", ""))

    async def warned(self, method: str, path: str, body: object) -> list[str]:
        """What an accepted request is warned of."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        async with self._session.request(method, path, json=body, headers={"Content-Type": kind}) as answer:
            assert answer.status in (200, 201), await answer.text()
            return [text.partition('"')[2].removesuffix('"') for text in answer.headers.getall("Warning", [])]

    async def until_warned(self, warning: str, method: str, path: str, body: object) -> None:
        """As dry runs: no API server waits long for what only gives advice."""
        async with patient_timeout(SECONDS):
            while warning not in await self.warned(method, f"{path}?dryRun=All", body):
                await asyncio.sleep(PAUSE_SECONDS)

    async def decided(self, method: str, path: str, body: object) -> tuple[int, str]:
        """As `send`, again while nobody can decide, as a client does: on a busy machine that may take seconds."""
        async with patient_timeout(SECONDS):
            while (answer := await self.send(method, path, body))[0] in (500, 503):
                await asyncio.sleep(PAUSE_SECONDS)
        return answer

    async def scale(self, name: str, replicas: int) -> None:
        body = {"spec": {"replicas": replicas}}
        assert (await self.send("PATCH", f"{CAPI}/machinedeployments/{name}/scale", body))[0] == 200

    async def until(self, right: Callable[[set[str]], bool], selector: str = "") -> None:
        async with patient_timeout(SECONDS):
            while not right(await self.names(selector)):
                await asyncio.sleep(PAUSE_SECONDS)

    async def stays(self, count: int) -> None:
        """Exactly so many Machines, then and for a while."""
        await self.until(lambda found: len(found) == count)
        seen = set()
        for _ in range(int(CALM_SECONDS / PAUSE_SECONDS)):
            seen.add(len(await self.names()))
            await asyncio.sleep(PAUSE_SECONDS)
        assert seen == {count}

    async def used(self, name: str, text: str) -> None:
        """Until the seed shows this use of the quota."""
        wanted = resources.only(resources.parse(dict(part.split("=") for part in text.split(","))), LIMITS)
        async with patient_timeout(SECONDS):
            while resources.only((await quota_on(self.server, name)).used, LIMITS) != wanted:
                await asyncio.sleep(PAUSE_SECONDS)

    async def clear(self) -> None:
        for plural in ("machinedeployments", "machinepools", "machines"):
            await self.send("DELETE", f"{CAPI}/{plural}")
        await self.until(lambda found: not found)
        async with patient_timeout(SECONDS):  # the next one may have the same name
            while await self.items("machinedeployments"):
                await asyncio.sleep(PAUSE_SECONDS)


@pytest_asyncio.fixture(scope="module")
async def installation(place: Place) -> Installation:
    installed = place.installed
    server = installed.cluster(SEED)
    await apply(
        server,
        [
            *cluster("c1"),
            *cluster("c2"),
            *cluster("free", ""),
            made("VSphereMachineTemplate", "small", {"template": {"spec": SIZE}}),
        ],
    )
    async with server.session() as session:
        seed = Seed(server, session)
        for name in ("c1", "c2", "free"):
            ready = {"status": {"initialization": {"provisioned": True}}}
            status, why = await seed.send("PATCH", f"{INFRASTRUCTURE}/vsphereclusters/{name}/status", ready)
            assert status == 200, why
    return installed


async def without_quota(installed: Installation, name: str) -> None:
    async with installed.master.session() as admin, admin.delete(f"{GROUP_PATH}/resourcequotas/{name}") as answer:
        assert answer.status in (200, 404), await answer.text()


@asynccontextmanager
async def limited(installed: Installation, name: str) -> AsyncIterator[Seed]:
    server = installed.cluster(SEED)
    async with server.session() as session:
        seed = Seed(server, session)
        try:
            await apply(installed.master, [quota(name, installed.project, LIMITS)])
            await installed.enforced(name)
            async with patient_timeout(SECONDS):
                while (await seed.send("GET", CONFIGURATION))[0] != 200:
                    await asyncio.sleep(PAUSE_SECONDS)
            yield seed
        finally:
            await seed.clear()
            await without_quota(installed, name)


async def test_a_deployment_scaled_past_the_quota_stops_exactly_at_the_limit_and_scaling_down_frees(
    installation: Installation,
) -> None:
    async with limited(installation, "capi-deployments") as seed:
        await apply(seed.server, [deployment("one", "c1", 1)])
        await seed.until(lambda found: len(found) == 1)
        await seed.scale("one", 10)
        await seed.stays(4)
        await seed.used("capi-deployments", "cpu=16,memory=16Gi")

        await apply(seed.server, [deployment("two", "c2", 2)])
        await seed.scale("one", 2)
        await seed.until(lambda found: len(found) == 2, "deployment=one")
        await seed.until(lambda found: len(found) == 2, "deployment=two")
        await seed.stays(4)

        await seed.scale("one", 0)
        await seed.scale("two", 0)
        await seed.until(lambda found: not found)
        await seed.used("capi-deployments", "cpu=0,memory=0")


async def test_that_machines_are_checked_is_proven_and_the_quota_tells_when_the_webhook_is_not_reached(
    installation: Installation,
) -> None:
    """With Cluster API's own webhooks beside ours: its sample must be as valid as any Machine."""
    balancer = installation.balancers[SEED]
    async with limited(installation, "capi-proven") as seed:
        await proven(installation, "1.0")
        balancer.cut = True
        try:
            await balancer.end_connections()
            status, _ = await seed.send("DELETE", CONFIGURATION)  # whatever happens to it, it is tried again
            assert status == 200
            # The third cluster is asked by way of the same balancer, and may be noticed by then, or first.
            both = "alpha/cluster.x-k8s.io:c1 on seed-1, alpha/cluster.x-k8s.io:c2 on seed-1"
            told = await enforced(installation, "capi-proven", "False", both)
            assert told.startswith((f"{both}: ", f"{both}, alpha/user-1 on seed-1: ")), told
            both = "alpha/cluster.x-k8s.io:c1, alpha/cluster.x-k8s.io:c2"
            await said(installation, "seeds/seed-1", "WebhookServing", "False", both)
        finally:
            balancer.cut = False
        await enforced(installation, "capi-proven", "True")
        await proven(installation, "1.0")
        status = (await said(installation, "seeds/seed-1", "WebhookServing", "True"))[0]
        assert status["clusters"] == 3, "c1, c2 and the declared one; free has no project"


async def proven(installed: Installation, value: str) -> None:
    """What the leader saw last of the canaries that it sends to the seed itself."""
    url = f"{installed.programs['seedquota-seed-1'].health}/metrics"
    wanted = f'seedquota_canary_success{{user_cluster="cluster-api"}} {value}'
    async with aiohttp.ClientSession() as session, patient_timeout(SECONDS):
        while True:
            async with session.get(url) as answer:
                if wanted in (await answer.text()).splitlines():
                    return
            await asyncio.sleep(PAUSE_SECONDS)


async def enforced(installed: Installation, name: str, status: str, begin: str = "") -> str:
    """Waits for the quota's condition Enforced on the master. Its message."""
    return (await said(installed, f"resourcequotas/{name}", "Enforced", status, begin))[1]


async def said(
    installed: Installation, path: str, kind: str, wanted: str, begin: str = ""
) -> tuple[dict[str, Any], str]:
    """Waits for a condition on the master with a message that begins so. The status that it stands in, and its
    message."""
    async with installed.master.session() as session, patient_timeout(SECONDS):
        while True:
            async with session.get(f"{GROUP_PATH}/{path}") as answer:
                status = (await answer.json()).get("status", {})
            for condition in status.get("conditions", []):
                found, message = (condition["type"], condition["status"]), str(condition["message"])
                if found == (kind, wanted) and message.startswith(begin):
                    return status, message
            await asyncio.sleep(PAUSE_SECONDS)


async def test_whoever_asks_for_more_machines_than_fit_is_told_and_gets_one_as_soon_as_there_is_room(
    installation: Installation,
) -> None:
    """Whoever scales is told how many can start. A MachineSet that was refused makes its Machine without that."""
    async with limited(installation, "capi-asked") as seed:
        path = f"{CAPI}/machinedeployments"
        assert await seed.warned("POST", path, deployment("of-nobody", "free", 5)) == []
        asking = deployment("asking", "c1", 10)
        await seed.until_warned(
            "seedquota/capi-asked: 10 replicas need cpu=40, 18 free: 4 can start", "POST", path, asking
        )
        await seed.warned("POST", path, asking)
        await seed.until(lambda found: len(found) == 4, "deployment=asking")
        # It is refused again and again meanwhile, so that its own pause is longer than the test has patience.
        paused_enough = time.monotonic() + BACKOFF_SECONDS
        await seed.used("capi-asked", "cpu=16,memory=16Gi")
        warning = "seedquota/capi-asked: 8 more replicas need cpu=32, 2 free: none can start"
        for served in (CAPI, OLD_CAPI):  # once its status counts all four
            scale = f"{served}/machinedeployments/asking/scale"
            await seed.until_warned(warning, "PATCH", scale, {"spec": {"replicas": 12}})

        await asyncio.sleep(paused_enough - time.monotonic())
        assert len(await seed.names("deployment=asking")) == 4
        more = {"spec": {"quota": {"cpu": "20"}}}
        headers = {"Content-Type": "application/merge-patch+json"}
        async with installation.master.session() as admin:
            path = f"{GROUP_PATH}/resourcequotas/capi-asked"
            async with admin.patch(path, json=more, headers=headers, raise_for_status=True):
                started = time.monotonic()
        async with within(WAKING_SECONDS):
            await seed.until(lambda found: len(found) == 5, "deployment=asking")
        print(f"\nmade {time.monotonic() - started:.2f} s after there was room")
        sets = [found["metadata"] for found in await seed.items("machinesets")]
        (of_asking,) = (found for found in sets if found["labels"].get("deployment") == "asking")
        assert "seedquota.io/capacity-freed" in of_asking.get("annotations", {})


async def test_an_agent_killed_while_a_deployment_grows_loses_nothing(installation: Installation) -> None:
    async with limited(installation, "capi-killed") as seed:
        await apply(seed.server, [deployment("killed", "c1", 10)])
        await seed.until(lambda found: len(found) >= 2)
        for program in await installation.kill_replicas(SEED):
            await program.start()
        await seed.stays(4)
        await seed.used("capi-killed", "cpu=16,memory=16Gi")


async def test_machines_that_are_not_served_keep_their_count(installation: Installation) -> None:
    """They are stored, and there again when they are served again: another cluster must not take their share."""
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/machines.cluster.x-k8s.io"
    quota_path = "resourcequotas/capi-unserved"
    async with limited(installation, "capi-unserved") as seed:
        await apply(seed.server, [deployment("unserved", "c1", 4)])
        await seed.stays(4)
        await seed.used("capi-unserved", "cpu=16,memory=16Gi")
        async with seed.server.session() as admin, admin.get(definition) as answer:
            served = (await answer.json())["spec"]["versions"]

        async def serve(versions: list[dict[str, Any]]) -> None:
            assert (await seed.send("PATCH", definition, {"spec": {"versions": versions}}))[0] == 200

        await serve([{**version, "served": False} for version in served])
        try:
            await is_held(installation, quota_path)
            for program in await installation.kill_replicas(SEED):
                await program.start()
            await is_held(installation, quota_path)
        finally:
            await serve(served)
        await said(installation, quota_path, "UsageCurrent", "True")
        await seed.stays(4)
        assert "used: cpu=16, limited: cpu=18" in await refused_elsewhere(installation)
        await seed.scale("unserved", 3)
        await seed.used("capi-unserved", "cpu=12,memory=12Gi")


async def is_held(installed: Installation, quota_path: str) -> None:
    """All four Machines count, though none of them can be listed."""
    status, message = await said(installed, quota_path, "UsageCurrent", "False")
    (found,) = (each for each in status["conditions"] if each["type"] == "UsageCurrent")
    assert found["reason"] == "ResourceNotListed" and "c1 on seed-1" in message, found
    assert "used: cpu=16, limited: cpu=18" in await refused_elsewhere(installed)


async def refused_elsewhere(installed: Installation) -> str:
    """What a Machine of four CPUs is told in the project's other cluster."""
    server = installed.cluster(installed.user_clusters[SEED])
    path = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines"
    async with server.session() as tenant, patient_timeout(SECONDS):
        while True:
            async with tenant.post(path, json=machine("elsewhere", Size("4", "4Gi", "1Gi"))) as answer:
                assert answer.status in (403, 500, 503), "it takes what others have"
                if answer.status == 403:
                    return str((await answer.json())["message"])
            await asyncio.sleep(PAUSE_SECONDS)


async def test_a_cluster_of_no_project_is_of_no_quota(installation: Installation) -> None:
    async with limited(installation, "capi-free") as seed:
        await apply(seed.server, [deployment("free", "free", 6)])
        await seed.stays(6)
        await seed.used("capi-free", "cpu=0,memory=0")


async def test_a_machine_is_refused_with_the_reason_in_either_version_of_the_api(installation: Installation) -> None:
    def machine(version: str, name: str, reference: dict[str, str]) -> Manifest:
        spec = machines_of("c1", "", "") | {"infrastructureRef": reference}
        return {
            "apiVersion": f"cluster.x-k8s.io/{version}",
            "kind": "Machine",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec,
        }

    def old(name: str) -> dict[str, str]:
        return {"apiVersion": f"{INFRASTRUCTURE_GROUP}/v1beta1", "kind": "VSphereMachine", "name": name}

    async with limited(installation, "capi-refused") as seed:
        await apply(seed.server, [made("VSphereMachine", "big", SIZE | {"numCPUs": 19})])
        for path, body in (
            (CAPI, machine("v1beta2", "m", infrastructure("VSphereMachine", "big"))),
            (OLD_CAPI, machine("v1beta1", "m", old("big"))),
        ):
            status, message = await seed.decided("POST", f"{path}/machines", body)
            assert status == 403, message
            assert "exceeded quota: capi-refused, requested: cpu=19, used: cpu=0, limited: cpu=18" in message
        status, message = await seed.decided(
            "POST", f"{CAPI}/machines", machine("v1beta2", "m", infrastructure("VSphereMachine", "none"))
        )
        assert status == 422
        assert f"cannot size machine: VSphereMachine {NAMESPACE}/none does not exist" in message
        await seed.used("capi-refused", "cpu=0,memory=0")


async def test_a_pool_costs_its_replicas_also_when_it_is_scaled(installation: Installation) -> None:
    pool = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "MachinePool",
        "metadata": {"name": "pool", "namespace": NAMESPACE},
        "spec": {
            "clusterName": "c1",
            "replicas": 2,
            "template": {"spec": machines_of("c1", "VSphereMachine", "of-the-pool")},
        },
    }
    async with limited(installation, "capi-pools") as seed:
        await apply(seed.server, [made("VSphereMachine", "of-the-pool", SIZE)])
        assert (await seed.decided("POST", f"{CAPI}/machinepools", pool))[0] == 201
        await seed.used("capi-pools", "cpu=8,memory=8Gi")
        for path in ("machinepools/pool/scale", "machinepools/pool"):
            status, message = await seed.decided("PATCH", f"{CAPI}/{path}", {"spec": {"replicas": 5}})
            assert status == 403, message
            assert "requested: cpu=12, used: cpu=8, limited: cpu=18" in message
        status, message = await seed.decided("PATCH", f"{CAPI}/machinepools/pool/scale", {"spec": {"replicas": 4}})
        assert status == 200, message
        await seed.used("capi-pools", "cpu=16,memory=16Gi")
        assert (await seed.decided("PATCH", f"{CAPI}/machinepools/pool", {"spec": {"replicas": 1}}))[0] == 200
        await seed.used("capi-pools", "cpu=4,memory=4Gi")


async def test_a_cluster_that_moves_to_another_project_takes_its_use_along(installation: Installation) -> None:
    async with limited(installation, "capi-moving") as seed:
        await apply(seed.server, [deployment("moving", "c2", 3)])
        await seed.used("capi-moving", "cpu=12,memory=12Gi")

        async def move(project: str) -> None:
            label = {"metadata": {"labels": {"seedquota.io/project": project}}}
            assert (await seed.send("PATCH", f"{CAPI}/clusters/c2", label))[0] == 200

        try:
            await move("beta")
            await seed.used("capi-moving", "cpu=0,memory=0")
        finally:
            await move("alpha")
        await seed.used("capi-moving", "cpu=12,memory=12Gi")
