"""What the master's metrics say of quotas and seeds."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from common.api.types import Condition, ResourceQuotaSpec, Subject
from common.quota import resources
from master.quotas.quota_view import QuotaView, SeedView
from master.reporting.metrics import MasterMetrics
from tests.unit.seed_world import nanos


def condition(kind: str, status: str, reason: str) -> Condition:
    return Condition(type=kind, status=cast(Any, status), reason=reason)


@pytest.fixture
def samples() -> CollectorRegistry:
    limits = nanos("cpu=2500m,memory=1Gi,machines=3")
    spec = ResourceQuotaSpec(subject=Subject(kind="project", name="alpha"), quota={})
    seeds = [
        SeedView(name="eu-1", use=nanos("cpu=3"), reserved=nanos("cpu=500m")),
        SeedView(name="gone", lost=True, use=nanos("cpu=9")),
    ]
    view = QuotaView(generation=1, spec=spec, limits=limits, subject_exists=True, learning=False, seeds=seeds)
    shown = SimpleNamespace(conditions=[condition("Enforced", "False", "AccountFenced")])
    quotas = SimpleNamespace(states={"project-alpha": SimpleNamespace(view=view, shown=shown)})
    seed = SimpleNamespace(status=SimpleNamespace(conditions=[condition("Connected", "True", "Connected")]))
    link = SimpleNamespace(name="eu-1", seed=seed, connected=True, last_contact=time.monotonic() - 40)
    link.renewal = SimpleNamespace(ends=1_800_000_000.0)
    links = SimpleNamespace(links={"eu-1": link}, present=lambda: [link])
    registry = CollectorRegistry()
    registry.register(MasterMetrics(lambda: cast(Any, (links, quotas))))
    return registry


def test_amounts_are_in_the_unit_that_they_name(samples: CollectorRegistry) -> None:
    of = {"quota": "project-alpha", "subject_kind": "project", "subject": "alpha"}
    cpu = {**of, "resource": "cpu", "unit": "cores"}
    assert samples.get_sample_value("seedquota_limit", cpu) == 2.5
    assert samples.get_sample_value("seedquota_used", cpu) == 3
    assert samples.get_sample_value("seedquota_reserved", cpu) == 0.5
    over = {"quota": "project-alpha", "resource": "cpu", "unit": "cores"}
    assert samples.get_sample_value("seedquota_overshoot", over) == 0.5
    assert samples.get_sample_value("seedquota_limit", {**of, "resource": "memory", "unit": "bytes"}) == 2**30
    assert samples.get_sample_value("seedquota_limit", {**of, "resource": "machines", "unit": ""}) == 3


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("cpu", "cores"),
        ("surge.cpu", "cores"),
        ("memory", "bytes"),
        ("hugepages-2Mi", "bytes"),
        ("requests.storage", "bytes"),
        ("machines", ""),
        ("nvidia.com/gpu", ""),
    ],
)
def test_each_resource_has_one_unit(name: str, unit: str) -> None:
    assert resources.unit(name) == unit


def test_conditions_of_quotas_and_seeds_have_a_sample_each(samples: CollectorRegistry) -> None:
    said = {"condition": "Enforced", "status": "False", "reason": "AccountFenced"}
    assert samples.get_sample_value("seedquota_quota_condition", {"quota": "project-alpha", **said}) == 1
    said = {"condition": "Connected", "status": "True", "reason": "Connected"}
    assert samples.get_sample_value("seedquota_seed_condition", {"seed": "eu-1", **said}) == 1


def test_the_last_contact_is_a_moment_and_no_age(samples: CollectorRegistry) -> None:
    found = samples.get_sample_value("seedquota_seed_last_contact_timestamp_seconds", {"seed": "eu-1"})
    assert found == pytest.approx(time.time() - 40, abs=30)
