"""What the master takes of what a seed's agent says, when it counts as a sign of life, and when it is connected."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from common.api.labels import MASTER_ANNOTATION, UID_LABEL
from common.api.types import Seed, SeedStatus
from common.kube.client.meta import ObjectMeta
from common.kube.controller.store import Change, Store
from common.runtime import metrics
from common.runtime.burst import BurstDetector
from master.cache.informers import Caches
from master.cache.objects import Named
from master.seeds import link as links
from master.seeds.link import SeedLink
from master.seeds.phase import Phase
from master.seeds.registry import Seeds
from master.seeds.remote_cache import SeedCaches
from master.seeds.replicator import CopySync
from master.seeds.seed_cluster import SeedCluster
from tests.unit import fake_api_server as fakes
from tests.unit.fake_api_server import eventually, fake_api_server


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest_asyncio.fixture
async def link() -> SeedLink:
    caches = SimpleNamespace(secrets=SimpleNamespace(store=Store[Any]({})))
    seeds = Seeds(cast(Caches, caches), "seedquota", master="own-lease")
    body = {
        "metadata": {"name": "eu-1", "uid": "seed-uid"},
        "spec": {"kubeconfigSecretRef": {"name": "eu-1"}, "state": "Lost"},  # nobody connects
    }
    seeds._changed("seeds", Change(None, msgspec.convert(body, Seed)))
    await asyncio.gather(*seeds._stopping)
    return seeds.links["eu-1"]


def copy(uid: str = "seed-uid", **status: object) -> Change[Any]:
    return Change(None, Named(metadata=ObjectMeta(name="eu-1", uid="copy", labels={UID_LABEL: uid}), status=status))


async def test_only_something_new_is_a_sign_of_life(link: SeedLink, clock: SimpleNamespace) -> None:
    link._seen("seeds", copy(version="0.1.0", clusters=3, lastSeenTime="2026-01-01T00:00:00Z"))
    assert link.reported is not None
    assert (link.reported.version, link.reported.clusters, link.reported_at) == ("0.1.0", 3, 100.0)
    clock.now += 60
    link._seen("seeds", copy(version="0.1.0", clusters=3, lastSeenTime="2026-01-01T00:00:00Z"))
    assert link.reported_at == 100.0, "another connection's list brings the same again"
    link._seen("seeds", copy(version="0.1.0", clusters=3, lastSeenTime="2026-01-01T00:00:30Z"))
    assert link.reported_at == 160.0


async def test_an_agent_that_says_nothing_any_more_is_noticed_once_and_so_is_its_next_word(
    link: SeedLink, clock: SimpleNamespace
) -> None:
    told: list[bool] = []
    link._on_phase = lambda _seed: told.append(link.agent_silent)
    clock.now = 1000.0
    link._notice_silence()
    assert not told, "it never said anything"
    link._seen("seeds", copy(version="0.1.0"))
    for seconds in (89, 1, 60):
        clock.now += seconds
        link._notice_silence()
    assert told == [True]
    link._seen("seeds", copy(version="0.1.0", clusters=1))
    assert told == [True, False]


@pytest.mark.parametrize(
    "change",
    [
        copy("of-a-former-seed", version="0.1.0"),
        copy(),
        copy(version="0.1.0", clusters="many"),
        Change(Named(metadata=ObjectMeta(name="eu-1")), None),
    ],
)
async def test_what_is_no_word_of_its_agent_is_not_taken(link: SeedLink, change: Change[Any]) -> None:
    link._seen("seeds", change)
    assert link.reported is None


async def test_a_seed_never_connected_until_somebody_reached_it(link: SeedLink) -> None:
    assert link.never_connected
    for status in ({"lastSeenTime": "2026-01-01T00:00:00Z"}, {"clusterUID": "u1"}):
        reached = msgspec.structs.replace(link.seed, status=msgspec.convert(status, SeedStatus))
        before, link.seed = link.seed, reached
        assert not link.never_connected, "a master before this one was connected to it"
        link.seed = before
    link._seen("seeds", copy(version="0.1.0"))
    assert not link.never_connected


PLURALS = ("resourcequotas", "projects", "organizations", "quotasettings", "seeds")


async def test_a_seed_that_is_declared_lost_is_told_before_its_link_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It admits nothing more then. One that does not answer is not waited for."""
    monkeypatch.setattr("master.seeds.registry.LAST_WRITE", 0.05)
    caches = SimpleNamespace(secrets=SimpleNamespace(store=Store[Any]({})))
    seeds = Seeds(cast(Caches, caches), "seedquota", master="own-lease")
    done: list[tuple[str, str, bool]] = []

    def declared(name: str, state: str) -> None:
        spec = {"kubeconfigSecretRef": {"name": name}, "state": state}
        body = {"metadata": {"name": name, "uid": name}, "spec": spec}
        seeds._changed("seeds", Change(None, msgspec.convert(body, Seed)))

    for name, hangs in (("eu-1", 0.0), ("us-1", 60.0)):
        declared(name, "Active")
        link = seeds.links[name]

        async def put_seed(link: SeedLink = link, hangs: float = hangs) -> None:
            done.append((link.name, link.seed.spec.state, link._task is not None))
            await asyncio.sleep(hangs)

        link.sync = cast(CopySync, SimpleNamespace(put_seed=put_seed, add=lambda _key: None))
        declared(name, "Lost")
    await asyncio.gather(*seeds._stopping)
    assert done == [("eu-1", "Lost", True), ("us-1", "Lost", True)]
    assert [link._task for link in seeds.links.values()] == [None, None]


async def test_it_is_connected_only_once_it_is_known_which_master_serves_the_seed(
    link: SeedLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that is connected writes grants. Here the list that tells it comes last."""
    for plural in PLURALS:
        monkeypatch.setitem(fakes.PLURALS, plural, ("seedquota.io/v1alpha1", "Any"))
    phases: list[Phase] = []
    monkeypatch.setattr(link, "_on_phase", lambda _name: phases.append(link.phase))
    async with fake_api_server() as api:
        cluster = api.cluster()
        cluster.name = "eu-1"
        await api.put("seeds", "", "eu-1", metadata={"annotations": {MASTER_ANNOTATION: "other-lease"}}, spec={})
        there = SeedCaches(cluster, lambda _plural, _change: None)
        sync = CopySync(
            "eu-1",
            Caches(cluster, "seedquota"),
            cluster,
            there,
            BurstDetector(lambda: False),
            master="own-lease",
            in_cluster=False,
            on_settled=lambda _plural, _name: None,
        )
        others = [reflector for reflector in there.all if reflector is not there.seed]
        identified = SimpleNamespace(check=AsyncMock(), request=cluster.request)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(reflector.run()) for reflector in others]
            for reflector in others:
                await reflector.wait_synced(15)
            tasks.append(group.create_task(link._probe(cast(SeedCluster, identified), there, sync)))
            await eventually(lambda: link.last_contact is not None)
            assert phases == []
            tasks.append(group.create_task(there.seed.run()))
            await eventually(lambda: link.phase is Phase.OTHER_MASTER)
            for task in tasks:
                task.cancel()
    assert phases == [Phase.OTHER_MASTER]


async def test_what_was_refused_of_a_seed_s_answers_goes_with_the_seed() -> None:
    caches = SimpleNamespace(secrets=SimpleNamespace(store=Store[Any]({})))
    seeds = Seeds(cast(Caches, caches), "seedquota", master="own-lease")
    metadata = {"name": "gone", "uid": "seed-uid"}
    seed = msgspec.convert(
        {"metadata": metadata, "spec": {"kubeconfigSecretRef": {"name": "x"}, "state": "Lost"}}, Seed
    )
    seeds._changed("seeds", Change(None, seed))
    metrics.api_answer_refused("gone", "Compressed")
    seeds._changed("seeds", Change(seed, None))
    await asyncio.gather(*seeds._stopping)
    labels = {"server": "gone", "reason": "Compressed"}
    assert REGISTRY.get_sample_value("seedquota_api_answers_refused_total", labels) is None
