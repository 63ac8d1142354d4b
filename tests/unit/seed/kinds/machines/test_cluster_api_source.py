"""What a seed counts of its own Machines of Cluster API, on an API server that can be made to lag and to change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import pytest_asyncio

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound, Unavailable
from common.kube.controller.dynamic_informers import Following
from common.kube.controller.reflector import moment
from common.server.http_parser import Request, Response
from seed.accounts.registry import AccountRegistry
from seed.admission.admitter import Admission
from seed.cache.cluster_api import View
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.kinds.machines.admission import MachineAdmission
from seed.kinds.machines.cluster_api_configuration import CALLER
from seed.kinds.machines.cluster_api_source import ClusterApiInformers, ClusterSource
from seed.kinds.machines.cluster_api_webhook import ClusterApiWebhook
from seed.kinds.registry import OF_PROJECTS
from seed.model.cluster_key import hosted_key, is_hosted
from seed.registration.enforcement import Enforcement
from seed.usage.source import Taken
from seed.webhooks.endpoint import Endpoint
from seed.webhooks.router import route
from tests.memory_store import MemoryStore
from tests.running import running
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import FakeApiServer, eventually, fake_api_server
from tests.unit.seed_world import nanos, sizing

GROUP = "infrastructure.cluster.x-k8s.io"
KINDS = {
    "clusters": ("cluster.x-k8s.io", "Cluster"),
    "machines": ("cluster.x-k8s.io", "Machine"),
    "machinepools": ("cluster.x-k8s.io", "MachinePool"),
    "vspheremachines": (GROUP, "VSphereMachine"),
    "awsmachines": (GROUP, "AWSMachine"),
    "awsclusters": (GROUP, "AWSCluster"),
    "metal3machines": (GROUP, "Metal3Machine"),
    "baremetalhosts": ("metal3.io", "BareMetalHost"),
}
KEY = hosted_key("alpha", "c1")


class NoEnforcement:
    """The webhook's configuration is another test's."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def remove(self) -> None:
        return


class Seed:
    def __init__(self, api: FakeApiServer, cluster: Cluster) -> None:
        self.api = api
        self.quota_cache = QuotaCache(cluster)
        self.cluster_cache = ClusterCache(cluster, self.quota_cache, of_projects=OF_PROJECTS)
        self.view = View(cluster, self.cluster_cache, "seedquota.io/project")
        self.changes: list[tuple[str, bool]] = []
        self.told: list[float] = []  # from which lists, when its state was told
        self.sizing = sizing()
        self.feed = ClusterApiInformers(
            cluster,
            self.quota_cache,
            self.cluster_cache,
            self.view,
            self.sizing,
            cast(Enforcement, NoEnforcement()),
            on_change=lambda source, freed: self.changes.append((source.consumer.project, freed)),
            on_state=lambda source: self.told.append(source.listed_from),
        )
        self.registry = AccountRegistry(self.quota_cache, self.cluster_cache, MemoryStore())

    @property
    def source(self) -> ClusterSource:
        return self.feed.sources[KEY]

    def uses(self, text: str) -> bool:
        return KEY in self.feed.sources and self.source.counted and self.source.totals.used == nanos(text)

    async def crd(self, plural: str, *versions: str, established: bool = True, serves: bool = True) -> None:
        group, kind = KINDS[plural]
        served = [{"name": name, "served": serves, "storage": name == versions[-1]} for name in versions]
        await self.api.put(
            "customresourcedefinitions",
            "",
            f"{plural}.{group}",
            spec={"group": group, "names": {"kind": kind, "plural": plural}, "versions": served},
            status={"conditions": [{"type": "Established", "status": str(established)}]},
        )

    async def serve(self) -> None:
        for plural in KINDS:
            version = {"awsmachines": "v1beta2", "baremetalhosts": "v1alpha1"}.get(plural, "v1beta1")
            await self.crd(plural, version)

    async def cluster(self, project: str = "alpha", **spec: Any) -> None:
        await self.api.put("clusters", "alpha", "c1", metadata={"labels": {"seedquota.io/project": project}}, spec=spec)

    async def machine(self, name: str, kind: str = "VSphereMachine") -> str:
        reference = {"apiVersion": f"{GROUP}/v1beta1", "kind": kind, "name": name}
        made = await self.api.put(
            "machines",
            "alpha",
            name,
            metadata={"generation": 1},
            spec={"clusterName": "c1", "infrastructureRef": reference},
        )
        return str(made["metadata"]["uid"])

    async def infrastructure(self, name: str, cpus: int = 4) -> None:
        await self.api.put(
            "vspheremachines", "alpha", name, spec={"numCPUs": cpus, "memoryMiB": 1024 * cpus, "diskGiB": 10}
        )


@asynccontextmanager
async def seed(monkeypatch: pytest.MonkeyPatch, *, served: bool = True) -> AsyncIterator[Seed]:
    for plural, (group, kind) in KINDS.items():
        monkeypatch.setitem(fakes.PLURALS, plural, (f"{group}/v1beta1", kind))
    monkeypatch.setitem(
        fakes.PLURALS, "customresourcedefinitions", ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    )
    async with fake_api_server() as api:
        cluster = api.cluster()
        made = Seed(api, cluster)
        if served:
            await made.serve()
        try:
            async with running(made.view.run()):
                yield made
        finally:
            await made.registry.close()
            await made.sizing.close()


@pytest_asyncio.fixture
async def made(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Seed]:
    async with seed(monkeypatch) as made:
        yield made


@asynccontextmanager
async def leading(made: Seed) -> AsyncIterator[None]:
    await made.view.wait_settled()
    async with running(made.feed.run()):
        yield


async def test_machines_are_counted_for_the_project_of_their_cluster(made: Seed) -> None:
    await made.cluster()
    await made.infrastructure("a")
    await made.machine("a")
    async with leading(made):
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        assert made.source.consumer.project == "alpha"
        assert is_hosted(made.source.key)
        await made.infrastructure("b", 8)
        uid = await made.machine("b")
        await eventually(lambda: made.uses("cpu=12,memory=12Gi,storage=20Gi,machines=2"))
        assert made.source.totals.seen([uid]) == {uid: 1}
        await made.api.remove("machines", "alpha", "a")
        await eventually(lambda: made.uses("cpu=8,memory=8Gi,storage=10Gi,machines=1"))
        assert made.changes[-1] == ("alpha", True)
    assert made.feed.sources == {}


@pytest.mark.parametrize("plural", ["machines", "clusters"])
async def test_what_is_defined_and_not_served_keeps_its_count(
    made: Seed, monkeypatch: pytest.MonkeyPatch, plural: str
) -> None:
    await made.cluster()
    await made.infrastructure("a")
    uid = await made.machine("a")
    async with leading(made):
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        monkeypatch.delitem(fakes.PLURALS, plural)
        await made.crd(plural, "v1beta1", serves=False)
        following = made.feed._following if plural == "machines" else made.view._following
        reflector = following.get(plural)
        assert reflector is not None
        await eventually(lambda: reflector.error_status == 404)
        assert made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1")
        with pytest.raises(ApiError):
            if plural == "machines":
                await made.source.generation("alpha/a", uid)
            else:
                await made.view.find_hosted(KEY)
    if plural == "machines":  # the next leader
        made.feed._following = Following(made.view._cluster, made.view.served, made.feed._following._wanted)
        async with leading(made):
            await eventually(lambda: KEY in made.feed.sources and made.source.problem is not None)
            assert not made.source.counted


async def test_a_new_leader_counts_nothing_anew_where_a_machine_cannot_be_read(made: Seed) -> None:
    """It is not known of which Cluster that is, so the account keeps what it has of each in its namespace."""
    other = hosted_key("beta", "c1")
    await made.cluster()
    await made.infrastructure("a")
    uid = await made.machine("a")
    labels = {"labels": {"seedquota.io/project": "beta"}}
    await made.api.put("clusters", "beta", "c1", metadata=labels)

    async def spoil(labels: dict[str, object]) -> None:
        found = made.api.objects["machines", "alpha", "a"]
        await made.api.put(
            "machines", "alpha", "a", metadata={"generation": 1, "uid": uid, "labels": labels}, spec=found["spec"]
        )

    async with leading(made):
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        await spoil({"a": 5})
        await eventually(lambda: made.source.problem is not None)
        assert made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"), "as it was read last"
    made.feed._following = Following(made.view._cluster, made.view.served, made.feed._following._wanted)
    async with leading(made):
        await eventually(lambda: KEY in made.feed.sources and made.source.problem is not None)
        assert made.source.problem is not None and made.source.problem.reason == "ObjectsUnreadable"
        assert not made.source.counted
        assert made.feed.sources[other].counted, "one broken object stops nobody else"
        await spoil({})
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        await eventually(lambda: made.source.problem is None)


async def test_a_machine_keeps_its_reservation_until_what_it_is_made_of_was_seen(made: Seed) -> None:
    await made.cluster()
    async with leading(made):
        await eventually(lambda: made.uses(""))
        answering = asyncio.Event()

        async def slow(request: Any) -> Any:
            """The read of what the watch has not brought."""
            if request.path.endswith("/late"):
                await answering.wait()
            else:
                made.api.answers.append(slow)

        made.api.answers.append(slow)
        uid = await made.machine("late")
        await eventually(lambda: made.uses("machines=1"))
        assert made.source.totals.seen([uid]) == {}
        made.api.objects["vspheremachines", "alpha", "late"] = {
            "metadata": {"name": "late", "namespace": "alpha", "uid": "i", "resourceVersion": "1"},
            "spec": {"numCPUs": 4, "memoryMiB": 4096, "diskGiB": 10},
        }
        answering.set()
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        assert made.source.totals.seen([uid]) == {uid: 1}


async def test_a_machine_made_of_nothing_counts_as_a_machine_and_says_so(made: Seed) -> None:
    await made.cluster()
    async with leading(made):
        await made.machine("a")
        await eventually(lambda: made.uses("machines=1") and not made.source.totals.waiting)
        (named,) = made.source.totals.unsized().named
        assert named.startswith("alpha/a: cannot size machine: VSphereMachine alpha/a does not exist")
        await made.infrastructure("a")
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))


async def test_a_machine_that_goes_costs_its_size_until_it_is_gone(made: Seed) -> None:
    """Cluster API deletes the infrastructure object first."""
    await made.cluster()
    await made.infrastructure("a")
    await made.machine("a")
    async with leading(made):
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        await made.api.remove("vspheremachines", "alpha", "a")
        await eventually(lambda: made.source.totals.unsized().count == 1 and not made.source.totals.waiting)
        assert made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1")
        await made.api.remove("machines", "alpha", "a")
        await eventually(lambda: made.uses(""))


async def test_an_infrastructure_object_that_grows_is_counted_as_it_is(made: Seed) -> None:
    await made.cluster()
    await made.infrastructure("a")
    await made.machine("a")
    async with leading(made):
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        await made.infrastructure("a", 16)
        await eventually(lambda: made.uses("cpu=16,memory=16Gi,storage=10Gi,machines=1"))


async def test_a_label_that_moves_takes_the_machines_along(made: Seed) -> None:
    await made.cluster()
    await made.infrastructure("a")
    await made.machine("a")
    async with leading(made):
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        await made.cluster("beta")
        await eventually(lambda: made.source.consumer.project == "beta")
        assert made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1")
        assert made.changes[-1] == ("beta", True)
        found = await made.view.find_hosted(KEY)
        assert found is not None
        assert found.spec.project == "beta"
        await made.cluster("")
        await eventually(lambda: KEY not in made.feed.sources)
        assert await made.view.find_hosted(KEY) is None
        await made.api.remove("clusters", "alpha", "c1")
        assert await made.view.find_hosted(KEY) is None
        with pytest.raises(NotFound):
            await made.view.find_user_cluster("alpha", "c1")


async def test_a_machine_that_changes_its_cluster_is_counted_once(made: Seed) -> None:
    await made.cluster()
    await made.api.put("clusters", "alpha", "c2", metadata={"labels": {"seedquota.io/project": "beta"}}, spec={})
    await made.infrastructure("a")
    await made.machine("a")
    other = hosted_key("alpha", "c2")
    async with leading(made):
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        await made.api.put("machines", "alpha", "a", spec=machine("a", "c2")["spec"])
        await eventually(
            lambda: made.feed.sources[other].totals.used == nanos("cpu=4,memory=4Gi,storage=10Gi,machines=1")
        )
        assert made.uses("")


async def test_bare_metal_is_counted_again_when_hosts_change(made: Seed) -> None:
    async def host(name: str, cpus: int) -> None:
        hardware = {"cpu": {"count": cpus}, "ramMebibytes": 1024, "storage": [{"sizeBytes": 2**30}]}
        await made.api.put("baremetalhosts", "alpha", name, spec={}, status={"hardware": hardware})

    await made.cluster()
    await made.api.put("metal3machines", "alpha", "m", spec={})
    await host("small", 8)
    await made.machine("m", "Metal3Machine")
    async with leading(made):
        await eventually(lambda: made.uses("cpu=8,memory=1Gi,storage=1Gi,machines=1"))
        await host("large", 32)
        await eventually(lambda: made.uses("cpu=32,memory=1Gi,storage=1Gi,machines=1"))


async def test_a_list_is_demanded_of_machines_and_pools(made: Seed) -> None:
    await made.cluster()
    async with leading(made):
        await eventually(lambda: made.uses(""))
        before = made.api.lists
        demanded = moment()
        made.source.relist()
        assert made.source.listed_from <= demanded
        await eventually(lambda: made.told[-1] > demanded)
        assert made.api.lists == before + 2


async def test_a_kind_that_moves_to_another_version_answers_no_demand_for_another(
    made: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made.cluster()
    async with leading(made):
        await eventually(lambda: made.uses(""))
        machines, pools = (made.feed._following.get(kind) for kind in ("machines", "pools"))
        assert machines is not None
        monkeypatch.setattr(machines, "relist", lambda: machines.lists_started + 1)  # the API server is slow
        demanded = moment()
        made.source.relist()
        await made.crd("machinepools", "v1beta2")
        await eventually(lambda: made.feed._following.get("pools") not in (None, pools) and made.source.counted)
        assert made.source.listed_from <= demanded
        monkeypatch.undo()


async def test_a_fresh_read_finds_machines_and_pools_by_their_uid(made: Seed) -> None:
    await made.cluster()
    uid = await made.machine("a")
    pool = await made.api.put("machinepools", "alpha", "a", metadata={"generation": 7}, spec={"clusterName": "c1"})
    async with leading(made):
        await eventually(lambda: KEY in made.feed.sources)
        assert await made.source.generation("alpha/a", uid) == 1
        assert await made.source.generation("alpha/a", pool["metadata"]["uid"]) == 7
        assert await made.source.generation("alpha/a", "another") is Taken.TAKEN


async def test_kinds_are_followed_when_they_come_and_their_machines_gone_when_they_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with seed(monkeypatch, served=False) as made, leading(made):
        assert await made.view.find_hosted(KEY) is None
        await made.crd("clusters", "v1beta1", established=False)
        await made.cluster()
        await made.infrastructure("a")
        await made.machine("a")
        assert made.feed.sources == {}
        await made.serve()
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        await made.api.remove("customresourcedefinitions", "", "machines.cluster.x-k8s.io")
        await eventually(lambda: made.uses(""))


async def test_another_version_of_the_api_is_taken_over_without_a_gap(made: Seed) -> None:
    await made.cluster()
    await made.infrastructure("a")
    await made.machine("a")
    async with leading(made):
        await eventually(lambda: made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1"))
        await made.crd("machines", "v1beta1", "v1beta2")
        told = len(made.changes)
        demanded = moment()
        made.source.relist()
        await eventually(lambda: made.source.listed_from > demanded)
        assert made.api.count("GET", "v1beta2/machines") == 0, "what is served still is kept"
        await made.crd("machines", "v1beta2")
        await eventually(lambda: made.api.count("GET", "v1beta2/machines?limit") == 1)
        await eventually(lambda: made.source.counted)
        assert made.uses("cpu=4,memory=4Gi,storage=10Gi,machines=1")
        assert True not in {freed for _, freed in made.changes[told:]}
        await made.api.remove("machines", "alpha", "a")
        await eventually(lambda: made.uses(""))


async def test_a_kind_that_is_not_followed_yet_proves_nothing_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with seed(monkeypatch) as made, leading(made):
        await made.cluster()
        monkeypatch.setattr(made.view.served, "find", lambda _wanted, _now=None: None)  # its watch lags
        with pytest.raises(Unavailable, match="not followed yet"):
            await made.view.find_hosted(KEY)


async def test_before_the_kinds_are_known_nothing_is_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_api_server() as api:
        cluster = api.cluster()
        view = View(
            cluster, ClusterCache(cluster, QuotaCache(cluster), of_projects=OF_PROJECTS), "seedquota.io/project"
        )
        with pytest.raises(Unavailable):
            await view.find_hosted(KEY)


def review(subject: dict[str, Any], resource: str = "machines", sub: str = "", old: Any = None, **more: Any) -> bytes:
    request = {
        "uid": "r",
        "operation": "CREATE" if old is None else "UPDATE",
        "resource": {"group": "cluster.x-k8s.io", "version": "v1beta2", "resource": resource},
        "subResource": sub,
        "userInfo": {"username": "u"},
        "object": subject,
        "oldObject": old,
        **more,
    }
    return json.dumps({"request": request}).encode()


def machine(name: str, cluster: str = "c1") -> dict[str, Any]:
    reference = {"apiGroup": GROUP, "kind": "VSphereMachine", "name": name}
    metadata = {"name": name, "namespace": "alpha", "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"clusterName": cluster, "infrastructureRef": reference}}


class Asked:
    def __init__(self, made: Seed) -> None:
        admission = MachineAdmission(made.quota_cache, Admission(made.quota_cache, made.registry), made.sizing)
        self.decisions: list[tuple[str, str]] = []
        endpoint = Endpoint(
            ClusterApiWebhook(made.view, admission),
            lambda _kind, decision, reason, _path, _seconds: self.decisions.append((decision, reason)),
        )
        self.handle = route({"cluster-api": endpoint}, lambda _name, uid, token: (uid, token) == (CALLER, "secret"))

    async def raw(self, body: bytes, path: str = "/cluster-api/secret") -> Response:
        return await self.handle(Request("POST", path, "timeout=3s", body, close=False))

    async def __call__(self, body: bytes) -> tuple[bool, int, str]:
        answer = json.loads((await self.raw(body)).body)["response"]
        status = answer.get("status", {})
        return answer["allowed"], status.get("code", 0), status.get("message", "")


async def test_only_who_knows_the_token_is_answered_and_only_to_reviews(made: Seed) -> None:
    asked = Asked(made)
    assert (await asked.raw(review(machine("a")), "/cluster-api/guess")).status == 404
    assert (await asked.raw(b"{}")).status == 400
    assert (await asked.raw(review({"metadata": {"name": "a"}, "spec": 7}))).status == 400
    assert (await asked.raw(review({"metadata": {"name": "a", "namespace": "alpha"}, "spec": {}}))).status == 400


async def test_a_machine_is_decided_by_its_cluster_and_its_size(made: Seed) -> None:
    asked = Asked(made)
    await made.view.wait_settled()
    allowed, code, message = await asked(review(machine("a")))
    assert (allowed, code) == (False, 503)
    assert "the Cluster or MachinePool that it is of is not there" in message
    await made.cluster("")
    assert (await asked(review(machine("a"))))[0], "of no project"
    await made.cluster()
    await eventually(lambda: made.view.user_cluster("alpha", "c1"))
    allowed, code, message = await asked(review(machine("a")))
    assert (allowed, code) == (False, 422)
    assert "VSphereMachine alpha/a does not exist" in message
    await made.infrastructure("a")
    assert (await asked(review(machine("a"))))[0]
    assert asked.decisions == [
        ("denied", "QuotaUnavailable"),
        ("allowed", ""),
        ("denied", "MachineNotSized"),
        ("allowed", ""),
    ]


async def test_what_changes_no_spec_costs_no_look(made: Seed) -> None:
    """A Machine whose Cluster and size are gone must still lose its finalizer."""
    asked = Asked(made)
    await made.view.wait_settled()
    requests = len(made.api.requests)
    gone = machine("gone", "no-such-cluster")
    assert (await asked(review(gone, old=gone)))[0]
    assert (await asked(review(gone, sub="status", old=machine("gone", "other"))))[0]
    assert (await asked(review(gone, operation="DELETE")))[0]
    assert len(made.api.requests) == requests


async def test_a_pool_is_read_before_it_is_scaled(made: Seed) -> None:
    asked = Asked(made)
    await made.cluster()
    await made.infrastructure("p")
    template = {"spec": machine("p")["spec"]}
    await made.api.put("machinepools", "alpha", "p", spec={"clusterName": "c1", "replicas": 2, "template": template})
    scale = {"metadata": {"name": "p", "namespace": "alpha", "uid": "uid-p"}, "spec": {"replicas": 5}}
    await made.view.wait_settled()
    await eventually(lambda: made.view.user_cluster("alpha", "c1"))
    assert (await asked(review(scale, "machinepools", "scale", old=scale | {"spec": {"replicas": 2}})))[0]
    assert made.api.count("GET", "machinepools/p") == 1
    await made.api.remove("machinepools", "alpha", "p")
    assert (await asked(review(scale, "machinepools", "scale", old=scale | {"spec": {"replicas": 2}})))[1] == 503
