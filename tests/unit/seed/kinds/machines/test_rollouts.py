from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from common.kube.client.meta import ObjectMeta, OwnerReference
from seed.kinds.machines import rollouts
from seed.kinds.machines.rollouts import Api, Rollouts

OWNER = OwnerReference(api_version="v1", kind="MachineSet", name="set", uid="set", controller=True)
NEW = ObjectMeta(name="m", namespace="ns", owner_references=(OWNER,))
API = cast("Api[Any]", SimpleNamespace(server="a"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Event]:
    """Each that has begun. It ends when its event is set."""
    begun: list[asyncio.Event] = []

    async def read(*_arguments: object) -> None:
        begun.append(ends := asyncio.Event())
        await ends.wait()

    monkeypatch.setattr(rollouts, "_read_all", read)
    monkeypatch.setattr(rollouts, "KEPT", 60.0)
    return begun


async def test_a_read_that_has_begun_confirms_nothing(reads: list[asyncio.Event]) -> None:
    of = Rollouts()
    asking = [asyncio.create_task(of.replaceable(API, NEW, {}, anew=anew)) for anew in (False, False)]
    await asyncio.sleep(0.01)
    assert len(reads) == 1, "one read serves all that ask within a moment"
    asking.append(asyncio.create_task(of.replaceable(API, NEW, {}, anew=True)))
    await asyncio.sleep(0.01)
    assert len(reads) == 2
    for ends in reads:
        ends.set()
    await asyncio.gather(*asking)
    await asyncio.wait_for(of.replaceable(API, NEW, {}, anew=False), 30)
    assert len(reads) == 2


async def test_those_that_are_confirmed_at_the_same_time_share_a_read(reads: list[asyncio.Event]) -> None:
    of = Rollouts()
    asking = [asyncio.create_task(of.replaceable(API, NEW, {}, anew=True)) for _ in range(3)]
    await asyncio.sleep(0.01)
    (ends,) = reads
    ends.set()
    await asyncio.gather(*asking)


async def test_what_was_read_of_one_cluster_or_namespace_is_no_answer_in_another(reads: list[asyncio.Event]) -> None:
    """Who asks chooses the uid of the owner, and so could name another tenant's."""
    of = Rollouts()
    elsewhere = structs.replace(NEW, namespace="other")
    other = cast("Api[Any]", SimpleNamespace(server="b"))
    asking = [
        asyncio.create_task(of.replaceable(api, new, {}, anew=False))
        for api, new in ((API, NEW), (other, NEW), (API, elsewhere), (API, NEW))
    ]
    await asyncio.sleep(0.01)
    assert len(reads) == 3
    for ends in reads:
        ends.set()
    await asyncio.gather(*asking)
