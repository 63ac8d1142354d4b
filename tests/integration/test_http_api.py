"""The HTTP API of two replicas on a real API server, with real tokens and the rights of charts/rbac alone."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import socket
import ssl
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from cli.__main__ import run as seedquota
from common.kube.client.api_client import Cluster
from common.quota.quantity import UNIT
from common.runtime.flags import Address
from common.server.health import Health, Page, Question
from common.server.page_access import PageReaders
from devcluster import manifests
from devcluster.controlplane import ApiServer as KubeApiServer
from devcluster.controlplane import ControlPlane
from devcluster.install import NAMESPACE
from devcluster.objects import CHARTS, named, namespace, rights, secret
from master.apiserver import allocation_writes, page
from master.apiserver import app as api
from master.apiserver import request_limits as rates
from master.apiserver import server as serving_api
from master.apiserver.events import BEAT_SECONDS
from master.apiserver.server import ApiServer
from master.cache.informers import Caches
from seed.providers.flavour import Place
from tests.integration import quota_rfc
from tests.integration.allocation_webhook import PATH, AllocationWebhook, serving
from tests.integration.installed.site import until
from tests.unit.fake_api_server import within
from tests.unit.seed.previews.test_needs import Agent, flavour
from tests.unit.seed.usage.test_namespace_pages import CLUSTERS, leading, source
from tests.unit.seed_world import nanos, seed_world

pytestmark = pytest.mark.integration

Json = Any
GROUP = "/apis/seedquota.io/v1alpha1"
USER = "seedquota-master"
ORGANIZATION = "/api/v1/organizations/acme/quotas"
ALLOCATIONS = "/api/v1/organizations/acme/allocations"
OF_ALPHA = "/api/v1/organizations/acme/projects/alpha/allocations"
PROJECT = "/api/v2/projects/alpha/quota"
CALCULATION = "/api/v2/projects/alpha/quotacalculation"
QUOTAS = "/api/v2/quotas"
EVENTS = "/api/v1/events"
REFUSALS = "/api/v1/refusals"
FITS, WHERE, DECISION = "/api/v1/fits", "/api/v1/where", "/api/v1/decisions/01JD3Y6K"

OPERATOR = "operator"
EVERYWHERE = ("platform-administrator", "quota-manager-service")
IN_THE_ORGANIZATION = ("administrator", "user", "reader")
ACTORS = (*EVERYWHERE, *IN_THE_ORGANIZATION)
CATALOGUE = [{"name": name, "countFrom": "Allocations"} for name in ("clusters", "servers", "gpus")]
ROUNDS = 20
PATIENT = 60.0  # seconds
NOBODY = "nobody"  # a valid token without any right
OF_ANOTHER = "of-another"  # an administrator of another organization
OF_BETA = "of-beta"  # may list and create the allocations of one project
BETA_ALONE = "beta-alone"  # the same, and may not see its organization


@dataclass
class Answer:
    status: int
    body: Json
    headers: Mapping[str, str]


class World:
    def __init__(self, server: KubeApiServer) -> None:
        self.server = server
        self.tokens: dict[str, str] = {}
        self.replicas: list[ApiServer] = []
        self.admin: aiohttp.ClientSession = server.session()
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        self.tls: ssl.SSLContext | None = None
        self.webhook = AllocationWebhook()

    async def call(
        self,
        actor: str,
        method: str,
        path: str,
        body: object = None,
        *,
        replica: int = 0,
        raw: bytes | None = None,
        **headers: str,
    ) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if actor:
            sent["Authorization"] = f"Bearer {self.tokens.get(actor, actor)}"
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        url = f"https://127.0.0.1:{self.replicas[replica].server.port}{path}"
        async with self.session.request(method, url, data=data, headers=sent, ssl=self.tls or False) as answer:
            content = await answer.read()
            assert answer.headers["X-Request-Id"]
            return Answer(answer.status, json.loads(content) if content else None, answer.headers)

    async def kube(self, method: str, path: str, body: object = None, status: int = 200) -> Json:
        headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        async with self.admin.request(method, path, json=body, headers=headers) as answer:
            found = await answer.json()
            assert answer.status in (status, 404 if method == "DELETE" else status), found
            return found

    async def clean(self) -> None:
        for quota in (await self.kube("GET", f"{GROUP}/resourcequotas"))["items"]:
            await self.kube("DELETE", f"{GROUP}/resourcequotas/{quota['metadata']['name']}")
        for found in (await self.kube("GET", f"{GROUP}/allocations"))["items"]:
            metadata = found["metadata"]
            await self.kube("DELETE", f"{GROUP}/namespaces/{metadata['namespace']}/allocations/{metadata['name']}")
        self.webhook.limits = {"clusters": 5, "servers": 10}
        self.webhook.held.clear()
        self.webhook.unavailable = False

        async def gone() -> None:
            for replica in range(2):
                for path in (QUOTAS, ALLOCATIONS):
                    assert (await self.call("platform-administrator", "GET", path, replica=replica)).body == []

        await until(gone, 30)

    async def quota(self, name: str, kind: str, subject: str, limits: Json, used: Json = None) -> None:
        """As kubectl and a master that leads would make it; returns when both replicas know it. `subject`: its name, of
        namespaces the value of their label owner."""
        of = {"selector": {"matchLabels": {"owner": subject}}} if kind == "namespaces" else {"name": subject}
        await manifests.apply(self.server, [named("ResourceQuota", name, subject={"kind": kind, **of}, quota=limits)])
        path = f"{GROUP}/resourcequotas/{name}/status"
        status = {"observedGeneration": 1, "hard": limits, "globalUsage": used or {}}
        await self.kube("PATCH", path, {"status": status})

        async def known() -> None:
            for replica in range(2):
                found = await self.call("platform-administrator", "GET", f"{QUOTAS}/{name}", replica=replica)
                assert found.status == 200 and found.body["status"]["globalUsage"].keys() == (used or {}).keys()

        await until(known, 30)


def service_account(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}}


def bound(role: str, actor: str, in_namespace: str = "") -> Json:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding" if in_namespace else "ClusterRoleBinding",
        "metadata": {"name": actor} | ({"namespace": in_namespace} if in_namespace else {}),
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": f"seedquota:{role}"},
        "subjects": [{"kind": "ServiceAccount", "name": actor, "namespace": "default"}],
    }


SCHEMATHESIS = """
# 422: what a type or a project is depends on the state. 304, 412: so does an ETag. 503: so it is answered while an API
# server gets no CPU for seconds.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "304", "401", "403", "404", "409", "412", "422", "429", "503"]
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "503"]
# Names that do not exist would be all that is tried.
[parameters]
"path.organization" = "acme"
"path.project" = "alpha"
"""


def rights_on_beta(who: str, *, sees_organization: bool) -> list[Json]:
    """As somebody who looks after one project has them."""
    group = "rbac.authorization.k8s.io"
    metadata = {"name": who, "namespace": "org-acme"}
    whole = {"apiGroups": ["seedquota.io"], "resources": ["organizations/quotas"], "verbs": ["get"]}
    rules = [
        *([whole] if sees_organization else []),
        {
            "apiGroups": ["seedquota.io"],
            "resources": ["projects/allocations"],
            "resourceNames": ["beta"],
            "verbs": ["get", "list", "create"],
        },
    ]
    subjects = [{"kind": "ServiceAccount", "name": who, "namespace": "default"}]
    reference = {"apiGroup": group, "kind": "Role", "name": who}
    return [
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": reference,
            "subjects": subjects,
        },
    ]


async def install(server: KubeApiServer) -> None:
    roles = CHARTS / "rbac"
    await manifests.apply(
        server,
        [
            *manifests.load(CHARTS / "crds"),
            *map(namespace, (NAMESPACE, "org-acme", "org-other")),
            *rights("master", USER),
            *rights("master-api", USER),
            *rights("master-client-ca", USER, "kube-system"),
            *(found for found in manifests.load(roles / "master-api.yaml") if found["kind"] == "Secret"),
            *manifests.load(roles / "api-actors.yaml"),
            *(service_account(actor) for actor in (*ACTORS, OPERATOR, NOBODY, OF_ANOTHER, OF_BETA, BETA_ALONE)),
            *(bound(actor, actor) for actor in (*EVERYWHERE, OPERATOR)),
            *(bound(actor, actor, "org-acme") for actor in IN_THE_ORGANIZATION),
            bound("administrator", OF_ANOTHER, "org-other"),
            named("Organization", "acme", displayName="Acme"),
            named("Organization", "other"),
            named("Project", "alpha", displayName="Alpha", organization="acme"),
            named("Project", "beta", organization="acme"),
            named("Project", "solo"),
            namespace(f"org-{quota_rfc.ORGANIZATION}"),
            named("Organization", quota_rfc.ORGANIZATION),
            named("Project", quota_rfc.PROJECT, organization=quota_rfc.ORGANIZATION),
            named("QuotaSettings", "default", resources=CATALOGUE),
            *rights_on_beta(OF_BETA, sees_organization=True),
            *rights_on_beta(BETA_ALONE, sees_organization=False),
        ],
    )


@pytest_asyncio.fixture(scope="module")
async def shared(control_plane: ControlPlane) -> AsyncIterator[World]:
    await control_plane.start(["api-master"])
    server = control_plane.cluster("api-master")
    await install(server)
    world = World(server)
    for actor in (*ACTORS, OPERATOR, NOBODY, OF_ANOTHER, OF_BETA, BETA_ALONE):
        path = f"/api/v1/namespaces/default/serviceaccounts/{actor}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        world.tokens[actor] = (await world.kube("POST", path, request, 201))["status"]["token"]
    world.tokens["admin"] = server.tokens["admin"]  # of the API server's token file
    async with serving() as webhook:
        world.webhook = webhook
        await manifests.apply(server, [webhook.configuration()])
        async with replicas(world):
            yield world
    await world.admin.close()
    await world.session.close()
    await server.kill()


@asynccontextmanager
async def replicas(world: World) -> AsyncIterator[None]:
    clusters, tasks = [], []
    for _ in range(2):
        cluster = await Cluster.from_kubeconfig(world.server.kubeconfig(USER), name="master")
        caches = Caches(cluster, NAMESPACE)
        replica = ApiServer(cluster, caches, NAMESPACE, Address("127.0.0.1", 0), ["127.0.0.1"])
        clusters.append(cluster)
        world.replicas.append(replica)
        tasks += [asyncio.create_task(caches.run()), asyncio.create_task(replica.run())]

    async def ready() -> None:
        assert [replica.not_ready() for replica in world.replicas] == [None, None]

    await until(ready, 60)
    world.tls = ssl.create_default_context(cadata=world.replicas[0].certificates.ca_bundle.decode())
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for cluster in clusters:
        await cluster.close()


@pytest_asyncio.fixture
async def world(shared: World) -> AsyncIterator[World]:
    await shared.clean()
    yield shared


async def test_the_quotas_of_an_organization_are_what_the_rfc_shows(world: World) -> None:
    """Its example but for what needs allocations: what is counted is committed, and nothing is reserved."""
    await world.quota(
        "org-acme", "organization", "acme", {"clusters": "5", "machines": "10"}, {"clusters": 1, "machines": 8}
    )
    expected = {
        "capacity": [{"type": "clusters", "amount": 5}, {"type": "machines", "amount": 10}],
        "free": [{"type": "clusters", "amount": 4}, {"type": "machines", "amount": 2}],
        "allocated": [
            {"type": "clusters", "amount": 1, "committed": 1, "reserved": 0},
            {"type": "machines", "amount": 8, "committed": 8, "reserved": 0},
        ],
    }
    for replica in range(2):
        answer = await world.call("reader", "GET", ORGANIZATION, replica=replica)
        assert (answer.status, answer.body) == (200, expected)
    back = await world.call("platform-administrator", "PUT", ORGANIZATION, expected, If_Match=answer.headers["ETag"])
    assert (back.status, back.body) == (200, expected), "what was read can be sent back"


async def test_each_actor_may_do_what_its_role_says(world: World) -> None:
    await world.quota("org-acme", "organization", "acme", {"machines": "10"}, {"machines": 8})
    await world.quota("project-alpha", "project", "alpha", {"cpu": "64"}, {"cpu": 60})
    writes = {"capacity": [{"type": "machines", "amount": 10}]}
    quota = {"subjectName": "solo", "quota": {"cpu": "1"}}
    every, platform, cluster = {*ACTORS}, {"platform-administrator"}, {"platform-administrator"}
    services = {"platform-administrator", "quota-manager-service"}
    one = {"metadata": {"projectID": "alpha"}, "spec": {"kind": "server", "id": "1", "resources": []}}
    other = {"metadata": {"id": "other"}, "spec": {"kind": "server", "id": "2", "resources": []}}
    made = await world.call("platform-administrator", "POST", OF_ALPHA, other)
    assert made.status == 201, made
    cells: list[tuple[str, str, object, int, set[str], int]] = [
        ("GET", ORGANIZATION, None, 200, every, 404),
        ("PUT", ORGANIZATION, writes, 200, platform, 403),
        ("GET", PROJECT, None, 200, every, 404),
        ("POST", CALCULATION, {"resources": {"cpu": 1}}, 200, every, 404),
        *(
            ("POST", path, {**subject, "resources": {"cpu": 1}}, 200, every, 404)
            for path in (FITS, WHERE)
            for subject in ({"project": "alpha"}, {"organization": "acme"})
        ),
        ("GET", DECISION, None, 200, set(), 404),
        ("GET", QUOTAS, None, 200, cluster, 403),
        ("GET", f"{QUOTAS}/project-alpha", None, 200, cluster, 403),
        ("PUT", f"{QUOTAS}/project-alpha", {"quota": {"cpu": "64"}}, 200, cluster, 403),
        ("PUT", f"{QUOTAS}/project-alpha/overrides", {"overrides": []}, 200, cluster, 403),
        ("POST", QUOTAS, quota, 201, cluster, 403),
        ("DELETE", f"{QUOTAS}/project-solo", None, 204, cluster, 403),
        ("GET", ALLOCATIONS, None, 200, every - {"quota-manager-service"}, 403),
        ("POST", ALLOCATIONS, one, 200, services, 403),
        ("POST", OF_ALPHA, other, 200, services, 403),
        ("GET", f"{OF_ALPHA}/other", None, 200, every, 403),
        ("PUT", f"{OF_ALPHA}/other", {"spec": {"resources": []}}, 200, services, 403),
        ("DELETE", f"{OF_ALPHA}/other", None, 204, services, 403),
    ]
    assert (await world.call("platform-administrator", "POST", ALLOCATIONS, one)).status == 201
    for method, path, body, allowed, actors, refused in cells:
        for actor in (*ACTORS, NOBODY, OF_ANOTHER):
            answer = await world.call(actor, method, path, body, replica=len(actor) % 2)
            if (method, answer.status) == ("DELETE", 204) and path.startswith(OF_ALPHA):
                await world.call("platform-administrator", "POST", OF_ALPHA, other)
            outside = 404 if path.startswith("/api/v1/organizations/acme") else refused
            expected = allowed if actor in actors else refused if actor in ACTORS else outside
            assert answer.status == expected, (method, path, actor, answer)
    admin = await world.call("admin", "GET", QUOTAS)
    assert [each["name"] for each in admin.body] == ["org-acme", "project-alpha"]


def given(kind: str = "kubernetescluster", id: str = "c1", name: str = "", **resources: tuple[int, int]) -> Json:
    """For POST, by the types' committed and reserved."""
    return {
        "metadata": {"id": name} if name else {},
        "spec": {
            "kind": kind,
            "id": id,
            "resources": [
                {"type": type, "committed": committed, "reserved": reserved}
                for type, (committed, reserved) in resources.items()
            ],
        },
    }


def of_server(*resources: Json) -> Json:
    return {"spec": {"kind": "k", "id": "1", "resources": [{"type": "servers"} | each for each in resources]}}


async def stored(world: World) -> list[str]:
    return sorted(each["metadata"]["name"] for each in (await world.kube("GET", f"{GROUP}/allocations"))["items"])


async def test_the_examples_of_the_rfc_are_answered_as_it_shows_them(world: World) -> None:
    """But for times, which are RFC 3339 here as elsewhere."""
    service, admin = "quota-manager-service", "platform-administrator"
    organization = f"/api/v1/organizations/{quota_rfc.ORGANIZATION}"
    quotas, allocations = f"{organization}/quotas", f"{organization}/allocations"
    of_project = f"{organization}/projects/{quota_rfc.PROJECT}/allocations"
    one = f"{of_project}/{quota_rfc.ALLOCATION}"
    assert (await world.call(admin, "PUT", quotas, raw=quota_rfc.PUT_QUOTAS)).status == 200
    created = await world.call(service, "POST", of_project, raw=quota_rfc.POST_ALLOCATIONS)
    assert created.status == 201, created
    shown = created.body[0]["metadata"]["creationTimestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", shown)
    expected = quota_rfc.GET_ALLOCATIONS % (shown, f"system:serviceaccount:default:{service}")
    assert json.dumps(created.body, indent=4) == expected

    async def known() -> None:
        for replica in range(2):
            listed = await world.call(admin, "GET", allocations, replica=replica)
            assert json.dumps(listed.body, indent=4) == expected
            found = await world.call(admin, "GET", quotas, replica=replica)
            assert json.dumps(found.body, indent=4) == quota_rfc.GET_QUOTAS

    await until(known, 30)
    found = await world.call(service, "GET", one)
    assert (found.status, found.body) == (200, json.loads(expected)[0])
    back = await world.call(service, "PUT", one, found.body, If_Match=found.headers["ETag"])
    assert (back.status, back.body) == (200, found.body), "what was read can be sent back"
    over = await world.call(service, "PUT", one, raw=quota_rfc.PUT_ALLOCATION)
    assert over.status == 409, over
    assert over.body["shortages"] == [{"type": "servers", "requested": 7, "free": 2, "capacity": 10}]
    below = await world.call(admin, "PUT", quotas, {"capacity": [{"type": "servers", "amount": 7}]})
    assert (below.body["code"], below.body["detail"]) == (
        "capacity_below_allocated",
        "servers: capacity 7, allocated 8",
    )
    world.webhook.limits["servers"] = 15
    changed = await world.call(service, "PUT", one, raw=quota_rfc.PUT_ALLOCATION, If_Match=found.headers["ETag"])
    assert (changed.status, changed.body["spec"]["resources"][1]["amount"]) == (200, 15)
    stale = await world.call(service, "DELETE", one, If_Match=found.headers["ETag"])
    assert (stale.status, stale.body["code"]) == (412, "precondition_failed")
    immutable = {"spec": {"kind": "server", "resources": []}}
    wrong = await world.call(service, "PUT", one, immutable)
    assert (wrong.status, wrong.body["code"], wrong.body["errors"][0]["pointer"]) == (422, "immutable", "/spec/kind")
    assert (await world.call(service, "DELETE", one)).status == 204
    assert (await world.call(service, "GET", one)).status == (await world.call(service, "DELETE", one)).status == 404


async def test_what_exceeds_a_quota_is_refused_in_the_words_of_the_contract(world: World) -> None:
    await world.quota("org-acme", "organization", "acme", {"servers": "10"})
    assert (await world.call("quota-manager-service", "POST", OF_ALPHA, given(servers=(3, 5)))).status == 201
    path, token = OF_ALPHA, world.tokens["quota-manager-service"]
    url = f"https://127.0.0.1:{world.replicas[0].server.port}{path}"
    headers = {"Authorization": f"Bearer {token}"}
    body = given(id="c2", servers=(15, 0))
    async with world.session.post(url, json=body, headers=headers, ssl=world.tls or False) as answer:
        content = await answer.read()
        assert (answer.status, answer.content_type) == (409, "application/problem+json")
    assert content == (
        b'{"type":"https://seedquota.io/errors/quota_exceeded","title":"Quota exceeded","status":409,'
        b'"code":"quota_exceeded","detail":"servers: requested 15, free 2 of 10 in acme","quota":"org-acme",'
        b'"decision":"01JD3Y6K","retryable":false,"shortages":[{"type":"servers","requested":15,"free":2,"capacity":10}],'
        b'"error":"conflict","error_description":"allocation exceeded quota"}'
    )
    world.webhook.unavailable = True
    later = await world.call("quota-manager-service", "POST", OF_ALPHA, given(id="c3", servers=(2, 0)))
    assert (later.status, later.body["code"], later.headers["Retry-After"]) == (503, "unavailable", "1")
    assert later.body["detail"] == "servers=2 is free but held by seed us-1"
    assert len(await stored(world)) == 1


async def test_a_request_that_is_sent_again_finds_what_it_made(world: World) -> None:
    who = "quota-manager-service"
    world.webhook.limits["servers"] = 3
    first = await world.call(who, "POST", OF_ALPHA, given(servers=(3, 0)))
    assert first.status == 201
    assert first.headers["Location"] == f"{OF_ALPHA}/{first.body['metadata']['id']}"
    for replica in range(2):
        again = await world.call(who, "POST", OF_ALPHA, given(servers=(3, 0)), replica=replica)
        assert (again.status, again.body) == (200, first.body), "also in a full quota"
    other = await world.call(who, "POST", OF_ALPHA, given(servers=(2, 0)))
    assert (other.status, other.body["code"]) == (409, "id_conflict")
    assert other.body["existing"] == first.body["metadata"]["id"]

    async def known() -> None:
        assert len((await world.call("reader", "GET", ALLOCATIONS, replica=1)).body) == 1

    await until(known, 30)
    twice = await world.call(who, "POST", OF_ALPHA, given(name="mine", servers=(3, 0)), replica=1)
    assert (twice.status, twice.body["code"]) == (409, "already_allocated")
    assert twice.body["existing"] == first.body["metadata"]["id"]
    assert await stored(world) == [first.body["metadata"]["id"]]


async def test_of_an_allocation_in_the_way_the_id_is_told_to_who_may_see_it(world: World) -> None:
    world.webhook.limits["servers"] = 9
    path = "/api/v1/organizations/acme/projects/{}/allocations"
    made = [
        await world.call("platform-administrator", "POST", path.format(project), given(id=id, name=id, servers=(1, 0)))
        for project, id in (("alpha", "of-alpha"), ("beta", "own"))
    ]
    assert [each.status for each in made] == [201, 201]

    async def told() -> None:
        for id, existing in (("of-alpha", ""), ("own", "own")):
            body = given(id=id, name="another", servers=(1, 0))
            answer = await world.call(OF_BETA, "POST", path.format("beta"), body, replica=1)
            assert (answer.status, answer.body["code"]) == (409, "already_allocated")
            assert answer.body.get("existing", "") == existing

    await until(told, 30)


async def test_of_two_for_one_thing_at_one_moment_one_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation_writes, "ARRIVAL_SECONDS", PATIENT)
    world.webhook.limits["servers"] = 1000

    async def ask(number: int) -> Answer:
        body = given(name=f"n{number}", servers=(1, 0))
        return await world.call("quota-manager-service", "POST", OF_ALPHA, body, replica=number % 2)

    answers = await asyncio.gather(*map(ask, range(12)))
    made = [each.body["metadata"]["id"] for each in answers if each.status == 201]
    assert len(made) == 1 and await stored(world) == made
    assert {each.body["code"] for each in answers if each.status != 201} == {"already_allocated"}


async def test_of_several_all_are_allocated_or_none(world: World) -> None:
    who = "quota-manager-service"
    several = [given(id=f"c{number}", name=f"n{number}", clusters=(1, 0), servers=(4, 0)) for number in range(4)]
    refused = await world.call(who, "POST", OF_ALPHA, several)
    assert (refused.status, refused.body["shortages"]) == (
        409,
        [{"type": "servers", "requested": 16, "free": 10, "capacity": 10}],
    )
    assert await stored(world) == [] and world.webhook.held == {}
    made = await world.call(who, "POST", OF_ALPHA, several[:2])
    assert (made.status, [each["metadata"]["id"] for each in made.body]) == (201, ["n0", "n1"])
    assert (await world.call(who, "POST", OF_ALPHA, several[:2])).status == 200
    world.webhook.limits |= {"servers": 100, "clusters": 3}
    more = await world.call(who, "POST", OF_ALPHA, several)
    assert [each["type"] for each in more.body["shortages"]] == ["clusters"]
    assert await stored(world) == ["n0", "n1"], "what was there before stays"
    mixed = [{**given(id="x", clusters=(1, 0)), "metadata": {"projectID": name}} for name in ("alpha", "beta")]
    same = await world.call(who, "POST", ALLOCATIONS, mixed)
    assert (same.status, same.body["errors"][0]["pointer"]) == (422, "/1/spec/id")
    mixed[1]["spec"]["id"] = "y"
    late = await world.call(who, "POST", ALLOCATIONS, mixed)
    assert late.status == 409 and await stored(world) == ["n0", "n1"], "each would fit, and what was made is undone"
    assert world.webhook.used() == {"clusters": 2 * UNIT, "servers": 8 * UNIT}


@pytest.mark.parametrize("across", [False, True], ids=["one replica", "two replicas"])
async def test_the_same_array_that_is_sent_twice_at_once_is_made_once(
    world: World, across: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for it once. The webhook is asked about a creation before the API server looks whether it is there,
    so each of two requests could take what the other needed, and both were refused."""
    for limit in ("ARRIVAL_SECONDS", "OTHERS_SECONDS"):
        monkeypatch.setattr(allocation_writes, limit, PATIENT)
    total = 0
    for number in range(ROUNDS):
        count = 8 if number % 2 else 1
        several = [given(id=f"r{number}c{each}", name=f"r{number}n{each}", servers=(1, 0)) for each in range(count)]
        world.webhook.limits["servers"] = total = total + count
        answers = await asyncio.gather(
            *(world.call("quota-manager-service", "POST", OF_ALPHA, several, replica=each * across) for each in (0, 1))
        )
        assert sorted(each.status for each in answers) == [200, 201], (number, [each.body for each in answers])
        assert answers[0].body == answers[1].body
        assert len(await stored(world)) == total


async def test_an_array_of_which_some_were_made_is_sent_again_and_the_others_are_made(world: World) -> None:
    """As by a replica that ended meanwhile: nobody goes on with it, and it is not waited for again and again."""
    world.webhook.limits["servers"] = 40
    several = [given(id=f"c{number}", name=f"n{number:02}", servers=(1, 0)) for number in range(40)]
    assert (await world.call("quota-manager-service", "POST", OF_ALPHA, several)).status == 201
    for number in range(36, 40):
        await world.kube("DELETE", f"{GROUP}/namespaces/org-acme/allocations/n{number}")

    async def known() -> None:
        assert len((await world.call("reader", "GET", ALLOCATIONS, replica=1)).body) == 36

    await until(known, 30)
    assert (await world.call("quota-manager-service", "POST", OF_ALPHA, several, replica=1)).status == 201
    assert len(await stored(world)) == 40


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (given(serverz=(1, 0)), "/spec/resources/0/type"),
        ([given(servers=(1, 0)), given(id="c2", servers=(1, 0), serverz=(1, 0))], "/1/spec/resources/1/type"),
        (of_server({"committed": 1, "commited": 2}), "/spec/resources/0/commited"),
        (of_server({"committed": 1, "amount": 2}), "/spec/resources/0/amount"),
        (of_server({}, {}), "/spec/resources/1/type"),
        (of_server({"committed": 2**53}), "/spec/resources/0/committed"),
        (of_server({"committed": 2**53 - 1, "reserved": 1}), "/spec/resources/0"),
        (given() | {"metadata": {"projectID": "beta"}}, "/metadata/projectID"),
        (given() | {"metadata": {"organizationID": "other"}}, "/metadata/organizationID"),
        (given(name="a..b"), "/metadata/id"),
        ([given(), given(id="c2", name="a..b")], "/1/metadata/id"),
        ([given(id=str(number), clusters=(1, 0), servers=(2**52, 0)) for number in range(3)], "/1/spec/resources/1"),
        ([given(id=str(number), servers=(2**52, 2**50 * number)) for number in range(2)], "/1/spec/resources/0"),
        ([given(id=str(number)) for number in range(101)], ""),
        ([], ""),
    ],
    ids=range(15),
)
async def test_an_allocation_that_is_wrong_is_pointed_to(world: World, body: Json, pointer: str) -> None:
    answer = await world.call("quota-manager-service", "POST", OF_ALPHA, body)
    assert answer.status == 422 and answer.body["errors"], answer.body
    assert answer.body["errors"][0]["pointer"] == pointer, answer.body
    assert await stored(world) == []


async def test_allocations_are_listed_by_project_page_and_what_one_may_see(world: World) -> None:
    world.webhook.limits["servers"] = 100
    for project, number in (("alpha", 1), ("beta", 2), ("alpha", 3)):
        path = f"/api/v1/organizations/acme/projects/{project}/allocations"
        body = given(kind="server", id=f"s{number}", name=f"n{number}", servers=(1, 0))
        assert (await world.call("platform-administrator", "POST", path, body)).status == 201

    async def ids(actor: str, query: str = "") -> list[str]:
        found: list[str] = []
        path = f"{ALLOCATIONS}{query}"
        while path:
            page = await world.call(actor, "GET", path, replica=1)
            assert page.status == 200 and page.headers["ETag"]
            found += [each["metadata"]["id"] for each in page.body]
            path = page.headers["Link"].partition(">")[0][1:] if "Link" in page.headers else ""
        return found

    async def known() -> None:
        assert await ids("user") == ["n1", "n2", "n3"]

    await until(known, 30)
    assert await ids("user", "?limit=1") == ["n1", "n2", "n3"]
    assert await ids("user", "?projectID=alpha&limit=1") == ["n1", "n3"]
    assert await ids("user", "?kind=server&id=s2") == ["n2"]
    assert await ids("user", "?kind=cluster") == []
    assert await ids(OF_BETA) == await ids(OF_BETA, "?projectID=beta") == ["n2"], "only what one may see"
    for other in ("alpha", "nobodys"):
        assert (await world.call(OF_BETA, "GET", f"{ALLOCATIONS}?projectID={other}")).status == 403
    assert (await world.call(OF_BETA, "GET", f"{OF_ALPHA}/n1")).status == 403
    assert await ids(BETA_ALONE, "?projectID=beta") == ["n2"]
    of_beta = "/api/v1/organizations/acme/projects/beta/allocations"
    assert (await world.call(BETA_ALONE, "GET", f"{of_beta}/n2")).status == 200
    for path in (ALLOCATIONS, f"{ALLOCATIONS}?projectID=alpha", f"{OF_ALPHA}/n1", f"{OF_ALPHA}/n9"):
        assert (await world.call(BETA_ALONE, "GET", path)).status == 404, "it sees nothing else of the organization"
    for path in (ALLOCATIONS, f"{ALLOCATIONS}?projectID=beta", f"{of_beta}/n2"):
        assert (await world.call(NOBODY, "GET", path)).status == 404
    assert (await world.call("quota-manager-service", "GET", f"{of_beta.replace('acme', 'nowhere')}/n2")).status == 404
    assert (await world.call("user", "GET", "/api/v1/organizations/acme/projects/beta/allocations/n1")).status == 404


async def test_nothing_is_allocated_that_no_webhook_admits(world: World) -> None:
    who = "quota-manager-service"
    made = await world.call(who, "POST", OF_ALPHA, given(servers=(1, 0)))
    path = f"{OF_ALPHA}/{made.body['metadata']['id']}"
    configuration = f"{PATH}/seedquota-allocations"
    await world.kube("DELETE", configuration)
    try:

        async def refused() -> None:
            answer = await world.call(who, "POST", OF_ALPHA, given(id=uuid.uuid4().hex, servers=(1, 0)))
            assert answer.status == 503 and answer.body["detail"].startswith("no Seed with inCluster admits"), answer

        await until(refused, 30)
        before = await stored(world)
        more = {"spec": {"resources": [{"type": "servers", "committed": 2}]}}
        assert (await world.call(who, "PUT", path, more)).status == 503
        await refused()
        assert await stored(world) == before
        assert (await world.call(who, "DELETE", path)).status == 204, "what is released need not be admitted"
    finally:
        await manifests.apply(world.server, [world.webhook.configuration()])

        async def proven() -> None:
            answer = await world.call(who, "POST", OF_ALPHA, given(id="again"))
            assert answer.status in (200, 201)

        await until(proven, 30)


async def test_rights_in_a_namespace_alone_set_no_limits(world: World) -> None:
    await world.quota("org-acme", "organization", "acme", {"machines": "10"})
    await manifests.apply(
        world.server, [service_account("of-one"), bound("platform-administrator", "of-one", "org-acme")]
    )
    path = "/api/v1/namespaces/default/serviceaccounts/of-one/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await world.kube("POST", path, request, 201))["status"]["token"]
    assert (await world.call(token, "GET", ORGANIZATION)).status == 200
    for method, where, body in (
        ("PUT", ORGANIZATION, {"capacity": [{"type": "machines", "amount": 11}]}),
        ("PUT", f"{QUOTAS}/org-acme", {"quota": {"machines": 11}}),
        ("POST", QUOTAS, {"subjectName": "alpha", "quota": {"machines": 11}}),
        ("DELETE", f"{QUOTAS}/org-acme", None),
    ):
        assert (await world.call(token, method, where, body)).status == 403, (method, where)


async def test_who_cannot_see_an_organization_does_not_learn_whether_it_exists(world: World) -> None:
    for actor in (NOBODY, OF_ANOTHER, "reader"):
        hidden = "/api/v1/organizations/other/quotas" if actor == "reader" else ORGANIZATION
        missing = "/api/v1/organizations/none/quotas"
        there, not_there = [await world.call(actor, "GET", path) for path in (hidden, missing)]
        assert there.status == not_there.status == 404
        assert {*there.body} == {*not_there.body} and there.body["code"] == not_there.body["code"] == "not_found"
    assert (await world.call(NOBODY, "GET", "/api/v2/projects/solo/quota")).status == 404
    assert (await world.call("platform-administrator", "GET", "/api/v2/projects/solo/quota")).body["code"] == "no_quota"


async def test_limits_are_made_changed_and_never_lowered_below_what_is_used(world: World) -> None:
    who = "platform-administrator"

    async def put(*amounts: tuple[str, int], **headers: str) -> Answer:
        capacity = [{"type": name, "amount": amount} for name, amount in amounts]
        return await world.call(who, "PUT", ORGANIZATION, {"capacity": capacity}, **headers)

    made = await put(("cpu", 64), ("memory", 2**38))
    assert made.status == 200 and made.body["free"] == made.body["allocated"] == [], "nothing is counted yet"
    stored = await world.kube("GET", f"{GROUP}/resourcequotas/org-acme")
    assert stored["spec"]["quota"] == {"cpu": "64", "memory": "256Gi"}
    await world.clean()
    await world.quota(
        "org-acme", "organization", "acme", {"cpu": "64500m", "machines": 5}, {"cpu": "60500m", "machines": 8}
    )
    shown = await world.call(who, "GET", ORGANIZATION)
    assert [each["amount"] for each in shown.body["capacity"]] == [64, 5], "rounded down"
    assert [each["amount"] for each in shown.body["free"]] == [4, 0]
    assert [each["amount"] for each in shown.body["allocated"]] == [61, 8], "rounded up"
    below = await put(("cpu", 60), ("machines", 5))
    assert (below.status, below.body["code"], below.body["error"]) == (409, "capacity_below_allocated", "conflict")
    assert below.body["detail"] == "cpu: capacity 60, allocated 61"
    more = await put(("cpu", 64), ("machines", 6))
    assert more.status == 200, "what is raised may be below what is used"
    stored = await world.kube("GET", f"{GROUP}/resourcequotas/org-acme")
    assert stored["spec"]["quota"] == {"cpu": "64500m", "machines": "6"}, "an amount that was shown rounded stays"
    stale = await put(("cpu", 65), If_Match=shown.headers["ETag"])
    assert (stale.status, stale.body["code"]) == (412, "precondition_failed")
    fresh = await put(("cpu", 65), If_Match=f'W/"x", {more.headers["ETag"]}')
    assert fresh.status == 200
    stored = await world.kube("GET", f"{GROUP}/resourcequotas/org-acme")
    assert stored["spec"]["quota"] == {"cpu": "65"}, "a type that is missing becomes unlimited"
    unknown = await put(("cpu", 65), ("serverz", 1))
    assert unknown.status == 422 and unknown.body["errors"][0]["pointer"] == "/capacity/1", unknown.body
    assert unknown.body["detail"].startswith("quota names an unknown resource: serverz;")
    await world.quota("more", "organization", "acme", {"cpu": 3})
    assert (await put(("cpu", 1))).body["code"] == "several_quotas"


async def test_where_the_name_is_taken_by_a_quota_of_another_subject_it_says_so(world: World) -> None:
    await world.quota("org-acme", "project", "alpha", {"cpu": 3})
    answer = await world.call(
        "platform-administrator", "PUT", ORGANIZATION, {"capacity": [{"type": "cpu", "amount": 1}]}
    )
    assert (answer.status, answer.body["code"], answer.body["retryable"]) == (409, "already_exists", False)
    assert "POST /api/v2/quotas" in answer.body["detail"]


async def test_two_replicas_write_one_quota_and_nothing_is_lost(world: World) -> None:
    """All write with the ETag that they read: of each round exactly one is written."""
    who = "platform-administrator"
    await world.quota("org-acme", "organization", "acme", {"machines": 1})
    etag = (await world.call(who, "GET", ORGANIZATION)).headers["ETag"]

    async def write(number: int) -> int:
        body = {"capacity": [{"type": "machines", "amount": 10 + number}]}
        return (await world.call(who, "PUT", ORGANIZATION, body, replica=number % 2, If_Match=etag)).status

    assert sorted(await asyncio.gather(*map(write, range(6)))) == [200, 412, 412, 412, 412, 412]


async def _raises(world: World, who: str) -> Answer:
    """Of project-alpha, which limits cpu to 500m: the answer to the last write."""
    path = f"{QUOTAS}/project-alpha/overrides"
    one = {"until": "2099-12-31T00:00:00Z", "quota": {"cpu": 2}, "reason": "launch"}
    made = await world.call(who, "PUT", path, {"overrides": [one]})
    shown = {**one, "quota": {"cpu": "2"}, "state": "Pending"}
    assert (made.status, made.body["overrides"], made.body["quota"]) == (200, [shown], {"cpu": "500m"})
    stored = (await world.kube("GET", f"{GROUP}/resourcequotas/project-alpha"))["spec"]
    assert (stored["overrides"], stored["quota"]) == ([{**one, "quota": {"cpu": "2"}}], {"cpu": "500m"})
    kept = await world.call(who, "PUT", f"{QUOTAS}/project-alpha", {**made.body, "overrides": []})
    assert kept.body["overrides"] == [shown], "they have a route of their own"
    for wrong, pointer in (
        ({**one, "until": "soon"}, "/overrides/0/until"),
        ({**one, "quota": {"cpu": "many"}}, "/overrides/0/quota/cpu"),
        ({**one, "quota": {"cpu": "100m"}}, "/overrides"),
        ({**one, "quota": {"pods": "1"}}, "/overrides"),
        ({**one, "quota": {}}, "/overrides/0/quota"),
    ):
        answer = await world.call(who, "PUT", path, {"overrides": [wrong]})
        assert (answer.status, answer.body["errors"][0]["pointer"]) == (422, pointer), answer.body
    asked = {"quota": {"cpu": "500m"}, "overrides": [one]}
    preview = await world.call(who, "POST", f"{QUOTAS}/project-alpha/preview", asked)
    assert [(each["before"], each["after"]) for each in preview.body["changes"]] == [("500m", "2")]
    gone = await world.call(who, "PUT", path, {"overrides": []}, If_Match=made.headers["ETag"])
    assert (gone.status, gone.body["overrides"]) == (200, [])
    stale = await world.call(who, "PUT", path, {"overrides": [shown]}, If_Match=made.headers["ETag"])
    assert stale.status == 412
    return gone


async def test_quotas_are_listed_by_page_and_kept_like_kubermatics(world: World) -> None:
    who = "platform-administrator"
    for name in ("alpha", "beta", "gamma"):
        made = await world.call(who, "POST", QUOTAS, {"subjectName": name, "quota": {"cpu": 4, "memory": "8Gi"}})
        assert (made.status, made.headers["Location"]) == (201, f"{QUOTAS}/project-{name}")
    again = await world.call(who, "POST", QUOTAS, {"subjectName": "beta", "quota": {"cpu": 5}})
    assert (again.status, again.body["code"]) == (409, "already_exists")

    async def listed() -> None:
        assert len((await world.call(who, "GET", QUOTAS, replica=1)).body) == 3

    await until(listed, 30)
    names: list[str] = []
    path = f"{QUOTAS}?limit=2&subjectKind=project"
    while path:
        page = await world.call(who, "GET", path, replica=1)
        names += [each["name"] for each in page.body]
        path = page.headers["Link"].partition(">")[0][1:] if "Link" in page.headers else ""
    assert names == ["project-alpha", "project-beta", "project-gamma"]
    found = await world.call(who, "GET", f"{QUOTAS}/project-alpha", replica=1)
    assert found.body == {
        "name": "project-alpha",
        "subjectKind": "project",
        "subjectName": "alpha",
        "subjectHumanReadableName": "Alpha",
        "isDefault": False,
        "quota": {"cpu": "4", "memory": "8Gi"},
        "guaranteed": {},
        "overrides": [],
        "status": {
            "hard": {"cpu": "4", "memory": "8Gi"},
            "globalUsage": {},
            "reserved": {},
            "guaranteed": {},
            "guarantees": [],
            "kept": {},
        },
        "asOf": "",
        "stale": True,
    }
    assert (await world.call(who, "PUT", f"{QUOTAS}/project-alpha", found.body)).status == 200
    moved = await world.call(who, "PUT", f"{QUOTAS}/project-alpha", {**found.body, "subjectName": "beta"})
    assert (moved.status, moved.body["code"], moved.body["errors"][0]["pointer"]) == (422, "immutable", "/subjectName")
    changed = await world.call(who, "PUT", f"{QUOTAS}/project-alpha", {"quota": {"cpu": "500m"}})
    assert changed.body["quota"] == {"cpu": "500m"}
    for limits, pointer in (
        ({"cpu": "many"}, "/quota/cpu"),
        ({"a/b": "-1"}, "/quota/a~1b"),
        ({"\0": 1}, "/quota/\0"),
        ({"cpu": -1}, "/quota"),
        ({"memory": "64m"}, "/quota/memory"),
        ({"machines": 1.5}, "/quota/machines"),
        ({"memory": "64"}, "/quota"),
        ({"cpus": "4"}, "/quota/cpus"),
    ):
        wrong = await world.call(who, "PUT", f"{QUOTAS}/project-alpha", {"quota": limits})
        assert wrong.status == 422 and wrong.body["errors"][0]["pointer"] == pointer, wrong.body
    changed = await _raises(world, who)
    stale = await world.call(who, "DELETE", f"{QUOTAS}/project-alpha", If_Match=found.headers["ETag"])
    assert stale.status == 412
    gone = await world.call(who, "DELETE", f"{QUOTAS}/project-alpha", If_Match=changed.headers["ETag"])
    assert (gone.status, gone.body) == (204, None)
    assert (await world.call(who, "DELETE", f"{QUOTAS}/project-alpha")).status == 404


async def test_a_number_means_what_it_means_to_kubermatics_clients(world: World) -> None:
    body = {"subjectName": "alpha", "quota": {"cpu": 2.5, "memory": 5, "storage": 0.5, "machines": 3}}
    made = await world.call("platform-administrator", "POST", QUOTAS, body)
    assert (made.status, made.body["quota"]) == (
        201,
        {"cpu": "2500m", "machines": "3", "memory": "5000000000", "storage": "500000000"},
    )


async def test_quotas_of_namespaces_are_made_listed_and_changed(world: World) -> None:
    who, selector = "platform-administrator", {"matchLabels": {"owner": "ann"}}
    body = {"subjectKind": "namespaces", "subjectSelector": selector, "name": "owner-ann", "quota": {"pods": 5}}
    made = await world.call(who, "POST", QUOTAS, body)
    assert (made.status, made.body["subjectSelector"]) == (201, selector)

    async def listed() -> None:
        found = await world.call(who, "GET", f"{QUOTAS}?subjectKind=namespaces")
        assert [each["name"] for each in found.body] == ["owner-ann"]

    await until(listed, 30)
    changed = await world.call(who, "PUT", f"{QUOTAS}/owner-ann", {**made.body, "quota": {"pods": 6}})
    assert (changed.status, changed.body["quota"]) == (200, {"pods": "6"})
    for wrong, pointer in (
        ({"subjectSelector": selector, "name": "a", "subjectKind": "project"}, "/subjectName"),
        ({"subjectKind": "namespaces", "subjectSelector": selector}, "/name"),
        ({"subjectKind": "namespaces", "subjectName": "ann", "name": "a"}, "/subjectSelector"),
        ({"subjectName": "alpha", "subjectClusters": {"names": ["c1"]}}, "/name"),
        ({"subjectName": "alpha", "subjectSeeds": {"names": ["eu-1"]}}, "/name"),
    ):
        refused = await world.call(who, "POST", QUOTAS, {**wrong, "quota": {"pods": 5}})
        assert (refused.status, refused.body["errors"][0]["pointer"]) == (422, pointer)


async def test_a_quota_of_some_clusters_is_not_the_one_of_its_project(world: World) -> None:
    who, picked = "platform-administrator", {"names": ["c1"], "matchLabels": {"pool": "gpu"}}
    seeds = {"matchLabels": {"region": "eu"}}
    body = {"subjectName": "alpha", "subjectClusters": picked, "name": "of-c1", "quota": {"machines": 1}}
    made = await world.call(who, "POST", QUOTAS, {**body, "subjectSeeds": seeds})
    assert (made.status, made.body["subjectClusters"], made.body["subjectName"]) == (201, picked, "alpha")
    assert made.body["subjectSeeds"] == seeds

    async def listed() -> None:
        found = await world.call(who, "GET", f"{QUOTAS}?subjectName=alpha")
        assert "of-c1" in {each["name"] for each in found.body}

    await until(listed, 30)
    whole = await world.call(who, "GET", PROJECT)
    assert "subjectClusters" not in whole.body and whole.body.get("quota", {}).get("machines") != "1", whole.body


async def test_what_follows_another_object_is_changed_there(world: World) -> None:
    who, spec = "platform-administrator", {"selector": {"matchLabels": {"owner": "ann"}}}
    allocation = named("ResourceQuotaAllocation", "ann", **spec, allocation={"hard": {"pods": "5"}})
    await manifests.apply(world.server, [allocation])
    found = await world.kube("GET", f"{GROUP}/resourcequotaallocations/ann")
    owner = {
        "apiVersion": "seedquota.io/v1alpha1",
        "kind": "ResourceQuotaAllocation",
        "name": "ann",
        "uid": found["metadata"]["uid"],
    }
    quota = named("ResourceQuota", "allocation.ann", quota={"pods": "5"}, subject={"kind": "namespaces", **spec})
    quota["metadata"]["ownerReferences"] = [owner]
    await manifests.apply(world.server, [quota])
    path = f"{QUOTAS}/allocation.ann"

    async def shown() -> None:
        assert (await world.call(who, "GET", path)).body["madeFrom"] == "ResourceQuotaAllocation ann"

    await until(shown, 30)
    for method, body in (("PUT", {"quota": {"pods": 6}}), ("DELETE", None)):
        refused = await world.call(who, method, path, body)
        assert (refused.status, refused.body["code"]) == (409, "made_from_other")
        assert "made from the ResourceQuotaAllocation ann: change that instead" in refused.body["detail"]


async def test_a_calculation_says_what_is_short_in_both_quotas(world: World) -> None:
    await world.quota(
        "project-alpha", "project", "alpha", {"cpu": "64", "memory": "256Gi"}, {"cpu": "60", "memory": "0"}
    )
    await world.quota("org-acme", "organization", "acme", {"cpu": "62", "servers": 0}, {"cpu": "61"})
    asked = {"resources": {"cpu": "2", "memory": "8Gi", "servers": 3}, "replicas": 4}
    answer = await world.call("user", "POST", CALCULATION, asked)
    assert answer.status == 200 and answer.body["fits"] is False
    shortages = [(each["quota"], each["type"], each["short"]) for each in answer.body["shortages"]]
    assert shortages == [("project-alpha", "cpu", "4"), ("org-acme", "cpu", "7")], "servers are not counted"
    edit = await world.call("user", "POST", CALCULATION, {**asked, "replaces": {"cpu": 7}})
    assert (edit.body["fits"], edit.body["shortages"]) == (True, []), "an edit costs its difference"


async def test_what_fits_and_where_is_said_with_amounts_and_of_when_they_are(world: World) -> None:
    await manifests.apply(world.server, [named("Seed", "eu-1", kubeconfigSecretRef={"name": "eu-1"})])
    await world.quota("project-alpha", "project", "alpha", {"cpu": "64"}, {"cpu": "60"})
    await world.quota("org-acme", "organization", "acme", {"memory": "8Gi"}, {"memory": "1Gi"})
    line = {"state": "Current", "granted": {"cpu": "62"}, "localUsage": {"cpu": "60"}}
    reported = "2026-11-20T10:00:03Z"
    current = {"type": "UsageCurrent", "status": "True", "reason": "AllReported", "message": ""}
    status = {
        "seeds": [{"name": "eu-1", "lastReportTime": reported, **line}],
        "conditions": [{**current, "lastTransitionTime": reported}],
    }
    path = f"{GROUP}/resourcequotas/project-alpha/status"
    await world.kube("PATCH", path, {"status": status})
    asked = {"project": "alpha", "resources": {"cpu": "2", "memory": "4Gi"}}

    async def answered() -> None:
        for replica in range(2):
            two = await world.call("reader", "POST", FITS, {**asked, "replicas": 2}, replica=replica)
            assert (two.status, two.body["fits"], two.body["asOf"]) == (200, False, reported)
            assert [(each["quota"], each["type"], each["short"]) for each in two.body["shortages"]] == [
                ("org-acme", "memory", "1Gi")
            ]
            assert two.body["stale"], "org-acme has no report"
            one = await world.call("reader", "POST", FITS, asked, replica=replica)
            assert (one.status, one.body["fits"], one.body["shortages"]) == (200, True, [])
            where = await world.call("reader", "POST", WHERE, asked, replica=replica)
            place = {"seed": "eu-1", "state": "Current", "now": 0, "byRecall": 1, "limitedBy": "memory of org-acme"}
            assert (where.status, where.body["fits"], where.body["items"]) == (200, True, [place])
            three = await world.call("reader", "POST", WHERE, {**asked, "replicas": 3}, replica=replica)
            assert (three.status, three.body["fits"]) == (200, False)
            assert {each["type"] for each in three.body["shortages"]} == {"cpu", "memory"}

    try:
        await until(answered, 30)
    finally:
        await world.kube("DELETE", f"{GROUP}/seeds/eu-1")


async def test_who_asks_what_fits_must_see_every_quota_that_is_asked_about(world: World) -> None:
    """OF_BETA may see the organization, and no project."""
    await world.quota("project-alpha", "project", "alpha", {"cpu": "64"}, {"cpu": "60"})
    asked = {"resources": {"cpu": 1}}
    for path in (FITS, WHERE):
        assert (await world.call(OF_BETA, "POST", path, {**asked, "organization": "acme"})).status == 200
        for subject in ({"project": "alpha"}, {"project": "nowhere"}, {"organization": "other"}):
            assert (await world.call(OF_BETA, "POST", path, {**asked, **subject})).status == 404
        assert (await world.call(OF_ANOTHER, "POST", path, {**asked, "project": "alpha"})).status == 404
        for wrong in (asked, {**asked, "project": "alpha", "organization": "acme"}):
            assert (await world.call("reader", "POST", path, wrong)).status == 422
    await manifests.apply(
        world.server, [named("ResourceQuota", "new", subject={"kind": "project", "name": "alpha"}, quota={"cpu": 1})]
    )

    async def not_counted() -> None:
        for path in (FITS, WHERE):
            answer = await world.call("reader", "POST", path, {**asked, "project": "alpha"})
            assert answer.status == 503 and "nothing is counted yet for new" in answer.body["detail"]

    await until(not_counted, 30)


async def test_the_page_is_served_to_everybody_and_says_what_browsers_may_do_with_it(world: World) -> None:
    url = f"https://127.0.0.1:{world.replicas[0].server.port}/docs"
    async with world.session.get(url, ssl=world.tls or False) as answer:
        text = await answer.text()
        assert (answer.status, answer.content_type) == (200, "text/html")
        assert answer.headers["Content-Security-Policy"] == page.POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert text == page.html().decode() and FITS in text


async def test_the_catalogue_is_shown_with_names_and_units_for_people(world: World) -> None:
    named = {"displayName": "Servers", "description": "Physical servers", "unit": "server"}
    listed = [
        {"name": "servers", **named, "countFrom": "Allocations"},
        *(e for e in CATALOGUE if e["name"] != "servers"),
    ]
    path = "/apis/seedquota.io/v1alpha1/quotasettings/default"
    await world.kube("PATCH", path, {"spec": {"resources": listed}})

    async def shown() -> None:
        found = (await world.call("reader", "GET", "/api/v1/resources")).body
        assert [each["type"] for each in found] == ["clusters", "gpus", "servers"]
        assert found[2] == {"type": "servers", **named, "countFrom": "Allocations"}
        assert found[1] == {
            "type": "gpus",
            "displayName": "gpus",
            "description": "",
            "unit": "",
            "countFrom": "Allocations",
        }

    try:
        await until(shown, 30)
    finally:
        await world.kube("PATCH", path, {"spec": {"resources": CATALOGUE}})


async def test_where_a_decision_is_that_no_seed_could_be_asked_for_is_said(world: World) -> None:
    """`seedquota seed add` gives the master no right to read decisions."""
    await seed_of(world)
    try:
        answer = await world.call("reader", "GET", DECISION.lower().replace("01jd", "01JD"))
        command = "seedquota explain 01JD3Y6K --context SEED"
        said = {"decision": "01JD3Y6K", "keptOn": "seed", "command": command}
        assert (answer.status, answer.body) == (200, {**said, "notAsked": "1 of 1 seeds could not be asked"})
        admin = await world.call("platform-administrator", "GET", DECISION)
        assert admin.body["notAsked"] == "eu-1: the master may not ask the agents there"
        assert (await world.call("reader", "GET", f"{DECISION}?seed=none")).status == 404
        for other in ("01JD3Y6", "01JD3Y6K9", "01JD-Y6K"):
            found = await world.call("reader", "GET", f"/api/v1/decisions/{other}")
            assert (found.status, found.body["code"]) == (404, "not_found")
    finally:
        await world.kube("DELETE", f"{GROUP}/seeds/eu-1")


async def test_a_decision_is_read_from_the_agents_by_who_may_see_its_quotas(world: World) -> None:
    """Through the proxy of a real API server, with the rights of charts/rbac/master-decisions.yaml alone."""
    await world.quota("project-alpha", "project", "alpha", {"cpu": "64"}, {"cpu": 60})
    await world.quota("org-acme", "organization", "acme", {"cpu": "100"}, {"cpu": 90})
    refused = {"enforcement": "deny", "admits": False, "limits": {"cpu": "64"}, "used": {"cpu": "60"}}
    quotas = [{"name": name, **refused, "message": f"of {name}"} for name in ("project-alpha", "org-acme")]
    record = {
        **{"decision": "01JD3Y6K", "time": "2026-11-20T10:00:03.000Z", "result": "refused", "durationMs": 1.0},
        **{"operation": "CREATE", "user": "bob", "object": "kube-system/m", "project": "alpha", "quotas": quotas},
    }
    asked: list[Mapping[str, str]] = []
    earlier = False  # an agent that has no list of refusals

    def page(rest: str, query: Mapping[str, str]) -> bytes | None:
        asked.append(query)
        if rest == "refused" and not earlier:
            return json.dumps({"items": [record], "more": False}).encode()
        return json.dumps(record).encode() if rest == "01JD3Y6K" else None

    async with agent(world, "decisions", page):
        for actor in ("platform-administrator", "reader", OF_BETA):
            answer = await world.call(actor, "GET", DECISION, replica=1)
            assert (answer.status, answer.body["seed"], answer.body["notAsked"]) == (200, "eu-1", ""), answer
            found = answer.body["record"]
            names = [each["name"] for each in found["quotas"]]
            assert names == (["org-acme"] if actor == OF_BETA else ["project-alpha", "org-acme"])
            assert found.get("user", "") == ("bob" if actor == "platform-administrator" else "")
            assert found.get("object", "") == ("" if actor == OF_BETA else "kube-system/m")
        for actor in ("platform-administrator", "reader"):
            for query in ("quota=project-alpha", "project=alpha", "quota=org-acme"):
                listed = await world.call(actor, "GET", f"{REFUSALS}?{query}")
                assert (listed.status, listed.body["notAsked"], listed.body["more"]) == (200, "", False), listed
                (one,) = listed.body["items"]
                assert (one["decision"], one["seed"], len(one["record"]["quotas"])) == ("01JD3Y6K", "eu-1", 2)
                assert one["record"].get("user", "") == ("bob" if actor == "platform-administrator" else "")
                assert asked[-1] == dict([query.split("=")])
        others = await world.call(OF_BETA, "GET", f"{REFUSALS}?quota=org-acme")
        assert [each["name"] for each in others.body["items"][0]["record"]["quotas"]] == ["org-acme"]
        for actor in (NOBODY, OF_ANOTHER, OF_BETA):
            for query in ("quota=project-alpha", "project=alpha", "quota=none"):
                assert (await world.call(actor, "GET", f"{REFUSALS}?{query}")).status == 404, (actor, query)
        for query in ("", "quota=project-alpha&project=alpha"):
            assert (await world.call("platform-administrator", "GET", f"{REFUSALS}?{query}")).status == 422
        earlier = True
        unknown = await world.call("platform-administrator", "GET", f"{REFUSALS}?project=alpha")
        assert (unknown.body["items"], unknown.body["notAsked"]) == (
            [],
            "eu-1: an agent of an earlier version has no list of refusals",
        )
        for actor in (NOBODY, OF_ANOTHER):
            hidden = await world.call(actor, "GET", DECISION)
            missing = await world.call(actor, "GET", DECISION.replace("K", "L"))
            assert (hidden.status, missing.status) == (404, 404)


async def test_each_of_a_hundred_namespaces_is_listed_over_http_and_by_the_command(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A status has the 32 largest. Read from the agent's page through the proxy of a real API server."""
    await world.quota("ann", "namespaces", "ann", {"pods": "1000"}, {"pods": 100})
    uid = (await world.kube("GET", f"{GROUP}/resourcequotas/ann"))["metadata"]["uid"]
    used = {f"n{number:02}": nanos("pods=1") for number in range(50)}
    path = f"{QUOTAS}/ann/namespaces?limit=30"
    async with leading({cluster: source(cluster, used) for cluster in CLUSTERS}) as leader:

        def page(rest: str, query: Mapping[str, str]) -> bytes | None:
            found = leader.pages.page(rest, query)
            return found.replace(leader.uid.encode(), uid.encode()) if found is not None else None

        async with agent(world, "namespaces", page):
            listed, pages, link = [], 0, path
            while link:
                answer = await world.call("platform-administrator", "GET", link, replica=pages % 2)
                assert (answer.status, answer.body["notAsked"], answer.body["notCurrent"]) == (200, [], []), answer
                listed += [(each["seed"], each["cluster"], each["namespace"]) for each in answer.body["items"]]
                assert all(each["used"] == {"pods": "1"} for each in answer.body["items"])
                link, pages = answer.headers.get("Link", "").partition(">")[0].removeprefix("<"), pages + 1
            assert pages == 4
            assert listed == [("eu-1", cluster, name) for cluster in CLUSTERS for name in sorted(used)]
            for wrong in ("limit=0", "limit=501", "continue=eu-1,,", "continue=../x"):
                refused = await world.call("platform-administrator", "GET", f"{QUOTAS}/ann/namespaces?{wrong}")
                assert refused.status == 400, wrong
            assert (await world.call("platform-administrator", "GET", f"{QUOTAS}/none/namespaces")).status == 404
            for actor in ("reader", NOBODY):
                assert (await world.call(actor, "GET", path)).status == 403

            file = tmp_path / "master.kubeconfig"
            file.write_text(world.server.kubeconfig())
            every = ["consumers", "ann", "--all", "-n", NAMESPACE, "--kubeconfig", str(file), "-o", "json"]
            assert await asyncio.to_thread(seedquota, every) == 0
            found = json.loads(capsys.readouterr().out)
            assert found["notKnown"] == []
            names = {each["name"] for each in found["items"]}
            assert names == {f"{cluster}/{name}" for cluster in CLUSTERS for name in used}
            assert await asyncio.to_thread(seedquota, [*every, "--by", "project"]) == 0
            sums = {each["project"]: each["used"] for each in json.loads(capsys.readouterr().out)["items"]}
            assert sums == {"alpha": {"pods": "50"}, "beta": {"pods": "50"}}

            leader.leads = False
            answer = await world.call("platform-administrator", "GET", path)
            why = "no agent there that leads knows the quota"
            assert (answer.body["items"], answer.body["notAsked"]) == ([], [{"seed": "eu-1", "why": why}])
            assert await asyncio.to_thread(seedquota, every) == 3
            assert json.loads(capsys.readouterr().out)["notKnown"] == [f"namespaces on eu-1: {why}"]


MANIFEST = """
apiVersion: cluster.k8s.io/v1alpha1
kind: MachineDeployment
metadata: {name: pool-a}
spec:
  replicas: 3
  template:
    spec:
      providerSpec:
        value:
          cloudProvider: aws
          cloudProviderSpec: {instanceType: m5.large, region: eu-central-1, diskSize: 50, secretAccessKey: HIDDEN}
"""


async def test_machine_types_and_a_manifest_are_asked_of_the_agents_by_who_may_see_the_quotas(world: World) -> None:
    """Through the proxy of a real API server, by the evaluators of a seed. Nobody is sent what may be a secret."""
    await world.quota("project-alpha", "project", "alpha", {"cpu": "64"}, {"cpu": 60})
    await world.quota("org-acme", "organization", "acme", {"cpu": "100"}, {"cpu": 90})
    types_path, fits_path = "/api/v1/projects/alpha/machinetypes", f"{FITS}/manifest"
    body = {"project": "alpha", "manifest": MANIFEST}
    sent: list[bytes] = []
    async with seed_world() as of_seed:
        for name, kind in (("project-alpha", "project"), ("org-acme", "organization")):
            await of_seed.quota(name, limits="cpu=64", kind=kind)
        own = Agent(of_seed)
        own.learn(Place("aws", "https://ec2", "eu-central-1"), m5_large=flavour(cpu=2, memory=8))

        async def needs(content: bytes) -> bytes | None:
            sent.append(content)
            return await own.pages.answer(content)

        async with agent(world, "machinetypes", own.types.page, {"needs": needs}):
            for actor in ("platform-administrator", "reader"):
                (found,) = (await world.call(actor, "GET", types_path, replica=1)).body["items"]
                assert (found["name"], found["seeds"]) == ("m5.large", ["eu-1"])
                assert (found["resources"]["cpu"], found["place"]) == ("2", "aws eu-central-1")
                other = await world.call(actor, "GET", f"{types_path}?name=m5.none")
                assert (other.status, other.body) == (200, {"items": [], "more": False, "notAsked": ""})
                answer = await world.call(actor, "POST", fits_path, body)
                assert (answer.status, answer.body["notAsked"]) == (200, ""), answer
                (found,) = answer.body["answers"]
                assert (found["result"], found["message"]) == ("DoesNotFit", "project-alpha: cpu short by 2")
                assert [(each["object"], each["fitting"]) for each in found["objects"]] == [
                    ("machines of machinedeployment/pool-a", 2)
                ]
                assert ("holders" in found) == (actor == "platform-administrator")
                fewer = await world.call(actor, "POST", fits_path, {**body, "replicas": 2})
                assert fewer.body["answers"][0]["result"] == "Fits"
            assert sent and not any(b"HIDDEN" in content for content in sent)
            by_quota = {"quota": "org-acme", "manifest": MANIFEST}
            assert (await world.call("platform-administrator", "POST", fits_path, by_quota)).body["answers"][0][
                "result"
            ] == "Fits"
            for path in (FITS, WHERE):
                amounts = {"quota": "org-acme", "resources": {"cpu": "11"}}
                assert not (await world.call("platform-administrator", "POST", path, amounts)).body["fits"]
            before = len(sent)
            for actor in (NOBODY, OF_ANOTHER, OF_BETA):
                assert (await world.call(actor, "POST", fits_path, body)).status == 404
                assert (await world.call(actor, "GET", types_path)).status == 404
            for hidden in ({**by_quota, "quota": "none"}, {**by_quota, "quota": "project-alpha"}):
                assert (await world.call(NOBODY, "POST", fits_path, hidden)).status == 404
            wrong = await world.call("reader", "POST", fits_path, {**body, "manifest": "a: &x [1]"})
            assert (wrong.status, wrong.body["errors"][0]["pointer"]) == (422, "/manifest"), wrong.body
            assert len(sent) == before, "no seed is asked for those"
            await world.kube(
                "DELETE",
                f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings/seedquota-master-previews",
            )

            async def not_asked() -> None:
                answer = await world.call("platform-administrator", "POST", fits_path, body)
                assert answer.body["answers"] == [] and "cannot create resource" in answer.body["notAsked"], answer.body

            await until(not_asked, 30)


@asynccontextmanager
async def agent(world: World, name: str, page: Page, questions: Mapping[str, Question] = {}) -> AsyncIterator[None]:
    """Of a Seed eu-1: a page of an agent, and what can be asked there. With the rights of charts/rbac/explain.yaml and
    master-decisions.yaml."""
    health = Health()
    health.pages[name] = page
    of_agent = await Cluster.from_kubeconfig(world.server.kubeconfig(), name="seed")
    health.questions.update(questions)
    readers = PageReaders(of_agent)
    health.may_read, health.may_ask = readers.may_read, readers.may_ask
    roles = (CHARTS / "rbac" / file for file in ("explain.yaml", "master-decisions.yaml"))
    await manifests.apply(world.server, manifests.load(*roles))
    await seed_of(world)
    try:
        async with health.serve(Address(own_address(), 0)):
            await agent_pod(world, health.port)
            yield
    finally:
        await world.kube("DELETE", f"{GROUP}/seeds/eu-1")
        await world.kube("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/agent?gracePeriodSeconds=0")
        await of_agent.close()


async def seed_of(world: World) -> None:
    """A Seed of this very API server, by the ServiceAccount of the master on seeds. Known to both replicas."""
    account = "seedquota-master-on-seed"
    await manifests.apply(
        world.server, [service_account(account) | {"metadata": {"name": account, "namespace": NAMESPACE}}]
    )
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await world.kube("POST", path, request, 201))["status"]["token"]
    kubeconfig = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": world.server.url,
                    "certificate-authority-data": base64.b64encode(world.server.ca.encode()).decode(),
                },
            }
        ],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    await manifests.apply(
        world.server,
        [
            secret("eu-1", NAMESPACE, kubeconfig=json.dumps(kubeconfig)),
            named("Seed", "eu-1", kubeconfigSecretRef={"name": "eu-1"}),
        ],
    )

    async def known() -> None:
        for replica in range(2):
            answer = await world.call("platform-administrator", "GET", DECISION.replace("K", "M"), replica=replica)
            assert answer.status == 404 or ("kubeconfig" not in answer.body["notAsked"] and answer.body["notAsked"])

    await until(known, 30)


async def agent_pod(world: World, port: int) -> None:
    """The object of an agent's pod, which runs here."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    metadata = {"name": "agent", "labels": {"app.kubernetes.io/name": "seedquota-seed"}}
    container = {"name": "c", "image": "i", "ports": [{"name": "health", "containerPort": port}]}
    spec = {"serviceAccountName": "seedquota-master-on-seed", "containers": [container]}
    await world.kube("POST", path, {"metadata": metadata, "spec": spec}, 201)
    at = {"phase": "Running", "podIP": own_address(), "podIPs": [{"ip": own_address()}]}
    await world.kube("PATCH", f"{path}/agent/status", {"status": at})


def own_address() -> str:
    """Of this machine, where an API server may reach it: no loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])


async def test_who_has_no_valid_token_gets_nothing_but_the_document(world: World) -> None:
    nothing = await world.call("", "GET", ORGANIZATION)
    assert (nothing.status, nothing.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert nothing.headers["Content-Type"] == "application/problem+json"
    for token in ("forged", "x" * 9000, '"quoted"'):
        answer = await world.call(token, "GET", "/nowhere")
        assert (answer.status, answer.headers["Connection"]) == (401, "close")
    document = await world.call("", "GET", "/openapi.json")
    assert (document.status, document.body["openapi"]) == (200, "3.1.0")
    revoked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["other"]}}
    path = f"/api/v1/namespaces/default/serviceaccounts/{NOBODY}/token"
    other = (await world.kube("POST", path, revoked, 201))["status"]["token"]
    assert (await world.call(other, "GET", ORGANIZATION)).status == 401, "a token for somebody else"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"capacity": [{"type": "cpu", "amount": NaN}]}', 400),
        (b"[" * 100_000, 422),
        (b'{"capacity": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 422),
        (b'{"free": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400),
        (b"\xff\xfe", 400),
        (b"[]", 422),
        (b"null", 422),
        (b'{"capacity": []}', 422),
        (b'{"capacity": [{"type": "cpu", "amount": 1.5}]}', 422),
        (b'{"capacity": [{"type": "cpu", "amount": -1}]}', 422),
        (b'{"capacity": [{"type": "cpu", "amount": 9007199254740992}]}', 422),
        (b'{"capacity": [{"type": "cpu", "amount": ' + b"9" * 5000 + b"}]}", 422),
        (b'{"capacity": [{"type": "cpu", "amount": true}]}', 422),
        (b'{"capacity": [{"type": "cpu", "amount": 1}, {"type": "cpu", "amount": 2}]}', 422),
        (b'{"capacity": [{"type": "cpu", "amount": 1}], "limit": 3}', 422),
        (b'{"capacity": [{"type": "' + b"c" * 400 + b'", "amount": 1}]}', 422),
        (b'{"capacity": "' + b"x" * api.MAX_BODY + b'"}', 413),
    ],
    ids=range(19),
)
async def test_a_hostile_body_is_refused_with_a_problem(world: World, raw: bytes, status: int) -> None:
    answer = await world.call("platform-administrator", "PUT", ORGANIZATION, raw=raw)
    assert answer.status == status, answer.body
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.body["type"].startswith("https://seedquota.io/errors/") and answer.body["error"]
    assert len(json.dumps(answer.body)) < 4096
    assert (await world.call("platform-administrator", "GET", QUOTAS)).body == []


async def test_who_has_the_answer_is_told_so_until_the_use_or_the_limits_change(world: World) -> None:
    who = "platform-administrator"
    await world.quota("org-acme", "organization", "acme", {"servers": 10}, {"servers": 0})
    await world.quota("project-alpha", "project", "alpha", {"cpu": 5}, {"cpu": 1})
    made = await world.call(who, "POST", OF_ALPHA, given(name="one", servers=(1, 1)))
    assert made.status == 201
    paths = (ORGANIZATION, PROJECT, QUOTAS, f"{QUOTAS}/org-acme", ALLOCATIONS, f"{OF_ALPHA}/one")

    async def steady() -> None:  # until the watch has brought the allocation
        for path in paths:
            before = await world.call(who, "GET", path)
            same = await world.call(who, "GET", path, If_None_Match=f'"x", {before.headers["ETag"]}')
            assert (same.status, same.body, same.headers["ETag"]) == (304, None, before.headers["ETag"]), path

    await until(steady, 30)
    before = await world.call(who, "GET", PROJECT)
    status = {"observedGeneration": 1, "hard": {"cpu": 5}, "globalUsage": {"cpu": 2}}
    await world.kube("PATCH", f"{GROUP}/resourcequotas/project-alpha/status", {"status": status})

    async def shown() -> None:
        after = await world.call(who, "GET", PROJECT, If_None_Match=before.headers["ETag"])
        assert after.status == 200 and after.body["status"]["globalUsage"] == {"cpu": "2"}

    await until(shown, 30)
    limits = {"quota": {"cpu": "6"}}
    written = await world.call(who, "PUT", f"{QUOTAS}/project-alpha", limits, If_Match=before.headers["ETag"])
    assert written.status == 200, "the use does not matter"


async def test_limits_can_be_set_only_where_there_are_none(world: World) -> None:
    who, body = "platform-administrator", {"capacity": [{"type": "servers", "amount": 3}]}
    assert (await world.call(who, "PUT", ORGANIZATION, body, If_None_Match="*")).status == 200
    again = await world.call(who, "PUT", ORGANIZATION, body, If_None_Match="*")
    assert (again.status, again.body["code"]) == (412, "precondition_failed")
    deleted = await world.call(who, "DELETE", f"{QUOTAS}/org-acme", If_None_Match="*")
    assert deleted.status == 412
    assert (await world.call(who, "GET", f"{QUOTAS}/org-acme")).status == 200


async def test_only_json_is_taken_and_no_key_twice(world: World) -> None:
    who, body = "platform-administrator", b'{"capacity": [{"type": "cpu", "amount": 1}]}'
    for type in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"):
        answer = await world.call(who, "PUT", ORGANIZATION, raw=body, Content_Type=type)
        assert (answer.status, answer.body["code"]) == (415, "unsupported_media_type")
        assert answer.headers["Accept"] == "application/json"
    twice = b'{"capacity": [{"type": "cpu", "amount": 1, "amount": 2}]}'
    answer = await world.call(who, "PUT", ORGANIZATION, raw=twice)
    assert (answer.status, answer.body["errors"][0]["detail"][:30]) == (400, "the body has the key 'amount' ")
    assert (await world.call(who, "GET", QUOTAS)).body == []


@pytest.mark.parametrize(
    ("line", "status", "headers"),
    [
        ("OPTIONS *", 204, b"\r\nAllow: DELETE, GET, HEAD, OPTIONS, POST, PUT\r\n"),
        (f"OPTIONS {QUOTAS}", 204, b"\r\nAllow: GET, HEAD, OPTIONS, POST\r\n"),
        ("GET https://elsewhere.example.com/openapi.json?", 200, b"\r\nETag: "),
        ("HEAD https://elsewhere.example.com:1/openapi.json", 200, b"\r\nContent-Encoding: gzip\r\n"),
        ("GET *", 400, b"\r\nContent-Type: application/problem+json\r\n"),
    ],
)
async def test_each_form_of_a_target_is_answered_without_a_token(
    world: World, line: str, status: int, headers: bytes
) -> None:
    port = world.replicas[0].server.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=world.tls)
    writer.write(f"{line} HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.split()[1] == str(status).encode() and headers in answer, answer[:400]


async def test_a_change_is_told_soon_to_who_may_see_it(world: World) -> None:
    """By each replica. Nobody else can follow."""
    await world.quota("project-alpha", "project", "alpha", {"cpu": "64"}, {"cpu": 60})
    for actor, query, replica in (("platform-administrator", "", 0), ("reader", "?project=alpha", 1)):
        url = f"https://127.0.0.1:{world.replicas[replica].server.port}{EVENTS}{query}"
        headers = {"Authorization": f"Bearer {world.tokens[actor]}"}
        async with world.session.get(url, headers=headers, ssl=world.tls or False) as stream:
            assert (stream.status, stream.content_type) == (200, "text/event-stream")
            await stream.content.readuntil(b"\n\n")
            limits = {"quota": {"cpu": 65 + replica}}
            assert (await world.call("platform-administrator", "PUT", f"{QUOTAS}/project-alpha", limits)).status == 200
            async with within(BEAT_SECONDS / 2):  # without an event, something is sent with the next beat alone
                told = await stream.content.readuntil(b"\n\n")
            name, data = told.decode().strip().split("\n")
            assert (name, json.loads(data.removeprefix("data: "))) == (
                "event: change",
                {"changed": [{"resource": "resourcequotas", "name": "project-alpha"}], "more": False},
            )
    for actor in (NOBODY, OF_ANOTHER, OF_BETA):
        for query, status in (("", 403), ("?project=alpha", 404)):
            assert (await world.call(actor, "GET", f"{EVENTS}{query}")).status == status
    assert (await world.call(OF_ANOTHER, "GET", f"{EVENTS}?organization=acme")).status == 404
    assert (await world.call("reader", "GET", EVENTS)).status == 403


async def test_a_default_quota_is_previewed_set_and_removed_and_no_update_is_lost(world: World) -> None:
    path, settings = "/api/v1/defaults/project", f"{GROUP}/quotasettings/default"
    assert (await world.call(OPERATOR, "GET", path)).body["code"] == "no_default"
    await world.quota("project-alpha", "project", "alpha", {"cpu": "8"}, {"cpu": 6})
    labels = {"metadata": {"labels": {"seedquota.io/default": "true"}}}
    await world.kube("PATCH", f"{GROUP}/resourcequotas/project-alpha", labels)
    wanted = {"quota": {"cpu": "4", "memory": "8Gi"}}

    async def previewed() -> None:
        for replica in range(2):
            found = (await world.call(OPERATOR, "POST", f"{path}/preview", wanted, replica=replica)).body
            assert (found["followers"], found["quotas"], found["without"]) == (1, ["project-alpha"], ["beta", "solo"])
            assert found["over"] == [{"quota": "project-alpha", "subjectName": "alpha", "over": {"cpu": "2"}}]

    names = ["beta", "solo"]
    projects = [each["metadata"]["name"] for each in (await world.kube("GET", f"{GROUP}/projects"))["items"]]
    extra = [name for name in projects if name not in ("alpha", *names)]
    for name in extra:
        await world.quota(f"project-{name}", "project", name, {"cpu": "8"})
    await until(previewed, 30)
    try:
        made = await world.call(OPERATOR, "PUT", path, wanted, If_None_Match="*", replica=1)
        assert (made.status, made.body["quota"], made.body["enforcement"]) == (200, wanted["quota"], "deny")
        async with asyncio.TaskGroup() as group:
            both = [
                group.create_task(
                    world.call(
                        OPERATOR, "PUT", path, {"quota": {"cpu": cpu}}, If_Match=made.headers["ETag"], replica=cpu
                    )
                )
                for cpu in (0, 1)
            ]
        assert sorted(each.result().status for each in both) == [200, 412]
        wrong = await world.call(OPERATOR, "PUT", path, {"quota": {"serverz": 1}})
        assert (wrong.status, wrong.body["errors"][0]["pointer"]) == (422, "/quota/serverz"), wrong.body
        stored = (await world.kube("GET", settings))["spec"]
        assert (stored["resources"], len(stored["defaults"]["project"]["quota"])) == (CATALOGUE, 1)
        warns = await world.call(OPERATOR, "PUT", path, {**wanted, "enforcement": "warn", "warnAtPercent": 80})
        assert (warns.body["enforcement"], warns.body["warnAtPercent"]) == ("warn", 80)
    finally:
        assert (await world.call(OPERATOR, "DELETE", path)).status == 204
    assert (await world.call(OPERATOR, "DELETE", path)).status == 404
    for actor in (*ACTORS, NOBODY):
        for method, where, body in (
            ("GET", path, None),
            ("PUT", path, wanted),
            ("DELETE", path, None),
            ("POST", f"{path}/preview", wanted),
        ):
            assert (await world.call(actor, method, where, body)).status == 403, (actor, method)


async def test_a_seed_is_drained_with_what_that_frees_and_comes_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await manifests.apply(world.server, [named("Seed", "eu-1", kubeconfigSecretRef={"name": "none"})])
    path = "/api/v1/seeds/eu-1"
    try:
        await world.quota("project-alpha", "project", "alpha", {"cpu": "64"}, {"cpu": 40})
        line = {"name": "eu-1", "state": "Current", "granted": {"cpu": "44"}, "localUsage": {"cpu": "40"}}
        await world.kube("PATCH", f"{GROUP}/resourcequotas/project-alpha/status", {"status": {"seeds": [line]}})

        async def shown() -> None:
            found = await world.call(OPERATOR, "GET", path)
            assert (found.status, found.body["frees"], found.body["seed"]["connected"]) == (200, {"cpu": "4"}, None)

        await until(shown, 30)
        before = await world.call(OPERATOR, "GET", path)
        version, state = before.headers["ETag"], f"{path}/state"
        drained = await world.call(OPERATOR, "PUT", state, {"state": "Draining"}, If_Match=version)
        assert (drained.status, drained.body["seed"]["state"], drained.body["frees"]) == (200, "Draining", {"cpu": "4"})
        stale = await world.call(OPERATOR, "PUT", state, {"state": "Active"}, If_Match=version)
        assert (stale.status, stale.body["code"]) == (412, "precondition_failed")
        assert (await world.call(OPERATOR, "PUT", f"{path}/state", {"state": "Lost"})).status == 422
        assert (await world.call(OPERATOR, "PUT", "/api/v1/seeds/none/state", {"state": "Active"})).status == 404
        assert (await world.kube("GET", f"{GROUP}/seeds/eu-1"))["spec"]["state"] == "Draining"
        back = await world.call(OPERATOR, "PUT", f"{path}/state", {"state": "Active"})
        assert back.body["seed"]["state"] == "Active"
        for actor in (*ACTORS, NOBODY):
            for method, where, body in (
                ("GET", "/api/v1/seeds", None),
                ("GET", path, None),
                ("PUT", f"{path}/state", {"state": "Draining"}),
            ):
                assert (await world.call(actor, method, where, body)).status == 403, (actor, method)
        lost = {"spec": {"state": "Lost", "confirmLost": "its machines are gone"}}
        await world.kube("PATCH", f"{GROUP}/seeds/eu-1", lost)
        assert (await world.call(OPERATOR, "PUT", f"{path}/state", {"state": "Active"})).body["code"] == "lost"
    finally:
        await world.kube("DELETE", f"{GROUP}/seeds/eu-1")
    lines = [vars(each) for each in caplog.records if each.name == "master.apiserver.audit" and each.status == 200]  # type: ignore[attr-defined]
    assert [(each["user"].rpartition(":")[2], each["address"], each["changes"]) for each in lines] == [
        (OPERATOR, "127.0.0.1", {"seed": "eu-1", "before": "Active", "state": "Draining"}),
        (OPERATOR, "127.0.0.1", {"seed": "eu-1", "before": "Draining", "state": "Active"}),
    ]


async def test_new_limits_are_previewed_with_what_is_used_beyond_them(world: World) -> None:
    await world.quota("project-alpha", "project", "alpha", {"cpu": "64"}, {"cpu": 60})
    path = f"{QUOTAS}/project-alpha/preview"
    found = await world.call("platform-administrator", "POST", path, {"quota": {"cpu": 50}})
    change = {"type": "cpu", "before": "64", "after": "50", "used": "60", "over": "10"}
    expected = {"quota": "project-alpha", "changes": [change], "guarantees": [], "exceeded": True}
    assert (found.status, found.body) == (200, expected)
    assert (await world.kube("GET", f"{GROUP}/resourcequotas/project-alpha"))["spec"]["quota"] == {"cpu": "64"}
    assert (await world.call("reader", "POST", path, {"quota": {"cpu": 50}})).status == 403
    assert (
        await world.call("platform-administrator", "POST", f"{QUOTAS}/none/preview", {"quota": {"cpu": 1}})
    ).status == 404


async def test_every_write_is_in_the_audit_log_and_no_token_in_any(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"capacity": [{"type": "machines", "amount": 3}]}
    await world.call("platform-administrator", "PUT", ORGANIZATION, body, X_Request_Id="mine")
    await world.call("reader", "PUT", ORGANIZATION, body)
    await world.call("reader", "GET", ORGANIZATION, X_Request_Id="x\ty")
    lines = [vars(record) for record in caplog.records if record.name == "master.apiserver.audit"]
    assert [(line["user"], line["status"], line["changes"]) for line in lines] == [
        (
            "system:serviceaccount:default:platform-administrator",
            200,
            {"quota": "org-acme", "limits": {"machines": "3"}},
        ),
        ("system:serviceaccount:default:reader", 403, None),
    ]
    assert lines[0]["request_id"] == "mine" and lines[0]["route"] == "/api/v1/organizations/{organization}/quotas"
    everything = "\n".join(str(vars(record)) for record in caplog.records)
    assert not [actor for actor, token in world.tokens.items() if token in everything]


CLIENT = """
import json, sys
from client.api.allocations import create_project_allocations as create, delete_allocation as delete
from client.api.allocations import put_allocation as put
from client.api.organizations import get_organization_quotas as quotas
from client.client import AuthenticatedClient
from client.models import AllocationCreate, AllocationUpdate, ChangedContent, GivenContent, GivenResource, Problem

url, token, ca = sys.argv[1:]
def content(servers):
    resources = [GivenResource(type_="servers", committed=servers)]
    return AllocationCreate(spec=GivenContent(kind="server", id="1", resources=resources))

with AuthenticatedClient(base_url=url, token=token, verify_ssl=ca) as client:
    over = create.sync("acme", "alpha", client=client, body=content(11))
    assert isinstance(over, Problem) and over.code == "quota_exceeded", over
    made = create.sync("acme", "alpha", client=client, body=content(8))
    changed = put.sync("acme", "alpha", made.metadata.id, client=client, body=AllocationUpdate(
        spec=ChangedContent(resources=[GivenResource(type_="servers", committed=3, reserved=5)])))
    shown = quotas.sync("acme", client=client)
    gone = delete.sync_detailed("acme", "alpha", made.metadata.id, client=client)
    print(json.dumps([over.shortages[0].free, changed.to_dict()["spec"], shown.capacity[0].amount, gone.status_code]))
"""


async def run(*command: str, cwd: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def test_a_client_that_is_made_of_the_document_works(world: World, tmp_path: Path) -> None:
    await world.quota("org-acme", "organization", "acme", {"servers": 10})
    (tmp_path / "openapi.json").write_text(json.dumps((await world.call("", "GET", "/openapi.json")).body))
    (tmp_path / "config.yaml").write_text("post_hooks: []\n")
    (tmp_path / "ca.crt").write_bytes(world.replicas[0].certificates.ca_bundle)
    made = ("--path", "openapi.json", "--config", "config.yaml", "--meta", "none", "--output-path", "client")
    await run("-m", "openapi_python_client", "generate", *made, cwd=tmp_path)
    url = f"https://127.0.0.1:{world.replicas[0].server.port}"
    said = await run("-c", CLIENT, url, world.tokens["platform-administrator"], "ca.crt", cwd=tmp_path)
    resources = [{"type": "servers", "amount": 8, "committed": 3, "reserved": 5}]
    spec = {"kind": "server", "id": "1", "resources": resources}
    assert json.loads(said) == [10, spec, 10, 204]


async def test_the_server_does_what_its_document_says(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By requests that are made of the document, right ones and wrong ones. With EXAMPLES, for each operation,
    it makes more, and takes minutes; with another SEED, others."""
    monkeypatch.setattr(rates, "PER_SECOND", 10_000.0)
    await world.quota("org-acme", "organization", "acme", {"clusters": 5, "servers": 10})
    await world.quota("project-alpha", "project", "alpha", {"cpu": 5})
    port = world.replicas[0].server.port
    authority, settings = tmp_path / "ca.crt", tmp_path / "schemathesis.toml"
    authority.write_bytes(world.replicas[0].certificates.ca_bundle)
    settings.write_text(SCHEMATHESIS)
    phases = ("--phases", "fuzzing,stateful") if "EXAMPLES" not in os.environ else ()
    said = await run(
        *("-m", "schemathesis.cli", "--config-file", str(settings)),
        *("run", f"https://127.0.0.1:{port}/openapi.json", "--tls-verify", str(authority)),
        *("--header", f"Authorization: Bearer {world.tokens['platform-administrator']}", "--no-color"),
        *("--max-examples", os.environ.get("EXAMPLES", "5"), "--seed", os.environ.get("SEED", "1")),
        *("--exclude-path", "/api/v1/events"),  # it does not end
        *("--continue-on-failure", "--generation-database", "none", "--request-timeout", "60", *phases),
        cwd=tmp_path,
    )
    print(said)


async def test_a_right_that_is_taken_away_ends_within_seconds(world: World) -> None:
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/org-acme/rolebindings"
    assert (await world.call("user", "GET", ORGANIZATION)).status == 200
    await world.kube("DELETE", f"{path}/user")
    try:

        async def taken() -> None:
            assert (await world.call("user", "GET", ORGANIZATION)).status == 404

        await until(taken, 30)
    finally:
        await manifests.apply(world.server, [bound("user", "user", "org-acme")])


async def test_an_emptied_secret_gets_another_certificate_which_is_served_at_once(world: World) -> None:
    """As docs/how-to/http-api.md says for a key that leaked. The program may not create the Secret, only change it."""
    before = [replica.certificates.ca_bundle for replica in world.replicas]
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{serving_api.SECRET_NAME}"
    await world.kube("PATCH", path, {"data": None})

    async def renewed() -> None:
        after = [replica.certificates.ca_bundle for replica in world.replicas]
        assert after[0] == after[1] != before[0]

    await until(renewed, 30)
    world.tls = ssl.create_default_context(cadata=world.replicas[0].certificates.ca_bundle.decode())
    for replica in range(2):
        found = await world.call("reader", "GET", ORGANIZATION, replica=replica, Connection="close")
        assert found.status == 200
