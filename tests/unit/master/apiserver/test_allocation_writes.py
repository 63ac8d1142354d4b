"""How several Allocations are made at one time, all or none, and how seldom the webhook's answer is proven."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from common.api.types import AllocatedResource, Allocation, AllocationSpec
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden, Unavailable
from master.apiserver.allocation_types import Wanted
from master.apiserver.allocation_writes import MADE_AT_ONCE, AllocationWrites
from master.apiserver.problem import ProblemError
from master.cache.allocations import AllocationCache

DENIED = Forbidden(403, "Forbidden", 'admission webhook "allocations.seedquota.io" denied the request: no')


class ApiServer:
    """As far as it creates and deletes Allocations. `fails`: the name that it does not create."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.asks_webhook = True  # which refuses every dry run then
        self.dry_runs = 0
        self.begun: list[str] = []
        self.stored: dict[str, Allocation] = {}
        self.at_once = self.most = 0

    async def request(self, _method: str, path: str, _body: bytes, **_more: str) -> bytes:
        assert path.endswith("?dryRun=All")
        self.dry_runs += 1
        await asyncio.sleep(0.01)
        if self.asks_webhook:
            raise DENIED
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


def wanted(count: int) -> list[Wanted]:
    resources = [AllocatedResource(type="servers", committed=1)]
    return [
        Wanted(
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


async def test_when_one_of_several_fails_no_other_is_begun_and_what_was_made_is_undone() -> None:
    server = ApiServer(fails="n20")
    server.asks_webhook = False
    several = writes(server)
    with pytest.raises(ProblemError) as refused:
        await several.create(wanted(100), "ann")
    assert refused.value.status == 503
    assert server.stored == {}
    assert len(server.begun) <= 21 + MADE_AT_ONCE
