"""How several Allocations are made at one time, all or none, and how seldom the webhook's answer is proven."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from msgspec import structs

from common.api.types import AllocatedResource, Allocation, AllocationSpec
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, Cause, Conflict, Forbidden, Invalid, NotFound, Unavailable
from master.apiserver.allocation_types import REQUEST_ANNOTATION, NewAllocation
from master.apiserver.allocation_writes import MADE_AT_ONCE, AllocationWrites
from master.apiserver.problem import ProblemError
from master.apiserver.serializers import MAX_TYPES
from master.cache.allocations import AllocationCache

DENIED = Forbidden(403, "Forbidden", 'admission webhook "allocations.seedquota.io" denied the request: no')


class ApiServer:
    """As far as it creates and deletes Allocations. `fails`: the name that it does not create."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.asks_webhook = True  # which refuses every dry run then
        self.refusal = DENIED
        self.dry_runs = 0
        self.types: list[int] = []  # of each dry run
        self.begun: list[str] = []
        self.stored: dict[str, Allocation] = {}
        self.at_once = self.most = 0

    async def request(self, _method: str, path: str, body: bytes, **_more: str) -> bytes:
        assert path.endswith("?dryRun=All")
        self.dry_runs += 1
        self.types.append(len(msgspec.json.decode(body)["spec"]["resources"]))
        await asyncio.sleep(0.01)
        if self.asks_webhook:
            raise self.refusal
        return b""

    async def create(self, _resource: object, body: dict[str, Any], namespace: str) -> Allocation:
        name = body["metadata"]["name"]
        self.begun.append(name)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.01 if name == self.fails else 0.02)
        self.at_once -= 1
        if name == self.fails:
            raise Unavailable(503, "ServiceUnavailable", "not now")
        metadata = {**body["metadata"], "namespace": namespace, "uid": f"{name}-uid", "resourceVersion": "1"}
        self.stored[name] = msgspec.convert({**body, "metadata": metadata}, Allocation)
        return self.stored[name]

    async def get(self, _resource: object, name: str, _namespace: str) -> Allocation:
        if name not in self.stored:
            raise NotFound(404, "NotFound", name)
        return self.stored[name]

    async def delete(self, _resource: object, name: str, _namespace: str, *, uid: str, resource_version: str) -> None:
        assert (uid, resource_version) == (f"{name}-uid", "1"), "only what nobody has changed"
        del self.stored[name]


class Arrivals:
    """A watch that brings at once what is created."""

    def expect(self, _namespace: str, name: str) -> asyncio.Future[tuple[str, str]]:
        arrival: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        arrival.set_result((f"{name}-uid", ""))
        return arrival

    def expected(self, _namespace: str, _name: str, arrival: asyncio.Future[tuple[str, str]]) -> None:
        arrival.cancel()

    def get(self, _namespace: str, _name: str) -> None:
        return None

    def of_thing(self, _namespace: str, _kind: str, _id: str) -> list[Allocation]:
        return []


def writes(server: ApiServer) -> AllocationWrites:
    return AllocationWrites(cast(Cluster, server), cast(AllocationCache, Arrivals()), lambda quota: quota)


def wanted(count: int) -> list[NewAllocation]:
    resources = [AllocatedResource(type="servers", committed=1)]
    return [
        NewAllocation(
            name=f"n{number:02}",
            display_name="unused",
            spec=AllocationSpec(
                organization="acme", project="alpha", kind="server", id=str(number), resources=resources
            ),
            at=f"/{number}",
        )
        for number in range(count)
    ]


async def test_requests_that_come_at_one_time_prove_once_that_the_webhook_is_asked() -> None:
    server = ApiServer()
    several = writes(server)
    await asyncio.gather(*(several.prove("acme") for _ in range(50)))
    assert server.dry_runs == 1
    await several.prove("other")
    assert server.dry_runs == 2, "an organization each"


async def test_what_is_not_proven_is_refused_to_all_who_waited_and_asked_again() -> None:
    server = ApiServer()
    server.asks_webhook = False
    several = writes(server)
    ends = await asyncio.gather(*(several.prove("acme") for _ in range(5)), return_exceptions=True)
    assert [cast(ProblemError, end).status for end in ends] == [503] * 5 and server.dry_runs == 1
    server.asks_webhook = True
    await several.prove("acme")
    assert server.dry_runs == 2


async def test_what_another_webhook_refuses_proves_nothing() -> None:
    server = ApiServer()
    server.refusal = Forbidden(403, "Forbidden", 'admission webhook "labels.example.com" denied the request: no owner')
    several = writes(server)
    with pytest.raises(ProblemError, match=r"labels\.example\.com"):
        await several.prove("acme")
    server.refusal = DENIED
    await several.prove("acme")
    assert server.dry_runs == 2


async def test_several_may_have_more_types_together_than_one_and_the_wrong_one_is_pointed_to() -> None:
    """The CRD refuses the sum of them, in which nothing is where it is in the body."""

    class Strict(ApiServer):
        async def request(self, _method: str, _path: str, body: bytes, **_more: str) -> bytes:
            types = [each["type"] for each in json.loads(body)["spec"]["resources"]]
            if len(types) > 64 or "wrong" in types:
                place = types.index("wrong") if "wrong" in types else 0
                cause = Cause(field=f"spec.resources[{place}].type", message="no")
                raise Invalid(422, "Invalid", "no", causes=(cause,))
            return b""

    def of(*types: str) -> list[AllocatedResource]:
        return [AllocatedResource(type=each, committed=1) for each in types]

    server = Strict()
    many = [of(*(f"t{first + number}" for number in range(40))) for first in (0, 40)]
    several = [
        replace(each, spec=structs.replace(each.spec, resources=has)) for each, has in zip(wanted(2), many, strict=True)
    ]
    there, made = await writes(server).create(several, "ann")
    assert len(there) == len(made) == 2
    two = wanted(2)
    two[1] = replace(two[1], spec=structs.replace(two[1].spec, resources=of("wrong")))
    with pytest.raises(ProblemError) as refused:
        await writes(Strict()).create(two, "ann")
    assert [each.pointer for each in refused.value.errors] == ["/1/spec/resources/0/type"]


async def test_an_allocation_that_was_released_a_moment_ago_is_in_nobodys_way() -> None:
    """The cache still has it: the watch is late."""
    server = ApiServer()
    server.asks_webhook = False
    (first, *_) = (await writes(server).create(wanted(1), "ann"))[0].values()

    class Behind(Arrivals):
        def of_thing(self, _namespace: str, _kind: str, _id: str) -> list[Allocation]:
            return [first]

    several = AllocationWrites(cast(Cluster, server), cast(AllocationCache, Behind()), lambda quota: quota)
    another = [replace(each, name="another") for each in wanted(1)]
    with pytest.raises(ProblemError) as refused:
        await several.create(another, "ann")
    assert (refused.value.code, refused.value.existing) == ("already_allocated", "n00")
    await several.delete(first)
    _, made = await several.create(another, "ann")
    assert made == another


async def test_one_who_gives_up_leaves_the_proof_to_the_others() -> None:
    several = writes(ApiServer())
    first, second = (asyncio.create_task(several.prove("acme")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_of_several_as_many_are_made_at_a_time_as_are_allowed() -> None:
    server = ApiServer()
    server.asks_webhook = False
    several = writes(server)
    there, made = await several.create(wanted(40), "ann")
    assert len(there) == len(made) == len(server.stored) == 40
    assert server.most == MADE_AT_ONCE
    assert server.begun == sorted(server.begun), "in their order"


async def test_more_types_than_one_allocation_may_have_are_asked_for_in_parts() -> None:
    server = ApiServer()
    server.asks_webhook = False
    several = [
        replace(
            each, spec=msgspec.structs.replace(each.spec, resources=[AllocatedResource(type=each.name, committed=1)])
        )
        for each in wanted(MAX_TYPES + 1)
    ]
    there, _ = await writes(server).create(several, "ann")
    assert len(there) == MAX_TYPES + 1
    assert server.types == [MAX_TYPES, 1]


class Written(ApiServer):
    """It also changes what is there, by compare-and-set. `meanwhile` is done once before that."""

    def __init__(self, fails: str = "") -> None:
        super().__init__(fails)
        self.asks_webhook = False
        self.meanwhile: Callable[[], None] | None = None

    async def create(self, resource: object, body: dict[str, Any], namespace: str) -> Allocation:
        if body["metadata"]["name"] in self.stored:
            raise AlreadyExists(409, "AlreadyExists", "it is there")
        return await super().create(resource, body, namespace)

    async def merge_patch(self, _resource: object, name: str, patch: dict[str, Any], _namespace: str) -> Allocation:
        if self.meanwhile is not None:
            self.meanwhile, act = None, self.meanwhile
            act()
        found = self.stored[name]
        if patch["metadata"]["resourceVersion"] != found.metadata.resource_version:
            raise Conflict(409, "Conflict", "it has changed")
        self.write(found, patch["metadata"]["annotations"])
        return self.stored[name]

    def write(self, found: Allocation, changed: dict[str, str | None]) -> None:
        annotations = {**found.metadata.annotations, **changed}
        kept = {key: value for key, value in annotations.items() if value is not None}
        version = str(int(found.metadata.resource_version) + 1)
        metadata = structs.replace(found.metadata, annotations=kept, resource_version=version)
        self.stored[metadata.name] = structs.replace(found, metadata=metadata)

    async def delete(self, _resource: object, name: str, _namespace: str, *, uid: str, resource_version: str) -> None:
        if resource_version != self.stored[name].metadata.resource_version:
            raise Conflict(409, "Conflict", "it has changed")
        del self.stored[name]


@pytest.mark.parametrize("touched", [False, True])
async def test_what_another_request_has_answered_is_not_undone_by_the_one_that_made_it(touched: bool) -> None:
    """`touched`: somebody else writes it between the read and the write that takes the mark away."""
    server = Written(fails="n01")
    others = writes(server)
    first, second = wanted(2)

    async def make(body: dict[str, Any], namespace: str) -> Allocation:
        made = await Written.create(server, None, body, namespace)
        if touched:
            server.meanwhile = lambda: server.write(server.stored[first.name], {"somebody": "was here"})
        there, new = await others.create([first], "bob")
        assert (list(there), new) == ([first.name], []), "it was found"
        assert REQUEST_ANNOTATION not in there[first.name].metadata.annotations
        return made

    async def create(_resource: object, body: dict[str, Any], namespace: str) -> Allocation:
        if body["metadata"]["name"] == first.name and first.name not in server.stored:
            return await make(body, namespace)
        await asyncio.sleep(0.1)
        return await Written.create(server, None, body, namespace)

    server.create = create  # type: ignore[method-assign]
    with pytest.raises(ProblemError, match="these are there and were not undone: n00"):
        await writes(server).create([first, second], "ann")
    assert list(server.stored) == [first.name]


async def test_when_one_of_several_fails_no_other_is_begun_and_what_was_made_is_undone() -> None:
    server = ApiServer(fails="n20")
    server.asks_webhook = False
    several = writes(server)
    with pytest.raises(ProblemError) as refused:
        await several.create(wanted(100), "ann")
    assert refused.value.status == 503
    assert server.stored == {}
    assert len(server.begun) <= 21 + MADE_AT_ONCE
