"""`seedquota set` and `seedquota default`: what is changed, what is said of it, and that no edit of others is lost."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cli.__main__ import parser
from cli.limits import changes, default_quota, raises, set_quota
from cli.outcome import Failed
from common.api.labels import DEFAULT_LABEL
from common.api.types import QuotaSettings
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict
from common.kube.client.meta import Object, ObjectMeta
from master.cache.objects import MasterQuota, OverrideStatus, QuotaStatus, spec_quota
from master.quotas import limit_changes
from tests.unit.quota_examples import ALPHA, GPUS, NEW, quota

GOLDEN = Path(__file__).parent / "golden"
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
WIDTHS = {"80": 80, "200": 200}


class Master:
    """Answers each write with the next of `conflicts`: what somebody else has made of the object meanwhile."""

    server = "https://master"
    name = "master"

    def __init__(self, found: Object, conflicts: list[Object]) -> None:
        self.found = found
        self.conflicts = conflicts
        self.written: list[Any] = []

    async def get(self, *_: object) -> Object:
        return self.found

    async def merge_patch(self, _resource: object, _name: str, patch: Any, *, dry_run: bool) -> Object:
        if self.conflicts:
            self.found = self.conflicts.pop(0)
            raise Conflict(409, "Conflict", "the object has been modified")
        assert patch["metadata"]["resourceVersion"] == self.found.metadata.resource_version
        self.written.append((patch["spec"], dry_run))
        return self.found


def version(found: MasterQuota, number: int, generation: int) -> MasterQuota:
    metadata = msgspec.structs.replace(found.metadata, resource_version=str(number), generation=generation)
    return msgspec.structs.replace(found, metadata=metadata)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("7d", "2026-12-08T12:00:00Z"),
        ("90m", "2026-12-01T13:30:00Z"),
        ("2026-12-31T01:00:00+01:00", "2026-12-31T00:00:00Z"),
    ],
)
def test_an_end_is_a_time_or_from_now_on(text: str, end: str) -> None:
    assert raises.end(text, NOON) == end


@pytest.mark.parametrize("text", ["", "soon", "0d", "2026-12-31T00:00:00", "2026-12-01T12:00:00Z"])
def test_an_end_that_is_none_or_has_passed_is_refused(text: str) -> None:
    with pytest.raises(Failed, match=r"is no time|has passed"):
        raises.end(text, NOON)


def test_a_raise_is_written_beside_those_that_have_not_ended() -> None:
    kept = {"until": "2026-12-24T00:00:00Z", "quota": {"cpu": "96"}}
    over = OverrideStatus(until="2026-11-01T00:00:00Z", quota={"cpu": "80"}, state="Ended")
    found = MasterQuota(
        metadata=ObjectMeta(name="q"),
        spec={"quota": {"cpu": "64"}, "overrides": [{"until": over.until, "quota": over.quota}, kept]},
        status=QuotaStatus(overrides=[over]),
    )
    end = raises.end("7d", NOON)
    spec = raises.patched(found, {"cpu": "128"}, end, "launch")
    assert spec == {"overrides": [kept, {"until": end, "quota": {"cpu": "128"}, "reason": "launch"}]}
    assert raises.limits(msgspec.structs.replace(found, spec={**found.spec, **spec}), NOON) == {"cpu": "128"}
    with pytest.raises(Failed, match="cpu=AMOUNT"):
        raises.patched(found, {"cpu": None}, end, "")


async def change(master: Master, before: MasterQuota) -> MasterQuota:
    return await set_quota._changed(cast(Cluster, master), before, {"quota": {"cpu": "128"}}, dry_run=False)


async def test_a_write_of_the_status_meanwhile_does_not_keep_a_limit_from_being_set() -> None:
    before = version(ALPHA, 1, generation=4)
    master = Master(before, [version(ALPHA, number, generation=4) for number in (2, 3)])
    assert (await change(master, before)).metadata.resource_version == "3"
    assert master.written == [({"quota": {"cpu": "128"}}, False)]


async def test_limits_that_somebody_else_has_just_set_are_not_overwritten() -> None:
    before = version(ALPHA, 1, generation=4)
    master = Master(before, [version(ALPHA, 2, generation=5)])
    with pytest.raises(Failed, match=r"somebody else has just changed seedquota/project-alpha to cpu=64,.*try again"):
        await change(master, before)
    assert master.written == []


def settings(number: int, **project: object) -> QuotaSettings:
    found = {
        "metadata": {"name": "default", "resourceVersion": str(number)},
        "spec": {"defaults": {"project": project}},
    }
    return msgspec.convert(found, QuotaSettings)


async def test_a_default_that_somebody_else_has_just_set_is_not_overwritten() -> None:
    master = Master(settings(1, quota={"cpu": "8"}), [settings(2, quota={"cpu": "8"}), settings(3, quota={"cpu": "9"})])
    with pytest.raises(Failed, match="somebody else has just changed the default quota of projects"):
        await default_quota._write(cast(Cluster, master), "project", {"quota": {"cpu": "16"}}, dry_run=True)
    assert master.written == []
    master.conflicts = [settings(4, quota={"cpu": "9"})]
    await default_quota._write(cast(Cluster, master), "project", None, dry_run=True)
    assert master.written == [({"defaults": {"project": None}}, True)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cpu"], "'cpu' is no limit: write RESOURCE=AMOUNT, such as cpu=128, or RESOURCE- to remove a limit"),
        (["cpu="], "'cpu=' is no limit"),
        (["cpu=64,memory=4Gi"], "cpu: .*write a number with an optional suffix"),
        (["cpu=1", "cpu-"], "cpu is named twice"),
    ],
)
def test_a_limit_that_is_none_is_named_with_what_to_write(words: list[str], said: str) -> None:
    with pytest.raises(Failed, match=said):
        changes.parsed(words)


def test_limits_are_set_and_removed() -> None:
    words = ["cpu=128", "nvidia.com/gpu=0", "storage-"]
    assert changes.parsed(words) == {"cpu": "128", "nvidia.com/gpu": "0", "storage": None}


async def test_a_subject_that_is_none_is_refused_before_anything_is_asked() -> None:
    for subject in ("alpha", "team/alpha", "project/"):
        with pytest.raises(Failed, match="is no subject: write project/NAME"):
            await set_quota.run(parser().parse_args(["set", subject, "cpu=1"]))


def result(before: MasterQuota | None, after: MasterQuota, wanted: changes.Changes, notes: list[str]) -> Any:
    return set_quota._result(before, after, wanted, notes, spec_quota, guaranteed={}, dry_run=True)


@pytest.mark.parametrize(
    ("had", "asked", "patch"),
    [
        ({}, {"cpu": "16"}, {"cpu": "16"}),
        ({"cpu": "16", "memory": "4Gi"}, {"cpu": None}, {"cpu": None}),
        ({"cpu": "16"}, {"cpu": None}, None),  # the schema refuses a field without amounts
        ({"cpu": "16"}, {"cpu": None, "memory": "4Gi"}, {"cpu": None, "memory": "4Gi"}),
    ],
)
def test_a_guarantee_is_set_and_the_last_one_goes_with_its_field(
    had: dict[str, str], asked: changes.Changes, patch: object
) -> None:
    before = msgspec.structs.replace(ALPHA, spec={**ALPHA.spec, **({"guaranteed": had} if had else {})})
    assert set_quota._guarantees(before, asked) == {"guaranteed": patch}


def test_what_is_guaranteed_is_said_and_where_it_is_told_whether_it_fits() -> None:
    after = msgspec.structs.replace(ALPHA, spec={**ALPHA.spec, "guaranteed": {"cpu": "16"}})
    for asked, said in (({"cpu": "16"}, "cpu=16"), ({"memory": None}, "memory=0")):
        found = set_quota._result(ALPHA, after, {}, [], spec_quota, guaranteed=asked, dry_run=False)
        notes = [set_quota.FITS] if "cpu" in asked else []
        head = "seedquota/project-alpha of project/alpha changed"
        assert set_quota.text(found, None).splitlines() == [head, f"Guaranteed: {said}", *notes]


async def test_a_guarantee_has_no_end() -> None:
    with pytest.raises(Failed, match="in a command of its own"):
        await set_quota.run(parser().parse_args(["set", "project/alpha", "--until=7d", "cpu=9", "guaranteed.cpu=1"]))


def limited(found: MasterQuota, **limits: str) -> MasterQuota:
    return msgspec.structs.replace(found, spec={**found.spec, "quota": limits})


@pytest.mark.parametrize("width", WIDTHS)
def test_set_shows_what_is_used_beyond_the_new_limit(width: str) -> None:
    lower = limited(ALPHA, cpu="48", memory="233Gi", machines="20")
    shown = [
        result(ALPHA, lower, {"cpu": "48", "memory": "233Gi", "storage": None}, []),
        result(ALPHA, ALPHA, {"cpu": "64"}, []),
        result(None, NEW, {"cpu": "4"}, ["There is no project new yet: the quota limits it once it is created."]),
        result(GPUS, limited(GPUS, cpu="100", gpus="8"), {"gpus": "8"}, []),
    ]
    text = "\n\n".join(set_quota.text(each, WIDTHS[width]) for each in shown)
    assert text + "\n" == (GOLDEN / f"set-{width}.txt").read_text()
    assert max(map(len, text.splitlines())) <= WIDTHS[width]


@pytest.mark.parametrize("width", WIDTHS)
def test_default_names_the_followers_that_use_more(width: str) -> None:
    followers = [
        quota(
            f"project-p{number}", {"kind": "project", "name": f"p{number}"}, {"cpu": "4"}, globalUsage={"cpu": number}
        )
        for number in range(12)
    ]
    for each in followers:
        each.metadata.labels[DEFAULT_LABEL] = "true"
    after = settings(1, quota={"cpu": "2", "memory": "8Gi"}).spec.defaults.project
    found = default_quota.followed("project", after, [ALPHA, GPUS, *followers])
    none = default_quota.followed("organization", None, [ALPHA, GPUS, *followers])
    changed = limit_changes.compared({"cpu": 4 * 10**9}, {"cpu": 2 * 10**9}, {}, ["cpu"])
    shown = [
        default_quota.table([found, none], WIDTHS[width]),
        default_quota.text(found, "changed", changed, WIDTHS[width], dry_run=True),
        default_quota.text(found, "removed", {}, WIDTHS[width], dry_run=True),
    ]
    text = "\n\n".join(shown)
    assert text + "\n" == (GOLDEN / f"default-{width}.txt").read_text()
    assert max(map(len, text.splitlines())) <= WIDTHS[width]


def test_a_limit_of_a_few_bytes_is_told() -> None:
    before = quota("project-a", {"kind": "project", "name": "a"}, {"memory": "16Gi"}, globalUsage={})
    for written, told in (("16", True), ("1Mi", False), ("0", False)):
        after = quota("project-a", {"kind": "project", "name": "a"}, {"memory": written}, globalUsage={})
        notes = set_quota._result(
            before, after, {"memory": written}, [], spec_quota, guaranteed={}, dry_run=False
        ).notes
        said = "memory=16 is less than 1Mi: the unit is bytes, so write such as memory=16Gi."
        assert notes == ([said] if told else [])


def test_a_quota_that_is_made_of_an_allocation_is_not_changed_since_that_would_be_undone() -> None:
    owner = {"apiVersion": "seedquota.io/v1alpha1", "kind": "ResourceQuotaAllocation", "name": "ann", "uid": "u"}
    metadata = msgspec.convert({"name": "allocation.ann", "ownerReferences": [owner]}, ObjectMeta)
    with pytest.raises(Failed, match="is made from ResourceQuotaAllocation ann: change that one instead"):
        set_quota._refuse_made(msgspec.structs.replace(ALPHA, metadata=metadata))
    set_quota._refuse_made(ALPHA)
