"""The status of projects: when it is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from common.api.conditions import condition
from common.kube.client.meta import ObjectMeta
from common.runtime.burst import BurstDetector
from master.cache.objects import AllocatedTypes, MasterQuota, Named, OrganizationNamespace, QuotaStatus
from master.reporting import tenant_status
from master.reporting.tenant_status import NO_NAMESPACE, SETTLE, Tenants

KEY = ("projects", "alpha")
ORGANIZATION = ("organizations", "acme")


class Master:
    """A project on its way to one seed, and what is written about it."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.synced = False
        self.project = Named(metadata=ObjectMeta(name="alpha", uid="1", generation=1))
        self.organizations = {"acme": Named(metadata=ObjectMeta(name="acme", uid="2", generation=1))}
        self.quotas: list[MasterQuota] = []
        self.link = SimpleNamespace(
            name="seed-1",
            connected=True,
            never_connected=False,
            sync=SimpleNamespace(in_sync=lambda _plural, _name: self.synced),
        )
        caches: Any = SimpleNamespace(
            projects=SimpleNamespace(
                store=SimpleNamespace(get=lambda _name: self.project, by_index=lambda _index, _key: [self.project])
            ),
            organizations=SimpleNamespace(store=self.organizations),
            quotas=SimpleNamespace(store=SimpleNamespace(by_index=lambda _index, _key: self.quotas)),
            allocated_types=AllocatedTypes,
        )
        seeds: Any = SimpleNamespace(present=lambda: [self.link], rush=BurstDetector())
        cluster: Any = SimpleNamespace(apply=self._apply)
        self.namespace: OrganizationNamespace | None = NO_NAMESPACE
        self.tenants = Tenants(cluster, caches, seeds, namespace_of=lambda _organization: self.namespace)

    async def _apply(self, _resource: object, body: dict[str, Any], _manager: str, _subresource: str) -> None:
        self.written.append(body["status"])
        status = msgspec.json.decode(msgspec.json.encode(body["status"]))
        if body["metadata"]["name"] == "alpha":
            self.project = msgspec.structs.replace(self.project, status=status)
        else:
            self.organizations["acme"] = msgspec.structs.replace(self.organizations["acme"], status=status)

    async def look(self, key: tuple[str, str] = KEY) -> float | None:
        return await self.tenants._show(key)


async def test_what_is_said_already_is_not_written_again() -> None:
    master = Master()
    master.synced = True
    assert await master.look() is None
    assert await master.look() is None
    assert [status["conditions"][0].status for status in master.written] == ["True"]
    master.synced = False
    await master.look()
    assert [status["conditions"][0].status for status in master.written] == ["True", "False"]


async def test_a_new_project_is_told_of_once_it_is_on_all_seeds() -> None:
    master = Master()
    assert await master.look() == SETTLE
    assert master.written == []
    master.synced = True
    await master.look()
    assert [status["conditions"][0].reason for status in master.written] == ["AllSeeds"]


async def test_a_new_project_that_does_not_arrive_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master()
    monkeypatch.setattr(tenant_status, "ARRIVING", 0.0)
    assert await master.look() is None
    assert [status["conditions"][0].reason for status in master.written] == ["SeedNotSynced"]


async def test_an_organization_says_whether_it_is_on_all_seeds() -> None:
    master = Master()
    assert await master.look(ORGANIZATION) == SETTLE
    assert master.written == []
    master.synced = True
    await master.look(ORGANIZATION)
    master.synced = False
    await master.look(ORGANIZATION)
    assert [(status["conditions"][0].reason, status["projects"]) for status in master.written] == [
        ("AllSeeds", 1),
        ("SeedNotSynced", 1),
    ]


async def test_an_organization_says_which_namespace_it_has_and_why_it_has_none() -> None:
    master = Master()
    master.synced, master.namespace = True, None
    assert await master.look(ORGANIZATION) == SETTLE, "it is not known yet"
    assert master.written == []
    master.namespace = OrganizationNamespace("org-acme", condition("NamespaceReady", True, "Made", ""))
    await master.look(ORGANIZATION)
    await master.look(ORGANIZATION)
    master.namespace = OrganizationNamespace("", condition("NamespaceReady", False, "NotOurs", "why"))
    await master.look(ORGANIZATION)
    await master.look(ORGANIZATION)
    assert [(status.get("namespace"), status["conditions"][1].reason) for status in master.written] == [
        ("org-acme", "Made"),
        (None, "NotOurs"),
    ]


async def test_a_seed_that_never_connected_lacks_no_project() -> None:
    master = Master()
    master.link.connected, master.link.sync, master.link.never_connected = False, None, True
    await master.look()
    assert [status["conditions"][0].status for status in master.written] == ["True"]


async def test_the_use_under_a_quota_that_went_is_not_shown_any_more() -> None:
    master = Master()
    master.synced = True
    spec: dict[str, object] = {"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "8"}}
    status = QuotaStatus(hard={"cpu": "8"}, global_usage={"cpu": "2"})
    master.quotas = [MasterQuota(metadata=ObjectMeta(name="project-alpha"), spec=spec, status=status)]
    await master.look()
    master.quotas = []
    await master.look()
    assert [written.get("summary") for written in master.written] == [
        {"quota": "project-alpha", "usage": "cpu 2/8"},
        None,
    ]
