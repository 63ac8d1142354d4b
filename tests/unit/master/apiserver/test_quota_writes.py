"""What a PUT of a quota writes, and what the audit log says of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.meta import ObjectMeta
from common.server.access_reviews import User
from master.apiserver.auth import Right, Rights
from master.apiserver.call import Call
from master.apiserver.conditions import Preconditions
from master.apiserver.handlers import Handlers
from master.apiserver.problem import ProblemError
from master.apiserver.serializers import QuotaUpdate
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches
from master.cache.objects import MasterQuota, Named
from tests.unit.master.apiserver.test_auth import reviewer

LIMITS: dict[str, str | int] = {"cpu": "64", "memory": "256Gi"}


class All(Rights):
    async def require(self, _user: User, _right: Right) -> None:
        return


class Stored:
    """One quota of an API server, and what was written to it."""

    def __init__(self, guaranteed: dict[str, str]) -> None:
        spec: dict[str, object] = {"subject": {"kind": "project", "name": "alpha"}, "quota": LIMITS}
        spec |= {"guaranteed": guaranteed} if guaranteed else {}
        self.quota = MasterQuota(metadata=ObjectMeta(name="project-alpha", resource_version="1"), spec=spec)
        self.patches: list[Any] = []

    async def get(self, _resource: object, _name: str) -> MasterQuota:
        return self.quota

    async def merge_patch(self, _resource: object, _name: str, patch: Any) -> MasterQuota:
        self.patches.append(patch["spec"])
        return self.quota


async def put(stored: Stored, asked: Cluster, body: QuotaUpdate) -> Any:
    """What the audit log has of it."""
    caches = Caches(asked, "seedquota")
    caches.projects._put(Named(metadata=ObjectMeta(name="alpha"), spec={"organization": "acme"}))
    organization = {"subject": {"kind": "organization", "name": "acme"}, "quota": {"cpu": "20", "memory": "100Gi"}}
    caches.quotas._put(MasterQuota(metadata=ObjectMeta(name="org-acme", uid="o"), spec=organization))
    handlers = Handlers(stored, caches, AllocationCache(asked), All(asked))  # type: ignore[arg-type]
    call = Call(User(username="ann"), {"name": "project-alpha"}, {}, body, Preconditions())
    await handlers.put_quota(call)
    return call.changes


@pytest.mark.parametrize(
    ("before", "given", "written"),
    [
        ({}, msgspec.UNSET, None),
        ({}, {}, None),
        ({}, {"cpu": "16"}, {"guaranteed": {"cpu": "16"}}),
        ({"cpu": "16"}, msgspec.UNSET, None),
        ({"cpu": "16"}, {"cpu": "16"}, None),
        ({"cpu": "16"}, {"memory": 64}, {"guaranteed": {"cpu": None, "memory": "62500000Ki"}}),
        ({"cpu": "16", "memory": "64Gi"}, {}, {"guaranteed": None}),
    ],
)
async def test_a_guarantee_that_is_not_named_stays_and_the_log_has_what_was_there(
    before: dict[str, str], given: Any, written: dict[str, Any] | None
) -> None:
    async with reviewer() as asked:
        stored = Stored(before)
        changes = await put(stored, asked, QuotaUpdate(quota=dict(LIMITS), guaranteed=given))
        assert stored.patches == ([written] if written is not None else [])
        log = {"quota": "project-alpha", "before": LIMITS, "limits": {}}
        assert changes == log | ({**written, "guaranteedBefore": before} if written is not None else {})


async def test_a_guarantee_that_does_not_fit_is_not_written() -> None:
    async with reviewer() as asked:
        stored = Stored({"cpu": "16"})
        with pytest.raises(ProblemError, match="cpu: 21 is more than organization acme can guarantee"):
            await put(stored, asked, QuotaUpdate(quota=dict(LIMITS), guaranteed={"cpu": "21"}))
        assert stored.patches == []
