"""Quotas of kind namespaces count what is in the namespaces that they select, in every cluster that takes part."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from common.quota import resources
from devcluster.objects import API
from tests.integration.installed.commands import Commands
from tests.integration.installed.site import CLUSTERS, LEDGERS, WINDOW, Answer, Json, Site, until
from tests.running import running
from tests.unit.fake_api_server import within

pytestmark = pytest.mark.integration

ANN = {"owner": "ann"}
QUOTA = "owner-ann"
USED = re.compile(r"requested: pods=1, used: pods=(\d+), limited: pods=(\d+);")
WIDGETS = "/apis/example.com/v1/namespaces/{}/widgets"
GADGETS = "/apis/example.com/v1/namespaces/sizes/gadgets"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/seedquota-namespaces"
ENFORCED = "NamespacesEnforced"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMESPACES_ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/seedquota-user-cluster-namespaces"


def quota(name: str = QUOTA, **limits: str) -> Json:
    subject = {"kind": "namespaces", "selector": {"matchLabels": ANN}}
    spec = {"subject": subject, "quota": {name.replace("__", "."): limit for name, limit in limits.items()}}
    return {"apiVersion": API, "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}


def pod(name: str, cpu: str = "1") -> Json:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}


class Clusters:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.made: list[tuple[str, str]] = []

    async def namespace(self, cluster: str, name: str, labels: Mapping[str, str]) -> None:
        path = f"/api/v1/namespaces/{name}"
        body = {"metadata": {"name": name, "labels": dict(labels)}}
        assert (await self.site.call(cluster, "POST", "/api/v1/namespaces", body)).status == 201
        self.made.append((cluster, path))
        account = {"metadata": {"name": "default"}}
        assert (await self.site.call(cluster, "POST", f"{path}/serviceaccounts", account)).status == 201

    async def label(self, cluster: str, name: str, owner: str) -> None:
        await self.site.patch(cluster, f"/api/v1/namespaces/{name}", {"metadata": {"labels": {"owner": owner}}})

    async def pods(self, cluster: str, namespace: str, *names: str) -> None:
        for name in names:
            answer = await self.site.decision(cluster, "POST", f"/api/v1/namespaces/{namespace}/pods", pod(name))
            assert answer.status == 201, answer

    async def refused(self, cluster: str, namespace: str, said: str = "") -> None:
        path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        answer = await self.site.decision(cluster, "POST", path, pod("refused"))
        assert answer.status == 403 and said in answer.message, answer

    async def shows(self, cluster: str, namespace: str, here: Json, used: Json | None = None) -> None:
        """Waits until the namespace's copy says so; `used`: in all namespaces and clusters."""

        async def holds() -> None:
            status = (await self.site.get(cluster, f"namespaces/{namespace}/localresourcequotas/{QUOTA}"))["status"]
            assert status["here"]["used"] == here, status
            assert used is None or status["total"]["used"] == used, status

        await until(holds, 60)

    async def shows_nothing(self, cluster: str, namespace: str) -> None:
        assert await self.site.items(cluster, f"namespaces/{namespace}/localresourcequotas") == []

    async def counts(self, seed: str, name: str = QUOTA, **used: str) -> None:
        """Waits until the seed's account has exactly this."""
        wanted = resources.parse({key.replace("__", "."): amount for key, amount in used.items()})

        async def holds() -> None:
            account = (await self.site.ledger(seed, name))["account"]
            found = resources.total(resources.parse(each) for each in account.get("used", {}).values())
            assert found == wanted and len(account.get("used", {})) == 1, account
            assert not account.get("nonce"), "it is open"

        await until(holds, 60)


def version(name: str, *, served: bool = True, storage: bool = True) -> Json:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {"name": name, "served": served, "storage": storage, "schema": schema}


async def define_widgets(
    site: Site, cluster: str, versions: list[Json], plural: str = "widgets", kind: str = "Widget"
) -> None:
    """A kind of CustomResourceDefinition that the agent may list."""
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    spec: Json = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    group = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": plural}}
    rule = {"apiGroups": ["example.com"], "resources": [plural], "verbs": ["list", "watch"]}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "seedquota-seed"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": plural}
    await site.apply(
        cluster,
        {**crd, "metadata": {"name": f"{plural}.example.com"}, "spec": spec},
        {**group, "kind": "ClusterRole", "rules": [rule]},
        {**group, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]},
    )


def service(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"clusterIP": "None"}}


async def create_service(site: Site, cluster: str, namespace: str, name: str) -> None:
    answer = await site.call(cluster, "POST", f"/api/v1/namespaces/{namespace}/services", service(name))
    assert answer.status == 201, answer


def widget(name: str) -> Json:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}}


async def create_widgets(site: Site, cluster: str, namespace: str, names: str) -> None:
    """One of each letter."""
    for name in names:
        answer = await site.call(cluster, "POST", WIDGETS.format(namespace), widget(name))
        assert answer.status in (201, 409), answer  # 409: it was made before what was asked for again


@pytest_asyncio.fixture(scope="module")
async def taking_part(installation: Site) -> AsyncIterator[None]:
    """Both user clusters, in all tests here: each begin starts the agents' watches anew, and the webhooks."""

    async def all_are(said: Mapping[str, str | None]) -> None:
        for seed, name in installation.installed.user_clusters.items():
            await installation.patch(seed, f"{CLUSTERS}/{name}", {"spec": {"namespaceQuotas": said[name]}})
        await installation.remember()

    places = installation.installed.user_clusters.items()
    before = {name: (await installation.get(seed, f"{CLUSTERS}/{name}"))["spec"] for seed, name in places}
    try:
        await all_are(dict.fromkeys(before, "Enabled"))
        yield
    finally:
        await all_are({name: spec.get("namespaceQuotas") for name, spec in before.items()})


@pytest_asyncio.fixture
async def clusters(taking_part: None, site: Site) -> AsyncIterator[Clusters]:
    """Both user clusters take part."""
    found = Clusters(site)
    yield found
    await site.start_all()
    for cluster, path in found.made:
        await site.delete(cluster, f"{path}/pods?gracePeriodSeconds=0")
        await site.patch(cluster, path, {"metadata": {"labels": {"owner": None}}})  # nobody finalizes it here


async def test_use_follows_pods_and_labels_in_both_clusters(site: Site, clusters: Clusters) -> None:
    await clusters.namespace("user-1", "web", ANN)
    await clusters.namespace("user-2", "db", ANN)
    await clusters.namespace("user-2", "other", {"owner": "bob"})
    await clusters.pods("user-1", "web", "a", "b")
    await clusters.pods("user-2", "db", "a")
    await clusters.pods("user-2", "other", "a", "b", "c")
    await site.apply("master", quota(pods="50", requests__cpu="20"))
    await clusters.counts("seed-1", pods="2", requests__cpu="2")
    await clusters.counts("seed-2", pods="1", requests__cpu="1")
    await clusters.shows("user-1", "web", {"pods": "2", "requests.cpu": "2"}, {"pods": "3", "requests.cpu": "3"})
    await clusters.shows("user-2", "db", {"pods": "1", "requests.cpu": "1"}, {"pods": "3", "requests.cpu": "3"})
    for seed, name in site.installed.user_clusters.items():
        await site.comes(seed, f"{CLUSTERS}/{name}", ENFORCED, "True", "CanaryDenied", seconds=60)
    # One that has ended frees what it used, and stays.
    ended = {"status": {"phase": "Succeeded"}}
    await site.patch("user-1", "/api/v1/namespaces/web/pods/a/status", ended)
    await clusters.counts("seed-1", pods="1", requests__cpu="1")
    # A namespace moves with all that it has.
    await clusters.label("user-2", "other", "ann")
    await clusters.counts("seed-2", pods="4", requests__cpu="4")
    await clusters.label("user-2", "db", "bob")
    await clusters.counts("seed-2", pods="3", requests__cpu="3")
    await clusters.shows("user-2", "other", {"pods": "3", "requests.cpu": "3"})
    await until(lambda: clusters.shows_nothing("user-2", "db"), 30)
    await site.patch(
        "master", f"resourcequotas/{QUOTA}", {"spec": {"subject": {"selector": {"matchLabels": {"owner": "bob"}}}}}
    )
    await clusters.counts("seed-2", pods="1", requests__cpu="1")
    # A cluster that takes part no more has nothing in the account.
    await site.patch("seed-1", f"{CLUSTERS}/user-1", {"spec": {"namespaceQuotas": "Disabled"}})

    async def left() -> None:
        assert not (await site.ledger("seed-1", QUOTA))["account"].get("used")

    await until(left, 60)
    await until(lambda: clusters.shows_nothing("user-1", "web"), 30)

    async def says_nothing() -> None:
        assert await site.condition("seed-1", f"{CLUSTERS}/user-1", ENFORCED) == ("", "", "")

    await until(says_nothing, 30)
    used = {"pods": "1", "requests.cpu": "1"}

    async def shown() -> None:
        found = (await site.get("seed-2", f"resourcequotas/{QUOTA}"))["status"]["account"]["namespaces"]
        assert found == [{"cluster": "alpha/user-2", "namespace": "db", "project": "alpha", "used": used}]

    await until(shown, 30)
    path = f"resourcequotas/{QUOTA}"
    await site.comes("master", path, "Ready", "True", "Enforced", seconds=60)
    await site.patch("seed-2", f"{CLUSTERS}/user-2", {"spec": {"namespaceQuotas": "Disabled"}})
    await site.comes("master", path, "Ready", "False", "NoClusters", seconds=60)

    async def let_go() -> None:
        for cluster in ("user-1", "user-2"):
            assert (await site.call(cluster, "GET", CONFIGURATION)).status == 404, "nothing waits there any more"

    await until(let_go, 30)


async def test_a_field_of_objects_is_limited_and_says_so_where_its_version_is_not_served(
    site: Site, clusters: Clusters
) -> None:
    await clusters.namespace("user-1", "sizes", ANN)
    await define_widgets(site, "user-1", [version("v1"), version("v2", storage=False)], "gadgets", "Gadget")
    field = "sum__gadgets__v1__example__com/spec__size"
    await site.apply("master", quota("size", **{field: "10"}))
    await site.comes("master", "resourcequotas/size", "Ready", "True", "Enforced", seconds=60)

    async def create(name: str, size: object, served: str = "v1") -> Answer:
        path = GADGETS.replace("/v1/", f"/{served}/")
        body = {"apiVersion": f"example.com/{served}", "kind": "Gadget", "metadata": {"name": name}}
        return await site.decision("user-1", "POST", path, {**body, "spec": {"size": size}})

    assert (await create("a", 4)).status == 201
    assert (await create("b", "5", "v2")).status == 201
    await clusters.counts("seed-1", "size", **{field: "9"})
    answer = await create("c", 2)
    assert answer.status == 403 and "short by sum.gadgets.v1.example.com/spec.size=1" in answer.message, answer
    answer = await create("c", -2)
    assert answer.status == 403 and "spec.size as a number or quantity that is not negative" in answer.message, answer
    await site.delete("user-1", f"{GADGETS}/a")
    await clusters.counts("seed-1", "size", **{field: "5"})

    async def freed() -> None:
        assert (await create("c", 2)).status == 201

    await until(freed, 30)
    # An API server asks nothing by a rule of a version that it does not serve: all versions are asked about then.
    versions = [version("v1", served=False, storage=False), version("v2")]
    await site.patch("user-1", f"{CRD}/gadgets.example.com", {"spec": {"versions": versions}})
    why = "gadgets.example.com are not served as v1, but as v2"
    await site.comes("master", "resourcequotas/size", "UsageCurrent", "False", "ResourceNotListed", why, seconds=60)

    async def refused() -> None:
        answer = await create("d", 1, "v2")
        await site.call("user-1", "DELETE", f"{GADGETS.replace('/v1/', '/v2/')}/d")
        assert answer.status == 403 and "must be written as example.com/v1" in answer.message, answer

    await until(refused, 60)
    await site.comes("master", "resourcequotas/size", "Enforced", "True", seconds=60)


async def test_what_cannot_be_listed_stops_its_own_quota_alone(site: Site, clusters: Clusters) -> None:
    """The CRD's conversion webhook does not answer, and the rights for Secrets were not given."""
    await clusters.namespace("user-1", "shop", ANN)
    await clusters.pods("user-1", "shop", "a")
    versions = [version("v1"), version("v2", storage=False)]
    await define_widgets(site, "user-1", versions)
    await until(partial(create_widgets, site, "user-1", "shop", "w"), 30)
    nowhere = {"url": "https://127.0.0.1:1/convert"}
    conversion = {"strategy": "Webhook", "webhook": {"clientConfig": nowhere, "conversionReviewVersions": ["v1"]}}
    versions = [version("v1", storage=False), version("v2")]
    await site.patch("user-1", f"{CRD}/widgets.example.com", {"spec": {"conversion": conversion, "versions": versions}})
    await site.apply(
        "master",
        quota("broken", **{"count/widgets__example__com": "5", "pods": "5"}),
        quota("secret", **{"count/secrets": "5"}),
        quota(pods="50"),
    )
    await clusters.counts("seed-1", pods="1")
    for name, resource in (("broken", "widgets.example.com"), ("secret", "secrets")):
        path = f"resourcequotas/{name}"
        await site.comes("master", path, "UsageCurrent", "False", "ResourceNotListed", "user-1", resource)
        why = "nothing of that is counted yet"
        await site.comes("master", path, "Enforced", "False", "ResourceNotListed", resource, why, seconds=60)
    assert not (await site.ledger("seed-1", "secret"))["account"].get("used"), "nothing is counted, not even as zero"
    await clusters.counts("seed-1", "broken", pods="1")  # the other kind is
    found = await site.condition("master", f"resourcequotas/{QUOTA}", "UsageCurrent")
    assert found[1] != "ResourceNotListed", found
    # Once it can be listed it is counted; once it is not served there is none.
    definition, widgets = f"{CRD}/widgets.example.com", {"count/widgets__example__com": "1"}
    works: Json = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
    await site.patch("user-1", definition, works)
    await clusters.counts("seed-1", "broken", pods="1", **widgets)
    await site.comes("master", "resourcequotas/broken", "Enforced", "True", seconds=60)
    # If that fails again, its last count is there after a restart, and the other kind is counted and freed.
    await until(partial(clusters.pods, "user-1", "shop", "b"), 30)
    await clusters.counts("seed-1", "broken", pods="2", **widgets)
    await site.patch("user-1", definition, {"spec": {"conversion": conversion}})
    await site.kill(site.program("seed-1"))
    await site.start(site.program("seed-1"))
    kept = "the last count of that is kept"
    await site.comes("master", "resourcequotas/broken", "UsageCurrent", "False", "ResourceNotListed", kept, seconds=90)
    await site.delete("user-1", "/api/v1/namespaces/shop/pods/b?gracePeriodSeconds=0")
    await clusters.counts("seed-1", "broken", pods="1", **widgets)
    await until(partial(clusters.pods, "user-1", "shop", "c"), 60)
    await clusters.counts("seed-1", "broken", pods="2", **widgets)
    assert (await site.condition("master", "resourcequotas/broken", "Enforced"))[0] == "True"
    await site.patch("user-1", definition, works)
    await site.comes("master", "resourcequotas/broken", "UsageCurrent", "True", seconds=60)
    await clusters.counts("seed-1", "broken", pods="2", **widgets)
    await site.delete("user-1", definition)
    await clusters.counts("seed-1", "broken", pods="2")


async def test_where_a_right_is_taken_away_the_last_count_is_kept_and_a_lost_ledger_names_the_kind(
    site: Site, clusters: Clusters
) -> None:
    path, agent = f"resourcequotas/{QUOTA}", site.program("seed-1")
    await clusters.namespace("user-1", "mall", ANN)
    await site.apply("master", quota(pods="2", services="1"))
    await site.comes("master", path, "Enforced", "True", seconds=60)
    await until(partial(create_service, site, "user-1", "mall", "web"), 60)
    await clusters.pods("user-1", "mall", "a", "b")
    await clusters.counts("seed-1", pods="2", services="1")
    rules = (await site.get("user-1", NAMESPACES_ROLE))["rules"]
    without = [{**rule, "resources": [each for each in rule["resources"] if each != "services"]} for rule in rules]
    await site.patch("user-1", NAMESPACES_ROLE, {"rules": without})
    try:
        await site.kill(agent)
        await site.start(agent)
        kept = "the last count of that is kept"
        await site.comes("master", path, "UsageCurrent", "False", "ResourceNotListed", "services", kept, seconds=90)
        await site.delete("user-1", "/api/v1/namespaces/mall/pods/b?gracePeriodSeconds=0")
        await clusters.counts("seed-1", pods="1", services="1")
        await until(partial(clusters.pods, "user-1", "mall", "c"), 60)
        answer = await site.decision("user-1", "POST", "/api/v1/namespaces/mall/services", service("more"))
        assert answer.status == 403 and "used: services=1, limited: services=1" in answer.message, answer

        await site.kill(agent)
        ledger = (await site.ledger("seed-1", QUOTA))["metadata"]["name"]
        await site.delete("seed-1", f"{LEDGERS}/{ledger}")
        await site.start(agent)

        async def waits() -> None:
            answer = await site.call("user-1", "POST", "/api/v1/namespaces/mall/pods?dryRun=All", pod("d"))
            text = "its account is not open yet: it waits for new lists of services from 1 cluster"
            assert answer.status == 503 and text in answer.message, answer

        await until(waits, 90)
    finally:
        await site.patch("user-1", NAMESPACES_ROLE, {"rules": rules})
    await site.comes("master", path, "UsageCurrent", "True", seconds=90)
    await clusters.counts("seed-1", pods="2", services="1")
    await site.comes("master", path, "Enforced", "True", seconds=60)


async def test_a_kind_that_is_not_served_is_held_until_its_definition_is_gone(site: Site, clusters: Clusters) -> None:
    """Its objects are there again when it is served again: 4 of user-1 beside 2 of user-2 are all that there may be."""
    limits, path, widgets = {"count/widgets__example__com": "6"}, f"resourcequotas/{QUOTA}", WIDGETS.format("stock")
    for cluster in ("user-1", "user-2"):
        await clusters.namespace(cluster, "stock", ANN)
        await define_widgets(site, cluster, [version("v1")])
    await site.apply("master", quota(**limits))
    await site.comes("master", path, "Enforced", "True", seconds=60)
    await until(partial(create_widgets, site, "user-1", "stock", "abcd"), 60)
    await until(partial(create_widgets, site, "user-2", "stock", "ef"), 60)
    four, two = ({"count/widgets__example__com": number} for number in "42")
    await clusters.counts("seed-1", **four)
    await clusters.counts("seed-2", **two)

    async def is_full(cluster: str = "user-2") -> None:
        answer = await site.call(cluster, "POST", widgets, widget("more"))
        assert answer.status == 403 and "used: count/widgets.example.com=6, limited:" in answer.message, answer

    async def is_held() -> None:
        reason, texts = "ResourceNotListed", ("user-1", "widgets.example.com", "serve it again")
        await site.comes("master", path, "UsageCurrent", "False", reason, *texts, seconds=60)
        used = (await site.ledger("seed-1", QUOTA))["account"]["used"]
        assert list(used.values()) == [{"count/widgets.example.com": "4"}]
        await until(is_full, 30)

    definition = f"{CRD}/widgets.example.com"
    await site.patch("user-1", definition, {"spec": {"versions": [version("v1", served=False)]}})
    await is_held()
    await site.kill(site.program("seed-1"))
    await site.start(site.program("seed-1"))
    await is_held()
    await asyncio.sleep(2 * WINDOW)  # nothing is released as time goes by
    await is_held()

    await site.patch("user-1", definition, {"spec": {"versions": [version("v1")]}})
    await site.comes("master", path, "UsageCurrent", "True", seconds=60)
    await clusters.counts("seed-1", **four)
    await until(is_full, 30)
    await site.delete("user-1", f"{widgets}/a")
    await until(partial(create_widgets, site, "user-1", "stock", "k"), 60)
    await until(partial(is_full, "user-1"), 30)

    await site.delete("user-1", definition)  # with all that is of it
    await until(partial(create_widgets, site, "user-2", "stock", "ghij"), 60)
    await until(is_full, 30)
    await clusters.counts("seed-1")
    await site.comes("master", path, "UsageCurrent", "True", seconds=60)
    assert len(await site.items("user-2", widgets)) == 6
    await site.delete("user-2", definition)


async def test_what_exceeds_the_quota_is_refused_in_both_clusters_until_something_ends(
    site: Site, clusters: Clusters
) -> None:
    """Clients in three namespaces of two clusters at once; the seeds divide what the master grants."""
    places = [("user-1", "front"), ("user-1", "jobs"), ("user-2", "back")]
    for cluster, name in places:
        await clusters.namespace(cluster, name, ANN)
    await site.apply("master", quota(pods="12"))
    await site.comes("master", f"resourcequotas/{QUOTA}", "Enforced", "True", seconds=60)

    async def decided(cluster: str, path: str, name: str) -> Answer:
        """As every client does, which tries again after a 503."""
        answer = await site.call(cluster, "POST", path, pod(name))
        assert answer.status != 503, answer
        return answer

    async def fill(cluster: str, namespace: str, client: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods"
        for number in range(8):
            answer = await until(partial(decided, cluster, path, f"{client}-{number}"), 30)
            assert answer.status == 201 or "exceeded quota: owner-ann" in answer.message, answer

    await asyncio.gather(*(fill(*place, client) for place in places for client in "ab"))
    for number, place in enumerate(places):
        await fill(*place, f"last{number}")
    found = [await site.items(cluster, f"/api/v1/namespaces/{name}/pods") for cluster, name in places]
    assert sum(map(len, found)) == 12
    for (cluster, name), listed in zip(places, found, strict=True):
        if listed:
            await site.delete(cluster, f"/api/v1/namespaces/{name}/pods/{listed[0]['metadata']['name']}")
            break

    async def admitted() -> None:
        answer = await site.call("user-2", "POST", "/api/v1/namespaces/back/pods", pod("again"))
        assert answer.status in (201, 409), answer

    await until(admitted, 30)
    await until(
        lambda: clusters.refused("user-1", "front", "exceeded quota: owner-ann, requested: pods=1, used: pods=12"), 30
    )
    await until(lambda: clusters.refused("user-1", "front", "; see: kubectl get lsq -n front; decision "), 60)


async def test_a_quota_that_is_deleted_and_applied_again_is_enforced_soon_each_time(
    site: Site, clusters: Clusters
) -> None:
    """As GitOps tools do it. No other quota limits its kinds, so nobody follows them between two rounds."""
    await clusters.namespace("user-1", "again", ANN)
    await clusters.pods("user-1", "again", "one")
    path = "/api/v1/namespaces/again/pods?dryRun=All"

    async def enforced(limit: str) -> None:
        """By its account: what is larger than the limit itself is refused without one."""
        large = await site.call("user-1", "POST", path, pod("large", "1500m"))
        assert large.status == 403 and f"limited: requests.cpu={limit};" in large.message, large
        small = await site.call("user-1", "POST", path, pod("small"))
        assert small.status == 201, small

    for number in range(1, 8):
        limit = f"{2000 + number}m"  # tells this quota from the one before
        await site.apply("master", quota(requests__cpu=limit))
        async with within(30):  # what nobody wakes gets 503 for minutes
            await until(partial(enforced, limit), 30)
        await site.delete("master", f"resourcequotas/{QUOTA}")
        await asyncio.sleep(number % 3 * 0.4)


class Crowd:
    """Clients in many namespaces, some at a time. What no webhook answered is asked again under the same name."""

    AT_ONCE = 24

    def __init__(self, site: Site, limit: int) -> None:
        self.site = site
        self.limit = limit
        self.made = 0
        self.refused = 0
        self.lost = 0  # tries that were not answered
        self.came_in = 0
        self._asking = 0
        self._places = asyncio.Semaphore(self.AT_ONCE)

    async def create(self, cluster: str, namespace: str, name: str) -> None:
        async with self._places:
            self._asking += 1
            try:
                await until(partial(self._try, cluster, f"/api/v1/namespaces/{namespace}/pods", name), 90)
            finally:
                self._asking -= 1

    async def _try(self, cluster: str, path: str, name: str) -> None:
        answer = await self.site.call(cluster, "POST", path, pod(name))
        if answer.status in (201, 409):  # 409: it was made by a try whose answer was lost
            self.made += 1
            return
        refusal = USED.search(answer.message) if answer.status == 403 else None
        if refusal is None:
            self.lost += 1
            raise AssertionError(answer)
        self.refused += 1
        assert int(refusal[1]) + 1 > int(refusal[2]) == self.limit, answer
        possible = self.made + self._asking + self.lost + self.came_in
        assert possible > self.limit, f"refused while only {possible} can have been there: {answer}"

    async def some(self, made: int) -> None:
        async def holds() -> None:
            assert self.made >= made

        await until(holds, 90)


async def test_a_hundred_namespaces_of_two_clusters_fill_one_quota_while_labels_move_and_agents_are_killed(
    site: Site, clusters: Clusters
) -> None:
    """Not one too many is admitted, and the last unit is found. What comes in by a label is used beside that."""
    run, limit, moved = uuid.uuid4().hex[:6], 120, 5
    places = [(cluster, f"{run}-{number}") for cluster in ("user-1", "user-2") for number in range(50)]
    comes, goes = ("user-1", f"{run}-comes"), ("user-2", f"{run}-goes")
    at_once = asyncio.Semaphore(6)

    async def made(cluster: str, name: str) -> None:
        async with at_once:
            await clusters.namespace(cluster, name, ANN)

    await asyncio.gather(*(made(*place) for place in (*places, goes)))
    await clusters.namespace(*comes, {"owner": "bob"})
    for place in (comes, goes):
        await clusters.pods(*place, *(f"p{number}" for number in range(moved)))
    await site.apply("master", quota(pods=str(limit)))
    await site.comes("master", f"resourcequotas/{QUOTA}", "Enforced", "True", seconds=60)
    await clusters.counts("seed-2", pods=str(moved))
    crowd = Crowd(site, limit)
    crowd.came_in = moved  # of `goes`, at first
    numbers: Iterator[int] = iter(range(10**6))

    async def all_of(times: int) -> None:
        wanted = [place for _ in range(times) for place in places]
        await asyncio.gather(*(crowd.create(*place, f"c{next(numbers)}") for place in wanted))

    async with running(all_of(2)) as (storming,):
        await crowd.some(20)
        await clusters.label(*goes, "bob")
        crowd.came_in += moved
        await clusters.label(*comes, "ann")
        await site.kill(site.program("seed-1"))
        await site.start(site.program("seed-1"))
        await crowd.some(60)
        await site.kill(site.program("seed-2"))
        await site.start(site.program("seed-2"))
        await storming

    async def full() -> None:
        """A refusal is of that moment: what a killed agent had reserved is free again after a while."""
        before = crowd.made
        await asyncio.gather(*(crowd.create(*place, f"c{next(numbers)}") for place in (places[0], places[-1])))
        assert crowd.made == before

    await until(full, 60)
    await site.reserves_nothing("seed-1", "seed-2", name=QUOTA)
    await until(full, 30)
    pods = [await site.items(cluster, "/api/v1/pods") for cluster in ("user-1", "user-2")]
    mine = [found for found in (*pods[0], *pods[1]) if found["metadata"]["namespace"].startswith(run)]
    names = {name for _, name in places}
    admitted = sum(found["metadata"]["namespace"] in names for found in mine)
    assert admitted == crowd.made <= limit
    assert admitted + moved >= limit, "the last unit is found"
    assert crowd.lost, "the kills must have been felt"

    async def counted_once() -> None:
        """What was admitted last may be reserved still."""
        used = [(await site.ledger(seed, QUOTA))["account"]["used"] for seed in ("seed-1", "seed-2")]
        counted = resources.total(resources.parse(each) for account in used for each in account.values())
        assert counted == resources.parse({"pods": str(admitted + moved)})

    await until(counted_once, 30)


async def test_what_fits_in_a_namespace_is_told_by_what_admits(site: Site, clusters: Clusters, tmp_path: Path) -> None:
    seedquota = Commands(site, tmp_path)
    await clusters.namespace("user-1", "fits", ANN)
    await clusters.namespace("user-1", "free", {"owner": "bob"})
    await site.apply("master", quota(pods="5", requests__cpu="3"))
    await site.installed.enforced(QUOTA, 60)
    web = {"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "web"}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod("web")["spec"]}
    web["spec"] = {"replicas": 4, "selector": {"app": "web"}, "template": template}
    file = seedquota.file(json.dumps(web))
    short = "requests.cpu: need 4, free 3 (owner-ann) (decision XXXXXXXX)"
    found = f"pods of replicationcontroller/web: does not fit: 3 of 4 do. {short}\n"

    async def told() -> None:
        status, said = await seedquota("user-1", "fits", "-f", file, "-n", "fits")
        assert (status, re.sub("decision [0-9A-Z]{8}", "decision XXXXXXXX", said)) == (2, found)

    await until(told, 60)  # its webhook has to come first
    status, said = await seedquota("user-1", "fits", "-f", file, "-n", "fits", "--replicas", "3")
    assert (status, said) == (0, "pods of replicationcontroller/web: fits: 3. owner-ann: fits\n")
    status, said = await seedquota("user-1", "fits", "-f", file, "-n", "free")
    assert (status, said) == (0, "pods of replicationcontroller/web: fits, no quota limits it here\n")
    assert await site.items("user-1", "/api/v1/namespaces/fits/pods") == []
