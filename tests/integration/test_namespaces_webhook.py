"""Quotas of kind namespaces at a real API server: its webhooks, its reviews over TLS, and what is reserved."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from common.api.types import SeedCopy
from common.kube.client.api_client import Cluster
from common.kube.client.meta import Object
from common.kube.client.resource import WatchEvent
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change
from common.quota import account as accounts
from common.quota.account import Account
from common.quota.quantity import UNIT
from common.server.http_parser import Request, Response
from common.server.http_server import HttpServer
from devcluster import certificates
from devcluster.controlplane import ApiServer, ControlPlane
from devcluster.patience import patient_timeout
from seed.admission.decision_log import Decisions
from seed.kinds.namespaces import configuration as namespaces
from seed.kinds.namespaces.admission import NamespacedAdmission
from seed.kinds.namespaces.cache import NamespaceCache
from seed.kinds.namespaces.configuration import Limits
from seed.kinds.namespaces.enforcement import NamespacedWebhook
from seed.kinds.namespaces.webhook import NamespacedObjectWebhook
from seed.ledger import own_block
from seed.model.source_key import OWN_API_SERVER, SourceKey
from seed.notifications.refusals import Refusals
from seed.registration import probe
from seed.registration.configuration import WEBHOOK_CONFIGURATIONS, WebhookConfiguration, WebhookServer
from seed.registration.probe import is_canary
from seed.webhooks.endpoint import Endpoint
from seed.webhooks.review import MAX_BODY, RawReview
from seed.webhooks.router import route
from tests.memory_store import MemoryStore
from tests.running import running
from tests.unit.fake_api_server import eventually, within
from tests.unit.seed_world import SeedWorld, nanos, seed_world

pytestmark = pytest.mark.integration

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
BREAK_GLASS = {"Impersonate-User": "ann", "Impersonate-Group": "seedquota:break-glass"}
_numbers = count()


class Site:
    """The seed's own API server with the webhook of a replica that leads; the master's part is played by the test."""

    def __init__(self, world: SeedWorld, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        self.world = world
        self.cluster = cluster
        self.session = session
        self.namespaces: NamespaceCache
        self.asked: Counter[str] = Counter()  # reviews, by resource and subresource
        self.refusals: Refusals
        self.worlds = [world]  # of each replica
        self.handlers: list[Handler] = []  # ... which are called in turn

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        content: str = JSON,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> tuple[int, Any]:
        data = None if body is None else msgspec.json.encode(body)
        sent = {"Content-Type": content, **(headers or {})}
        async with self.session.request(method, path, data=data, headers=sent, params=query) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def must(self, method: str, path: str, body: object = None, content: str = JSON, **query: str) -> Any:
        status, found = await self.send(method, path, body, content, **query)
        assert status < 300, found
        return found

    async def namespace(self, **labels: str) -> str:
        name = f"n{next(_numbers)}"
        await self.must("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        await self.must("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        return name

    async def pod(self, namespace: str, cpu: str | None = "1", name: str = "", **query: str) -> tuple[int, str]:
        status, found = await self.send("POST", path(namespace, "pods"), pod(cpu, name), **query)
        return status, found.get("message", "")

    async def pods(self, *names: str) -> int:
        found = [await self.must("GET", path(name, "pods")) for name in names]
        return sum(len(listed["items"]) for listed in found)

    async def quota(self, limits: str, **selector: str) -> str:
        """One that is enforced, where nothing that it limits was before."""
        name = f"q{next(_numbers)}"
        subject = {"kind": "namespaces", "selector": {"matchLabels": selector}}
        for world in self.worlds:
            handle = await world.quota(name, limits=limits, granted=limits, subject=subject)
            source = SourceKey.of_namespaces(handle.key.uid, OWN_API_SERVER).text
            await handle.writer.change(
                lambda account, source=source: (accounts.count(account, 1, source, {}, {}), None)
            )
        await self.enforced(name)
        return name

    async def enforced(self, name: str) -> None:
        await eventually(lambda: not self.unenforced(name), 60)

    def unenforced(self, name: str) -> Sequence[str]:
        quota = self.world.quota_cache.quota(name)
        assert quota is not None
        return [SourceKey(key).shown for key in self.world.cluster_cache.unenforced(quota)]

    def use(self, name: str) -> dict[str, int]:
        return accounts.use(self.world.account(name))


def path(namespace: str, plural: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def pod(cpu: str | None = "1", name: str = "") -> dict[str, Any]:
    resources = {} if cpu is None else {"requests": {"cpu": cpu}}
    named = {"name": name} if name else {"generateName": "web-"}
    return {"metadata": named, "spec": {"containers": [{"name": "web", "image": "nginx", "resources": resources}]}}


@pytest_asyncio.fixture(scope="module")
async def server(control_plane: ControlPlane) -> AsyncIterator[ApiServer]:
    await control_plane.start(["namespaces-webhook"], also_served=["apps/v1", "batch/v1"])
    server = control_plane.cluster("namespaces-webhook")
    yield server
    await server.kill()


@pytest_asyncio.fixture
async def site(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(probe, "TAKES_UP", 0.3)
    monkeypatch.setattr(probe, "SOON", 0.2)
    monkeypatch.setattr(own_block, "BEGINS", 1_000_000)  # no leader counts here what is named late
    made = certificates.serving("webhook")
    (tmp_path / "tls.crt").write_text(made.certificate)
    (tmp_path / "tls.key").write_text(made.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    cluster = await Cluster.from_kubeconfig(server.kubeconfig(), name="seed")
    async with seed_world() as world, server.session() as session:
        taking_part = msgspec.convert(
            {"metadata": {"name": "seed"}, "spec": {"copyOf": "u", "namespaceQuotas": "Enabled"}}, SeedCopy
        )
        world.quota_cache.seed.store._set("seed", taking_part)
        world.quota_cache._seed_changed(Change(None, taking_part))
        found = Site(world, cluster, session)
        cache = found.namespaces = NamespaceCache(cluster, world.quota_cache, world.cluster_cache)
        webhook = NamespacedObjectWebhook(world.cluster_cache, NamespacedAdmission(world.admission, cache))
        refusals = Refusals(cluster, world.quota_cache, world.cluster_cache, world.registry, "replica")
        endpoint = Endpoint(webhook, decisions=Decisions(on_pod=refusals.pod_decided))
        found.refusals = refusals
        found.handlers.append(route({namespaces.KIND: endpoint}, lambda *_: True))
        listening = HttpServer(noting(found), max_body=MAX_BODY)
        await listening.start("127.0.0.1", 0, context)

        def desired(limits: Sequence[Limits]) -> WebhookConfiguration:
            asked = WebhookServer(
                base_url=f"https://127.0.0.1:{listening.port}",
                token=lambda _kind: "token",
                ca_bundle=made.ca.encode(),
                timeout_seconds=10,
                break_glass_group="seedquota:break-glass",
            )
            exempt = world.cluster_cache.exempt(OWN_API_SERVER)
            return namespaces.desired(limits, asked, OWN_API_SERVER, exempt=exempt, shared=True)

        asking = NamespacedWebhook(
            cluster,
            OWN_API_SERVER,
            world.quota_cache,
            world.cluster_cache,
            world.registry,
            desired,
            unserved=frozenset,
            wanted=lambda: True,
            on_enforced=lambda _name: None,
        )
        async with running(*(each.run() for each in (cache, asking, refusals))):
            yield found
        await cluster.delete(WEBHOOK_CONFIGURATIONS, namespaces.NAME)
        await listening.stop(0.1)
    await cluster.close()


Handler = Callable[[Request], Awaitable[Response]]


def noting(site: Site) -> Handler:
    decode = msgspec.json.Decoder(RawReview).decode
    calls = count()

    async def noted(request: Request) -> Response:
        asked = decode(request.body).request
        what = f"{asked.resource.resource}/{asked.sub_resource}".rstrip("/")
        if not is_canary(msgspec.json.decode(asked.object, type=Object).metadata, dry_run=asked.dry_run):
            site.asked[what] += 1
        return await site.handlers[next(calls) % len(site.handlers)](request)

    return noted


@pytest_asyncio.fixture
async def two_replicas(site: Site) -> AsyncIterator[Site]:
    """With another replica, which is called in turn with the first."""
    store = site.world.registry.store
    assert isinstance(store, MemoryStore)
    async with seed_world(store) as world:
        taking_part = site.world.quota_cache.seed.store.get("seed")
        assert taking_part is not None
        world.quota_cache.seed.store._set("seed", taking_part)
        world.quota_cache._seed_changed(Change(None, taking_part))
        cache = NamespaceCache(site.cluster, world.quota_cache, world.cluster_cache)
        webhook = NamespacedObjectWebhook(world.cluster_cache, NamespacedAdmission(world.admission, cache))
        site.worlds.append(world)
        site.handlers.append(route({namespaces.KIND: Endpoint(webhook)}, lambda *_: True))
        async with running(cache.run()):
            yield site


async def test_two_quotas_over_three_namespaces_are_filled_exactly(two_replicas: Site) -> None:
    """Clients in all of them at once; the second namespace is in both quotas. Nobody removes what stays reserved for a
    pod that was not created."""
    site = two_replicas
    ann = await site.quota("pods=20,requests.cpu=19", owner="ann")
    shop = await site.quota("pods=15", app="shop")
    one = await site.namespace(owner="ann")
    both = await site.namespace(owner="ann", app="shop")
    three = await site.namespace(app="shop")

    async def fill(namespace: str) -> None:
        for _ in range(15):
            status, message = await site.pod(namespace)
            assert status == 201 or (status == 403 and "exceeded quota: q" in message), message

    await asyncio.gather(*(fill(namespace) for namespace in (one, both, three) for _ in range(3)))
    # While a pod that another quota refuses was reserved for, one that would have fitted may have been refused.
    async with patient_timeout(60):
        while (await site.pods(one, both), await site.pods(both, three)) != (19, 15):
            for namespace in (one, both, three):
                await fill(namespace)
    assert site.use(ann) == nanos("pods=19,requests.cpu=19")
    assert site.use(shop) == nanos("pods=15")


async def test_a_creation_in_a_namespace_that_several_selectors_pick_is_asked_about_once(site: Site) -> None:
    await site.quota("pods=20", owner="ann")
    await site.quota("pods=20,secrets=20", app="shop")
    await site.quota("secrets=20,services=20", owner="ann", app="shop")
    for labels in ({"owner": "ann"}, {"app": "shop"}, {"owner": "ann", "app": "shop"}):
        namespace = await site.namespace(**labels)
        before = site.asked.copy()
        assert (await site.pod(namespace))[0] == 201
        secret = {"metadata": {"name": "s"}}
        await site.must("POST", path(namespace, "secrets"), secret)
        assert site.asked - before == Counter(pods=1, secrets=int("app" in labels))


async def test_a_namespace_that_was_made_a_moment_ago_is_not_missed(site: Site) -> None:
    quota = await site.quota("pods=5", owner="bob")

    async def create() -> int:
        return (await site.pod(await site.namespace(owner="bob")))[0]

    answers = Counter(await asyncio.gather(*(create() for _ in range(12))))
    assert answers == {201: 5, 403: 7}
    assert site.use(quota) == nanos("pods=5")


@pytest.mark.parametrize("late", [False, True])
async def test_a_namespace_that_was_made_again_under_its_name_is_decided_by_its_new_labels(
    site: Site, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """`late`: the watch has brought that the namespace is being deleted, and nothing more."""
    ann = await site.quota("pods=50", owner="pam")
    bob = await site.quota("pods=50", owner="pat")
    apply = Reflector._apply

    def held(reflector: Reflector[Any], event: WatchEvent[Any]) -> None:
        ending = event.object is not None and event.object.metadata.deletion_timestamp is not None
        if not late or (event.type != "DELETED" and ending):
            apply(reflector, event)

    for made in range(1, 6):
        name = await site.namespace(owner="pam")
        await eventually(lambda name=name: site.namespaces.select(OWN_API_SERVER, name).known)
        with monkeypatch.context() as patched:
            patched.setattr(Reflector, "_apply", held)
            await site.must("DELETE", f"/api/v1/namespaces/{name}")
            if late:
                await eventually(lambda name=name: not site.namespaces.select(OWN_API_SERVER, name).known)
            ended = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}, "spec": {"finalizers": []}}
            await site.must("PUT", f"/api/v1/namespaces/{name}/finalize", ended)
            again = {"metadata": {"name": name, "labels": {"owner": "pat"}}}
            await site.must("POST", "/api/v1/namespaces", again)
            # Its service account is the one from before: nobody has removed what was in the namespace.
            status, message = await site.pod(name)
            assert status == 201, message
        assert (site.use(ann), site.use(bob)) == ({}, nanos(f"pods={made}"))


async def test_what_is_refused_names_the_quota_in_cores_words(site: Site) -> None:
    quota = await site.quota("pods=1,requests.cpu=4", owner="eve")
    namespace = await site.namespace(owner="eve")
    status, message = await site.pod(namespace, cpu=None)
    assert status == 403
    assert f"failed quota: {quota}: must specify requests.cpu for: web; decision " in message
    status, message = await site.pod(namespace, cpu="5")
    assert status == 403
    assert (
        f"exceeded quota: {quota}, requested: requests.cpu=5, used: requests.cpu=0, limited: requests.cpu=4" in message
    )


async def test_names_of_roles_may_have_any_character_that_can_be_read(site: Site) -> None:
    quota = await site.quota("count/roles.rbac.authorization.k8s.io=4", owner="ivy")
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{await site.namespace(owner='ivy')}/roles"
    for name in ("a b", "a,b=c", "a\\b;c?d#e", "\u540d"):
        await site.must("POST", roles, {"metadata": {"name": name}})
    assert site.use(quota) == nanos("count/roles.rbac.authorization.k8s.io=4")
    status, found = await site.send("POST", roles, {"metadata": {"name": "one more"}})
    assert (status, "exceeded quota" in found["message"]) == (403, True)


async def test_dry_runs_are_decided_and_reserve_nothing(site: Site) -> None:
    quota = await site.quota("pods=1", owner="zoe")
    namespace = await site.namespace(owner="zoe")
    assert [(await site.pod(namespace, dryRun="All"))[0] for _ in range(3)] == [201] * 3
    assert not any(site.use(quota).values())
    assert (await site.pod(namespace))[0] == 201
    assert (await site.pod(namespace, dryRun="All"))[0] == 403


async def test_a_pod_that_is_resized_and_a_service_that_changes_its_type_are_asked_about(site: Site) -> None:
    quota = await site.quota("requests.cpu=4,services.loadbalancers=1,services.nodeports=3", owner="max")
    namespace = await site.namespace(owner="max")
    assert (await site.pod(namespace, name="web"))[0] == 201

    async def resize(cpu: str) -> tuple[int, Any]:
        container = {"name": "web", "resources": {"requests": {"cpu": cpu}}}
        body = {"spec": {"containers": [container]}}
        return await site.send("PATCH", f"{path(namespace, 'pods', 'web')}/resize", body, STRATEGIC)

    status, found = await resize("3")
    assert status == 200, found
    assert site.use(quota)["requests.cpu"] == 3 * UNIT
    (kept,) = [kept for kept in site.world.account(quota).reservations.values() if "pods" in kept.object]
    assert kept.generation <= int(found["metadata"]["resourceVersion"]), "a count that has it drops the reservation"
    seen = {found["metadata"]["uid"]: kept.generation}

    def counted(account: Account) -> tuple[Account, None]:
        return accounts.count(account, 1, kept.source, nanos("requests.cpu=3"), seen), None

    await site.world.handle(quota).writer.change(counted)  # an update waits for the count of the one before
    status, found = await resize("5")
    assert (status, "requested: requests.cpu=2, used: requests.cpu=3" in found["message"]) == (403, True)

    service = {"metadata": {"name": "web"}, "spec": {"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]}}
    await site.must("POST", path(namespace, "services"), service)
    await site.must("PATCH", path(namespace, "services", "web"), {"spec": {"type": "LoadBalancer"}}, MERGE)
    assert site.use(quota) == nanos("requests.cpu=3,services.loadbalancers=1,services.nodeports=2")
    again = service | {"metadata": {"name": "more"}, "spec": {**service["spec"], "type": "NodePort"}}
    status, found = await site.send("POST", path(namespace, "services"), again)
    assert (status, "exceeded quota" in found["message"]) == (403, True)


DATABASES = "/apis/example.com/{}/namespaces/{}/databases"
REPLICAS = "sum.databases.v1.example.com/spec.replicas"


async def define_databases(site: Site) -> None:
    """In two versions, of which the older is served, too. `kubectl scale` sets their replicas."""
    await define(site, "databases", {"v1": ".spec.replicas", "v1beta1": ".spec.replicas"})


async def define(site: Site, plural: str, scales: dict[str, str]) -> None:
    """`scales`: by version, the field that a Scale sets; empty: it has none. The first is stored."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [
        {
            "name": name,
            "served": True,
            "storage": name == next(iter(scales)),
            "schema": schema,
            "subresources": {"scale": {"specReplicasPath": path, "statusReplicasPath": ".status.replicas"}}
            if path
            else {},
        }
        for name, path in scales.items()
    ]
    names = {"plural": plural, "singular": plural.removesuffix("s"), "kind": plural.removesuffix("s").capitalize()}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": spec}
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    status, found = await site.send("POST", path, crd | {"metadata": {"name": f"{plural}.example.com"}})
    assert status in (201, 409), found
    async with patient_timeout(30):
        while True:
            async with site.session.get(f"/apis/example.com/v1/namespaces/default/{plural}") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)


async def database(site: Site, namespace: str, name: str, replicas: object, version: str = "v1") -> tuple[int, str]:
    spec = {} if replicas is None else {"replicas": replicas}
    body = {
        "apiVersion": f"example.com/{version}",
        "kind": "Database",
        "metadata": {"name": name, "labels": {"size": "large"}},
        "spec": {"engine": "any", **spec},
    }
    status, found = await site.send("POST", DATABASES.format(version, namespace), body)
    return status, found.get("message", "")


async def test_a_number_in_custom_resources_is_limited_in_each_version_and_when_they_are_scaled(site: Site) -> None:
    await define_databases(site)
    quota = await site.quota(f"{REPLICAS}=10,count/databases.example.com=3", owner="dan")
    namespace = await site.namespace(owner="dan")
    assert (await database(site, namespace, "a", 4))[0] == 201
    assert (await database(site, namespace, "b", 3, "v1beta1"))[0] == 201, "it is sent as v1"
    assert site.use(quota) == nanos(f"{REPLICAS}=7,count/databases.example.com=2")
    for replicas, why in (
        (None, "must specify spec.replicas for: c"),
        (4, f"requested: {REPLICAS}=4, used: {REPLICAS}=7, limited: {REPLICAS}=10"),
    ):
        for version in ("v1", "v1beta1"):
            status, message = await database(site, namespace, "c", replicas, version)
            assert (status, why in message) == (403, True), message

    async def change(body: Any, version: str = "v1", part: str = "") -> tuple[int, str]:
        status, found = await site.send("PATCH", f"{DATABASES.format(version, namespace)}/a{part}", body, MERGE)
        return status, found.get("message", "")

    for part in ("", "/scale"):
        for version in ("v1", "v1beta1"):
            status, message = await change({"spec": {"replicas": 8}}, version, part)
            assert (status, "exceeded quota" in message) == (403, True), message
    assert (await change({"spec": {"replicas": 5}}))[0] == 200
    assert (await change({"spec": {"replicas": 6}}, "v1beta1"))[0] == 200
    assert (await change({"spec": {"replicas": 7}}, part="/scale"))[0] == 200
    assert site.use(quota) == nanos(f"{REPLICAS}=10,count/databases.example.com=2")
    before = site.asked.copy()
    assert (await change({"metadata": {"labels": {"size": "small"}}, "spec": {"engine": "other"}}))[0] == 200
    assert site.asked == before, "what counts stays as it was"
    assert (await change({"spec": {"replicas": None}}))[0] == 403
    assert (await change({"spec": {"replicas": 0}}))[0] == 200


async def test_a_scale_in_another_version_is_limited_by_the_field_that_it_sets(site: Site) -> None:
    """The version that is counted has no scale, and another one sets another field by its."""
    await define(site, "caches", {"v1": "", "v2": ".spec.replicas", "v3": ".spec.workers"})
    replicas, workers = "sum.caches.v1.example.com/spec.replicas", "sum.caches.v1.example.com/spec.workers"
    quota = await site.quota(f"{replicas}=10,{workers}=10", owner="eve")
    namespace = await site.namespace(owner="eve")
    path = f"/apis/example.com/{{}}/namespaces/{namespace}/caches"
    spec = {"replicas": 1, "workers": 2}
    cache = {"apiVersion": "example.com/v1", "kind": "Cache", "metadata": {"name": "a"}, "spec": spec}
    await site.must("POST", path.format("v1"), cache)
    for version, limited, before in (("v2", replicas, 1), ("v3", workers, 2)):
        scale = f"{path.format(version)}/a/scale"
        status, found = await site.send("PATCH", scale, {"spec": {"replicas": 50}}, MERGE)
        assert status == 403 and f"requested: {limited}={50 - before}, used: " in found["message"], found
        await site.must("PATCH", scale, {"spec": {"replicas": 9}}, MERGE)
    assert site.use(quota) == nanos(f"{replicas}=9,{workers}=9")


async def test_where_another_quota_counts_them_in_any_version_a_field_has_to_be_written_in_its_own(site: Site) -> None:
    """An API server converts nothing for a rule that asks about every version."""
    await define_databases(site)
    quota = await site.quota(f"{REPLICAS}=10", owner="fay")
    number = await site.quota("count/databases.example.com=5", app="db")
    namespace = await site.namespace(owner="fay", app="db")
    assert (await database(site, namespace, "a", 4))[0] == 201
    status, message = await database(site, namespace, "b", 4, "v1beta1")
    assert status == 403 and f"failed quota: {quota}: must be written as example.com/v1" in message, message
    assert (site.use(quota), site.use(number)) == (nanos(f"{REPLICAS}=4"), nanos("count/databases.example.com=1"))


async def test_a_label_that_only_api_servers_take_is_one_by_which_a_quota_refuses(site: Site) -> None:
    """A part of its domain is longer than a part of a DNS name."""
    label = {f"{'a' * 64}.example.com/owner": "zoe"}
    await site.quota("pods=1", **label)
    namespace = await site.namespace(**label)
    assert [(await site.pod(namespace))[0] for _ in range(2)] == [201, 403]


async def test_what_adds_nothing_never_reaches_the_webhook(site: Site) -> None:
    await site.quota("pods=9,services=9,count/persistentvolumeclaims=9", owner="tim")
    namespace, elsewhere = await site.namespace(owner="tim"), await site.namespace(owner="nobody")
    assert (await site.pod(namespace, name="web"))[0] == 201
    service = {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 1}]}}
    await site.must("POST", path(namespace, "services"), service)
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await site.must("POST", path(namespace, "persistentvolumeclaims"), claim)
    assert site.asked == {"pods": 1, "services": 1, "persistentvolumeclaims": 1}
    await site.must("POST", path(namespace, "configmaps"), {"metadata": {"name": "c"}})
    assert (await site.pod(elsewhere))[0] == 201
    note: dict[str, Any] = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}
    for plural, name in (("pods", "web"), ("services", "web"), ("persistentvolumeclaims", "data")):
        await site.must("PATCH", path(namespace, plural, name), note, MERGE)
    status: dict[str, Any] = {"status": {"phase": "Running"}}
    await site.must("PATCH", f"{path(namespace, 'pods', 'web')}/status", status, MERGE)
    for plural, name in (("pods", "web"), ("services", "web"), ("persistentvolumeclaims", "data")):
        await site.must("DELETE", path(namespace, plural, name), **{"gracePeriodSeconds": "0"})
    await site.must("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"spec": {"namespace": namespace}})
    assert site.asked == {"pods": 1, "services": 1, "persistentvolumeclaims": 1}


async def test_a_quota_is_enforced_only_once_a_canary_proves_that_all_it_limits_is_asked_about(site: Site) -> None:
    quota = await site.quota("pods=9", owner="kim")
    other = await site.quota("pods=9", owner="lee")
    namespace = await site.namespace(owner="kim")
    before = site.world.copies[quota]
    metadata = msgspec.structs.replace(before.metadata, generation=2)
    limits: dict[str, str | int] = {"pods": "9", "configmaps": "0"}
    spec = msgspec.structs.replace(before.spec, quota=limits)
    site.world._put(msgspec.structs.replace(before, metadata=metadata, spec=spec))
    assert site.unenforced(quota) == ["seed"]
    assert site.unenforced(other) == [], "what is asked about for it stays"
    await site.enforced(quota)
    status, found = await site.send("POST", path(namespace, "configmaps"), {"metadata": {"name": "c"}})
    assert (status, "exceeded quota" in found["message"]) == (403, True)


async def test_break_glass_passes_and_a_configuration_that_is_deleted_comes_back(site: Site) -> None:
    await site.quota("pods=0", owner="joe")
    namespace = await site.namespace(owner="joe")
    assert (await site.pod(namespace))[0] == 403
    binding = {
        "metadata": {"name": "ann"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "pods"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}],
    }
    rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    await site.must("POST", f"{rights}/roles", {"metadata": {"name": "pods"}, "rules": [rule]})
    await site.must("POST", f"{rights}/rolebindings", binding)
    async with patient_timeout(30):  # the API server learns of the binding a moment later
        while (await site.send("POST", path(namespace, "pods"), pod(), headers=BREAK_GLASS))[0] != 201:
            await asyncio.sleep(0.05)
    await site.cluster.delete(WEBHOOK_CONFIGURATIONS, namespaces.NAME)

    async with patient_timeout(30):
        while await site.cluster.find(WEBHOOK_CONFIGURATIONS, namespaces.NAME) is None:
            await asyncio.sleep(0.05)
        while (await site.pod(namespace, dryRun="All"))[0] != 403:
            await asyncio.sleep(0.05)


async def test_what_makes_pods_grows_when_there_is_room_and_does_not_wait_for_its_own_pause(
    site: Site, control_plane: ControlPlane
) -> None:
    """The real controllers. After twenty seconds of refusals all but that of Jobs wait for twenty more."""
    quota = await site.quota("pods=0", owner="una")
    namespace = await site.namespace(owner="una")
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod(None)["spec"]}
    several = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    daemons, controlled = ({"template": template | {"metadata": {"labels": {"app": app}}}} for app in "bc")
    once = {"template": {"spec": {**pod(None)["spec"], "restartPolicy": "Never"}}}
    made = {
        f"/apis/apps/v1/namespaces/{namespace}/replicasets": several,
        f"/apis/apps/v1/namespaces/{namespace}/statefulsets": {**several, "replicas": 1, "serviceName": "a"},
        f"/apis/apps/v1/namespaces/{namespace}/daemonsets": {"selector": {"matchLabels": {"app": "b"}}, **daemons},
        path(namespace, "replicationcontrollers"): {"replicas": 1, "selector": {"app": "c"}, **controlled},
        f"/apis/batch/v1/namespaces/{namespace}/jobs": once,
    }
    await site.must("POST", "/api/v1/nodes", {"metadata": {"name": "node"}})
    for where, spec in made.items():
        await site.must("POST", where, {"metadata": {"name": "a"}, "spec": spec})
    kinds = ("replicaset", "statefulset", "daemonset", "replicationcontroller", "job")
    names = [f"{kind}-controller" for kind in kinds]
    manager = await control_plane.controllers("namespaces-webhook", *names)
    try:
        await eventually(lambda: site.refusals.waiting == len(made), 60)
        await asyncio.sleep(21)
        assert await site.pods(namespace) == 0
        site.world.limit(quota, {"pods": "10"})
        site.world.tell(quota, granted={"pods": "10"})
        started = time.monotonic()
        async with within(12):  # by its own pause each of the others comes 19 s later, or later still
            while await site.pods(namespace) < 6:
                await asyncio.sleep(0.1)
        print(f"\ngrown {time.monotonic() - started:.2f} s after there was room")

        async def is_woken(where: str) -> bool:
            metadata = (await site.must("GET", f"{where}/a"))["metadata"]
            return "seedquota.io/capacity-freed" in metadata.get("annotations", {})

        for where in made:  # one after the other, and some pods may come before their owner's turn
            async with patient_timeout(30):
                while not await is_woken(where):
                    await asyncio.sleep(0.1)
    finally:
        await manager.stop()
        for where in made:
            await site.must("DELETE", f"{where}/a")
        await site.must("DELETE", "/api/v1/nodes/node")
