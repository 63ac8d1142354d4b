"""Tenants who choose the names of resources, through the real webhook, ledgers and statuses."""

from __future__ import annotations

import itertools

import pytest

from devcluster.load import machine
from tests.integration.installed.site import CLUSTERS, QUOTA, SMALL, Json, Site, cpus, quota_manifest, until
from tests.integration.installed.test_quotas import break_glass
from tests.running import running

pytestmark = pytest.mark.integration

EVENTS = "/apis/events.k8s.io/v1/events"


def with_devices(name: str, *devices: str) -> Json:
    made: Json = machine(name, SMALL)
    made["spec"]["providerSpec"]["value"]["cloudProviderSpec"].update(dict.fromkeys(devices, "1"))
    return made


def devices(of: str, count: int) -> list[str]:
    return [f"{of}.example.com/device-{number}" for number in range(count)]


async def test_one_who_asks_for_many_kinds_of_devices_is_told_so_and_keeps_nobody_out(site: Site) -> None:
    await site.quota(cpus(20))
    told: list[tuple[int, str]] = []
    numbers = itertools.count()

    async def again_and_again() -> None:
        while True:
            body = with_devices(f"greedy-{next(numbers)}", *devices("many", 81))
            answer = await site.decided("user-1", body)
            told.append((answer.status, answer.message))

    async with running(*(again_and_again() for _ in range(4))):
        await site.admitted("user-1", 10)
        await until(lambda: _told(told), 30)
    assert {status for status, _ in told} == {422}
    assert "fake takes more than 16 kinds of devices: take fewer" in told[0][1]
    await site.uses(cpus(10))


async def made(site: Site, cluster: str, body: Json) -> None:
    answer = await site.decided(cluster, body)
    assert answer.status == 201, answer


async def _told(told: list[tuple[int, str]]) -> None:
    assert len(told) > 4


async def test_machines_that_are_there_with_many_kinds_of_devices_are_counted_and_told_of(site: Site) -> None:
    """They came in by break-glass, or before there was a bound; and two clusters of a project have others each."""
    await site.apply("master", quota_manifest({"cpu": "20", "few-00.example.com/device-1": "8"}))
    await site.comes("master", f"resourcequotas/{QUOTA}", "Enforced", "Unknown", "NeverCounted")
    await break_glass(site, "user-1", with_devices("from-before", *devices("many", 81)))
    for number in range(8):
        await made(site, "user-1", with_devices(f"few-{number}", *devices(f"few-{number:02}", 16)))
    for number in range(8):
        await made(site, "user-2", with_devices(f"other-{number}", *devices(f"other-{number}", 16)))
    view = await site.uses({"cpu": "17", "few-00.example.com/device-1": "1"})
    assert set(view.used) == {"cpu", "few-00.example.com/device-1"}
    await site.comes(
        "seed-1", f"{CLUSTERS}/user-1", "MachinesSized", "False", "NotSized", "from-before", "more than 16 kinds"
    )
    for seed in ("seed-1", "seed-2"):
        account = (await site.ledger(seed))["account"]
        assert all(len(used) < 16 for used in account["used"].values()), account
    await site.admitted("user-1")
    await site.admitted("user-2")


async def test_a_misspelt_device_is_named_until_a_machine_has_it(site: Site) -> None:
    path, name = f"resourcequotas/{QUOTA}", "vendor.example.com/acelerator"
    await site.apply("master", quota_manifest({"cpu": "20", name: "1"}))
    await site.comes("master", path, "Enforced", "Unknown", "NeverCounted", name)
    await site.comes("master", path, "ResourceNotCounted", "True", "NeverCounted", name)
    uid = (await site.get("master", path))["metadata"]["uid"]  # other tests had quotas of that name

    async def told() -> None:
        events = [event for event in await site.items("master", EVENTS) if event["regarding"].get("uid") == uid]
        assert [event["reason"] for event in events].count("ResourceNotCounted") == 1

    await until(told, 30)
    await site.comes("master", path, "Ready", "Unknown", "Degraded", seconds=0)

    right = name.replace("ac", "acc")
    await made(site, "user-1", with_devices("right", right))
    await site.comes("master", path, "ResourceNotCounted", "True", "NeverCounted", f"did you mean {right}?")
    await made(site, "user-2", with_devices("also-that-one", name))

    async def gone() -> None:
        assert (await site.condition("master", path, "ResourceNotCounted")) == ("", "", "")
        assert (await site.condition("master", path, "Enforced"))[:2] == ("True", "AllSeeds")

    await until(gone, 30)
