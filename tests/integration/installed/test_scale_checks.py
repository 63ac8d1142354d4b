"""What people are told when they ask for more Machines than their quota has room for: by real API servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from devcluster.install import GROUP_PATH, Installation
from devcluster.load import Size, machine
from devcluster.manifests import apply
from devcluster.objects import named, quota
from devcluster.observe import quota_on
from devcluster.patience import patient_timeout
from tests.integration.installed.site import Site, until

pytestmark = pytest.mark.integration

SEED, USER = "seed-1", "user-1"
PATH = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system"
LIMITS = {"cpu": "64", "memory": "1Ti"}
SIZE = Size("8", "16Gi", "50Gi")
SECONDS = 60.0
UNSIZED = {"value": {"cloudProvider": "unheard-of"}}
_numbers = itertools.count(1)


class Tenant:
    """The user cluster's admin, as kubectl speaks for him."""

    def __init__(self, installed: Installation, session: aiohttp.ClientSession) -> None:
        self.installed = installed
        self._session = session

    async def send(self, method: str, path: str, body: object = None, **query: str) -> tuple[int, list[str], str]:
        """The status, the warnings and the message."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        async with self._session.request(
            method, f"{PATH}/{path}", json=body, headers={"Content-Type": kind}, params=query
        ) as answer:
            warnings = [text.partition('"')[2].removesuffix('"') for text in answer.headers.getall("Warning", [])]
            return answer.status, warnings, str((await answer.json()).get("message", ""))

    async def made(self, kind: str, replicas: int, **metadata: object) -> str:
        """One that exists with all of its Machines, as far as anybody can see."""
        name = f"d-{next(_numbers)}"
        make = machine_set if kind == "machinesets" else deployment
        status, _, message = await self.send("POST", kind, make(name, 0, **metadata))
        assert status == 201, message
        seen = {"status": {"replicas": replicas}}
        assert (await self.send("PATCH", f"{kind}/{name}/status", seen))[0] == 200
        return name

    async def scale(self, kind: str, name: str, replicas: int, **query: str) -> tuple[int, list[str], str]:
        return await self.send("PATCH", f"{kind}/{name}/scale", {"spec": {"replicas": replicas}}, **query)

    async def settings(self, check: str) -> None:
        """Returns when the seed has them."""
        await apply(self.installed.master, [named("QuotaSettings", "default", scaleCheck=check)])
        async with self.installed.cluster(SEED).session() as seed, patient_timeout(SECONDS):
            while True:
                async with seed.get(f"{GROUP_PATH}/quotasettings/default") as answer:
                    if (await answer.json()).get("spec", {}).get("scaleCheck") == check:
                        break
                await asyncio.sleep(0.05)

    async def told(
        self, path: str, body: Mapping[str, object], right: Callable[[int, str], bool] = lambda _, said: bool(said)
    ) -> tuple[int, list[str], str]:
        """As `send`, in dry runs until the status and what is said are right: no API server waits long for what only
        gives advice."""
        method = "PATCH" if "/" in path else "POST"
        async with patient_timeout(SECONDS):
            while True:
                status, warnings, message = await self.send(method, path, body, dryRun="All")
                if right(status, message or "".join(warnings)):
                    return status, warnings, message
                await asyncio.sleep(0.05)

    async def until_told(self, expected: tuple[int, str], path: str, body: Mapping[str, object]) -> None:
        """A watch brings the agent what it answers by: settings and use. Dry runs change nothing meanwhile."""
        status, text = expected
        await self.told(path, body, lambda found, said: found == status and (text in said if text else not said))


def deployment(name: str, replicas: int, *, cpu: str = "8", **metadata: object) -> dict[str, Any]:
    spec = machine(name, Size(cpu, SIZE.memory, SIZE.storage))["spec"]
    labels = {"deployment": name}
    return {
        "apiVersion": "cluster.k8s.io/v1alpha1",
        "kind": "MachineDeployment",
        "metadata": {"name": name, **metadata},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def machine_set(name: str, replicas: int, **metadata: object) -> dict[str, Any]:
    return {**deployment(name, replicas, **metadata), "kind": "MachineSet"}


@pytest_asyncio.fixture(scope="module")
async def tenant(installation: Site) -> AsyncIterator[Tenant]:
    installed = installation.installed
    await apply(installed.master, [quota("project-alpha", installed.project, LIMITS)])
    await installed.enforced("project-alpha")
    async with installed.cluster(USER).session() as session:
        tenant = Tenant(installed, session)

        async def made(name: str) -> None:
            """On a busy machine, nobody can decide at first."""
            status, _, message = await tenant.send("POST", "machines", machine(name, SIZE))
            assert status in (201, 409), message

        for name in ("a", "b", "c", "d", "e"):
            await until(partial(made, name), SECONDS)
        full = "10 replicas need cpu=80, 24 free"
        await tenant.until_told((201, full), "machinedeployments", deployment("probe", 10))
        yield tenant


async def test_whoever_creates_more_than_fits_is_warned_and_nothing_is_taken(tenant: Tenant) -> None:
    warning = "seedquota/project-alpha: 10 replicas need cpu=80, 24 free: 3 can start"
    for plural, make in (("machinedeployments", deployment), ("machinesets", machine_set)):
        assert await tenant.told(plural, make("large", 10)) == (201, [warning], "")
        assert (await tenant.send("POST", plural, make("large", 10)))[0] == 201
    assert await tenant.send("POST", "machinedeployments", deployment("fits", 3)) == (201, [], "")
    async with patient_timeout(SECONDS):
        while True:  # what was admitted last may not have been told yet
            found = await quota_on(tenant.installed.cluster(SEED), "project-alpha")
            if not found.reserved and found.global_usage["cpu"] == "40":
                break
            await asyncio.sleep(0.05)
    unsized = deployment("unsized", 2)
    unsized["spec"]["template"]["spec"]["providerSpec"] = UNSIZED
    status, warnings, _ = await tenant.told("machinedeployments", unsized)
    assert status == 201
    assert warnings[0].startswith("seedquota: cannot tell how many replicas fit: cannot size machine: cloudProvider")


@pytest.mark.parametrize("kind", ["machinedeployments", "machinesets"])
async def test_a_scale_costs_what_is_beyond_what_exists(tenant: Tenant, kind: str) -> None:
    name = await tenant.made(kind, 4)
    warning = "seedquota/project-alpha: 6 more replicas need cpu=48, 24 free: 3 can start"
    ten = {"spec": {"replicas": 10}}
    assert await tenant.told(f"{kind}/{name}/scale", ten) == (200, [warning], "")
    assert await tenant.scale(kind, name, 7) == (200, [], "")
    assert await tenant.send("PATCH", f"{kind}/{name}", {"metadata": {"labels": {"a": "b"}}}) == (200, [], "")
    assert await tenant.told(f"{kind}/{name}", ten) == (200, [warning], "")


async def test_a_machine_set_of_a_deployment_is_its_deployments_matter(tenant: Tenant) -> None:
    owner = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment", "name": "d", "uid": "u"}
    name = await tenant.made("machinesets", 4, ownerReferences=[{**owner, "controller": True}])
    assert await tenant.scale("machinesets", name, 10) == (200, [], "")


async def test_a_rollout_that_cannot_begin_is_told_so(tenant: Tenant) -> None:
    name = await tenant.made("machinedeployments", 4)
    assert await tenant.scale("machinedeployments", name, 4) == (200, [], "")
    template = deployment(name, 4, cpu="32")["spec"]["template"]
    status, warnings, _ = await tenant.told(f"machinedeployments/{name}", {"spec": {"template": template}})
    assert (status, warnings) == (
        200,
        [
            "seedquota/project-alpha: rollout cannot begin: maxSurge 1 needs cpu=32, 24 free; "
            "set maxSurge 0, maxUnavailable 1"
        ],
    )


async def test_the_settings_make_it_a_refusal_or_silence(tenant: Tenant) -> None:
    name = await tenant.made("machinedeployments", 4)
    path, ten = f"machinedeployments/{name}/scale", {"spec": {"replicas": 10}}
    await tenant.settings("deny")
    await tenant.until_told((403, "exceeded quota"), path, ten)
    status, _, message = await tenant.told(path, ten)
    assert status == 403
    assert message.startswith(
        'admission webhook "scale.seedquota.io" denied the request: exceeded quota: project-alpha, '
        "requested: cpu=48, used: cpu=40, limited: cpu=64; short by cpu=24; 3 of 6 more replicas can start; "
    )
    status, _, message = await tenant.told("machinedeployments", deployment("denied", 10))
    assert (status, "; 3 of 10 replicas can start; " in message) == (403, True)
    assert await tenant.scale("machinedeployments", name, 7) == (200, [], "")
    await tenant.settings("off")
    await tenant.until_told((200, ""), path, ten)

    async def is_silent() -> None:
        assert await tenant.scale("machinedeployments", name, 10) == (200, [], "")

    await until(is_silent, SECONDS)
