"""What a seed answers about objects in namespaces, from the review to the reservation."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest

from common.api.labels import FITS_ANNOTATION
from common.api.types import Condition, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Unavailable
from common.quota import account as accounts
from common.quota.object_names import GroupResource
from common.server.http_parser import Request
from seed.admission.admitter import Admission
from seed.kinds.namespaces.admission import NamespacedAdmission
from seed.kinds.namespaces.cache import Selection
from seed.kinds.namespaces.webhook import MAX_QUOTES, NamespacedObjectWebhook
from seed.ledger.encoding import parse_reservation, reservation_text
from seed.model.quota import Quota
from seed.model.reserved_object import parse_object
from seed.model.selected_namespaces import picks
from seed.model.source_key import SourceKey
from seed.registration.probe import ANNOTATION
from seed.webhooks import fits
from seed.webhooks.endpoint import Endpoint
from tests.unit.fake_api_server import eventually
from tests.unit.seed_world import CLUSTER_UID, PROJECT, SeedWorld, nanos, seed_world

ANN = {"subject": {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}}
SHOP = {"subject": {"kind": "namespaces", "selector": {"matchLabels": {"app": "shop"}}}}
CLUSTER = f"{PROJECT}/c1"


class Namespaces:
    """Of the user cluster. `seen`: the labels that the cache has; `there`: those that a read finds."""

    def __init__(self, world: SeedWorld) -> None:
        self._world = world
        self.there: dict[str, dict[str, str]] = {}
        self.seen: dict[str, dict[str, str]] = {}
        self.reads = 0
        self.error: ApiError | None = None
        self.silent = False
        self.projects: dict[str, str] = {}

    def label(self, name: str, **labels: str) -> None:
        """Long ago."""
        self.there[name] = self.seen[name] = labels

    def select(self, cluster: str, namespace: str) -> Selection:
        labels = self.seen.get(namespace)
        quotas = self._quotas(cluster, namespace, labels or {})
        return Selection(quotas, labels is not None, project=self.projects.get(namespace, ""))

    def connection(self, _cluster: str) -> Cluster:
        raise Unavailable(0, "Unavailable", "not connected")

    async def read(self, cluster: str, namespace: str) -> Selection:
        self.reads += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return Selection(self._quotas(cluster, namespace, self.there.get(namespace, {})), known=True)

    def _quotas(self, cluster: str, namespace: str, labels: Mapping[str, str]) -> list[Quota]:
        named = {**labels, "kubernetes.io/metadata.name": namespace}
        world = self._world
        exempt = world.cluster_cache.exempt(cluster)
        found = ((quota, world.cluster_cache.selector(quota, cluster)) for quota in world.quota_cache.object_quotas())
        return [quota for quota, selector in found if selector is not None and picks(selector, named, exempt)]


class Caller:
    """The user cluster's API server."""

    def __init__(self, world: SeedWorld) -> None:
        self.world = world
        self.namespaces = Namespaces(world)
        self.stale: str | None = None
        admission = Admission(world.quota_cache, world.registry, lambda: self.stale)
        webhook = NamespacedObjectWebhook(world.cluster_cache, NamespacedAdmission(admission, self.namespaces))
        self.kinds: list[str] = []
        self.endpoint = Endpoint(webhook, lambda kind, *_: self.kinds.append(kind))

    async def post(self, review: dict, *, timeout: str = "30s") -> tuple[int, bytes]:
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": review}).encode()
        asked = Request("POST", f"/namespaces/{CLUSTER_UID}/t", f"timeout={timeout}", body, close=False)
        answer = await self.endpoint.handle(CLUSTER_UID, asked)
        return answer.status, answer.body

    async def ask(self, new: dict, old: dict | None = None, *, timeout: str = "30s", **request: object) -> dict:
        status, body = await self.post(review(new, old, **request), timeout=timeout)
        assert status == 200, body
        return json.loads(body)["response"]

    async def refused(self, new: dict, old: dict | None = None, **request: object) -> tuple[int, str]:
        answer = await self.ask(new, old, **request)  # type: ignore[arg-type]
        assert not answer["allowed"]
        return answer["status"]["code"], answer["status"]["message"].rpartition("; decision ")[0]

    async def freed(self, quota: str, uid: str) -> None:
        """Of what was reserved for the object."""
        handle = self.world.registry.get(self.world.quota_cache.quota(quota))
        keys = [key for key in self.world.account(quota).reservations if key[1] == uid]
        await handle.writer.change(lambda account: (accounts.without(account, keys), None))

    def use(self, quota: str) -> dict[str, int]:
        return {name: amount for name, amount in accounts.use(self.world.account(quota)).items() if amount}


def review(
    new: dict | None,
    old: dict | None = None,
    *,
    resource: str = "pods",
    group: str = "",
    sub: str = "",
    operation: str = "",
    dry_run: bool = False,
) -> dict:
    return {
        "uid": "request-1",
        "operation": operation or ("CREATE" if old is None else "UPDATE"),
        "resource": {"group": group, "version": "v1", "resource": resource},
        "subResource": sub,
        "namespace": "web",
        "userInfo": {"username": "ann"},
        "object": new,
        "oldObject": old,
        "dryRun": dry_run,
    }


def named(name: str = "web-1", *, version: str = "", namespace: str = "web", **metadata: object) -> dict:
    found = {"name": name, "namespace": namespace, "uid": f"uid-of-{name.replace(':', '-')}", **metadata}
    return found | ({"resourceVersion": version} if version else {})


def pod(name: str = "web-1", *, cpu: str | None = "2", version: str = "", **spec: object) -> dict:
    requests = {"requests": {"cpu": cpu}} if cpu is not None else {}
    containers = [{"name": "web", "image": "nginx", "resources": requests}]
    return {"metadata": named(name, version=version), "spec": {"containers": containers, **spec}}


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with seed_world() as world:
        found = Caller(world)
        found.namespaces.label("web", owner="ann", app="shop")
        clusters = world.cluster_cache.user_clusters.store
        taking_part = {
            "metadata": {"name": "c1", "namespace": PROJECT, "uid": CLUSTER_UID},
            "spec": {"project": PROJECT, "namespaceQuotas": "Enabled", "kubeconfigSecretRef": {"name": "c1"}},
        }
        clusters._set(CLUSTER, msgspec.convert(taking_part, UserCluster))
        yield found


async def test_each_quota_of_the_namespace_reserves_its_part_of_a_pod(caller: Caller) -> None:
    await caller.world.quota("ann", limits="requests.cpu=8", granted="requests.cpu=8", **ANN)
    await caller.world.quota("shop", limits="pods=3", granted="pods=3", **SHOP)
    await caller.world.quota("project-alpha", limits="cpu=0", granted="")
    assert (await caller.ask(pod()))["allowed"]
    assert caller.use("ann") == nanos("requests.cpu=2")
    assert caller.use("shop") == nanos("pods=1")
    ((source, uid), kept), *others = caller.world.account("ann").reservations.items()
    assert not others
    assert (source, uid) == ("namespaces:ann-uid:alpha/c1", "uid-of-web-1")
    assert (kept.object, kept.generation) == ("pods:web/web-1", 0)
    assert caller.kinds == ["Pod"]


async def test_one_quota_that_is_full_refuses_and_the_other_keeps_nothing(caller: Caller) -> None:
    await caller.world.quota("ann", limits="requests.cpu=8", granted="requests.cpu=8", **ANN)
    await caller.world.quota("shop", limits="pods=3", granted="pods=3", used="pods=3", **SHOP)
    code, message = await caller.refused(pod())
    assert (code, message) == (
        403,
        "exceeded quota: shop, requested: pods=1, used: pods=3, limited: pods=3; short by pods=1; "
        "retrying helps only after something is deleted",
    )
    assert caller.use("ann") == {}


async def overlapping(caller: Caller, pods: str = "pods=3") -> None:
    """Two quotas select the namespace."""
    await caller.world.quota("ann", limits="requests.cpu=8", granted="requests.cpu=8", **ANN)
    await caller.world.quota("shop", limits=pods, granted=pods, **SHOP)


async def first_given_up(caller: Caller) -> tuple[asyncio.Task[dict], asyncio.Task[dict]]:
    """Two calls about one creation, the first of them just given up."""
    first = asyncio.create_task(caller.ask(pod()))
    await asyncio.sleep(0)
    second = asyncio.create_task(caller.ask(pod()))
    await asyncio.sleep(0)
    first.cancel()
    return first, second


async def test_what_several_webhooks_ask_about_one_creation_is_decided_once(caller: Caller) -> None:
    """As API servers ask where selectors overlap. If only the second call were admitted, nothing would be created, and
    what it reserved would keep others out for the in-flight window."""
    await overlapping(caller, "pods=2")
    assert (await caller.ask(pod("web-1")))["allowed"]
    assert (await caller.ask(pod("web-2")))["allowed"]
    first = await caller.ask(pod("web-3"))
    assert not first["allowed"]
    await caller.freed("shop", "uid-of-web-1")
    assert await caller.ask(pod("web-3")) == first
    assert caller.use("shop") == nanos("pods=1")
    assert caller.kinds == ["Pod"] * 3, "it is counted once"
    assert (await caller.ask(pod("web-3", cpu="1")))["allowed"], "it is not what was refused"
    await caller.freed("shop", "uid-of-web-2")
    assert (await caller.ask(pod("web-4")))["allowed"]
    assert (await caller.ask(pod("web-4")))["allowed"]
    assert caller.use("shop") == nanos("pods=2")


async def test_calls_about_one_creation_at_once_get_one_answer(caller: Caller) -> None:
    await overlapping(caller)
    first, second = await asyncio.gather(caller.ask(pod()), caller.ask(pod()))
    assert first["allowed"] and second["allowed"]
    (kept,) = caller.world.account("shop").reservations.values()
    assert kept.claims == 1


async def test_a_call_decides_by_itself_if_the_one_before_it_was_given_up(caller: Caller) -> None:
    await overlapping(caller)
    _, second = await first_given_up(caller)
    assert (await second)["allowed"]
    assert caller.use("shop") == nanos("pods=1")


async def test_a_quota_that_selects_the_namespace_by_now_is_asked_too(caller: Caller) -> None:
    """Its webhook may be the second that is called. The first answer says nothing of it."""
    await overlapping(caller)
    assert (await caller.ask(pod()))["allowed"]
    web = {"subject": {"kind": "namespaces", "selector": {"matchLabels": {"kubernetes.io/metadata.name": "web"}}}}
    await caller.world.quota("web", limits="pods=1", granted="pods=1", **web)
    assert (await caller.ask(pod()))["allowed"]
    assert caller.use("web") == nanos("pods=1")
    assert (await caller.refused(pod("web-2")))[0] == 403


@pytest.mark.parametrize("rounds", range(8))
async def test_a_call_that_waits_for_another_and_is_given_up_after_it_ends(caller: Caller, rounds: int) -> None:
    """However far the news that the other was given up has come."""
    await overlapping(caller)
    first, second = await first_given_up(caller)
    for _ in range(rounds):
        await asyncio.sleep(0)
    second.cancel()
    ended = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(each) for each in ended] == [asyncio.CancelledError] * 2


async def test_what_is_kept_of_a_creation_does_not_grow_with_what_a_tenant_writes(caller: Caller) -> None:
    await caller.world.quota("ann", limits="requests.cpu=80", granted="requests.cpu=80", **ANN)
    await caller.world.quota("shop", limits="pods=300", granted="pods=300", **SHOP)
    assert (await caller.ask(pod()))["allowed"]
    tracemalloc.start()
    try:
        for number in range(40):
            large = pod(f"large-{number}", cpu="1")
            large["metadata"]["annotations"] = {"note": str(number) * 200_000}
            assert (await caller.ask(large))["allowed"]
            del large
        assert tracemalloc.get_traced_memory()[0] < 4_000_000, "40 of 200 kB at least are not kept"
    finally:
        tracemalloc.stop()


async def test_a_pod_that_does_not_say_what_is_limited_is_refused_in_cores_words(caller: Caller) -> None:
    await caller.world.quota("ann", limits="requests.cpu=8,pods=4", granted="requests.cpu=8,pods=4", **ANN)
    assert await caller.refused(pod(cpu=None)) == (403, "failed quota: ann: must specify requests.cpu for: web")
    assert caller.use("ann") == {}


async def test_where_the_quota_only_warns_it_says_what_a_pod_does_not_say(caller: Caller) -> None:
    await caller.world.quota("ann", limits="requests.cpu=8", granted="requests.cpu=8", enforcement="warn", **ANN)
    answer = await caller.ask(pod(cpu=None))
    assert answer["allowed"]
    assert answer["warnings"] == [
        "seedquota/ann: must specify requests.cpu for: web; allowed because enforcement is warn"
    ]


async def test_a_dry_run_decides_and_writes_nothing(caller: Caller) -> None:
    await caller.world.quota("ann", limits="pods=1", granted="pods=1", **ANN)
    assert (await caller.ask(pod(), dry_run=True))["allowed"]
    assert caller.use("ann") == {}
    assert (await caller.ask(pod()))["allowed"]
    assert (await caller.refused(pod("web-2"), dry_run=True))[0] == 403


UPDATES = {
    "a pod is resized": (
        "requests.cpu=8",
        review(pod(cpu="3", version="41"), pod(cpu="2", version="41"), sub="resize"),
        "requests.cpu=1",
    ),
    "a Service becomes a load balancer": (
        "services.loadbalancers=1,services.nodeports=9",
        review(
            {"metadata": named(version="41"), "spec": {"type": "LoadBalancer", "ports": [{"port": 1}, {"port": 2}]}},
            {"metadata": named(version="41"), "spec": {"type": "ClusterIP", "ports": [{"port": 1}, {"port": 2}]}},
            resource="services",
        ),
        "services.loadbalancers=1,services.nodeports=2",
    ),
    "a claim is expanded": (
        "requests.storage=9Gi",
        review(
            {"metadata": named(version="41"), "spec": {"resources": {"requests": {"storage": "5Gi"}}}},
            {"metadata": named(version="41"), "spec": {"resources": {"requests": {"storage": "2Gi"}}}},
            resource="persistentvolumeclaims",
        ),
        "requests.storage=3Gi",
    ),
}


@pytest.mark.parametrize("what", UPDATES)
async def test_an_update_reserves_what_it_adds_until_a_later_version_is_seen(caller: Caller, what: str) -> None:
    limits, asked, added = UPDATES[what]
    await caller.world.quota("ann", limits=limits, granted=limits, **ANN)
    status, body = await caller.post(asked)
    assert status == 200 and json.loads(body)["response"]["allowed"], body
    assert caller.use("ann") == nanos(added)
    (kept,) = caller.world.account("ann").reservations.values()
    assert kept.generation == 42


async def test_an_update_into_a_scope_reserves_all_that_the_pod_uses(caller: Caller) -> None:
    await caller.world.quota("ann", limits="requests.cpu=8", granted="requests.cpu=8", scopes=["Terminating"], **ANN)
    old, new = pod(version="41"), pod(version="41", activeDeadlineSeconds=60)
    assert (await caller.ask(old | {"metadata": named()}))["allowed"]
    assert caller.use("ann") == {}
    assert (await caller.ask(new, old))["allowed"]
    assert caller.use("ann") == nanos("requests.cpu=2")


@pytest.mark.parametrize(
    "asked",
    [
        review(pod(cpu="99", version="41"), pod(version="41")),
        review(pod(cpu="99", version="41"), pod(version="41"), sub="status"),
        review(pod(cpu="99", version="41"), pod(version="41"), sub="ephemeralcontainers"),
        review(None, pod(version="41"), operation="DELETE"),
        review({"metadata": {}}, operation="CONNECT", sub="exec"),
        review({"metadata": named()}, resource="events"),
        review({"metadata": {"name": "node"}}, resource="x" * 300),
    ],
)
async def test_what_adds_nothing_is_allowed_whatever_is_known_of_its_namespace(caller: Caller, asked: dict) -> None:
    await caller.world.quota("ann", limits="requests.cpu=1", granted="requests.cpu=1", **ANN)
    caller.namespaces.seen.clear()
    caller.namespaces.error = Unavailable(0, "Unavailable", "no answer")
    status, body = await caller.post(asked)
    assert (status, json.loads(body)["response"]["allowed"]) == (200, True)
    assert not caller.namespaces.reads


async def test_a_namespace_that_was_labelled_a_moment_ago_is_read(caller: Caller) -> None:
    await caller.world.quota("ann", limits="pods=1", granted="pods=1", **ANN)
    caller.namespaces.label("web")
    caller.namespaces.there["web"] = {"owner": "ann"}
    assert (await caller.ask(pod()))["allowed"]
    assert caller.use("ann") == nanos("pods=1")
    assert (await caller.refused(pod("web-2")))[0] == 403


async def test_a_namespace_that_the_cache_does_not_have_is_read(caller: Caller) -> None:
    await caller.world.quota("ann", limits="pods=1", granted="pods=1", **ANN)
    del caller.namespaces.seen["web"]
    assert (await caller.ask(pod()))["allowed"]
    assert (caller.namespaces.reads, caller.use("ann")) == (1, nanos("pods=1"))


async def test_a_namespace_that_is_known_is_not_read(caller: Caller) -> None:
    await caller.world.quota("ann", limits="pods=1", granted="pods=1", **ANN)
    assert (await caller.ask(pod()))["allowed"]
    assert not caller.namespaces.reads


async def test_nothing_is_admitted_while_the_labels_of_its_namespace_cannot_be_known(caller: Caller) -> None:
    await caller.world.quota("ann", limits="pods=1", granted="pods=1", **ANN)
    del caller.namespaces.seen["web"]
    caller.namespaces.error = Unavailable(0, "Unavailable", "secret of the URL")
    assert await caller.refused(pod()) == (
        503,
        "quota of the namespace cannot decide: the labels of namespace web cannot be read: Unavailable",
    )
    caller.namespaces.silent = True
    code, message = await caller.refused(pod(), timeout="1s")
    assert (code, message.partition("decide: ")[2]) == (503, "the labels of namespace web could not be read in time")


async def test_a_replica_that_may_not_know_the_quotas_admits_nothing(caller: Caller) -> None:
    caller.stale = "this replica has had no answer from the API server for 31 s"
    assert (await caller.refused(pod()))[0] == 503


async def test_kinds_of_which_only_the_number_counts_may_be_large(caller: Caller) -> None:
    """Also names as those of Roles are."""
    limits = "count/roles.rbac.authorization.k8s.io=1,configmaps=1"
    await caller.world.quota("ann", limits=limits, granted=limits, **ANN)
    dashboard = {"metadata": named("board"), "data": {"board": '"' * (2 * MAX_QUOTES)}}
    assert (await caller.ask(dashboard, resource="configmaps"))["allowed"]
    role = {"metadata": named("system:leader"), "rules": []}
    group = "rbac.authorization.k8s.io"
    assert (await caller.ask(role, resource="roles", group=group))["allowed"]
    assert caller.use("ann") == nanos(limits)
    assert caller.kinds == ["Object", "Object"]


FIELD = "sum.databases.v1.example.com/spec.replicas"
DATABASES = {"resource": "databases", "group": "example.com"}


def database(replicas: object, version: str = "") -> dict:
    return {"metadata": named("db", version=version), "spec": {"replicas": replicas, "more": ['"' * (2 * MAX_QUOTES)]}}


async def test_each_quota_reads_the_fields_that_it_counts(caller: Caller) -> None:
    await caller.world.quota("ann", limits=f"{FIELD}=5", granted=f"{FIELD}=5", **ANN)
    one = "count/databases.example.com=1"
    await caller.world.quota("shop", limits=one, granted=one, **SHOP)
    assert (await caller.ask(database(3), **DATABASES))["allowed"]
    assert (caller.use("ann"), caller.use("shop")) == (nanos(f"{FIELD}=3"), nanos(one))
    code, text = await caller.refused(database(6, "9"), database(3, "9"), **DATABASES)
    assert (code, text.partition(", used")[0]) == (403, f"exceeded quota: ann, requested: {FIELD}=3")
    code, text = await caller.refused(database("many", "9"), database(3, "9"), **DATABASES)
    assert (code, text) == (
        403,
        "failed quota: ann: must specify spec.replicas as a number or quantity that is not negative for: db",
    )
    assert (await caller.ask(database(1, "9"), database(3, "9"), **DATABASES))["allowed"]


async def test_a_scale_is_not_decided_while_its_definition_cannot_be_read(caller: Caller) -> None:
    await caller.world.quota("ann", limits=f"{FIELD}=5", granted=f"{FIELD}=5", **ANN)
    new, old = database(4, "9"), database(3, "9")
    code, text = await caller.refused(new, old, sub="scale", **DATABASES)
    assert (code, "CustomResourceDefinition databases.example.com cannot be read" in text) == (503, True)
    deployments = {"resource": "deployments", "group": "apps"}
    named_too = "sum.deployments.v1.apps/spec.replicas"
    await caller.world.quota("shop", limits=f"{named_too}=5", granted=f"{named_too}=5", **SHOP)
    assert (await caller.ask(new, old, sub="scale", **deployments))["allowed"]
    assert caller.use("shop") == nanos(f"{named_too}=1")


@pytest.mark.parametrize(
    "asked",
    [
        review({"metadata": named("a/b", uid="u")}),
        review({"metadata": named(namespace="")}),
        review({"metadata": named(uid="")}),
        review({"metadata": named(annotations={"a": '"' * MAX_QUOTES})}),
        review({"metadata": "none"}),
    ],
)
async def test_what_no_api_server_sends_is_not_answered(caller: Caller, asked: dict) -> None:
    await caller.world.quota("ann", limits="pods=1", granted="pods=1", **ANN)
    assert (await caller.post(asked))[0] == 400
    assert caller.use("ann") == {}


ROLES = {"resource": "roles", "group": "rbac.authorization.k8s.io"}


@pytest.mark.parametrize(
    "name",
    ["system:leader", "a b", "a,b", "a=b", "a\\b", "a;b?c#d&e", '"a"', "...", "\u540d", "\U0001f642" * 253],
)
async def test_names_may_have_what_api_servers_take_as_a_part_of_a_path(caller: Caller, name: str) -> None:
    limits = "count/roles.rbac.authorization.k8s.io=1"
    await caller.world.quota("ann", limits=limits, granted=limits, **ANN)
    assert (await caller.ask({"metadata": named(name, uid="u"), "rules": []}, **ROLES))["allowed"]
    (kept,) = caller.world.account("ann").reservations.values()
    kind = "roles.rbac.authorization.k8s.io"
    assert parse_object(kept.object) == (GroupResource("roles", "rbac.authorization.k8s.io"), "web", name)
    assert kept.object == f"{kind}:web/{name}"
    line = reservation_text(kept)
    assert line.isascii() and line.isprintable()
    assert parse_reservation(line) == kept


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%b", "a" * 254, "a\nb", "a\x1b[2J", "a\u202eb", "a\0"])
async def test_names_that_no_path_takes_or_that_mislead_a_reader_are_not_answered(caller: Caller, name: str) -> None:
    limits = "count/roles.rbac.authorization.k8s.io=1"
    await caller.world.quota("ann", limits=limits, granted=limits, **ANN)
    asked = review({"metadata": named(name, uid="u"), "rules": []}, **ROLES)
    assert (await caller.post(asked))[0] == 400
    assert caller.use("ann") == {}


async def test_objects_nested_without_end_are_not_answered(caller: Caller) -> None:
    deep = b'{"request":{"uid":"u","operation":"CREATE","resource":{"resource":"pods"},"object":{"metadata":{},"spec":'
    body = deep + b'{"affinity":' + b"[" * 200_000 + b"]" * 200_000 + b"}}}}"
    asked = Request("POST", f"/namespaces/{CLUSTER_UID}/t", "timeout=3s", body, close=False)
    assert (await caller.endpoint.handle(CLUSTER_UID, asked)).status == 400


async def test_a_canary_is_refused(caller: Caller) -> None:
    canary = {"metadata": {"annotations": {ANNOTATION: "true"}}, "spec": {}}
    answer = await caller.ask(canary, resource="selfsubjectrulesreviews", group="authorization.k8s.io", dry_run=True)
    assert answer["status"]["details"]["causes"][0]["reason"] == "CanaryDenied"


@pytest.mark.parametrize("status", ["True", "False", ""])
async def test_a_refusal_names_the_copy_of_the_namespace_where_the_leader_says_that_there_are_any(
    caller: Caller, status: str
) -> None:
    clusters = caller.world.cluster_cache.user_clusters.store
    cluster = clusters.get(CLUSTER)
    assert cluster is not None
    said = [Condition(type="LocalQuotasWritten", status=status)] if status else []
    clusters._set(
        CLUSTER, msgspec.structs.replace(cluster, status=msgspec.structs.replace(cluster.status, conditions=said))
    )
    await caller.world.quota("ann", limits="pods=0", granted="pods=0", **ANN)
    answer = await caller.ask(pod())
    assert ("; see: kubectl get lsq -n web; decision " in answer["status"]["message"]) is (status == "True")


@pytest.mark.parametrize(
    ("what", "asked", "name", "free"),
    [
        ("pods", pod(), "requests.cpu", "5"),
        ("configmaps", {"metadata": named(), "data": {"a": "b"}}, "count/configmaps", "3"),
    ],
)
async def test_who_asks_what_fits_is_told_by_each_quota_of_the_namespace(
    caller: Caller, what: str, asked: dict, name: str, free: str
) -> None:
    await caller.world.quota("ann", limits=f"{name}={free}", granted=f"{name}={free}", **ANN)
    await caller.world.quota("shop", limits=f"{name}=100", granted=f"{name}=100", **SHOP)
    many = {**asked, "metadata": {**asked["metadata"], "annotations": {FITS_ANNOTATION: "4", "other": "x"}}}
    answer = await caller.ask(many, resource=what, dry_run=True)
    (cause,) = answer["status"]["details"]["causes"]
    found = fits.read(cause["message"])
    assert (found.asked, found.code, found.reason) == (4, 403, "QuotaExceeded")
    ann, shop = sorted(found.quotas, key=lambda each: each.name)
    assert (shop.name, shop.fitting) == ("shop", 4)
    assert (ann.fitting, ann.free) == (2 if what == "pods" else 3, {name: free})
    assert not caller.use("ann") and not caller.use("shop")
    assert (await caller.ask(many, resource=what))["allowed"], "it is no dry run"
    assert caller.use("ann") == nanos(f"{name}={2 if what == 'pods' else 1}")


async def counted(caller: Caller, *quotas: str) -> None:
    """What is in the namespaces of the cluster: nothing."""
    for name in quotas:
        handle = caller.world.handle(name)
        source = SourceKey.of_namespaces(handle.key.uid, CLUSTER).text
        await handle.writer.change(lambda account, source=source: (accounts.count(account, 1, source, {}, {}), None))


async def limited_by_both(caller: Caller, pods: str, of_all: str) -> None:
    limits = "requests.cpu=8"
    await caller.world.quota("project-alpha", limits=f"cpu=1,{pods}", granted=f"cpu=1,{pods}")
    await caller.world.quota("org-acme", kind="organization", limits=f"{of_all},{limits}", granted=f"{of_all},{limits}")


async def test_a_pod_counts_in_the_quotas_of_its_project_and_of_the_organization(caller: Caller) -> None:
    await limited_by_both(caller, "pods=3", "pods=5")
    await counted(caller, "project-alpha", "org-acme")
    assert (await caller.ask(pod()))["allowed"]
    assert caller.use("project-alpha") == nanos("pods=1"), "cpu is that of Machines"
    assert caller.use("org-acme") == nanos("pods=1,requests.cpu=2")


@pytest.mark.parametrize(
    ("pods", "of_all", "refuses"), [("pods=0", "pods=5", "project-alpha"), ("pods=3", "pods=0", "org-acme")]
)
async def test_one_of_both_refuses_by_its_name_and_the_other_keeps_nothing(
    caller: Caller, pods: str, of_all: str, refuses: str
) -> None:
    await limited_by_both(caller, pods, of_all)
    await counted(caller, "project-alpha", "org-acme")
    code, message = await caller.refused(pod())
    assert code == 403 and message.startswith(
        f"exceeded quota: {refuses}, requested: pods=1, used: pods=0, limited: pods=0"
    )
    assert caller.use("project-alpha") == caller.use("org-acme") == {}


@pytest.mark.parametrize(
    ("project", "of_all", "ann"), [("beta", "project/beta", "project/beta"), ("", "", "namespace/web")]
)
async def test_what_is_reserved_says_whose_it_is_where_a_quota_counts_several(
    caller: Caller, project: str, of_all: str, ann: str
) -> None:
    await caller.world.quota("ann", limits="pods=3", granted="pods=3", **ANN)
    await limited_by_both(caller, "pods=3", "pods=5")
    await counted(caller, "project-alpha", "org-acme", "ann")
    caller.namespaces.label("web", owner="ann")
    caller.namespaces.projects["web"] = project
    assert (await caller.ask(pod()))["allowed"]
    kept = {
        name: [each.tenant for each in caller.world.account(name).reservations.values()]
        for name in ("project-alpha", "org-acme", "ann")
    }
    assert kept == {"project-alpha": [""], "org-acme": [of_all], "ann": [ann]}


async def test_nothing_is_admitted_before_what_is_there_was_counted(caller: Caller) -> None:
    """The quota was there, open, and limited Machines alone: a cluster full of pods looks empty."""
    await limited_by_both(caller, "pods=3", "pods=5")
    await counted(caller, "org-acme")
    code, message = await caller.refused(pod())
    assert (code, message.partition(";")[0]) == (
        503,
        "quota project-alpha cannot decide: what is in this cluster is being counted",
    )
    await eventually(lambda: caller.use("project-alpha") == caller.use("org-acme") == {})
    await counted(caller, "project-alpha")
    assert (await caller.ask(pod("web-2")))["allowed"]


async def test_nothing_is_admitted_in_a_cluster_that_a_quota_of_namespaces_has_not_counted_yet(caller: Caller) -> None:
    """It takes part since a moment ago, and may be full of pods."""
    await caller.world.quota("ann", limits="pods=3", granted="pods=3", **ANN)
    handle = caller.world.handle("ann")
    source = SourceKey.of_namespaces(handle.key.uid, CLUSTER).text
    await handle.writer.change(lambda account: (accounts.forget_source(account, 1, source), None))
    code, message = await caller.refused(pod())
    assert (code, message) == (
        503,
        "quota ann cannot decide: what is in this cluster is being counted; if that does not end, the quota's condition"
        " UsageCurrent says why",
    )
    await eventually(lambda: caller.use("ann") == {})
    await counted(caller, "ann")
    assert (await caller.ask(pod("web-2")))["allowed"]


def of_namespace(labels: dict[str, str], old: dict[str, str] | None = None) -> dict:
    """A review of a write of its labels."""

    def body(found: dict[str, str]) -> dict:
        return {"metadata": {"name": "web", "uid": "web-uid", "labels": found}}

    return review(body(labels), body(old) if old is not None else None, resource="namespaces")


async def test_whoever_is_asked_about_changes_the_project_of_a_namespace_and_may_not(caller: Caller) -> None:
    project = {"seedquota.io/project": "alpha"}
    for asked in (of_namespace(project), of_namespace(project, {}), of_namespace({}, project)):
        status, body = await caller.post(asked)
        answer = json.loads(body)["response"]
        assert (status, answer["allowed"], answer["status"]["code"]) == (200, False, 403)
        assert "label seedquota.io/project says which project pays" in answer["status"]["message"]
    for asked in (of_namespace({}), of_namespace({"tier": "web", **project}, project)):
        status, body = await caller.post(asked)
        assert json.loads(body)["response"]["allowed"], "API servers before 1.28 ask about every write"
