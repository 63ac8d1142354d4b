"""The largest consumers of a quota and its last denials, and what is said to be not known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cli import describe, figures, largest_and_last
from cli.denials import Denied, without_quota
from cli.largest_and_last import LargestAndLast, Told
from common.api.types import UserCluster
from master.cache.objects import MasterQuota
from tests.unit.cli.test_asked import event
from tests.unit.cli.test_tables import WIDTHS, described, same_as
from tests.unit.quota_examples import ALPHA, ANN, CURRENT, ENFORCED, NEW, NOW, quota

REST = "the rest of the use on {}, which no UserCluster has: "


def line(name: str, **used: str) -> dict[str, Any]:
    return {"name": name, "state": "Current", "localUsage": used}


def seeds(*lines: dict[str, Any], omitted: int = 0) -> MasterQuota:
    return quota(
        "project-alpha",
        {"kind": "project", "name": "alpha"},
        {"cpu": "64", "clusters": "9"},
        globalUsage={"cpu": "8"},
        seeds=list(lines),
        seedsOmitted=omitted,
        conditions=[ENFORCED, CURRENT],
    )


def user(number: int, cpu: str, counted: str = "2026-11-20T09:59:33Z") -> UserCluster:
    body = {
        "metadata": {"name": f"c{number}", "namespace": "alpha"},
        "spec": {"project": "alpha"},
        "status": {"resourceUsage": {"cpu": cpu, "pods": "7"}, "lastCountTime": counted},
    }
    return msgspec.convert(body, UserCluster)


def denied(minute: int, seed: str) -> Denied:
    time = f"2026-11-20T09:{minute}:00.000000Z"
    said = "exceeded quota: project-alpha, requested: cpu=8, used: cpu=60, limited: cpu=64; short by cpu=4"
    return Denied(time, time, 1, "QuotaExceeded", f"usercluster/alpha/c{minute}", said, seed)


def told_of(clusters: int, refusals: int) -> Told:
    """As much on each of two seeds."""
    told = Told(failed=["the seed of ap-1.yaml cannot be asked: no answer within 10 s"])
    for name in ("eu-1", "us-1"):
        told.clusters[name] = [user(number, f"{clusters - number}") for number in range(clusters)]
        told.refused[name] = [denied(59 - number, name) for number in range(refusals)]
    return told


def idle(*asked: str) -> Told:
    """Seeds on which nobody uses anything."""
    return Told(clusters={name: [] for name in asked}, refused={name: [] for name in asked})


@pytest.mark.parametrize("width", WIDTHS)
def test_describe_shows_who_uses_most_and_what_was_refused_last(width: str) -> None:
    parts = [described(ALPHA, None, WIDTHS[width], each) for each in (told_of(2, 2), told_of(12, 12), told_of(0, 0))]
    same_as(f"describe-asked-{width}.txt", "\n\n".join(parts), WIDTHS[width])


def test_the_ten_largest_and_the_ten_last_are_of_all_seeds_together() -> None:
    told = Told(
        clusters={
            "eu-1": [user(number, f"{number}") for number in range(1, 8)],
            "us-1": [user(8, "9"), user(9, "0")],
        },
        refused={"eu-1": [denied(10 + number, "eu-1") for number in range(11)], "us-1": [denied(15, "us-1")]},
    )
    found = largest_and_last.known(ALPHA, told)
    assert found.consumers is not None and found.denials is not None
    assert [(each.seed, each.used["cpu"]) for each in found.consumers] == [
        ("us-1", "9"),
        *(("eu-1", f"{number}") for number in range(7, 0, -1)),
    ]
    assert (found.more_consumers, found.more_denials) == (0, 2)
    assert [(each.seed, each.object[-2:]) for each in found.denials][4:7] == [
        ("eu-1", "16"),
        ("eu-1", "15"),
        ("us-1", "15"),
    ]
    every = largest_and_last.known(ALPHA, told, None)
    assert (len(every.consumers or ()), len(every.denials or ()), every.more_denials) == (8, 12, 0)


def test_what_no_seed_was_asked_about_is_not_known_and_not_none() -> None:
    found = largest_and_last.known(ALPHA, Told())
    assert (found.consumers, found.denials) == (None, None)
    (said,) = found.not_known
    assert said == "user clusters and denials on us-1, eu-1 and 3 more: --seed NAME asks one, --all-seeds all of them"
    plain: Any = describe.plain(ALPHA, figures.of_quota(ALPHA), None, found)
    assert (plain["consumers"], plain["denials"], plain["notKnown"]) == (None, None, found.not_known)
    (said,) = largest_and_last.known(NEW, Told()).not_known
    assert said == "user clusters and denials: --seed NAME asks one, --all-seeds all of them"


def test_seeds_that_were_not_asked_are_named() -> None:
    def said(of: MasterQuota, *asked: str) -> Any:
        return largest_and_last.known(of, idle(*asked)).not_known

    many = seeds(*(line(f"eu-{number}") for number in range(8)))
    assert said(many, "eu-0") == [
        "user clusters and denials on eu-1, eu-2, eu-3, eu-4, eu-5 and 2 more: --seed NAME asks one, --all-seeds all "
        "of them"
    ]
    assert said(seeds(line("eu-1")), "eu-1") == []
    assert said(seeds(line("eu-1"), omitted=2), "eu-1", "us-1") == [
        "user clusters and denials on 1 more seed: --seed NAME asks one, --all-seeds all of them"
    ]


def test_a_part_that_could_not_be_read_is_not_known() -> None:
    only_clusters = Told(clusters={"eu-1": [user(1, "4")]}, failed=["denials on eu-1: forbidden"])
    found = largest_and_last.known(seeds(line("eu-1", cpu="4")), only_clusters)
    assert found.consumers is not None and [each.name for each in found.consumers] == ["alpha/c1"]
    assert (found.denials, found.not_known) == (None, ["denials on eu-1: forbidden"])


def test_use_of_a_seed_that_its_user_clusters_do_not_have_is_said() -> None:
    def said(*clusters: UserCluster, **used: str) -> list[str]:
        asked = Told(clusters={"eu-1": list(clusters)}, refused={"eu-1": []})
        return [*largest_and_last.known(seeds(line("eu-1", **used)), asked).not_known]

    assert said(user(1, "4"), user(2, "4"), cpu="8") == []
    (rest,) = said(user(1, "4"), user(2, "3"), cpu="8")
    assert rest.startswith(REST.format("eu-1"))
    # The count of a cluster may be newer, and a cluster itself is in no user cluster.
    assert said(user(1, "9"), cpu="8", clusters="1") == []
    # What a cluster has is no figure before it was counted.
    assert said(user(1, "4"), user(2, "0", ""), cpu="4") == ["what alpha/c2 uses: it was not counted yet"]


def test_denials_are_of_this_quota_and_not_of_one_before() -> None:
    fenced = "quota project-alpha cannot decide: it is fenced"
    others = "exceeded quota: project-alpha-large, requested: cpu=8"
    events = [
        event("QuotaExceeded", "2026-11-20T09:40:00.000000Z", name="of-one-before"),
        event("QuotaExceeded", "2026-11-20T09:58:00.000000Z"),
        event("QuotaUnavailable", "2026-11-20T09:59:00.000000Z", note=fenced),
        event("QuotaExceeded", "2026-11-20T09:59:00.000000Z", note=others),
        event("MachineNotSized", "2026-11-20T09:59:00.000000Z", note="cannot size machine: no m5.larg"),
    ]
    since = msgspec.structs.replace(ALPHA.metadata, creation_timestamp="2026-11-20T09:50:00Z")
    found = largest_and_last.of_events(events, msgspec.structs.replace(ALPHA, metadata=since), "eu-1", NOW)
    assert [(each.seed, each.reason) for each in found] == [("eu-1", "QuotaUnavailable"), ("eu-1", "QuotaExceeded")]
    assert [without_quota(each, "project-alpha").message for each in found] == [
        "cannot decide: it is fenced",
        "requested: cpu=8, used: cpu=60, limited: cpu=64; short by cpu=4",
    ]
    assert len(largest_and_last.of_events(events, ALPHA, "eu-1", NOW)) == 3


def test_a_quota_of_namespaces_tells_its_consumers_itself() -> None:
    found = largest_and_last.known(ANN, Told())
    assert found.consumers is not None
    assert [each.name for each in found.consumers] == ["alpha/c1/web", "eu-1/db"]
    assert (found.more_consumers, found.denials) == (1, None)
    (said,) = found.not_known
    assert "seedquota history owner-ann --prometheus URL" in said
    assert "consumers" not in describe.text(NEW, figures.of_quota(NEW), None, {}, LargestAndLast(), NOW, None)
