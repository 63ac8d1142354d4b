"""The list of what each namespace uses of a quota, as the leader answers it page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api import namespaces_page
from common.api.namespaces_page import MAX_PAGE, NamespacesPage, Place
from common.api.types import UserCluster
from common.quota.resources import ResourceList
from seed.model.source_key import SourceKey
from seed.usage.namespace_pages import NamespacePages
from seed.usage.source import UsageSource
from tests.unit.seed_world import SeedWorld, nanos, seed_world

SUBJECT = {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}
CLUSTERS = ("alpha/c1", "beta/c2")
FIRST = Place()


def source(cluster: str, used: Mapping[str, ResourceList], *, current: bool = True) -> UsageSource:
    found = SimpleNamespace(cluster=cluster, counted=True, current=current, totals=SimpleNamespace(by_namespace=used))
    found.labels = lambda namespace: {"seedquota.io/project": f"of-{namespace}"}
    found.in_namespaces = found
    return cast(UsageSource, found)


class Leading:
    """A replica, and what it counts."""

    def __init__(self, world: SeedWorld, sources: Mapping[str, UsageSource]) -> None:
        self.leads = True
        self.uid = "ann-uid"
        self._sources = sources
        self.pages = NamespacePages(world.quota_cache, world.cluster_cache, self._source, lambda: self.leads)

    def _source(self, key: SourceKey) -> UsageSource | None:
        return self._sources.get(key.cluster)

    def page(self, after: Place = FIRST, limit: int = 500) -> NamespacesPage | None:
        rest, _, query = namespaces_page.path("ann", after, limit).removeprefix("namespaces/").partition("?")
        pairs: Any = dict(each.split("=") for each in query.replace("%2F", "/").split("&"))
        content = self.pages.page(rest, pairs)
        if content is None:
            return None
        assert len(content) <= MAX_PAGE
        read = namespaces_page.read(content, self.uid, after, limit)
        assert read is not None, content
        return read

    def every(self, limit: int) -> Iterator[NamespacesPage]:
        after, more = Place(), True
        while more:
            page = self.page(after, limit)
            assert page is not None
            yield page
            more = page.more
            after = page.items[-1].place if more else after


@asynccontextmanager
async def leading(sources: Mapping[str, UsageSource], limits: str = "pods=1000") -> AsyncIterator[Leading]:
    async with seed_world() as world:
        for cluster in CLUSTERS:
            namespace, _, name = cluster.partition("/")
            body = {
                "metadata": {"name": name, "namespace": namespace, "uid": cluster},
                "spec": {"project": namespace, "namespaceQuotas": "Enabled", "kubeconfigSecretRef": {"name": name}},
            }
            world.cluster_cache.user_clusters.store._set(cluster, msgspec.convert(body, UserCluster))
        await world.quota("ann", limits=limits, subject=SUBJECT)
        yield Leading(world, sources)


@pytest.mark.parametrize("limit", [1, 7, 99, 100, 101, 500])
async def test_every_namespace_is_on_one_page_in_order(limit: int) -> None:
    used = {f"n{number:02}": nanos("pods=1") for number in range(50)}
    async with leading({cluster: source(cluster, used) for cluster in CLUSTERS}) as leader:
        pages = list(leader.every(limit))
        found = [line.place for page in pages for line in page.items]
        assert found == [(cluster, name) for cluster in CLUSTERS for name in sorted(used)]
        assert all(len(page.items) == limit for page in pages[:-1])


async def test_a_namespace_without_use_of_what_is_limited_is_on_no_page() -> None:
    used = {"idle": nanos("pods=0"), "other": nanos("secrets=1"), "web": nanos("pods=2,secrets=1")}
    async with leading({"alpha/c1": source("alpha/c1", used)}) as leader:
        page = leader.page()
        assert page is not None
        (line,) = page.items
        assert (line.namespace, line.used, line.project) == ("web", {"pods": "2"}, "alpha")


async def test_a_cluster_that_is_not_counted_or_cannot_be_reached_is_named() -> None:
    async with leading({"beta/c2": source("beta/c2", {"web": nanos("pods=1")}, current=False)}) as leader:
        page = leader.page()
        assert page is not None
        assert page.not_current == ["alpha/c1", "beta/c2"]
        assert [line.place for line in page.items] == [("beta/c2", "web")]


@pytest.mark.parametrize("name", ["n" * 64, "a,b", "web\n", "Web", "."])
async def test_a_name_that_no_api_server_takes_hides_no_other_namespace(name: str) -> None:
    """A tenant's API server may list it: then the master could not read the page."""
    listed = {"db": nanos("pods=1"), name: nanos("pods=1"), "web": nanos("pods=1")}
    async with leading({each: source(each, listed if each == "alpha/c1" else {}) for each in CLUSTERS}) as leader:
        page = leader.page()
        assert page is not None
        assert [line.namespace for line in page.items] == ["db", "web"]
        assert page.not_current == ["alpha/c1"]


async def test_a_page_is_as_small_as_the_master_reads() -> None:
    names = [f"count/things-{number}.{'x' * 60}.example.com" for number in range(40)]
    each = nanos(",".join(f"{name}=1" for name in names))
    used = {f"n{number:03}": each for number in range(300)}
    limits = ",".join(f"{name}=1000" for name in names)
    async with leading({"alpha/c1": source("alpha/c1", used)}, limits) as leader:
        pages = list(leader.every(500))
        assert len(pages) > 1
        assert sum(len(page.items) for page in pages) == 300


async def test_who_does_not_lead_or_has_no_such_quota_answers_nothing() -> None:
    async with leading({}) as leader:
        assert leader.page() is not None
        assert leader.pages.page("another", {}) is None
        leader.leads = False
        assert leader.page() is None


@pytest.mark.parametrize("limit", ["", "0", "-1", "x", "²", "99999999"])
async def test_a_limit_that_is_none_is_answered_like_the_nearest_one(limit: str) -> None:
    used = {f"n{number:03}": nanos("pods=1") for number in range(600)}
    async with leading({"alpha/c1": source("alpha/c1", used)}) as leader:
        content = leader.pages.page("ann", {"limit": limit})
        assert content is not None
        page = namespaces_page.read(content, leader.uid, Place(), 500)
        assert page is not None
        assert len(page.items) == (1 if limit == "0" else 500)


@pytest.mark.parametrize(
    ("wrong", "how"),
    [
        ('{"uid": "other", "items": []}', "of another quota"),
        ('{"uid": "u", "items": [{"cluster": "a/b", "namespace": "n1"}]}', "before the place"),
        (
            '{"uid": "u", "items": [{"cluster": "a/b", "namespace": "n3"}, {"cluster": "a/b", "namespace": "n3"}]}',
            "twice",
        ),
        ('{"uid": "u", "items": [], "more": true}', "without an end"),
        ('{"uid": "u", "items": [{"cluster": "a/b", "namespace": "n3", "used": {"pods": "many"}}]}', "no amount"),
        ('{"uid": "u", "items": [{"cluster": "a/b", "namespace": "n3", "used": {"pods": 1}}]}', "no text"),
        (
            '{"uid": "u", "items": [{"cluster": "a/b", "namespace": "n3"}, {"cluster": "a/b", "namespace": "n4"}]}',
            "many",
        ),
        (f'{{"uid": "u", "items": [{{"cluster": "a/b", "namespace": "{"n" * 64}"}}]}}', "long"),
        ('{"uid": "u", "items": [{"cluster": "a/b,c", "namespace": "n3"}], "more": true}', "no place to go on from"),
        ('{"uid": "u", "items": [{"cluster": "a/b/c", "namespace": "n3"}], "more": true}', "no place to go on from"),
        ('{"uid": "u", "items": [{"cluster": "a/b", "namespace": "n3\\n"}], "more": true}', "no place to go on from"),
        ("[" * 100_000, "deep"),
        ("no JSON", "no JSON"),
    ],
)
def test_what_a_seed_answers_is_a_page_that_comes_after_the_place_or_nothing(wrong: str, how: str) -> None:
    after = Place("a/b", "n2")
    assert namespaces_page.read(wrong.encode(), "u", after, 1) is None, how
    right = b'{"uid": "u", "items": [{"cluster": "a/b", "namespace": "n3", "used": {"pods": "1"}}], "more": true}'
    assert namespaces_page.read(right, "u", after, 1) is not None
    nowhere = b'{"uid": "u", "items": [{"cluster": "", "namespace": "n"}], "more": true}'
    assert namespaces_page.read(nowhere, "u", Place(), 1) is None, "the next page would begin where this one did"
