"""MachineDeployments and MachineSets as API servers ask about them: who is answered, by what is read, in which time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from common.api.labels import FITS_ANNOTATION, SETTINGS
from common.api.types import QuotaSettings, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.server.http_parser import Request, Response
from seed.admission import replay
from seed.admission.decision_log import Decisions
from seed.admission.record import Record
from seed.cache.cluster_api import View
from seed.cache.user_cluster_clients import Connections
from seed.kinds.machines.scale_webhook import ScaleWebhook
from seed.webhooks import fits
from seed.webhooks.endpoint import Endpoint
from seed.webhooks.router import route
from tests.running import running
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import FakeApiServer, eventually, fake_api_server, within
from tests.unit.seed_world import CLUSTER_UID, SeedWorld, seed_world, sizing

CAPI = "cluster.x-k8s.io"
INFRASTRUCTURE = "infrastructure.cluster.x-k8s.io"
KINDS = {
    "clusters": (CAPI, "Cluster"),
    "machinedeployments": (CAPI, "MachineDeployment"),
    "machinesets": (CAPI, "MachineSet"),
    "vspheremachinetemplates": (INFRASTRUCTURE, "VSphereMachineTemplate"),
}
TEN_FIT_THREE = "seedquota/project-alpha: 10 replicas need cpu=80, 24 free: 3 can start"
SIX_FIT_THREE = "seedquota/project-alpha: 6 more replicas need cpu=48, 24 free: 3 can start"


class Ways:
    """How the seed reaches its user cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.problem = ""
        self.free = asyncio.Event()
        self.free.set()

    @asynccontextmanager
    async def to(self, _cluster: UserCluster) -> AsyncIterator[Cluster]:
        await self.free.wait()
        if self.problem:
            raise Unavailable(0, "Unavailable", self.problem)
        yield self.cluster


class Scaling:
    def __init__(self, world: SeedWorld, api: FakeApiServer, cluster: Cluster) -> None:
        self.world = world
        self.api = api
        self.view = View(cluster, world.cluster_cache, "seedquota.io/project")
        self.connections = Ways(cluster)
        self.answers: list[tuple[str, str, str]] = []
        self.sizes = sizing()
        self.decisions = Decisions()
        webhook = ScaleWebhook(
            world.quota_cache,
            world.cluster_cache,
            world.registry,
            self.sizes,
            cast(Connections, self.connections),
            self.view,
        )

        def answered(kind: str, decision: str, reason: str, _path: str, _seconds: float) -> None:
            self.answers.append((kind, decision, reason))

        endpoint = Endpoint(webhook, answered, self.decisions)
        self.handle = route(
            {"scale": endpoint},
            lambda _name, caller, token: token == "secret" and caller in {CLUSTER_UID, "cluster-api", "gone"},
        )

    async def raw(self, body: bytes, path: str = f"/scale/{CLUSTER_UID}/secret", timeout: str = "30s") -> Response:
        return await self.handle(Request("POST", path, f"timeout={timeout}", body, close=False))

    async def __call__(
        self, new: Any, old: Any = None, *, caller: str = CLUSTER_UID, timeout: str = "30s", **request: Any
    ) -> tuple[int, str]:
        """The code of a refusal or 0, and what is said."""
        answered = await self.raw(review(new, old, **request), f"/scale/{caller}/secret", timeout)
        assert answered.status == 200, answered.body
        response = json.loads(answered.body)["response"]
        status, warnings = response.get("status", {}), response.get("warnings", [""])
        assert response["allowed"] is not bool(status)
        assert len(warnings) == 1
        return status.get("code", 0), status.get("message", warnings[0])

    def mode(self, check: str | None) -> None:
        body = {"metadata": {"name": SETTINGS}, "spec": {"scaleCheck": check} if check else {}}
        self.world.quota_cache.settings.store._set(SETTINGS, msgspec.convert(body, QuotaSettings))

    async def crd(self, plural: str, version: str) -> None:
        group, kind = KINDS[plural]
        await self.api.put(
            "customresourcedefinitions",
            "",
            f"{plural}.{group}",
            spec={
                "group": group,
                "names": {"kind": kind, "plural": plural},
                "versions": [{"name": version, "served": True, "storage": True}],
            },
            status={"conditions": [{"type": "Established", "status": "True"}]},
        )

    async def cluster(self, project: str = "alpha") -> None:
        await self.api.put("clusters", "alpha", "c1", metadata={"labels": {"seedquota.io/project": project}}, spec={})
        if project:
            await eventually(lambda: self.view.user_cluster("alpha", "c1"))


def review(new: Any, old: Any = None, *, resource: str = "machinedeployments", sub: str = "", **more: Any) -> bytes:
    request = {
        "uid": "r",
        "operation": "CREATE" if old is None else "UPDATE",
        "resource": {"resource": resource},
        "subResource": sub,
        "userInfo": {"username": "ann"},
        "object": new,
        "oldObject": old,
        **more,
    }
    return json.dumps({"request": request}).encode()


def deployment(replicas: int = 10, *, existing: int = 0, cpu: str | None = "8", **spec: Any) -> dict[str, Any]:
    fake = {"cloudProvider": "fake", "cloudProviderSpec": {"cpu": cpu, "memory": "16Gi", "storage": "50Gi"}}
    if cpu is None:
        fake = {"cloudProvider": "unheard-of"}
    template = {"spec": {"providerSpec": {"value": fake}}}
    return {
        "metadata": {"name": "d", "namespace": "kube-system"},
        "spec": {"replicas": replicas, "template": template, **spec},
        "status": {"replicas": existing},
    }


def capi(replicas: int = 10, kind: str = "VSphereMachineTemplate", version: str = "v1beta2") -> dict[str, Any]:
    group = {"apiGroup": INFRASTRUCTURE} if version == "v1beta2" else {"apiVersion": f"{INFRASTRUCTURE}/v1beta1"}
    spec = {"clusterName": "c1", "infrastructureRef": {**group, "kind": kind, "name": "t"}}
    return {
        "metadata": {"name": "d", "namespace": "alpha"},
        "spec": {"clusterName": "c1", "replicas": replicas, "template": {"spec": spec}},
    }


def scale(replicas: int, namespace: str = "kube-system") -> dict[str, Any]:
    return {"metadata": {"name": "d", "namespace": namespace}, "spec": {"replicas": replicas}}


@asynccontextmanager
async def made(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scaling]:
    for plural, (group, kind) in KINDS.items():
        monkeypatch.setitem(fakes.PLURALS, plural, (f"{group}/v1beta2", kind))
    crds = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    monkeypatch.setitem(fakes.PLURALS, "customresourcedefinitions", crds)
    async with fake_api_server() as api, seed_world() as world:
        cluster = api.cluster()
        asking = Scaling(world, api, cluster)
        for plural in KINDS:
            await asking.crd(plural, "v1beta1" if plural.startswith("vsphere") else "v1beta2")
        async with running(asking.view.run()):
            await asking.view.wait_settled()
            yield asking
        await asking.sizes.close()


@pytest.fixture
async def ask(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scaling]:
    async with made(monkeypatch) as asking:
        await asking.world.quota(limits="cpu=64", granted="cpu=64", used="cpu=40")
        yield asking


async def test_only_who_knows_the_token_is_answered_and_only_to_reviews(ask: Scaling) -> None:
    assert (await ask.raw(review(deployment()), f"/scale/{CLUSTER_UID}/guess")).status == 404
    assert (await ask.raw(review(deployment()), "/scale/secret")).status == 404
    assert (await ask.raw(b"{}")).status == 400
    assert await ask(deployment(), resource="machines") == (0, "")
    assert await ask(deployment(), operation="DELETE") == (0, "")
    assert await ask(deployment(10), deployment(4), sub="status") == (0, "")


async def test_it_is_warned_refused_or_left_alone_as_the_settings_say(ask: Scaling) -> None:
    assert await ask(deployment()) == (0, TEN_FIT_THREE), "without settings"
    for mode in ("warn", None):
        ask.mode(mode)
        assert await ask(deployment()) == (0, TEN_FIT_THREE)
    ask.mode("deny")
    code, message = await ask(deployment())
    assert code == 403
    assert message.startswith(
        "exceeded quota: project-alpha, requested: cpu=80, used: cpu=40, limited: cpu=64; short by cpu=56; "
        "3 of 10 replicas can start; "
    )
    assert await ask(deployment(3)) == (0, "")
    ask.mode("off")
    assert await ask(deployment()) == (0, "")
    assert [answer[1:] for answer in ask.answers] == [
        *[("allowed", "ReplicasShort")] * 3,
        ("denied", "QuotaExceeded"),
        ("allowed", ""),
        ("allowed", ""),
    ]
    assert {answer[0] for answer in ask.answers} == {"MachineDeployment"}


async def test_a_refusal_is_kept_with_its_facts_and_comes_out_again(ask: Scaling) -> None:
    ask.mode("deny")
    await ask(deployment(3))
    _, message = await ask(deployment(10))
    decision = message.rpartition(" ")[2]
    page = ask.decisions.page(decision, {})
    assert page is not None
    kept = msgspec.json.decode(page, type=Record)
    assert (kept.consumer, kept.object, kept.result) == ("machinedeployment", "kube-system/d", "refused")
    assert (kept.message, kept.need["cpu"], kept.cluster) == (message, "80", "alpha/c1")
    again = replay.replay(kept)
    assert again.as_then
    assert again.quotas[0].cure.startswith("fits if the limit is raised to cpu=120")
    assert ask.decisions.page("", {"machine": "d"}) == b'{"items":[]}', "it is no Machine"


async def test_it_is_advice_and_reserves_nothing(ask: Scaling) -> None:
    account = ask.world.account()
    for _ in range(3):
        await ask(deployment(3))
    assert ask.world.account() is account


async def test_the_most_that_is_known_of_the_use_counts(ask: Scaling) -> None:
    ask.world.tell(usage="cpu=56")
    assert (await ask(deployment(3)))[1].endswith("8 free: 1 can start")
    ask.world.tell(usage="cpu=8")
    assert (await ask(deployment(10)))[1] == TEN_FIT_THREE


async def test_an_edit_is_compared_with_what_it_edits(ask: Scaling) -> None:
    old = deployment(4, existing=4)
    assert await ask(deployment(10), old) == (0, SIX_FIT_THREE)
    assert await ask(deployment(2), old) == (0, "")
    assert await ask({**deployment(4), "metadata": {"name": "d", "labels": {"a": "b"}}}, old) == (0, "")
    ask.world.tell(usage="cpu=64")
    code, message = await ask(deployment(4, cpu="4"), old)
    assert (code, message) == (
        0,
        "seedquota/project-alpha: rollout cannot begin: maxSurge 1 needs cpu=4, 0 free; "
        "set maxSurge 0, maxUnavailable 1",
    )
    going = {**deployment(10), "metadata": {"name": "d", "deletionTimestamp": "2026-11-20T10:00:03Z"}}
    assert await ask(going, old) == (0, "")


async def test_a_scale_is_answered_by_what_is_read_of_its_object(ask: Scaling) -> None:
    await ask.api.put("machinedeployments", "kube-system", "d", **_parts(deployment(4, existing=4)))
    assert await ask(scale(10), scale(4), sub="scale") == (0, SIX_FIT_THREE)
    requests = len(ask.api.requests)
    assert await ask(scale(2), scale(4), sub="scale") == (0, "")
    assert await ask(scale(4), scale(4), sub="scale") == (0, "")
    assert len(ask.api.requests) == requests, "what costs nothing is not read"


async def test_a_scale_of_a_machine_set_asks_for_its_owner(ask: Scaling) -> None:
    owner = {"apiVersion": "v", "kind": "MachineDeployment", "name": "d", "uid": "u", "controller": True}
    free = _parts(deployment(4, existing=4))
    await ask.api.put("machinesets", "kube-system", "d", **free)
    assert await ask(scale(10), scale(4), sub="scale", resource="machinesets") == (0, SIX_FIT_THREE)
    await ask.api.put("machinesets", "kube-system", "d", **free, metadata={"ownerReferences": [owner]})
    assert await ask(scale(10), scale(4), sub="scale", resource="machinesets") == (0, "")


def _parts(found: dict[str, Any]) -> dict[str, Any]:
    return {"spec": found["spec"], "status": found["status"]}


async def test_what_cannot_be_told_is_allowed_with_the_reason(ask: Scaling) -> None:
    ask.mode("deny")
    begin = "seedquota: cannot tell how many replicas fit: "
    code, message = await ask(deployment(cpu=None))
    assert (code, message.startswith(f"{begin}cannot size machine: cloudProvider ")) == (0, True)
    code, message = await ask(scale(10), scale(4), sub="scale")
    assert (code, message.startswith(begin)) == (0, True)
    assert "machinedeployments" in message
    ask.connections.problem = "the user cluster's kubeconfig cannot be used"
    assert (await ask(scale(10), scale(4), sub="scale"))[1].endswith(ask.connections.problem)
    assert (await ask(deployment(), caller="gone"))[1] == f"{begin}its user cluster is not known to this seed any more"
    code, message = await ask({**deployment(), "spec": {"replicas": "many"}})
    assert (code, message.startswith(f"{begin}the MachineDeployment cannot be read")) == (0, True)
    ask.world.forget_project()
    await ask.world.quota("org-acme", limits="cpu=64", granted="cpu=64", kind="organization")
    why = "what limits project alpha has not come from the master, or there is no such Project"
    assert (await ask(deployment()))[1] == f"{begin}{why}"
    assert {answer[2] for answer in ask.answers} == {"Undecided"}


async def test_who_waits_for_the_user_cluster_is_answered_in_time(ask: Scaling) -> None:
    ask.connections.free.clear()
    async with within(1):
        assert await ask(scale(10), scale(4), sub="scale", timeout="0.2s") == (
            0,
            "seedquota: cannot tell how many replicas fit: what it is made of was not read in time",
        )


async def test_a_project_without_a_quota_is_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with made(monkeypatch) as ask:
        assert await ask(deployment(cpu=None)) == (0, "")


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_a_deployment_of_cluster_api_costs_what_its_template_says(ask: Scaling, version: str) -> None:
    size = {"numCPUs": 8, "memoryMiB": 1024, "diskGiB": 10}
    await ask.api.put("vspheremachinetemplates", "alpha", "t", spec={"template": {"spec": size}})
    wanted = capi(version=version)
    code, message = await ask(wanted, caller="cluster-api")
    assert (code, message.startswith("seedquota: cannot tell how many replicas fit: ")) == (0, True), "no Cluster"
    await ask.cluster("")
    assert await ask(wanted, caller="cluster-api") == (0, ""), "of no project"
    await ask.cluster()
    assert await ask(wanted, caller="cluster-api") == (0, TEN_FIT_THREE)
    await ask.api.put("machinedeployments", "alpha", "d", spec=wanted["spec"], status={"replicas": 4})
    scaled = await ask(scale(10, "alpha"), scale(4, "alpha"), sub="scale", caller="cluster-api")
    assert scaled == (0, SIX_FIT_THREE)


async def test_a_template_of_cluster_api_that_tells_no_size_is_no_obstacle(ask: Scaling) -> None:
    await ask.cluster()
    begin = "seedquota: cannot tell how many replicas fit: "
    for kind, why in (
        ("VSphereMachineTemplate", "vspheremachinetemplates"),
        ("HCloudMachineTemplate", "no HCloudMachineTemplates are served"),
        ("UnheardOfTemplate", 'cannot size machine: infrastructure "UnheardOf" is not supported'),
        ("", "cannot size machine: infrastructureRef is missing"),
    ):
        wanted = capi(kind=kind)
        if not kind:
            del wanted["spec"]["template"]["spec"]["infrastructureRef"]
        code, message = await ask(wanted, caller="cluster-api")
        assert (code, message.startswith(begin)) == (0, True), message
        assert why in message


@pytest.mark.parametrize("name", ["n" * 300, "n" * 100_000])
async def test_names_that_no_api_server_sends_are_not_kept(ask: Scaling, name: str) -> None:
    for sub, new, old in (("", deployment(100), None), ("scale", scale(100), scale(1))):
        new["metadata"]["name"] = name
        code, text = await ask(new, old, sub=sub)
        assert (code, "no proper name" in text) == (0, True)
    assert not list(ask.decisions._latest())


async def told(ask: Scaling, new: dict[str, Any], old: dict[str, Any] | None = None) -> fits.Fits:
    """By a dry run that asks what fits."""
    new = {**new, "metadata": {**new["metadata"], "annotations": {FITS_ANNOTATION: "1"}}}
    answered = await ask.raw(review(new, old, dryRun=True))
    (cause,) = json.loads(answered.body)["response"]["status"]["details"]["causes"]
    assert cause["reason"] == fits.REASON
    return fits.read(cause["message"])


@pytest.mark.parametrize("mode", ["warn", "deny", "off"])
async def test_who_asks_what_fits_is_told_whatever_the_settings_say_to_others(ask: Scaling, mode: str) -> None:
    ask.mode(mode)
    found = await told(ask, deployment(10))
    assert (found.asked, [(each.name, each.fitting, each.free) for each in found.quotas]) == (
        10,
        [("project-alpha", 3, {"cpu": "24"})],
    )
    assert (await told(ask, deployment(10), deployment(4, existing=4))).asked == 6, "an edit costs its difference"
    assert (await told(ask, deployment(4), deployment(4, existing=4))).asked == 0
    undecided = await told(ask, deployment(2, cpu=None))
    assert (undecided.code, undecided.quotas) == (503, [])
    replaced = await told(ask, deployment(4, cpu="32"), deployment(4, existing=4))
    assert replaced.warnings[0].startswith("seedquota/project-alpha: rollout cannot begin: maxSurge 1 needs cpu=32")
