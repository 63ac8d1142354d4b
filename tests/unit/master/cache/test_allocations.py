from __future__ import annotations

import asyncio
from itertools import islice
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from common.api.types import AllocatedResource, Allocation, AllocationSpec
from common.kube.client.api_client import Cluster
from common.kube.client.meta import ObjectMeta
from common.kube.controller.store import Change
from master.cache.allocations import AllocationCache, Use


class _Nowhere:
    name = "master"


def cache() -> AllocationCache:
    return AllocationCache(cast(Cluster, _Nowhere()))


def allocation(name: str, thing: str = "1", **servers: int) -> Allocation:
    spec = AllocationSpec(
        organization="acme",
        project="alpha",
        kind="server",
        id=thing,
        resources=[AllocatedResource("servers", **servers)],
    )
    return Allocation(metadata=ObjectMeta(name=name, namespace="org-acme", uid=name), spec=spec)


def tell(found: AllocationCache, old: Allocation | None, new: Allocation | None) -> None:
    """As its reflector does."""
    store = found._reflector.store
    if new is not None:
        store._set(new.metadata.key, new)
    elif old is not None:
        store._remove(old.metadata.key)
    found._changed(Change(old, new))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=20))
def test_the_sums_are_of_what_is_there(steps: list[tuple[str, int, int, bool]]) -> None:
    found = cache()
    there: dict[str, Allocation] = {}
    for name, committed, reserved, stays in steps:
        new = allocation(name, committed=committed, reserved=reserved) if stays else None
        if new is None and name not in there:
            continue
        tell(found, there.pop(name, None), new)
        if new is not None:
            there[name] = new
    listed = [each for one in there.values() for each in one.spec.resources]
    expected = Use(sum(each.committed for each in listed), sum(each.reserved for each in listed))
    assert found.use("org-acme").get("servers", Use()) == expected
    assert found.use("org-other") == {}


async def test_who_waits_for_an_allocation_learns_of_one_that_came_before_for_the_same_thing() -> None:
    found = cache()
    arrivals = [found.expect("org-acme", name) for name in ("a", "b", "c")]
    tell(found, None, allocation("b", thing="2"))
    tell(found, None, allocation("a", thing="1"))
    tell(found, None, allocation("c", thing="1"))
    assert [await arrival for arrival in arrivals] == [("a", ""), ("b", ""), ("c", "a")]
    later = found.expect("org-acme", "d")
    for name, arrival in zip("abcd", (*arrivals, later), strict=True):
        found.expected("org-acme", name, arrival)
    assert later.cancelled() and found._expected == {}
    await asyncio.sleep(0)


def of(name: str, project: str, kind: str, thing: str) -> Allocation:
    spec = AllocationSpec(organization="acme", project=project, kind=kind, id=thing)
    return Allocation(metadata=ObjectMeta(name=name, namespace="org-acme", uid=name), spec=spec)


@given(
    st.lists(st.tuples(*(st.sampled_from("abcd") for _ in range(4)), st.booleans()), max_size=30),
    st.sets(st.sampled_from("abc")),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from(["", "b", "bb"]),
)
def test_those_are_listed_in_order_that_are_asked_for(
    steps: list[tuple[str, str, str, str, bool]], projects: set[str], kind: str | None, id: str | None, after: str
) -> None:
    found = cache()
    there: dict[str, Allocation] = {}
    for name, project, of_kind, thing, stays in steps:
        if name in there:
            tell(found, there.pop(name), None)
        if stays:
            there[name] = of(name, project, of_kind, thing)
            tell(found, None, there[name])
    listed = [each.metadata.name for each in found.listed("org-acme", projects, kind=kind, id=id, after=after)]
    assert listed == sorted(
        name
        for name, each in there.items()
        if each.spec.project in projects and kind in (None, each.spec.kind) and id in (None, each.spec.id)
        if name > after
    )
    assert found.projects("org-acme") == {each.spec.project for each in there.values()}
    assert list(found.listed("org-other", projects)) == []


def test_a_page_looks_at_none_but_its_own() -> None:
    """50,000 took 80 ms for each page, however small: a member of one organization could stop the API for all."""
    found = cache()
    for number in range(2_000):
        tell(found, None, of(f"a{number:05}", f"p{number % 4}", f"k{number % 3}", str(number)))
    looked: list[str] = []
    get = found.get

    def noting(namespace: str, name: str) -> Allocation | None:
        looked.append(name)
        return get(namespace, name)

    found.get = noting  # type: ignore[method-assign]
    for query in ({}, {"kind": "k1"}, {"id": "1000"}, {"kind": "none"}, {"after": "a01000"}):
        looked.clear()
        page = list(islice(found.listed("org-acme", {"p0"}, **query), 5))  # type: ignore[arg-type]
        assert len(page) == (0 if query.get("kind") == "none" else 1 if "id" in query else 5)
        assert len(looked) == len(page)
