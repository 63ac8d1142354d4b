"""Machines whose size a cloud knows, and stamps, through the real webhook: TLS, AdmissionReview, accounts."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from prometheus_client import generate_latest
from tenacity.wait import wait_fixed

from common.quota.names import MAX_DEVICES
from common.quota.quantity import UNIT
from seed.instance_types import http_client as transports
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION as ANNOTATION
from seed.machines.machine_controller import Machine
from seed.providers.size import Footprint
from seed.sizing.sizer import Sized
from tests.unit.fake_api_server import within
from tests.unit.fake_cloud import FakeCloud, answering, fake_cloud, hang
from tests.unit.seed.kinds.machines.test_webhook import TOKEN, Caller, machine, review, serving
from tests.unit.seed.providers.test_aws import SECRET
from tests.unit.seed_world import CLUSTER_UID, amounts, nanos, sizing

STAMP = f"/stamp/{CLUSTER_UID}/{TOKEN}?timeout=30s"
ADMIT = f"/machines/{CLUSTER_UID}/{TOKEN}?timeout=30s"
HOST = "ec2.eu-central-1.amazonaws.com"


def aws(instance_type: str = "m5.large", name: str = "m-1", **metadata: object) -> dict:
    made = machine(name=name, uid=f"uid-{name}", **metadata)
    made["spec"]["providerSpec"]["value"] = {
        "cloudProvider": "aws",
        "cloudProviderSpec": {
            "instanceType": instance_type,
            "region": "eu-central-1",
            "diskSize": 50,
            "accessKeyId": "AKIDEXAMPLE",
            "secretAccessKey": SECRET,
        },
    }
    return made


async def ec2(request: web.Request) -> web.StreamResponse:
    """m5.large exists, and nothing else."""
    form = await request.post()
    if form["Action"] == "DescribeInstanceTypeOfferings":
        return web.Response(
            text="<r><instanceTypeOfferingSet><item><instanceType>m5.large</instanceType></item>"
            "</instanceTypeOfferingSet></r>"
        )
    if form["InstanceType.1"] != "m5.large":
        return web.Response(status=400, text="<r><Errors><Error><Code>InvalidInstanceType</Code></Error></Errors></r>")
    return web.Response(
        text="<r><instanceTypeSet><item><instanceType>m5.large</instanceType><vCpuInfo><defaultVCpus>2</defaultVCpus>"
        "</vCpuInfo><memoryInfo><sizeInMiB>8192</sizeInMiB></memoryInfo></item></instanceTypeSet></r>"
    )


class Seed:
    def __init__(self, caller: Caller, cloud: FakeCloud) -> None:
        self.caller = caller
        self.cloud = cloud

    async def stamp(self, new: dict, old: dict | None = None) -> dict:
        """The Machine as the API server goes on with it."""
        response = await self.caller.ask(review(new, old), STAMP)
        assert response["allowed"] is True
        patched = copy.deepcopy(new)
        if "patch" in response:
            assert response["patchType"] == "JSONPatch"
            (operation,) = json.loads(base64.b64decode(response["patch"]))
            assert operation["op"] == "add"
            if operation["path"] == "/metadata/annotations":
                patched["metadata"]["annotations"] = operation["value"]
            else:
                assert operation["path"] == "/metadata/annotations/seedquota.io~1footprint"
                patched["metadata"]["annotations"][ANNOTATION] = operation["value"]
        return patched

    async def admit(self, new: dict, old: dict | None = None, path: str = ADMIT) -> dict:
        return await self.caller.ask(review(new, old), path)


@pytest.fixture
async def seed(tmp_path: Path) -> AsyncIterator[Seed]:
    async with fake_cloud(ec2, HOST) as cloud:
        made = sizing(transport=cloud.transport())
        async with serving(tmp_path, sizes=made) as caller:
            await caller.world.quota(limits="cpu=64,storage=1Ti", granted="cpu=64,storage=1Ti")
            yield Seed(caller, cloud)
        await made.close()


def annotation(made: dict) -> dict:
    return json.loads(made["metadata"]["annotations"][ANNOTATION])


async def test_a_machine_is_stamped_with_its_cost_and_how_it_was_found(seed: Seed) -> None:
    found = annotation(await seed.stamp(aws()))
    assert found["footprint"] == amounts("cpu=2,machines=1,memory=8Gi,storage=50Gi")
    assert (found["provider"], found["flavour"], found["cluster"]) == ("aws", "m5.large", CLUSTER_UID)
    assert found["asOf"].endswith("Z")


async def test_a_machine_is_stamped_before_it_has_a_uid_and_a_name(seed: Seed) -> None:
    nameless = aws(generateName="pool-")
    del nameless["metadata"]["uid"], nameless["metadata"]["name"]
    assert annotation(await seed.stamp(nameless))["footprint"]["cpu"] == "2"


async def test_a_stamp_leaves_other_annotations_alone(seed: Seed) -> None:
    made = await seed.stamp(aws(annotations={"mine": "1"}))
    assert made["metadata"]["annotations"].keys() == {"mine", ANNOTATION}


async def test_a_size_in_the_spec_is_stamped_too(seed: Seed) -> None:
    found = annotation(await seed.stamp(machine()))
    assert (found["provider"], found["footprint"]["cpu"]) == ("fake", "8")
    assert "asOf" not in found


async def test_admission_takes_the_stamp_and_asks_nobody(seed: Seed) -> None:
    made = await seed.stamp(aws())
    seed.cloud.requests.clear()
    assert (await seed.admit(made))["allowed"] is True
    assert seed.cloud.requests == []
    (kept,) = seed.caller.world.account().reservations.values()
    assert kept.amount == nanos("cpu=2,memory=8Gi,storage=50Gi,machines=1")


async def test_without_a_stamp_admission_asks_once(seed: Seed) -> None:
    for name in ("a", "b"):
        assert (await seed.admit(aws(name=name)))["allowed"] is True
    assert seed.cloud.requests == [f"POST {HOST}/"]
    assert seed.caller.world.account().reserved["cpu"] == nanos("cpu=4")["cpu"]


@pytest.mark.parametrize("text", ["{}", '{"footprint": {"cpu": "0"}}'])
async def test_a_forged_stamp_is_refused(seed: Seed, text: str) -> None:
    made = await seed.stamp(aws(annotations={ANNOTATION: text}))
    assert made["metadata"]["annotations"] == {ANNOTATION: text}
    status = (await seed.admit(made))["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    assert status["message"].startswith("annotation seedquota.io/footprint is written by SeedQuota only; decision ")
    assert status["details"]["causes"][0]["reason"] == "FootprintForged"


async def test_a_stamp_of_a_small_machine_does_not_make_a_big_one_small(seed: Seed) -> None:
    small = await seed.stamp(machine("1"))
    big = machine("60", annotations=small["metadata"]["annotations"])
    assert annotation(await seed.stamp(big))["footprint"]["cpu"] == "60"
    assert (await seed.admit(big))["allowed"] is True  # past the stamping webhook: the stamp counts for nothing
    assert seed.caller.world.account().reserved["cpu"] == nanos("cpu=60")["cpu"]


async def test_who_removes_a_stamp_gets_it_back_without_asking_a_cloud(seed: Seed) -> None:
    before = await seed.stamp(aws())
    seed.cloud.disturb = answering(500)
    bare = aws(finalizers=[])
    assert (await seed.stamp(bare, before))["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert (await seed.admit(bare, before))["allowed"] is True


async def test_who_changes_a_stamp_is_refused(seed: Seed) -> None:
    before = await seed.stamp(aws())
    changed = aws(annotations={ANNOTATION: before["metadata"]["annotations"][ANNOTATION].replace('"2"', '"1"')})
    assert (await seed.admit(await seed.stamp(changed, before), before))["status"]["code"] == 403


async def test_a_machine_with_a_stamp_of_an_older_key_is_still_updated(seed: Seed) -> None:
    old = aws(annotations={ANNOTATION: "{}"})
    assert (await seed.admit(aws(annotations={ANNOTATION: "{}"}, finalizers=["x"]), old))["allowed"] is True


async def test_a_new_type_gets_a_new_stamp_and_costs_the_difference(seed: Seed) -> None:
    before = await seed.stamp(machine("2"))
    after = machine("8", annotations=before["metadata"]["annotations"], generation=2)
    after = await seed.stamp(after, before)
    assert annotation(after)["footprint"]["cpu"] == "8"
    assert (await seed.admit(after, before))["allowed"] is True
    (kept,) = seed.caller.world.account().reservations.values()
    assert kept.amount == nanos("cpu=6")


async def test_a_type_that_does_not_exist_is_refused_with_the_nearest(seed: Seed) -> None:
    made = await seed.stamp(aws("m5.larg"))
    assert "annotations" not in made["metadata"]
    status = (await seed.admit(made))["status"]
    assert status["code"] == 422
    assert status["message"].startswith(
        "cannot size machine: aws eu-central-1 has no type m5.larg; nearest: m5.large; decision "
    )


@pytest.mark.parametrize(
    ("bad_day", "why", "seconds"),
    [
        (answering(500), "answered 500", 5),  # it is asked again and again
        (answering(429, Retry_After="60"), "answers too many requests (429)", 5),
        (answering(200, "garbage"), "answers what cannot be read", 5),
        (answering(401, "<r/>"), "refuses these credentials (401)", 5),
        (hang, "has not answered yet", 1),
    ],
)
async def test_a_cloud_that_fails_refuses_the_unknown_in_time_and_admits_the_known(
    seed: Seed, monkeypatch: pytest.MonkeyPatch, bad_day: object, why: str, seconds: int
) -> None:
    known = await seed.stamp(aws())
    seed.cloud.disturb = bad_day  # type: ignore[assignment]
    monkeypatch.setattr(transports, "_doubling", wait_fixed(10))
    path = f"/machines/{CLUSTER_UID}/{TOKEN}?timeout={seconds}s"
    async with within(seconds):
        status = (await seed.admit(aws("c5.large", name="other"), path=path))["status"]
    assert (status["code"], status["reason"]) == (503, "ServiceUnavailable")
    assert status["message"].startswith(f"cannot size machine now: aws eu-central-1 {why}; decision ")
    assert status["details"]["retryAfterSeconds"] == 1
    assert (await seed.admit(known))["allowed"] is True
    assert (await seed.admit(aws(name="unstamped")))["allowed"] is True


async def test_where_no_quota_denies_a_cloud_that_is_down_stops_nothing(seed: Seed) -> None:
    seed.caller.world.remove("project-alpha")
    seed.cloud.disturb = answering(500)
    assert (await seed.admit(aws()))["allowed"] is True


async def test_a_deleted_machine_is_not_stamped(seed: Seed) -> None:
    gone = aws(deletionTimestamp="2026-11-21T08:00:00Z")
    assert await seed.stamp(gone, aws()) == gone


async def test_no_secret_shows_anywhere(seed: Seed, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    shown: list[str] = []
    for bad_day in (answering(500), answering(401, SECRET), answering(200, SECRET), answering(400, SECRET)):
        seed.cloud.disturb = bad_day
        shown.append(json.dumps(await seed.admit(aws(f"t{len(shown)}.large"))))
    seed.cloud.disturb = None
    shown.append(json.dumps(await seed.stamp(aws()) | {"spec": None}))
    shown.append(json.dumps(await seed.admit(aws("t.none"))))
    shown += [record.getMessage() + repr(record.__dict__) for record in caplog.records]
    cache = seed.caller.sizes._cache
    shown.append(generate_latest().decode())
    assert 'seedquota_provider_requests_total{provider="aws"' in shown[-1]
    shown += [repr(cache._shelves), repr(cache._gates), repr(cache._sessions._kept)]
    assert "AKIDEXAMPLE" not in repr(shown)
    assert SECRET not in repr(shown)


def with_devices(*names: str, **metadata: object) -> dict:
    made = machine(**metadata)
    made["spec"]["providerSpec"]["value"]["cloudProviderSpec"].update(dict.fromkeys(names, "1"))
    return made


MANY = [f"example.com/device-{number}" for number in range(81)]


@pytest.mark.parametrize("devices", [MANY, ["Not/A/Name"]])
async def test_a_machine_with_too_many_names_or_a_wrong_one_gets_no_stamp_and_no_place(
    seed: Seed, devices: list[str]
) -> None:
    made = with_devices(*devices)
    assert await seed.stamp(made) == made
    refused = await seed.admit(made)
    assert (refused["allowed"], refused["status"]["code"]) == (False, 422)
    assert refused["status"]["message"].startswith("cannot size machine: fake takes ")
    assert not seed.caller.world.account().reservations


async def test_it_is_refused_where_nothing_is_limited_too(seed: Seed) -> None:
    """Else it would be there when a quota comes."""
    seed.caller.world.remove("project-alpha")
    assert (await seed.admit(with_devices(*MANY)))["status"]["code"] == 422


async def test_one_that_is_there_can_be_changed_in_all_that_costs_nothing(seed: Seed) -> None:
    old = with_devices(*MANY)
    new = copy.deepcopy(old)
    new["metadata"]["finalizers"] = []
    assert (await seed.admit(new, old))["allowed"] is True
    assert await seed.stamp(new, old) == new


async def test_a_stamp_of_before_does_not_bring_in_another_one(seed: Seed) -> None:
    made = msgspec.json.decode(json.dumps(with_devices(*MANY)), type=Machine)
    cost = Footprint("fake", {"machines": UNIT, **dict.fromkeys(MANY, UNIT)})
    stamped = seed.caller.sizes.make_stamp(CLUSTER_UID, made, Sized(cost))
    refused = await seed.admit(with_devices(*MANY, annotations={ANNOTATION: stamped}))
    assert (refused["allowed"], refused["status"]["code"]) == (False, 422)


async def test_a_machine_with_as_many_and_as_long_names_as_are_allowed_is_stamped_and_admitted(seed: Seed) -> None:
    prefix = f"{'p' * 63}.{'p' * 63}.{'p' * 63}"
    names = [f"{prefix}.{number:061}/{'n' * 63}" for number in range(MAX_DEVICES)]
    made = await seed.stamp(with_devices(*names))
    assert annotation(made)["footprint"].keys() == {"cpu", "memory", "storage", "machines", *names}
    assert (await seed.admit(made))["allowed"] is True
    (kept,) = seed.caller.world.account().reservations.values()
    assert kept.amount == nanos("cpu=8,memory=16Gi,storage=50Gi,machines=1"), "nothing else is limited"
