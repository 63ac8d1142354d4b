from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from common.api.types import UserCluster
from seed import metrics
from seed.controllers.user_cluster_conditions import judge
from seed.kinds.machines.source import Source
from seed.kinds.machines.totals import MachineTotals
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION as ANNOTATION
from seed.machines.machine_controller import Machine
from seed.providers.size import Footprint
from seed.registration.keeper import ConfigurationKeeper
from seed.sizing.stamp_audit import MAX_NAMED, Drift, audit, difference
from tests.unit.fake_cloud import answering, fake_cloud, machine
from tests.unit.seed.instance_types.test_settings import cluster
from tests.unit.seed.kinds.machines.test_sizes import HOST, ec2
from tests.unit.seed_world import nanos, sizing

SPEC = {"instanceType": "m5.large", "region": "eu-central-1", "diskSize": 5, "accessKeyId": "a", "secretAccessKey": "s"}


def stamped(text: str, name: str) -> Machine:
    made = machine("aws", SPEC, name)
    made.metadata.annotations[ANNOTATION] = text
    return made


def test_only_what_differs_is_named() -> None:
    same = nanos("cpu=2,memory=8Gi")
    assert difference(same, same) == ""
    assert difference(same, nanos("cpu=4,memory=8Gi,nvidia.com/gpu=1")) == (
        "cpu=2,nvidia.com/gpu=0, now cpu=4,nvidia.com/gpu=1"
    )
    assert difference(nanos("memory=2Gi"), nanos("memory=2049Mi")) == "memory=2048Mi, now memory=2049Mi"


async def test_a_cloud_that_says_otherwise_than_the_stamp_is_told_and_the_larger_size_counts() -> None:
    async def bigger(request: web.Request) -> web.StreamResponse:
        small = await ec2(request)
        assert isinstance(small, web.Response)
        return web.Response(text=str(small.text).replace("8192", "16384"))

    there: UserCluster = cluster()
    async with fake_cloud(bigger, HOST) as cloud:
        sizes = sizing(transport=cloud.transport())
        try:
            old = nanos("cpu=2,memory=8Gi,storage=5Gi,machines=1,instances.m5.large=1")
            made = machine("aws", SPEC)
            first = await sizes.size(there, made, float("inf"))
            before = type(first.footprint)("aws", old)
            text = sizes.make_stamp(
                "u", made, type(first)(before, "m5.large", "aws eu-central-1", "2026-01-01T00:00:00Z")
            )
            machines = [stamped(text, f"m{number}") for number in range(10)]
            machines += [machine("aws", SPEC, "unstamped"), stamped("forged", "forged")]
            found = await audit(sizes, there, machines)
            assert found.count == 10
            assert len(found.named) == MAX_NAMED
            assert found.named[0] == "kube-system/m0: stamped memory=8Gi, now memory=16Gi"
            stamped_size = sizes.counted("u", machines[0])
            assert stamped_size.resources == old
            assert found.counted(machines[0], stamped_size).resources == old | nanos("memory=16Gi")
            current = sizes.make_stamp("u", made, first)
            assert (await audit(sizes, there, [stamped(current, "m")])).count == 0
        finally:
            await sizes.close()


@pytest.mark.parametrize(
    ("drift", "status", "reason", "message"),
    [
        (Drift(), "True", "AsStamped", ""),
        (Drift(7, ["a/m: stamped cpu=2, now cpu=4"]), "False", "FlavorsChanged", "7 machines: a/m: stamped cpu=2, now"),
    ],
)
def test_a_drift_is_a_condition_that_leaves_the_cluster_ready_and_a_metric(
    drift: Drift, status: str, reason: str, message: str
) -> None:
    source = SimpleNamespace(drift=drift, problem=None, current=True, totals=MachineTotals())
    keeper = SimpleNamespace(in_place=True, error=None, contested=False, wanted=lambda: True)
    judged = judge(
        cluster(),
        cast(Source, source),
        cast(ConfigurationKeeper, keeper),
        None,
        MachineTotals(size=unasked).unsized(()),
    )
    found = {condition.type: condition for condition in judged}
    told = found["StampsCurrent"]
    assert (told.status, told.reason) == (status, reason)
    assert told.message.startswith(message)
    assert found["Ready"].status == "True"
    metrics.machines("alpha/c1", {}, drift.count, 0)
    assert REGISTRY.get_sample_value("seedquota_machines_drifted", {"user_cluster": "alpha/c1"}) == drift.count
    metrics.no_machines("alpha/c1")


def unasked(_machine: Machine) -> Footprint:
    raise AssertionError("there is no Machine")


async def test_a_cloud_that_is_down_differs_in_nothing() -> None:
    async with fake_cloud(answering(401), HOST) as cloud:
        sizes = sizing(transport=cloud.transport())
        assert (await audit(sizes, cluster(), [machine("aws", SPEC)])).count == 0
        await sizes.close()
