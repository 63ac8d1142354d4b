"""Which cluster is a Seed's, and what a link does with one that is not. The seed is a fake API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from common.api.cluster_identity import CHANGED, DUPLICATE, KUBE_SYSTEM
from common.api.types import ACCEPT_CLUSTER_ANNOTATION, Seed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, Forbidden
from common.kube.client.kubeconfig import Access
from common.kube.controller.store import Change
from master.cache.informers import Caches
from master.cache.objects import PROJECTS, MasterQuota
from master.seeds import link
from master.seeds.identity import Refused, refusal
from master.seeds.link import SeedLink
from master.seeds.phase import Phase
from master.seeds.registry import Seeds
from master.seeds.seed_cluster import SeedCluster
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import PATIENCE, FakeApiServer, eventually, fake_api_server

GROUP = "seedquota.io/v1alpha1"
KINDS = {"projects": "Project", "organizations": "Organization", "resourcequotas": "ResourceQuota", "seeds": "Seed"}


def seed(name: str = "eu-1", recorded: str = "", *, made: int = 1, accepts: str = "", state: str = "Active") -> Seed:
    annotations = {ACCEPT_CLUSTER_ANNOTATION: accepts} if accepts else {}
    timestamp = f"2026-01-01T00:00:0{made}Z"
    metadata = {"name": name, "uid": f"{name}-uid", "creationTimestamp": timestamp, "annotations": annotations}
    spec = {"kubeconfigSecretRef": {"name": name}, "state": state}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"clusterUID": recorded}}, Seed)


def reason(of: Seed, uid: str, *others: Seed) -> str:
    found = refusal(of, of.status.cluster_uid, uid, [(other, other.status.cluster_uid) for other in others])
    return found.reason if found is not None else ""


def test_the_first_cluster_is_taken_and_another_one_only_where_an_admin_says_so() -> None:
    assert reason(seed(), "a") == ""
    assert reason(seed(recorded="a"), "a") == ""
    assert reason(seed(recorded="a"), "b") == CHANGED
    assert reason(seed(recorded="a", accepts="b"), "b") == ""
    assert reason(seed(recorded="a", accepts="c"), "b") == CHANGED
    assert reason(seed(recorded="b", accepts="b"), "a") == CHANGED, "it was accepted once, and that is over"


def test_what_to_do_is_in_the_message() -> None:
    found = refusal(seed(recorded="a"), "a", "b", [])
    assert found is not None
    assert "has uid b, not a;" in found.message
    assert f"kubectl annotate --overwrite sqseed/eu-1 {ACCEPT_CLUSTER_ANNOTATION}=b" in found.message


def test_a_cluster_belongs_to_the_seed_that_was_made_first() -> None:
    first, later = seed("us-1", "a", made=1), seed("eu-1", "a", made=2)
    assert reason(later, "a", first) == DUPLICATE
    assert reason(first, "a", later) == ""
    assert reason(seed("eu-2", made=1), "a", first) == "", "by name, where they were made at once"
    assert reason(seed("us-2", made=1), "a", first) == DUPLICATE
    found = refusal(later, "a", "a", [(first, "a"), (seed("us-2", made=1), "a")])
    assert found is not None
    assert "cluster of Seed us-1," in found.message


def test_a_secret_that_leads_to_the_cluster_of_a_later_seed_takes_nothing_from_it() -> None:
    lost, later = seed("eu-1", "a", made=1), seed("us-1", "b", made=2)
    assert reason(lost, "b", later) == CHANGED
    assert reason(later, "b", lost) == ""


class Master:
    """The master's API server, as far as Seeds are concerned. `others` are further Seeds in its caches."""

    name = "master"

    def __init__(self, *seeds: Seed) -> None:
        self.stored = {found.metadata.name: found for found in seeds}
        self.patches: list[tuple[str, str]] = []
        caches = Caches(cast(Cluster, self), "seedquota")
        for name in self.stored:
            data = {"metadata": {"name": name, "namespace": "seedquota"}, "data": {"kubeconfig": "e30="}}
            caches.secrets.store._set(f"seedquota/{name}", msgspec.convert(data, caches.secrets._resource.type))
        body: dict[str, Any] = {
            "metadata": {"name": "alpha", "uid": "alpha-uid", "generation": 1},
            "spec": {"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "1"}},
        }
        caches.quotas.store._set("alpha", msgspec.convert(body, MasterQuota))
        self.caches = caches
        self.seeds = Seeds(caches, "seedquota", master="own-lease")

    async def get(self, _resource: object, name: str) -> Seed:
        return self.stored[name]

    async def merge_patch(self, _resource: object, name: str, patch: dict[str, Any], subresource: str) -> Seed:
        assert subresource == "status"
        uid = patch["status"]["clusterUID"]
        self.patches.append((name, uid))
        before = self.stored[name]
        after = msgspec.structs.replace(before, status=msgspec.structs.replace(before.status, cluster_uid=uid))
        self.stored[name] = after
        return after

    def tell(self, changed: Seed | None = None) -> None:
        for found in [changed] if changed is not None else list(self.stored.values()):
            self.stored[found.metadata.name] = found
            self.seeds._changed("seeds", Change(None, found))


@asynccontextmanager
async def running(master: Master) -> AsyncIterator[None]:
    master.tell()
    try:
        yield
    finally:
        await asyncio.gather(*(link.stop() for link in master.seeds.links.values()))


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    for plural, kind in {**KINDS, "quotasettings": "QuotaSettings"}.items():
        monkeypatch.setitem(fakes.PLURALS, plural, (GROUP, kind))
    monkeypatch.setitem(fakes.PLURALS, "namespaces", ("v1", "Namespace"))
    monkeypatch.setattr(link, "PROBE_EVERY", 0.05)
    monkeypatch.setattr(link, "LOOK_EVERY", 0.01)
    async with fake_api_server() as api:

        async def from_kubeconfig(_text: str, *, name: str, **_options: object) -> SeedCluster:
            return SeedCluster(Access(api.url), name=name, timeout=PATIENCE)

        monkeypatch.setattr(SeedCluster, "from_kubeconfig", from_kubeconfig)
        yield api


async def leads_to(api: FakeApiServer, uid: str) -> None:
    await api.put("namespaces", "", KUBE_SYSTEM, metadata={"uid": uid})


def copies(api: FakeApiServer) -> list[str]:
    return [name for plural, _, name in api.objects if plural == "resourcequotas"]


def in_phase(link: SeedLink, phase: Phase) -> bool:
    return link.phase is phase


async def test_a_cluster_is_recorded_before_anything_is_read_or_written_there(fake: FakeApiServer) -> None:
    await leads_to(fake, "a")
    master = Master(seed())
    seen: list[int] = []
    patch = master.merge_patch

    async def slow(*arguments: Any, **named: Any) -> Seed:
        await asyncio.sleep(0.05)
        seen.append(len(fake.requests))
        return await patch(*arguments, **named)

    master.merge_patch = slow  # type: ignore[method-assign]
    async with running(master):
        await eventually(lambda: copies(fake) == ["alpha"])
        await eventually(lambda: master.seeds.links["eu-1"].connected)
    assert master.patches == [("eu-1", "a")]
    assert seen == [1], "the question alone"


async def test_a_status_that_is_written_at_the_same_time_does_not_make_the_seed_unreachable(
    fake: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    await leads_to(fake, "a")
    master = Master(seed())
    patch = master.merge_patch
    conflicts = iter([Conflict(409, "Conflict", "the object has been modified")] * 2)

    async def contended(*arguments: Any, **named: Any) -> Seed:
        if (conflict := next(conflicts, None)) is not None:
            raise conflict
        return await patch(*arguments, **named)

    master.merge_patch = contended  # type: ignore[method-assign]
    async with running(master):
        await eventually(lambda: master.seeds.links["eu-1"].connected)
    assert master.patches == [("eu-1", "a")]
    assert "not connected" not in caplog.text


async def test_another_cluster_is_neither_believed_nor_written_to_until_it_is_accepted(fake: FakeApiServer) -> None:
    await leads_to(fake, "b")
    master = Master(seed(recorded="a"))
    async with running(master):
        link = master.seeds.links["eu-1"]
        await eventually(lambda: in_phase(link, Phase.CLUSTER_CHANGED))
        assert "secret seedquota/eu-1, key kubeconfig: " in link.problem
        assert link.settled
        assert not link.listed
        master.tell(seed(recorded="a", accepts="b"))
        await eventually(lambda: link.connected and copies(fake) == ["alpha"])
        assert master.patches == [("eu-1", "b")]


async def test_a_cluster_that_takes_the_place_of_another_under_its_address_is_noticed(fake: FakeApiServer) -> None:
    await leads_to(fake, "a")
    master = Master(seed())
    async with running(master):
        link = master.seeds.links["eu-1"]
        await eventually(lambda: link.connected and copies(fake) == ["alpha"])
        await leads_to(fake, "b")
        del fake.objects["resourcequotas", "", "alpha"]
        fake.end_watches.set()
        await eventually(lambda: in_phase(link, Phase.CLUSTER_CHANGED))
        fake.end_watches.clear()
        assert copies(fake) == []
        await leads_to(fake, "a")
        await eventually(lambda: link.connected and copies(fake) == ["alpha"])
    assert master.patches == [("eu-1", "a")]


async def test_what_another_cluster_lists_is_not_believed_and_nothing_is_created_there(fake: FakeApiServer) -> None:
    await leads_to(fake, "a")
    cluster = SeedCluster(Access(fake.url), name="eu-1", timeout=PATIENCE)
    known = "a"

    async def verify() -> None:
        found = await cluster.request("GET", f"/api/v1/namespaces/{KUBE_SYSTEM}")
        if msgspec.json.decode(found)["metadata"]["uid"] != known:
            raise Refused(409, CHANGED, "another one")

    cluster.verify = verify
    try:
        await cluster.create(PROJECTS, {"metadata": {"name": "alpha"}, "spec": {}})
        assert len((await cluster.list(PROJECTS)).items) == 1
        await leads_to(fake, "b")
        with pytest.raises(Refused):
            await cluster.list(PROJECTS)
        with pytest.raises(Refused):
            await cluster.create(PROJECTS, {"metadata": {"name": "beta"}, "spec": {}})
        with pytest.raises(Refused):
            async with cluster.open_watch(PROJECTS, resource_version="0"):
                raise AssertionError("it was entered")
    finally:
        await cluster.close()
    assert [name for plural, _, name in fake.objects if plural == "projects"] == ["alpha"]


async def test_many_that_ask_at_once_share_one_question_and_its_answer() -> None:
    cluster = SeedCluster(Access("http://127.0.0.1:9"), name="eu-1")
    asked = 0

    async def verify() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        raise Conflict(409, "Conflict", "no")

    cluster.verify = verify
    since = asyncio.get_running_loop().time()
    results = await asyncio.gather(*(cluster.check(since) for _ in range(20)), return_exceptions=True)
    await cluster.close()
    assert asked == 1
    assert {type(result) for result in results} == {Conflict}


async def test_of_two_seeds_with_one_cluster_the_later_one_is_not_connected(fake: FakeApiServer) -> None:
    """Both come at once, and nothing is recorded yet."""
    await leads_to(fake, "a")
    master = Master(seed("us-1", made=2), seed("eu-1", made=1))
    async with running(master):
        eu, us = master.seeds.links["eu-1"], master.seeds.links["us-1"]
        await eventually(lambda: eu.connected and in_phase(us, Phase.DUPLICATE_CLUSTER))
        assert "cluster of Seed eu-1," in us.problem
        master.tell(seed("eu-1", "a", made=1, state="Lost"))
        await eventually(lambda: us.connected)


async def test_without_the_right_to_ask_a_seed_works_and_is_unidentified_until_it_can_be_asked(
    fake: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leads_to(fake, "a")
    may_ask = False
    request = SeedCluster.request

    async def guarded(self: SeedCluster, method: str, path: str, *arguments: Any, **named: Any) -> bytes:
        if "/namespaces/" in path and not may_ask:
            raise Forbidden(403, "Forbidden", "namespaces is forbidden")
        return await request(self, method, path, *arguments, **named)

    monkeypatch.setattr(SeedCluster, "request", guarded)
    master = Master(seed())
    async with running(master):
        link = master.seeds.links["eu-1"]
        await eventually(lambda: link.connected and copies(fake) == ["alpha"])
        assert "it is not known which cluster this is" in link.unidentified
        assert master.patches == []
        may_ask = True
        await eventually(lambda: master.patches == [("eu-1", "a")] and not link.unidentified)
        may_ask = False
        await eventually(lambda: in_phase(link, Phase.UNAUTHORIZED))
        assert "it cannot be told whether this is still the cluster a" in link.problem
