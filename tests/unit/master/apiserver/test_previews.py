from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from common.api.types import MAX_AMOUNT, Seed, SeedSpec
from master.apiserver import previews
from master.apiserver.previews import Calculation, FitsRequest, PreviewInput, WhereRequest
from master.apiserver.problem import ProblemError
from master.cache.objects import MasterQuota
from master.quotas import placing
from master.quotas.placing import Shaped
from tests.unit.quota_examples import ALPHA, CONNECTED, CURRENT, NOW, SEEDS, quota, seed

PROJECT = {"kind": "project", "name": "alpha"}
STALE = {"type": "UsageCurrent", "status": "False"}


def known(*quotas: MasterQuota, seeds: Sequence[Seed] = ()) -> PreviewInput:
    return PreviewInput(quotas, seeds, NOW)


def counted(limits: dict[str, Any], used: dict[str, Any], **status: Any) -> MasterQuota:
    return quota("q", PROJECT, limits, globalUsage=used, **{"conditions": [CURRENT], **status})


def fits(*quotas: MasterQuota, **asked: Any) -> previews.FitsResult:
    return previews.fits(known(*quotas), msgspec.convert(asked, FitsRequest))


def where(*quotas: MasterQuota, seeds: Sequence[Seed], **asked: Any) -> previews.WhereResult:
    return previews.where(known(*quotas, seeds=seeds), msgspec.convert(asked, WhereRequest))


def test_what_fits_exactly_fits_and_a_thousandth_more_is_short() -> None:
    present = counted({"cpu": "4"}, {"cpu": "1500m"})
    assert fits(present, resources={"cpu": "500m"}, replicas=5).fits
    found = fits(present, resources={"cpu": "2501m"})
    (short,) = found.shortages
    assert (short.requested, short.used, short.limit, short.short) == ("2501m", "1500m", "4", "1m")
    assert (found.fits, found.message) == (False, "q: cpu short by 1m")


def test_what_allocations_have_can_be_had_where_these_are_made() -> None:
    present = counted({"servers": 9, "cpu": 9}, {"servers": 4, "cpu": 0})
    own = msgspec.structs.replace(seed("own", "", CONNECTED), spec=SeedSpec(in_cluster=True))

    def asked(*seeds: Seed, **resources: int) -> previews.WhereResult:
        return previews.where(
            PreviewInput([present], seeds, NOW, frozenset({"servers", "gpus"})),
            msgspec.convert({"resources": resources, "replicas": 5}, WhereRequest),
        )

    found = asked(*SEEDS, own, servers=1)
    assert ([each.seed for each in found.items], found.fits) == (["own"], True)
    assert {each.seed for each in asked(*SEEDS, own, cpu=1, servers=0).items} == {
        "own",
        *(s.metadata.name for s in SEEDS),
    }
    nowhere = asked(*SEEDS, gpus=1)
    assert (nowhere.items, nowhere.fits) == ([], False)
    assert nowhere.message == "no Seed with inCluster counts Allocations, so none can be made of gpus"


def test_what_has_no_limit_or_is_never_counted_is_never_short() -> None:
    present = counted({"cpu": 1, "servers": 0}, {"cpu": 0})
    assert fits(present, resources={"memory": "1Ti", "servers": 9}).fits
    assert fits(resources={"cpu": 9}).fits


def test_an_edit_costs_its_difference_and_never_less_than_nothing() -> None:
    present = counted({"cpu": 4, "memory": "4Gi"}, {"cpu": 4, "memory": "5Gi"})
    assert fits(present, resources={"cpu": 2}, replicas=2, replaces={"cpu": 4}).fits
    assert not fits(present, resources={"cpu": 2}, replicas=2, replaces={"cpu": 3}).fits
    assert fits(present, resources={"memory": "1Gi"}, replaces={"memory": "2Gi"}).fits


def test_what_is_short_in_a_quota_that_only_warns_would_be_admitted() -> None:
    present = counted({"cpu": 1}, {"cpu": 1})
    present.spec["enforcement"] = "warn"
    found = fits(present, resources={"cpu": 1})
    assert (found.fits, [each.enforcement for each in found.shortages]) == (True, ["warn"])
    assert previews.calculate(known(present), Calculation(resources={"cpu": 1})).fits


def test_a_calculation_adds_what_is_counted() -> None:
    found = previews.calculate(
        known(counted({"cpu": 4}, {"cpu": 1})), Calculation(resources={"cpu": 2, "memory": "1Gi"}, replicas=3)
    )
    assert (found.fits, found.calculated_quota) == (False, {"cpu": "7"})


def test_an_answer_says_of_when_it_is() -> None:
    old, new = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    seeds = [{"name": "a", "lastReportTime": new}, {"name": "b", "lastReportTime": old}]
    lost = {"name": "c", "state": "Lost", "lastReportTime": "2020-01-01T00:00:00Z"}
    found = fits(counted({"cpu": 1}, {"cpu": 0}, seeds=[*seeds, lost]), resources={"cpu": 1})
    assert (found.as_of, found.stale) == (old, False)
    assert fits(counted({"cpu": 1}, {"cpu": 0}, conditions=[STALE]), resources={"cpu": 1}).stale


def test_an_answer_is_stale_while_nobody_leads() -> None:
    request = FitsRequest(project="alpha", resources={"cpu": 1})
    silent = [seed("a", "2026-11-20T09:00:00Z", CONNECTED)]
    heard = [seed("a", "2026-11-20T10:00:00Z", CONNECTED)]
    for seeds, stale in ((silent, True), (heard, False)):
        assert previews.fits(known(counted({"cpu": 1}, {"cpu": 0}), seeds=seeds), request).stale == stale


def test_where_is_what_the_command_says() -> None:
    found = where(ALPHA, seeds=SEEDS, project="alpha", resources={"cpu": "2"}, replicas=2)
    assert found.items == placing.places([Shaped(ALPHA, {"cpu": 2 * 10**9})], SEEDS)
    assert (found.fits, found.shortages, found.stale) == (True, [], True)


def test_where_needs_one_seed_for_all_of_them() -> None:
    line = {"granted": {"cpu": 3}, "localUsage": {"cpu": 0}}
    lines = [{"name": "a", "state": "Current", **line}, {"name": "b", "state": "Stale", **line}]
    present = counted({"cpu": 6}, {"cpu": 0}, seeds=lines)
    seeds = [seed(name, "2026-11-20T10:00:00Z", CONNECTED) for name in "ab"]
    asked: dict[str, Any] = {"project": "alpha", "resources": {"cpu": 1}}
    # What the seed that is away holds, the other cannot get: each could take three, though six are free.
    assert where(present, seeds=seeds, **asked, replicas=3).fits
    found = where(present, seeds=seeds, **asked, replicas=4)
    assert (found.fits, found.shortages) == (False, [])
    assert [(each.seed, each.now, each.by_recall) for each in found.items] == [("a", 3, 3), ("b", 3, 3)]


def test_where_there_is_no_seed_nothing_fits_and_no_count_is_beyond_what_json_has() -> None:
    present = counted({"cpu": "9000000000"}, {"cpu": 0})
    asked: dict[str, Any] = {"project": "alpha", "resources": {"cpu": "1n"}}
    assert (where(present, seeds=(), **asked).fits, where(present, seeds=(), **asked).items) == (False, [])
    (place,) = where(present, seeds=[seed("a", "2026-11-20T10:00:00Z", CONNECTED)], **asked).items
    assert (place.now, place.by_recall) == (0, MAX_AMOUNT)


@pytest.mark.parametrize("given", [{}, {"project": "alpha", "organization": "acme"}])
def test_one_subject_is_named(given: dict[str, str]) -> None:
    request = msgspec.convert({"resources": {"cpu": 1}, **given}, FitsRequest)
    with pytest.raises(ProblemError) as refused:
        previews.subject(request)
    assert refused.value.status == 422


@pytest.mark.parametrize("part", ["resources", "replaces"])
def test_a_name_that_nothing_can_limit_is_refused_since_it_would_always_fit(part: str) -> None:
    asked = {"resources": {"cpu": 1}, part: {"cpus": 1}}
    with pytest.raises(ProblemError) as raised:
        fits(ALPHA, **asked)
    assert raised.value.errors[0].pointer == f"/{part}/cpus"
    with pytest.raises(ProblemError, match="cpus is an unknown resource; known are cpu, "):
        where(ALPHA, seeds=SEEDS, project="alpha", resources={"cpus": 1})


@pytest.mark.parametrize(
    ("asked", "fitting"),
    [
        ({"resources": {"cpu": 2}, "replicas": 4}, 2),
        ({"resources": {"cpu": 2}, "replicas": 1}, 1),
        ({"resources": {"cpu": 5}, "replicas": 4}, 0),
        ({"resources": {"cpu": 2}, "replicas": 6, "replaces": {"cpu": 4}}, 4),
        ({"resources": {"cpu": 0, "memory": "1Ti"}, "replicas": 6}, 6),
        ({"resources": {"cpu": 2}, "replicas": 0}, 0),
    ],
    ids=range(6),
)
def test_how_many_would_fit_is_as_many_as_are_not_refused(asked: dict[str, Any], fitting: int) -> None:
    present = counted({"cpu": 64}, {"cpu": 60})
    found = fits(present, **asked)
    assert found.fitting == fitting
    if fitting:
        assert fits(present, **{**asked, "replicas": fitting}).fits
    if fitting < asked["replicas"]:
        assert not fits(present, **{**asked, "replicas": fitting + 1}).fits


def test_in_a_quota_that_is_exceeded_nothing_fits_and_one_that_warns_does_not_matter() -> None:
    over = counted({"cpu": 4}, {"cpu": 6})
    assert fits(over, resources={"cpu": 1}, replicas=3).fitting == 0
    assert fits(over, resources={"cpu": 1}, replicas=3, replaces={"cpu": 2}).fitting == 2
    over.spec["enforcement"] = "warn"
    assert fits(over, resources={"cpu": 1}, replicas=3).fitting == 3


def test_who_holds_what_is_short_is_told_to_who_may_see_all_quotas_alone() -> None:
    lines = [
        {"name": name, "state": state, "granted": {"cpu": granted, "memory": "9Gi"}, "localUsage": {"cpu": "20"}}
        for name, state, granted in (
            ("small", "Current", "21"),
            ("away", "Unreachable", "24"),
            ("gone", "Lost", "30"),
            ("full", "Current", "20"),
        )
    ]
    present = counted({"cpu": 64, "memory": "64Gi"}, {"cpu": 60, "memory": 0}, seeds=lines)
    asked = msgspec.convert({"resources": {"cpu": 8, "memory": "1Gi"}}, FitsRequest)
    assert "holders" not in msgspec.to_builtins(previews.fits(known(present), asked))
    found = previews.fits(PreviewInput([present], (), NOW, sees_seeds=True), asked)
    assert isinstance(found.holders, list)
    assert [(each.seed, each.state, each.type, each.idle) for each in found.holders] == [
        ("away", "Unreachable", "cpu", "4"),
        ("small", "Current", "cpu", "1"),
    ]


ACME = {"kind": "organization", "name": "acme"}


def kept_for_alpha(**more: Any) -> MasterQuota:
    """Six of ten are used, two of these by alpha, which is guaranteed five: three are free for it alone."""
    lines = [
        {
            "name": "a",
            "state": "Current",
            "granted": {"cpu": 8},
            "localUsage": {"cpu": 4},
            "keptFor": {"alpha": {"cpu": 3}},
        },
        {"name": "b", "state": "Current", "granted": {"cpu": 2}, "localUsage": {"cpu": 2}},
    ]
    given = [{"project": "alpha", "hard": {"cpu": 5}, "used": {"cpu": 2}}]
    used = {"globalUsage": {"cpu": 6}, "seeds": lines, "guarantees": given, "conditions": [CURRENT], **more}
    return quota("org-acme", ACME, {"cpu": 10}, **used)


def of_project(name: str, *quotas: MasterQuota) -> PreviewInput:
    seeds = [seed(each, "2026-11-20T10:00:00Z", CONNECTED) for each in "ab"]
    return PreviewInput(quotas, seeds, NOW, sees_seeds=True, project=name)


@pytest.mark.parametrize(("project", "free"), [("alpha", 4), ("beta", 1), ("", 1)], ids=["its own", "sibling", "any"])
def test_what_is_guaranteed_to_one_project_fits_for_it_alone(project: str, free: int) -> None:
    known = of_project(project, kept_for_alpha())
    assert previews.fits(known, FitsRequest(resources={"cpu": 1}, replicas=free)).fits
    found = previews.fits(known, FitsRequest(resources={"cpu": 1}, replicas=5))
    assert (found.fits, found.fitting) == (False, free)
    (short,) = found.shortages
    assert (short.used, short.kept, short.limit) == (("6", "0", "10") if free == 4 else ("9", "3", "10"))
    kept = "" if free == 4 else " (3 is guaranteed to other projects)"
    assert found.message == f"org-acme: cpu short by {5 - free}{kept}"
    assert isinstance(found.holders, list)
    assert [(each.seed, each.idle) for each in found.holders] == [("a", str(free))]
    there = previews.where(known, WhereRequest(resources={"cpu": 1})).items
    assert [(each.seed, each.now, each.by_recall) for each in there] == [("a", free, free), ("b", 0, free)]


@pytest.mark.parametrize("hard", [5, 4, 3, 0], ids=["in force", "lowered", "to a part of it", "gone"])
def test_what_a_seed_that_is_away_keeps_for_one_project_is_free_for_nobody_and_counted_once(hard: int) -> None:
    given = [{"project": "alpha", "hard": {"cpu": hard}, "used": {"cpu": 2}}] if hard else []
    lines = [
        {
            "name": "a",
            "state": "Stale",
            "granted": {"cpu": 5},
            "localUsage": {"cpu": 2},
            "keptFor": {"alpha": {"cpu": 3}},
        },
        {"name": "b", "state": "Current", "granted": {"cpu": 4}, "localUsage": {"cpu": 4}},
    ]
    for project in ("alpha", "beta"):
        known = of_project(project, kept_for_alpha(seeds=lines, guarantees=given))
        there = previews.where(known, WhereRequest(resources={"cpu": 1}))
        assert [each.by_recall for each in there.items if each.seed == "b"] == [1]


def test_a_quota_of_some_seeds_says_nothing_of_others() -> None:
    present = counted({"cpu": 9}, {"cpu": 4})
    subject = {**PROJECT, "seeds": {"names": ["own"]}}
    some = msgspec.structs.replace(present, spec={**present.spec, "subject": subject})
    own = seed("own", "", CONNECTED)
    asked = {"resources": {"cpu": 1}}
    assert [each.seed for each in where(some, seeds=[*SEEDS, own], **asked).items if each.seed == "own"] == ["own"]
    named = {each.metadata.name for each in SEEDS} - {line.name for line in some.status.seeds}
    assert named and not named & {each.seed for each in where(some, seeds=[*SEEDS, own], **asked).items}
