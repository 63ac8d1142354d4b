"""Events on user clusters in which Machines appeared that nobody admitted."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import msgspec

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from seed.controllers.unadmitted_events import TELL_AGAIN, UnadmittedEvents
from seed.kinds.machines.source import Source
from seed.usage.unadmitted import Unadmitted
from tests.unit.seed.controllers.test_unknown_projects import Seed

CLUSTER = {"metadata": {"name": "c1", "namespace": "alpha", "uid": "c1-uid"}, "spec": {"project": "alpha"}}


def appear(unadmitted: Unadmitted, uid: str) -> None:
    unadmitted.appeared(uid, f"ns/{uid}")
    unadmitted.judge([uid], sure=True)


async def test_there_is_one_when_more_appear_and_one_a_minute_however_many_do() -> None:
    unadmitted = Unadmitted({"from-before"})
    unadmitted.appeared("from-before", "ns/from-before")
    source = SimpleNamespace(
        key="alpha/c1",
        uid="c1-uid",
        user_cluster=msgspec.convert(CLUSTER, UserCluster),
        totals=SimpleNamespace(unadmitted=unadmitted),
    )
    seed = Seed()
    events = UnadmittedEvents(cast(Cluster, seed), {"alpha/c1": cast(Source, source)})
    now = time.monotonic()
    await events.look(now)
    assert seed.events == [], "the leader before wrote its Event"
    appear(unadmitted, "a")
    await events.look(now + 1)
    assert seed.about() == [("UserCluster", "c1", "UsageNotAdmitted")]
    assert seed.events[0]["type"] == "Warning"
    assert seed.events[0]["note"].startswith("2 machines were created past the webhook")
    unadmitted.found_at = now + 2
    await events.look(now + TELL_AGAIN)
    assert len(seed.events) == 1
    await events.look(now + 1 + TELL_AGAIN)
    assert len(seed.events) == 2
    await events.look(now + 2 + 2 * TELL_AGAIN)
    assert len(seed.events) == 2, "no more appeared"
    unadmitted.found_at = now + 3 * TELL_AGAIN
    seed.answers = False
    await events.look(now + 4 * TELL_AGAIN)
