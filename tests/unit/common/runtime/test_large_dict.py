from __future__ import annotations

import asyncio
import gc
from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kube.client.meta import Object, ObjectMeta
from common.kube.controller.store import Store
from common.runtime import freeing, large_dict
from common.runtime.large_dict import MANY, LargeDict, grown, parts_of, taken_from, values_of
from seed.kinds.namespaces.evaluators.namespaced import Terms
from seed.kinds.namespaces.totals import ObjectTotals
from seed.usage.object_sum import Counted, ObjectSum

OBJECTS = 6 * MANY
KEYS = st.integers(0, 30).map(str)


def _large(few: int = 0) -> MutableMapping[str, int]:
    return LargeDict({str(number): number for number in range(few)})


def _store() -> Store[Any]:
    store: Store[Any] = Store({"namespace": lambda found: [found.metadata.namespace]})
    for number in range(OBJECTS):
        store._set(str(number), Object(metadata=ObjectMeta(name=str(number), namespace="n")))
    return store


async def _store_of_a_list() -> Store[Any]:
    store, listed = _store(), _store()
    await store._replace_in_pieces(listed.objects)
    return store


def _totals() -> ObjectTotals:
    totals = ObjectTotals(Terms(limited=frozenset({"pods"})))
    for number in range(OBJECTS):
        totals.keep(str(number), Counted(0, {}, "n"))
    return totals


def _sum() -> ObjectSum[Counted]:
    totals: ObjectSum[Counted] = ObjectSum()
    for number in range(OBJECTS):
        totals.keep(str(number), Counted(0, {}))
    return totals


def _largest(root: object) -> int:
    """Entries of the largest of Python's own collections that it holds."""
    seen, found, most = {id(root)}, [root], 0
    while found:
        here = found.pop()
        if isinstance(here, dict | list | set):
            most = max(most, len(here))
        for other in gc.get_referents(here):
            if isinstance(other, dict | list | set | tuple | LargeDict) and id(other) not in seen:
                seen.add(id(other))
                found.append(other)
    return most


@pytest.mark.parametrize("made", [_store, _totals, _sum])
def test_very_many_objects_are_in_no_collection_that_is_moved_at_once(made: Any) -> None:
    """With 350,000 in one dictionary, the next one took 25 to 70 ms."""
    assert _largest(made()) <= MANY


async def test_so_are_those_of_a_list() -> None:
    assert _largest(await _store_of_a_list()) <= MANY


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), KEYS, st.integers()),
            st.tuples(st.sampled_from(["pop", "get", "del", "in"]), KEYS, st.none()),
        ),
        max_size=120,
    )
)
def test_it_has_what_a_dictionary_has(steps: list[tuple[str, str, int | None]]) -> None:
    plain: dict[str, int | None] = {}
    large: MutableMapping[str, int | None] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_dict, "MANY", 5)
        for what, key, value in steps:
            if what == "set":
                plain[key] = value
                large = grown(large)
                large[key] = value
            elif what == "pop":
                assert large.pop(key, -1) == plain.pop(key, -1)
            elif what == "get":
                assert (large.get(key), large.get(key, -1)) == (plain.get(key), plain.get(key, -1))
            elif what == "in":
                assert (key in large) == (key in plain)
            elif key in plain:
                del plain[key], large[key]
            else:
                with pytest.raises(KeyError):
                    del large[key]
                with pytest.raises(KeyError):
                    large[key]
            assert len(large) == len(plain)
            assert bool(large) == bool(plain)
    assert dict(large) == dict(large.items()) == plain == large
    assert sorted(large) == sorted(plain)
    assert sorted(map(str, large.values())) == sorted(map(str, plain.values()))
    assert dict(taken_from(large)) == plain


def test_what_is_taken_from_it_is_not_in_it_any_more() -> None:
    entries = _large(300)
    taken = taken_from(entries)
    key, _ = next(taken)
    assert key not in entries
    assert len(entries) == 299
    assert len([*taken]) == 299
    assert not entries


def test_it_may_change_while_its_values_are_read() -> None:
    entries = _large(1000)
    found = values_of(entries)
    first = next(found)
    for number in range(1000, 2000):
        entries[str(number)] = number
    for number in range(500):
        entries.pop(str(number), None)
    assert {first, *range(500, 1000)} <= {first, *found} <= {*range(2000)}


async def test_a_list_that_replaces_all_takes_nothing_from_who_reads_it() -> None:
    """A namespace with very many objects comes in one by one, and a list may come meanwhile."""
    store, listed = _store(), _store()
    read = store.each_by_index("namespace", "n")
    keys = {next(read).metadata.key}
    await store._replace_in_pieces(listed.objects)
    while freeing._under_way:
        await asyncio.sleep(0)
    assert len(keys | {found.metadata.key for found in read}) == OBJECTS


def test_keys_find_their_place_in_a_part_by_all_bits() -> None:
    """A part whose keys had the same lowest bits would look at many other keys for each."""
    part = max(parts_of(_large(100_000)), key=len)
    assert len(part) < 600
    assert len({hash(key) % 256 for key in part}) > 150
