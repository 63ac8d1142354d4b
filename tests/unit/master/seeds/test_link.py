"""What the master takes of what a seed's agent says, and when it counts as a sign of life."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from common.api.labels import UID_LABEL
from common.api.types import Seed, SeedStatus
from common.kube.client.meta import ObjectMeta
from common.kube.controller.store import Change, Store
from master.cache.informers import Caches
from master.cache.objects import Named
from master.seeds import link as links
from master.seeds.link import SeedLink
from master.seeds.registry import Seeds


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
