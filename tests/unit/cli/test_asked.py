"""The tables of `where` and `denials`, and the order of consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from cli import cloud_accounts, consumers, denials, where
from cli.denials import Event
from cli.outcome import Failed
from common.api.labels import UID_LABEL
from common.api.types import Seed, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.kube.client.resource import Listing
from common.quota import resources
from master.quotas.placing import Shaped, places
from tests.unit.quota_examples import ALPHA, AWAY, CONNECTED, CURRENT, ENFORCED, NOW, SEEDS, quota, seed

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = {"80": 80, "200": 200}


def same_as(file: str, text: str, width: str) -> None:
    assert text + "\n" == (GOLDEN / f"{file}-{width}.txt").read_text()
    assert max(map(len, text.splitlines())) <= WIDTHS[width]


def line(name: str, used: str, granted: str, state: str = "Current") -> dict[str, Any]:
    return {"name": name, "state": state, "localUsage": {"cpu": used}, "granted": {"cpu": granted}}


def held(name: str, limit: str, used: str, *lines: dict[str, Any], enforcement: str = "deny") -> Any:
    conditions = [ENFORCED, CURRENT]
    subject = {"kind": "project", "name": name}
    found = quota(name, subject, {"cpu": limit}, globalUsage={"cpu": used}, seeds=list(lines), conditions=conditions)
    return msgspec.structs.replace(found, spec={**found.spec, "enforcement": enforcement})


SIZE = resources.parse({"cpu": "4", "memory": "8Gi"})
THREE = [seed("a", "", CONNECTED), seed("b", "", CONNECTED), seed("c", "", CONNECTED)]


def shown(*quotas: Any, seeds: Any = THREE) -> dict[str, tuple[str, int | None, int | None]]:
    found = places([Shaped(each, SIZE) for each in quotas], seeds)
    return {each.seed: (each.state, each.now, each.by_recall) for each in found}


def test_a_seed_can_get_what_is_free_and_what_others_do_not_use() -> None:
    # Of 40, 8 + 4 are used; a holds 4 idle, b 12 idle, and 12 are in the pool.
    found = shown(held("alpha", "40", "12", line("a", "8", "12"), line("b", "4", "16")))
    assert found == {"a": ("Current", 1, 7), "b": ("Current", 3, 7), "c": ("Current", 0, 7)}


def test_what_a_seed_that_is_away_holds_is_not_given_to_others() -> None:
    found = shown(held("alpha", "40", "12", line("a", "8", "12"), line("b", "4", "16", "Stale")))
    assert found == {"b": ("Stale", 3, 3), "a": ("Current", 1, 4), "c": ("Current", 0, 4)}


def test_a_seed_that_drains_or_is_away_gets_no_more_and_a_lost_one_is_none() -> None:
    seeds = [seed("a", "", CONNECTED, state="Draining"), seed("b", "", AWAY), seed("c", "", state="Lost")]
    found = shown(held("alpha", "40", "8", line("a", "8", "12")), seeds=seeds)
    assert found == {"a": ("Draining", 1, 1), "b": ("Unreachable", 0, 0)}


def test_every_quota_that_denies_limits_and_one_that_warns_does_not() -> None:
    alpha, acme = held("alpha", "40", "12", line("a", "8", "12")), held("acme", "20", "12", line("a", "12", "20"))
    assert shown(alpha, acme)["a"] == ("Current", 1, 2)
    assert shown(alpha, held("acme", "12", "12", enforcement="warn"))["a"] == ("Current", 1, 7)
    assert shown(held("acme", "12", "12", enforcement="warn"))["a"] == ("Current", None, None)
    over = held("alpha", "4", "12", line("a", "12", "12"))
    assert shown(over)["a"] == ("Current", 0, 0)


def cloud(name: str, **told: Any) -> UserCluster:
    body = {
        "metadata": {"name": name, "namespace": "alpha"},
        "spec": {"project": "alpha"},
        "status": {"cloudQuota": told} if told else {},
    }
    return msgspec.convert(body, UserCluster)


TOLD = {"place": "openstack RegionOne", "asOf": "2026-11-20T09:57:00Z"}
CLOUDS = [
    cloud(
        "c1",
        limits={"cpu": "20", "memory": "1Ti", "machines": "10"},
        used={"cpu": "11", "memory": "0", "machines": "9"},
    ),
    cloud("c2", limits={"cpu": "20", "memory": "20Gi"}, used={"cpu": "4", "memory": "1Gi"}, problem="401", **TOLD),
    cloud("c3", limits={"cpu": "20"}, used={"cpu": "24"}, **TOLD),
    cloud("c4", limits={}, used={}, **TOLD),
    cloud("c5"),
    cloud("c6", problem="refuses these credentials (401)"),
]
ROOM = cloud_accounts.accounts(CLOUDS, cloud_accounts.size_of_one([Shaped(held("alpha", "40", "12"), SIZE)]))


def test_a_cloud_account_has_room_for_what_its_own_quota_leaves() -> None:
    timed = [cloud("c1", limits={"cpu": "20", "machines": "10"}, used={"cpu": "4", "machines": "9"}, **TOLD)]
    one = cloud_accounts.size_of_one([Shaped(held("alpha", "40", "12"), SIZE)])
    assert [(each.count, each.limited_by) for each in cloud_accounts.accounts(timed, one)] == [(1, "machines")]
    found = {each.cluster: (each.count, each.limited_by, each.problem) for each in ROOM}
    assert found == {
        "alpha/c1": (None, "", cloud_accounts.NOT_TOLD),
        "alpha/c2": (2, "memory", "401"),
        "alpha/c3": (0, "cpu", ""),
        "alpha/c4": (None, "", "the cloud tells no limit of what one needs"),
        "alpha/c5": (None, "", cloud_accounts.NOT_TOLD),
        "alpha/c6": (None, "", "refuses these credentials (401)"),
    }


def test_what_the_master_has_not_counted_is_not_called_unlimited() -> None:
    where.counted([Shaped(ALPHA, SIZE)])
    new = msgspec.structs.replace(ALPHA, status=msgspec.structs.replace(ALPHA.status, conditions=[]))
    with pytest.raises(Failed, match="not counted yet"):
        where.counted([Shaped(ALPHA, SIZE), Shaped(new, SIZE)])


@pytest.mark.parametrize("width", WIDTHS)
def test_where_names_what_limits_and_says_where_it_does_not_fit(width: str) -> None:
    shaped = Shaped(ALPHA, resources.parse({"cpu": "1", "memory": "2Gi", "storage": "1Gi"}))
    found = [where.with_accounts(each, None) for each in places([shaped], SEEDS)]
    parts = [
        where.text(found, 2, [], NOW, WIDTHS[width]),
        where.text(found, 100, ["project-alpha: us-1 7m"], NOW, WIDTHS[width]),
        where.text([], 1, [], NOW, WIDTHS[width]),
        where.text([msgspec.structs.replace(found[0], accounts=ROOM), *found[1:]], 2, [], NOW, WIDTHS[width]),
    ]
    same_as("where", "\n\n".join(parts), width)


def test_consumers_are_the_largest_first() -> None:
    clusters = [
        msgspec.convert(
            {
                "metadata": {"name": name, "namespace": "alpha"},
                "spec": {"project": "alpha"},
                "status": {"resourceUsage": used, "lastCountTime": "2026-11-20T09:59:33Z"},
            },
            UserCluster,
        )
        for name, used in (("c1", {"cpu": "4", "memory": "8Gi"}), ("c2", {"cpu": "36"}), ("c3", {"cpu": "0"}))
    ]
    found = consumers.consumers(ALPHA, {"eu-1": clusters[:2], "us-1": clusters[2:]})
    assert [each.name for each in found] == ["alpha/c2", "alpha/c1"]


def event(reason: str, time: str, *, last: str = "", count: int = 0, name: str = "c1", **more: Any) -> Event:
    body = {
        "metadata": {"name": f"{name}.1", "namespace": "alpha"},
        "reason": reason,
        "note": "exceeded quota: project-alpha, requested: cpu=8, used: cpu=60, limited: cpu=64; short by cpu=4",
        "eventTime": time,
        "reportingController": "seedquota.io/webhook",
        "regarding": {"kind": "UserCluster", "namespace": "alpha", "name": name},
        "series": {"count": count, "lastObservedTime": last} if count else None,
        **more,
    }
    return msgspec.convert(body, Event)


EVENTS = [
    event("QuotaExceeded", "2026-11-20T08:10:00.000000Z", last="2026-11-20T09:58:00.000000Z", count=41),
    event("QuotaUnavailable", "2026-11-20T09:59:30.000000Z", name="c2"),
    event("QuotaExceeded", "2026-11-20T08:10:00.000000Z", name="long-ago"),
    event("QuotaExceeded", "2026-11-20T09:59:00.000000Z", name="of-others", reportingController="example.com/x"),
    event("Degraded", "2026-11-20T09:59:00.000000Z", name="no-refusal"),
]


def test_denials_are_ours_and_not_older_than_is_asked() -> None:
    assert [(each.object, each.count) for each in denials.denials(EVENTS, NOW, 3600, None)] == [
        ("usercluster/alpha/c2", 1),
        ("usercluster/alpha/c1", 41),
    ]
    assert len(denials.denials(EVENTS, NOW, 2 * 3600, None)) == 3
    assert [each.reason for each in denials.denials(EVENTS, NOW, 3600, "QuotaUnavailable")] == ["QuotaUnavailable"]
    assert denials.denials(EVENTS, NOW, 1, None) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_denials_show_when_how_often_and_why(width: str) -> None:
    found = denials.denials(EVENTS, NOW, 3600, None)
    text = "\n\n".join(denials.table(each, NOW, WIDTHS[width]) for each in (found, []))
    same_as("denials", text, width)


def test_where_refuses_a_name_that_nothing_can_limit_since_it_would_always_fit() -> None:
    assert where._size({"cpu": "1", "example.com/gpu": "1"})
    with pytest.raises(Failed, match="cpus is an unknown resource; known are cpu, "):
        where._size({"cpus": "1"})


class Asked:
    server = "https://asked"

    def __init__(self, *seeds: Seed) -> None:
        self.seeds = seeds

    async def list(self, _resource: object, _namespace: object) -> Listing[Seed]:
        if not self.seeds:
            raise ApiError(403, "Forbidden", "seeds.seedquota.io is forbidden")
        return Listing(items=list(self.seeds), resource_version="1", broken=[])


def of_master(labels: dict[str, str], **spec: object) -> Seed:
    return msgspec.convert({"metadata": {"name": "eu-1", "labels": labels}, "spec": spec}, Seed)


@pytest.mark.parametrize(
    ("seeds", "refused"),
    [
        ([of_master({})], True),
        ([of_master({UID_LABEL: "u"})], False),
        ([of_master({}, inCluster=True)], False),
        ([], False),
    ],
    ids=["master", "seed", "both", "user cluster"],
)
async def test_a_master_is_not_asked_for_refusals_since_it_has_none(seeds: list[Seed], refused: bool) -> None:
    asked = cast(Cluster, Asked(*seeds))
    if refused:
        with pytest.raises(Failed, match="is the master, and refusals are Events of seeds and user clusters"):
            await denials._refuse_master(asked)
    else:
        await denials._refuse_master(asked)
