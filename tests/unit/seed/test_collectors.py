"""What a seed's metrics say of quotas and user clusters, and that nothing is left of those that are gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from common.api.account_waits import WaitReason
from common.api.types import Condition
from seed import collectors, metrics
from seed.admission import denial
from seed.instance_types.cache import FlavourCache
from seed.model.consumer import Consumer
from tests.unit.seed.admission.test_admitter import request
from tests.unit.seed_world import PROJECT, SeedWorld, nanos, seed_world


def refusals(quota: str, reason: str) -> float | None:
    return REGISTRY.get_sample_value("seedquota_refusals_total", {"quota": quota, "reason": reason})


async def test_what_is_held_and_idle_has_its_unit(world: SeedWorld) -> None:
    await world.quota(limits="cpu=64,memory=64Gi", granted="cpu=4,memory=1Gi", used="cpu=1")
    registry = CollectorRegistry()
    registry.register(collectors.AccountsCollector(world.quota_cache, world.registry))
    cpu = {"quota": "project-alpha", "resource": "cpu", "unit": "cores"}
    shown = [registry.get_sample_value(f"seedquota_seed_{name}", cpu) for name in ("used", "held", "idle")]
    assert shown == [1, 4, 3]
    memory = {"quota": "project-alpha", "resource": "memory", "unit": "bytes"}
    assert registry.get_sample_value("seedquota_seed_held", memory) == 2**30


def test_each_reason_for_which_accounts_wait_has_a_sample_where_this_replica_leads() -> None:
    longest: dict[WaitReason, float] = {}
    registry = CollectorRegistry()
    registry.register(collectors.AccountWaitsCollector(lambda: longest))
    name = "seedquota_account_waiting_seconds"
    assert registry.get_sample_value(name, {"reason": "Sources"}) is None, "another replica knows it"
    longest |= dict.fromkeys(WaitReason, 0.0) | {WaitReason.SOURCES: 7.5}
    found = {reason.value: registry.get_sample_value(name, {"reason": reason.value}) for reason in WaitReason}
    assert found == {"MasterAnswer": 0, "InFlightWindow": 0, "Sources": 7.5, "Turn": 0, "Ledger": 0}


async def test_the_conditions_of_user_clusters_have_a_sample_each(world: SeedWorld) -> None:
    clusters = world.cluster_cache.user_clusters.store
    (cluster,) = clusters.values()
    said = [Condition(type="Enforced", status="False", reason="WebhookMissing", message="with tenants' words")]
    status = msgspec.structs.replace(cluster.status, conditions=said)
    clusters._set(f"{PROJECT}/c1", msgspec.structs.replace(cluster, status=status))
    (family,) = collectors.UserClustersCollector(world.cluster_cache).collect()
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"user_cluster": "alpha/c1", "condition": "Enforced", "status": "False", "reason": "WebhookMissing"}, 1)
    ]
    clusters._remove(f"{PROJECT}/c1")
    (family,) = collectors.UserClustersCollector(world.cluster_cache).collect()
    assert family.samples == []


async def test_refusals_are_counted_by_quota_for_as_long_as_there_is_one(world: SeedWorld) -> None:
    """Quotas come and go with tenants' projects: what is left of each would grow without an end."""
    await world.quota("counted", limits="cpu=4", granted="cpu=4")
    refused = collectors.refusals_of(world.quota_cache)
    found = await world.admission.decide(request())
    assert found.refusal is not None
    refused(found.refusal)
    refused(found.refusal)
    assert refusals("counted", "QuotaExceeded") == 2
    nobodys = refusals("", "QuotaUnavailable") or 0
    refused(denial.unavailable("of the project", "not known"))
    assert refusals("", "QuotaUnavailable") == nobodys + 1

    world.remove("counted")
    assert refusals("counted", "QuotaExceeded") is None
    unknown = refusals("", "QuotaExceeded") or 0
    refused(found.refusal)
    assert refusals("counted", "QuotaExceeded") is None
    assert refusals("", "QuotaExceeded") == unknown + 1


def test_who_leads_no_more_says_nothing_of_what_only_the_leader_knows() -> None:
    metrics.machines("alpha/left", {}, 3, 0)
    metrics.canary("alpha/left", True)
    metrics.not_leading()
    for name in ("seedquota_machines_drifted", "seedquota_canary_success"):
        assert REGISTRY.get_sample_value(name, {"user_cluster": "alpha/left"}) is None


def test_flavours_have_an_age() -> None:
    class Kept:
        def oldest(self) -> dict[str, float]:
            return {"aws": 3.0}

    (family,) = collectors.FlavoursCollector(cast(FlavourCache, cast(Any, Kept()))).collect()
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"provider": "aws"}, 3.0)]


async def test_what_namespaces_use_has_a_sample_for_each_of_the_largest_and_one_for_all_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectors, "MAX_NAMESPACES", 2)
    async with seed_world() as world:
        subject = {"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}
        await world.quota("ann", limits="pods=10,requests.cpu=4", subject=subject)
        used = {"web": nanos("pods=3,requests.cpu=2"), "db": nanos("pods=1"), "jobs": nanos("pods=2")}
        totals = SimpleNamespace(used=nanos("pods=6,requests.cpu=2"), by_namespace=used)
        source = SimpleNamespace(
            consumer=Consumer("", "alpha/c1", "ann"), cluster="alpha/c1", counted=True, totals=totals
        )
        source.in_namespaces = source
        registry = CollectorRegistry()
        registry.register(collectors.NamespacesCollector(world.quota_cache, lambda: [cast(Any, source)]))
        of_cluster = {"quota": "ann", "user_cluster": "alpha/c1", "resource": "requests.cpu", "unit": "cores"}
        assert registry.get_sample_value("seedquota_namespaces_used", of_cluster) == 2
        pods = {"quota": "ann", "user_cluster": "alpha/c1", "resource": "pods", "unit": ""}
        shown = [
            registry.get_sample_value("seedquota_namespace_used", {**pods, "user_namespace": name})
            for name in sorted(used)
        ]
        assert shown == [None, 2, 3]
        assert registry.get_sample_value("seedquota_namespaces_omitted", {"quota": "ann"}) == 1
