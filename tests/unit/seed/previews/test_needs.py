"""What an agent tells of a manifest: as much as admission would ask of each quota, and by name what is not known."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from common.api.preview_pages import MAX_LINES, MachineTypesPage, NeedsPage, read_machine_types, read_needs
from common.api.types import UserCluster
from common.quota.quantity import UNIT
from seed.previews.machine_types import DISKS, KnownTypes
from seed.previews.needs import NeedsPages, plural_of
from seed.providers.flavour import Catalogue, Flavour, Place
from tests.unit.seed_world import CLUSTER_UID, SeedWorld, seed_world, sizing

GI = 2**30 * UNIT
MACHINES, PODS = "machines of machinedeployment/pool-a", "pods of deployment/web"
EU, US = (Place("aws", f"https://{region}", region) for region in ("eu-central-1", "us-east-1"))
LIMITS = "cpu=100,memory=400Gi,machines=10"


class Agent:
    def __init__(self, world: SeedWorld) -> None:
        self.world = world
        self.sizing = sizing()
        self.types = KnownTypes(self.sizing._cache, self.sizing, world.cluster_cache.clusters_of)
        self.pages = NeedsPages(world.quota_cache, self.types)

    def learn(self, place: Place, asker: str = CLUSTER_UID, **flavours: Flavour) -> None:
        """A cloud has told it when some user cluster asked."""
        catalogue = Catalogue({name.replace("_", "."): flavour for name, flavour in flavours.items()})
        self.sizing._cache._shelves.learn(
            place, "", catalogue, asker=asker, all_of_it=True, as_of="", now=0.0, fresh=1.0
        )

    async def ask(
        self, *documents: dict[str, Any], quotas: tuple[str, ...] = ("project-alpha",), **more: Any
    ) -> NeedsPage:
        content = await self.pages.answer(
            msgspec.json.encode({"quotas": quotas, "documents": documents, "project": "alpha", **more})
        )
        page = read_needs(content or b"")
        assert page is not None
        return page

    def listed(self, project: str = "alpha", **query: str) -> MachineTypesPage:
        page = read_machine_types(self.types.page(project, query) or b"")
        assert page is not None
        return page


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with seed_world() as world:
        made = Agent(world)
        yield made
        await made.sizing.close()


def flavour(cpu: int = 2, memory: int = 8, **more: Any) -> Flavour:
    return Flavour(cpu=cpu * UNIT, memory=memory * GI, **more)


def pool(replicas: Any = 3, region: str = "eu-central-1", type: str = "m5.large") -> dict[str, Any]:
    spec = {"instanceType": type, "region": region, "diskSize": 50}
    value = {"cloudProvider": "aws", "cloudProviderSpec": spec}
    template = {"spec": {"providerSpec": {"value": value}}}
    return {
        "apiVersion": "cluster.k8s.io/v1alpha1",
        "kind": "MachineDeployment",
        "metadata": {"name": "pool-a"},
        "spec": {"replicas": replicas, "template": template},
    }


def deployment(replicas: int = 2, **resources: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "web", "resources": resources}]}}
    metadata = {"name": "web"}
    spec = {"replicas": replicas, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def told(page: NeedsPage, quota: str = "project-alpha") -> dict[str, tuple[int, dict[str, str]]]:
    assert not page.problem
    return {each.object: (each.count, dict(each.needs.get(quota, {}))) for each in page.items}


async def test_a_pool_is_asked_about_by_its_machines_of_the_size_that_the_cloud_has_told(agent: Agent) -> None:
    await agent.world.quota("project-alpha", limits=LIMITS)
    agent.learn(EU, m5_large=flavour())
    found = told(await agent.ask(pool()))
    assert found == {"machines of machinedeployment/pool-a": (3, {"cpu": "2", "memory": "8Gi", "machines": "1"})}
    assert told(await agent.ask(pool(), replicas=7))[MACHINES][0] == 7


async def test_a_type_that_no_cloud_has_told_of_is_a_problem_and_not_nothing(agent: Agent) -> None:
    await agent.world.quota("project-alpha", limits=LIMITS)
    agent.learn(EU, asker="another-uid", m5_large=flavour())
    (machine,) = (await agent.ask(pool())).items
    assert machine.needs == {}
    assert "aws has not told this seed of a type m5.large for user clusters of the project" in machine.problem


async def test_where_sizes_differ_that_of_the_region_counts_or_else_the_largest(agent: Agent) -> None:
    await agent.world.quota("project-alpha", limits=LIMITS)
    agent.learn(EU, m5_large=flavour(2, 8))
    agent.learn(US, m5_large=flavour(4, 4))
    for region, cpu, memory in (("eu-central-1", "2", "8Gi"), ("us-east-1", "4", "4Gi"), ("eu-west-1", "4", "8Gi")):
        found = told(await agent.ask(pool(region=region)))[MACHINES][1]
        assert (found["cpu"], found["memory"]) == (cpu, memory), region


async def test_an_organization_is_asked_about_by_the_user_clusters_of_its_projects(agent: Agent) -> None:
    agent.world.join("acme")
    await agent.world.quota("organization-acme", limits=LIMITS, kind="organization")
    agent.learn(EU, m5_large=flavour())
    found = await agent.ask(pool(), quotas=("organization-acme",), project="")
    assert told(found, "organization-acme")[MACHINES][1]["cpu"] == "2"


async def test_pods_use_what_their_limits_say_where_they_request_nothing(agent: Agent) -> None:
    await agent.world.quota(
        "project-alpha", limits="requests.cpu=10,limits.memory=10Gi,pods=9,count/deployments.apps=2"
    )
    asked = deployment(2, limits={"cpu": "500m", "memory": "1Gi"})
    found = told(await agent.ask(asked))
    assert found["deployment/web"] == (1, {"count/deployments.apps": "1"})
    assert found[PODS] == (2, {"requests.cpu": "500m", "limits.memory": "1Gi", "pods": "1"})
    (_, pods) = (await agent.ask(deployment())).items
    assert "must specify limits.memory" in pods.problem and "requests.cpu" in pods.problem


async def test_a_quota_counts_what_is_in_its_scopes_and_no_more(agent: Agent) -> None:
    limits, scope = "pods=9", {"scopes": ["BestEffort"]}
    await agent.world.quota("project-alpha", limits=limits, **scope)
    assert told(await agent.ask(deployment()))[PODS][1] == {"pods": "1"}
    assert told(await agent.ask(deployment(requests={"cpu": "1"})))[PODS][1] == {}


async def test_allocations_and_clusters_are_known_too(agent: Agent) -> None:
    await agent.world.quota("project-alpha", limits="clusters=3,servers=9")
    spec = {"project": "alpha", "organization": "acme", "kind": "k", "id": "1"}
    allocation = {
        "apiVersion": "seedquota.io/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": "a"},
        "spec": {**spec, "resources": [{"type": "servers", "committed": 2, "reserved": 1}]},
    }
    cluster = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "metadata": {"name": "c9"}}
    found = told(await agent.ask(allocation, cluster))
    assert found == {"allocation/a": (1, {"servers": "3"}), "cluster/c9": (1, {"clusters": "1"})}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"kind": "Pod"}, "has no apiVersion"),
        (pool("many"), "spec.replicas is no whole number"),
        (pool(2_000_000), "2000000 pieces are too many"),
        ({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}}, "depends on the nodes"),
    ],
)
async def test_objects_that_cannot_be_asked_about_say_why(agent: Agent, document: dict[str, Any], said: str) -> None:
    await agent.world.quota("project-alpha", limits=LIMITS)
    assert said in (await agent.ask(document)).problem


async def test_what_cannot_be_read_or_is_of_cluster_api_is_a_problem_of_that_object_alone(agent: Agent) -> None:
    await agent.world.quota("project-alpha", limits=f"{LIMITS},pods=3")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": 3}}
    capi = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "metadata": {"name": "m"}, "spec": {}}
    fine = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q"}, "spec": {"containers": []}}
    wrong, of_capi, right = (await agent.ask(pod, capi, fine)).items
    assert "pod/p cannot be read" in wrong.problem
    assert "kubectl seedquota fits" in of_capi.problem
    assert (right.problem, right.needs) == ("", {"project-alpha": {"pods": "1"}})


async def test_what_is_hostile_is_bounded(agent: Agent) -> None:
    await agent.world.quota("project-alpha", limits=LIMITS)
    claims = [{"metadata": {"name": str(number)}, "spec": {}} for number in range(2 * MAX_LINES)]
    many = {**deployment(), "kind": "StatefulSet"}
    many["spec"] = {**many["spec"], "volumeClaimTemplates": claims}
    page = await agent.ask(many)
    assert len(page.items) == MAX_LINES and page.problem
    for wrong in (b"", b"[]", b'{"quotas": []}', b'{"quotas": ["a"], "documents": [3]}', b"[" * 100_000):
        assert await agent.pages.answer(wrong) is None
    assert "does not have all of the quotas" in (await agent.ask(quotas=("other",))).problem


async def test_types_are_listed_for_the_user_clusters_of_the_project_alone(agent: Agent) -> None:
    agent.learn(EU, m5_large=flavour(), m5_metal=flavour(storage=50 * GI, devices={"nvidia.com/gpu": UNIT}))
    agent.learn(US, asker="another-uid", c5_large=flavour())
    agent.learn(EU, **{"id-7": flavour(name="m5.large")})
    large, metal = agent.listed().items
    assert (large.name, large.place, large.unknown) == ("m5.large", "aws eu-central-1", {"storage": DISKS})
    assert large.resources == {"cpu": "2", "memory": "8Gi", "machines": "1", "instances.m5.large": "1"}
    assert (metal.resources["storage"], metal.resources["nvidia.com/gpu"]) == ("50Gi", "1")
    assert [each.name for each in agent.listed(name="m5.metal").items] == ["m5.metal"]
    assert agent.listed("beta").items == []


async def test_many_types_are_cut_off_and_it_says_so(agent: Agent) -> None:
    agent.learn(EU, **{f"type-{number:05}": flavour() for number in range(5000)})
    page = agent.listed()
    assert page.more and page.items[0].name == "type-00000"
    assert [each.name for each in agent.listed(name="type-04999").items] == ["type-04999"]


async def test_a_cluster_that_another_one_s_question_told_of_lists_the_types_too(agent: Agent) -> None:
    beta = {"metadata": {"name": "c2", "namespace": "beta", "uid": "c2"}, "spec": {"project": "beta"}}
    agent.world.cluster_cache.user_clusters.store._set("beta/c2", msgspec.convert(beta, UserCluster))
    agent.learn(EU, m5_large=flavour())
    assert agent.listed("beta").items == []
    agent.sizing._cache.keep(EU, "c2")
    assert [each.name for each in agent.listed("beta").items] == ["m5.large"]


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("Deployment", "deployments"),
        ("NetworkPolicy", "networkpolicies"),
        ("Ingress", "ingresses"),
        ("Endpoints", "endpoints"),
    ],
)
def test_the_plural_of_a_kind_is_the_usual_one(kind: str, plural: str) -> None:
    assert plural_of(kind) == plural


WRONG: tuple[Any, ...] = (None, 3, "x", [], [3], {}, {"x": 3}, True)


def mutated(document: Any) -> Iterator[Any]:
    """With each of its values replaced by each that may be wrong."""
    yield from WRONG
    for key in document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ():
        for value in mutated(document[key]):
            changed = copy.copy(document)
            changed[key] = value
            yield changed


async def test_whatever_the_shape_of_an_object_it_is_answered(agent: Agent) -> None:
    await agent.world.quota(
        "project-alpha", limits="cpu=9,requests.cpu=9,count/deployments.apps=9,requests.storage=9Gi"
    )
    claims = [{"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}]
    stateful = {**deployment(1, limits={"cpu": 1}), "kind": "StatefulSet"}
    stateful["spec"] = {**stateful["spec"], "volumeClaimTemplates": claims}
    labelled = {"metadata": {"labels": {"a": "b"}}, "spec": {"initContainers": [{"resources": {}}], "containers": []}}
    job = {**deployment(), "apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 2, "template": labelled}}
    resource = {"type": "servers", "committed": 2, "reserved": 1}
    allocation = {"kind": "Allocation", "metadata": {}, "spec": {"project": "alpha", "resources": [resource]}}
    others = {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "seedquota.io/v1alpha1", **allocation}]}
    for document in (pool(), stateful, job, others):
        for wrong in mutated(document):
            content = await agent.pages.answer(msgspec.json.encode({"quotas": ["project-alpha"], "documents": [wrong]}))
            assert (content is None) == (not isinstance(wrong, dict)), wrong
            assert content is None or read_needs(content) is not None
