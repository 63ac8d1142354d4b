"""The quota that the master makes of a ResourceQuotaAllocation, and what the allocation's status says of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, NotFound
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from master.cache.informers import Caches
from master.cache.objects import MasterQuota, QuotaAllocation
from master.tenancy.quota_allocations import QuotaAllocations

SELECTOR = {"matchLabels": {"owner": "ann"}}
QUOTA = "allocation.ann"


def allocation(uid: str = "ann-uid", generation: int = 1, **hard: str) -> QuotaAllocation:
    body = {
        "metadata": {"name": "ann", "uid": uid, "generation": generation},
        "spec": {"selector": SELECTOR, "allocation": {"hard": hard or {"pods": "50"}}},
    }
    return msgspec.convert(body, QuotaAllocation)


class Master:
    """`truth` is what the API server has; the caches have seen it all unless a test says otherwise."""

    def __init__(self) -> None:
        cluster: Any = SimpleNamespace(
            name="master",
            get=self._get,
            create=self._create,
            replace=self._replace,
            delete=self._delete,
            apply=self._apply,
        )
        self.caches = Caches(cast(Cluster, cluster), "seedquota")
        self.allocations = QuotaAllocations(cluster, self.caches)
        self.truth: dict[tuple[str, str], Object] = {}
        self.made = 0
        self.status: dict[str, Any] = {}

    def put(self, plural: str, found: Object) -> None:
        self.truth[plural, found.metadata.name] = found
        self.caches._all[plural].store._set(found.metadata.name, found)

    def lose(self, plural: str, name: str) -> None:
        """From the cache only."""
        self.caches._all[plural].store._remove(name)

    async def look(self) -> None:
        await self.allocations._reconcile("ann")

    @property
    def quota(self) -> MasterQuota | None:
        found = self.truth.get(("resourcequotas", QUOTA))
        assert found is None or isinstance(found, MasterQuota)
        return found

    def says(self, **status: Any) -> None:
        """The quota's status."""
        assert self.quota is not None
        body = {"observedGeneration": self.quota.metadata.generation, **status}
        self.put(
            "resourcequotas", msgspec.structs.replace(self.quota, status=msgspec.convert(body, type(self.quota.status)))
        )

    async def _get(self, resource: Resource[Any], name: str) -> Object:
        if (resource.plural, name) not in self.truth:
            raise NotFound(404, "NotFound", name)
        return self.truth[resource.plural, name]

    async def _create(self, resource: Resource[Any], body: MasterQuota) -> MasterQuota:
        self.made += 1
        metadata = msgspec.structs.replace(body.metadata, uid=f"quota-{self.made}", generation=1)
        self.put(resource.plural, msgspec.structs.replace(body, metadata=metadata))
        return body

    async def _replace(self, resource: Resource[Any], body: MasterQuota) -> None:
        metadata = msgspec.structs.replace(body.metadata, generation=body.metadata.generation + 1)
        self.put(resource.plural, msgspec.structs.replace(body, metadata=metadata))

    async def _delete(self, resource: Resource[Any], name: str, **_preconditions: str) -> None:
        del self.truth[resource.plural, name]
        self.lose(resource.plural, name)

    async def _apply(self, _resource: object, body: dict[str, Any], *_: str) -> None:
        self.status = {**msgspec.to_builtins(body["status"]), "conditions": body["status"].conditions}


@pytest.fixture
async def master() -> Master:
    made = Master()
    made.put("resourcequotaallocations", allocation())
    await made.look()
    return made


async def test_an_allocation_gets_a_quota_that_counts_resource_quotas(master: Master) -> None:
    assert master.quota is not None
    assert master.quota.spec == {
        "subject": {"kind": "namespaces", "selector": SELECTOR, "counts": "ResourceQuotas"},
        "quota": {"pods": "50"},
        "enforcement": "deny",
        "warnAtPercent": 90,
    }
    (owner,) = master.quota.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid) == ("ResourceQuotaAllocation", "ann", "ann-uid")


async def test_the_quota_is_narrowed_to_clusters_and_seeds_and_warns_as_the_allocation_says() -> None:
    clusters, seeds = {"matchLabels": {"tier": "prod"}}, {"names": ["eu-1"]}
    made = Master()
    there = allocation()
    narrowed = {"clusters": clusters, "seeds": seeds, "enforcement": "warn"}
    there = msgspec.structs.replace(there, spec={**there.spec, **narrowed})
    made.put("resourcequotaallocations", there)
    await made.look()
    assert made.quota is not None
    subject = {"kind": "namespaces", "selector": SELECTOR, "clusters": clusters, "seeds": seeds}
    assert made.quota.spec["subject"] == {**subject, "counts": "ResourceQuotas"}
    assert made.quota.spec["enforcement"] == "warn"


async def test_the_quota_counts_within_the_scopes_of_the_allocation() -> None:
    scopes = {"scopes": ["Terminating"], "scopeSelector": {"matchExpressions": [{"scopeName": "BestEffort"}]}}
    made, there = Master(), allocation()
    promised = {"hard": {"pods": "50"}, **scopes}
    made.put("resourcequotaallocations", msgspec.structs.replace(there, spec={**there.spec, "allocation": promised}))
    await made.look()
    assert made.quota is not None
    assert {name: made.quota.spec[name] for name in scopes} == scopes
    assert made.quota.spec["quota"] == {"pods": "50"}


async def test_the_quota_follows_the_allocation_and_is_restored(master: Master) -> None:
    master.put("resourcequotaallocations", allocation(generation=2, pods="60"))
    await master.look()
    assert master.quota is not None and master.quota.spec["quota"] == {"pods": "60"}
    master.put(
        "resourcequotas", msgspec.structs.replace(master.quota, spec={**master.quota.spec, "enforcement": "warn"})
    )
    await master.look()
    assert master.quota.spec["enforcement"] == "deny"
    del master.truth["resourcequotas", QUOTA]
    master.lose("resourcequotas", QUOTA)
    await master.look()
    assert master.quota is not None


async def test_the_quota_goes_only_with_the_allocation(master: Master) -> None:
    master.lose("resourcequotaallocations", "ann")
    with pytest.raises(Conflict):
        await master.look()
    assert master.quota is not None, "the cache was behind"
    del master.truth["resourcequotaallocations", "ann"]
    await master.look()
    assert master.quota is None


async def test_an_allocation_that_is_made_again_gets_a_quota_of_its_own(master: Master) -> None:
    master.put("resourcequotaallocations", allocation(uid="another"))
    await master.look()
    await master.look()
    assert master.quota is not None
    assert (master.quota.metadata.uid, master.quota.metadata.owner_references[0].uid) == ("quota-2", "another")


async def test_a_quota_of_somebody_else_is_left_alone_and_the_allocation_says_so() -> None:
    master = Master()
    theirs = {"metadata": {"name": QUOTA, "uid": "theirs"}, "spec": {"quota": {"cpu": "1"}}}
    master.put("resourcequotas", msgspec.convert(theirs, MasterQuota))
    master.put("resourcequotaallocations", allocation())
    await master.look()
    assert master.quota is not None and master.quota.metadata.uid == "theirs"
    assert [(each.type, each.status, each.reason) for each in master.status["conditions"]] == [
        ("Ready", "False", "NameTaken"),
        ("Enforced", "False", "NameTaken"),
    ]
    master.lose("resourcequotaallocations", "ann")
    del master.truth["resourcequotaallocations", "ann"]
    await master.look()
    assert master.quota is not None


async def test_a_quota_from_a_backup_is_taken_over_if_it_says_what_the_allocation_asks_for(master: Master) -> None:
    """A backup has no owners: they are uids of the cluster that it was made in."""
    assert master.quota is not None
    restored = msgspec.structs.replace(master.quota.metadata, owner_references=())
    master.put("resourcequotas", msgspec.structs.replace(master.quota, metadata=restored))
    await master.look()
    assert [owner.uid for owner in master.quota.metadata.owner_references] == ["ann-uid"]
    await master.look()
    assert master.status == {}, "nothing is wrong"
    assert master.made == 1


async def test_the_status_says_what_is_promised_and_where(master: Master) -> None:
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Enforced",
        "observedGeneration": 1,
        "lastTransitionTime": "t",
    }
    master.says(
        hard={"pods": "50"},
        globalUsage={"pods": "30"},
        namespaces=[{"cluster": "alpha/c1", "namespace": "web", "project": "alpha", "used": {"pods": "30"}}],
        namespacesOmitted=4,
        summary={"usage": "pods 30/50"},
        conditions=[ready],
    )
    await master.look()
    assert master.status["allocated"] == {"hard": {"pods": "50"}, "used": {"pods": "30"}}
    assert master.status["usedByProject"] == [
        {"cluster": "alpha/c1", "namespace": "web", "project": "alpha", "used": {"pods": "30"}}
    ]
    assert master.status["usedByProjectOmitted"] == 4
    assert master.status["summary"] == {"allocated": "pods 30/50", "namespaces": 5}
    assert [each.reason for each in master.status["conditions"]] == ["Enforced"]


async def test_what_the_quota_said_of_an_earlier_limit_is_not_repeated(master: Master) -> None:
    master.says(hard={"pods": "50"})
    await master.look()
    master.put("resourcequotaallocations", allocation(generation=2, pods="60"))
    await master.look()
    master.status = {}
    await master.look()
    assert master.status == {}
