from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.meta import Object
from common.kube.client.resource import Listing, Resource
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Store
from common.runtime import pieces
from common.runtime.freeing import LARGE, free_in_pieces
from common.runtime.pieces import PIECE_SECONDS
from seed.usage.object_sum import ObjectSum

CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=Object)
MANY = 3 * LARGE
OF_A_PIECE = 100


class _Item:
    alive = 0

    def __init__(self) -> None:
        _Item.alive += 1

    def __del__(self) -> None:
        _Item.alive -= 1


def _store() -> Store[Any]:
    store: Store[Any] = Store({"all": lambda _: ["all"]})
    for number in range(MANY):
        store._set(str(number), _Item())
    return store


def _sum() -> ObjectSum[Any]:
    totals: ObjectSum[Any] = ObjectSum()
    totals._objects.update({str(number): _Item() for number in range(MANY)})
    return totals


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock takes a hundredth of a piece."""
    now = itertools.count()
    monkeypatch.setattr(pieces, "time", SimpleNamespace(monotonic=lambda: next(now) * PIECE_SECONDS / OF_A_PIECE))
    monkeypatch.setattr(_Item, "alive", 0)


@pytest.mark.parametrize("made", [_store, _sum])
async def test_very_many_objects_are_freed_in_pieces(made: Callable[[], object]) -> None:
    """When a connection to a cluster with 150,000 pods ended, others waited until all were freed."""
    held = made()
    assert _Item.alive == MANY
    del held
    before, turns = _Item.alive, 0
    while _Item.alive:
        await asyncio.sleep(0)
        assert before - _Item.alive <= 2 * OF_A_PIECE
        before, turns = _Item.alive, turns + 1
        assert turns < MANY
    assert turns >= MANY / OF_A_PIECE / 2


async def test_the_indexes_that_a_list_replaces_are_freed_in_pieces() -> None:
    """Those of 40,000 namespaces took 0.1 s."""
    store = _store()
    replaced = [*store.objects.values()]
    await store._replace_in_pieces({"other": cast(Any, _Item())})
    began = before = sum(map(sys.getrefcount, replaced))
    while began - before < MANY:
        await asyncio.sleep(0)
        now = sum(map(sys.getrefcount, replaced))
        assert before - now < MANY / 2
        before = now


@pytest.mark.parametrize("made", [_store, _sum])
def test_without_an_event_loop_all_are_freed_at_once(made: Callable[[], object]) -> None:
    held = made()
    del held
    assert _Item.alive == 0


async def test_what_was_listed_is_freed_in_pieces_if_it_is_cut_off_while_it_is_taken_up() -> None:
    items: list[Any] = [_Item() for _ in range(MANY)]
    listing: Listing[Any] = Listing(items, "1")

    async def listed(*_: object, **_options: object) -> Listing[Any]:
        return listing

    made: Reflector[Any] = Reflector(cast(Cluster, SimpleNamespace(name="c", list=listed)), CONFIGMAPS)
    with pytest.raises(AttributeError):  # such items have no metadata
        await made._list()
    assert len(items) == MANY
    await asyncio.sleep(0)
    assert MANY - 2 * OF_A_PIECE <= len(items) < MANY


async def test_few_are_left_to_their_caller() -> None:
    few = [_Item() for _ in range(10)]
    free_in_pieces(few)
    await asyncio.sleep(0)
    assert len(few) == 10
