from __future__ import annotations

import re

import msgspec
import pytest

from common.quota import resources
from seed.admission import denial
from seed.admission.refusal import RETRY_SECONDS, Refusal
from seed.admission.types import Verdict, decision_id
from seed.webhooks import review
from tests.unit.seed_world import nanos

DECISION = "01JD3Y6K"
LIMITS = nanos("cpu=64,memory=256Gi,storage=4Ti")
QUANTITIES = r"[a-z./]+=[0-9]+[A-Za-z]*(,[a-z./]+=[0-9]+[A-Za-z]*)*"
GRAMMAR = re.compile(
    rf"exceeded quota: (?P<quota>[a-z-]+), requested: (?P<requested>{QUANTITIES}), used: (?P<used>{QUANTITIES}), "
    rf"limited: (?P<limited>{QUANTITIES}); short by (?P<short>{QUANTITIES})"
    rf"(; (?P<creating>{QUANTITIES}) of used is machines being created)?"
    r"; (?P<hope>retrying helps only after something is deleted"
    r"|retrying helps after something is deleted, or if what is being created fails"
    r"|it can never fit: the request is larger than the limit); decision [0-9A-Z]{8}"
)


def refused(need: str, used: str, creating: str = "") -> Refusal:
    return denial.exceeded("project-alpha", nanos(need), nanos(used), LIMITS, nanos(creating))


def printed(refusal: Refusal) -> list[str]:
    """By kubectl: of a 422 the causes and nothing else."""
    answer = review.decided("uid", Verdict(decision=DECISION, refusal=refusal)).body
    status = msgspec.json.decode(answer)["response"]["status"]
    return [cause["message"] for cause in status["details"]["causes"]] if status["code"] == 422 else [status["message"]]


def test_a_full_quota_is_told_as_kubernetes_tells_it() -> None:
    found = refused("cpu=8,memory=16Gi,machines=1", "cpu=60,memory=232Gi", "cpu=2")
    assert found.message(DECISION) == (
        "exceeded quota: project-alpha, requested: cpu=8, used: cpu=60, limited: cpu=64; short by cpu=4; "
        "cpu=2 of used is machines being created; retrying helps only after something is deleted; decision 01JD3Y6K"
    )
    assert (found.code, found.reason, found.retry_seconds) == (403, "Forbidden", 0)
    assert [(cause.reason, cause.field, cause.message) for cause in found.causes] == [
        ("QuotaExceeded", "cpu", "requested cpu=8, used cpu=60, limited cpu=64, being created cpu=2")
    ]


def test_it_is_told_where_what_is_being_created_would_be_enough() -> None:
    hope = "; retrying helps after something is deleted, or if what is being created fails; decision 01JD3Y6K"
    assert refused("cpu=8", "cpu=60", "cpu=4").message(DECISION).endswith(hope)
    both = "cpu=8,memory=32Gi", "cpu=60,memory=250Gi"
    assert refused(*both, "cpu=4,memory=26Gi").message(DECISION).endswith(hope)
    assert "only after something is deleted" in refused(*both, "cpu=4").message(DECISION), (
        "each resource must have room"
    )
    assert "never fit" in refused("cpu=65", "cpu=60", "cpu=60").message(DECISION)


@pytest.mark.parametrize(
    ("need", "used", "creating"),
    [
        ("cpu=8", "cpu=60", ""),
        ("cpu=8,memory=32Gi", "cpu=60,memory=250Gi", "cpu=1,memory=1Gi,machines=1"),
        ("cpu=500m", "cpu=64", ""),
        ("cpu=1,storage=1Gi", "cpu=70,storage=4Ti", "machines=3"),
        ("cpu=65", "", ""),
    ],
)
def test_the_numbers_add_up_for_every_resource_that_fails(need: str, used: str, creating: str) -> None:
    found = refused(need, used, creating)
    match = GRAMMAR.fullmatch(found.message(DECISION))
    assert match is not None, found.message(DECISION)
    requested, counted, limited, short = (nanos(match[word]) for word in ("requested", "used", "limited", "short"))
    assert requested.keys() == counted.keys() == limited.keys() == short.keys()
    for name in short:
        assert requested[name] + counted[name] == limited[name] + short[name]
        assert short[name] > 0
    assert {cause.field for cause in found.causes} == short.keys()
    if match["creating"]:
        assert nanos(match["creating"]).keys() <= short.keys()


def test_what_is_larger_than_the_limit_itself_is_told_that_it_never_fits() -> None:
    never = "; it can never fit: the request is larger than the limit; decision 01JD3Y6K"
    assert refused("cpu=65", "").message(DECISION).endswith(never)
    assert refused("cpu=1,memory=257Gi", "cpu=64").message(DECISION).endswith(never), "one resource is enough"
    assert "never" not in refused("cpu=64", "cpu=1").message(DECISION)


def test_the_amounts_of_one_resource_are_in_one_unit() -> None:
    limits = nanos("cpu=2003,memory=4Ti,storage=1500m")
    found = denial.exceeded(
        "big",
        nanos("cpu=8,memory=3Gi,storage=1"),
        nanos("cpu=2k,memory=4Ti,storage=1"),
        limits,
        nanos("cpu=1k"),
    )
    assert found.message(DECISION) == (
        "exceeded quota: big, requested: cpu=8,memory=3Gi,storage=1000m, used: cpu=2000,memory=4096Gi,storage=1000m, "
        "limited: cpu=2003,memory=4096Gi,storage=1500m; short by cpu=5,memory=3Gi,storage=500m; "
        "cpu=1000 of used is machines being created; retrying helps only after something is deleted; decision 01JD3Y6K"
    )
    assert [cause.message for cause in found.causes] == [
        "requested cpu=8, used cpu=2000, limited cpu=2003, being created cpu=1000",
        "requested memory=3Gi, used memory=4096Gi, limited memory=4096Gi",
        "requested storage=1000m, used storage=1000m, limited storage=1500m",
    ]
    assert denial.near_limit("big", nanos("cpu=2k"), nanos("cpu=2003"), 90) == (
        "seedquota/big: cpu 2000/2003 (99%) after this"
    )
    assert denial.over_allowed("big", nanos("memory=1Gi"), nanos("memory=1025Gi"), nanos("memory=1Ti")) == (
        "seedquota/big: over by memory=1Gi (1025Gi/1024Gi); allowed because enforcement is warn"
    )


def test_all_that_matters_stands_in_the_first_256_characters() -> None:
    found = refused("cpu=8,memory=64Gi,storage=1Ti", "cpu=60,memory=250Gi,storage=4Ti")
    assert found.message(DECISION)[:256].count("storage=") == 4
    assert "\n" not in found.message(DECISION)


def test_it_never_says_exceeded_when_it_is_not() -> None:
    with pytest.raises(AssertionError, match="never say exceeded"):
        refused("cpu=4", "cpu=60")


def test_what_is_short_is_what_need_and_use_are_past_the_limit() -> None:
    need = nanos("cpu=8,memory=1Gi,machines=1")
    assert resources.over_limit(need, nanos("cpu=60,memory=255Gi,machines=99"), LIMITS) == nanos("cpu=4")
    assert resources.over_limit(nanos("cpu=0"), nanos("cpu=99"), LIMITS) == {}, "who needs none of it is not refused"


def test_what_cannot_be_decided_now_is_worth_a_retry_and_never_called_exceeded() -> None:
    found = denial.unavailable("project-alpha", "the ledger does not answer")
    assert found.message(DECISION) == "quota project-alpha cannot decide: the ledger does not answer; decision 01JD3Y6K"
    assert (found.code, found.reason, found.retry_seconds) == (503, "ServiceUnavailable", RETRY_SECONDS)
    assert [cause.reason for cause in found.causes] == ["QuotaUnavailable"]
    assert "exceeded" not in found.message(DECISION)


def test_a_machine_that_cannot_be_sized_is_invalid() -> None:
    found = denial.not_sized("cannot size machine: aws eu-central-1 has no type m5.larg; nearest: m5.large")
    assert found.text == "cannot size machine: aws eu-central-1 has no type m5.larg; nearest: m5.large"
    assert (found.code, found.reason, found.retry_seconds) == (422, "Invalid", 0)
    assert [(cause.reason, cause.field) for cause in found.causes] == [("MachineNotSized", "spec.providerSpec")]
    assert printed(found) == [found.message(DECISION)]


def test_every_refusal_names_its_decision_in_what_kubectl_prints() -> None:
    """But the canary's, which decides nothing."""
    full = refused("cpu=8", "cpu=60")
    refusals = [
        full,
        denial.unavailable("project-alpha", "the ledger does not answer"),
        denial.taken("project-alpha"),
        denial.beyond_surge(full, refused("cpu=8", "cpu=64")),
        denial.not_sized("cannot size machine: aws diskSize is missing"),
        denial.not_sized_now("cannot size machine now: aws does not answer"),
        denial.forged(),
        denial.lost(),
    ]
    for found in refusals:
        assert all("; decision 01JD3Y6K" in text for text in printed(found)), found


def test_decisions_have_names_that_a_person_can_read_out() -> None:
    found = {decision_id() for _ in range(1000)}
    assert len(found) == 1000
    assert all(re.fullmatch("[0-9A-HJKMNP-TV-Z]{8}", decision) for decision in found)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (419, "6m"), (420, "7m"), (3600, "1h"), (86_400, "24h"), (172_800, "2d")],
)
def test_ages_read_as_in_kubectl(seconds: int, shown: str) -> None:
    assert denial.age(seconds) == shown


def test_near_the_limit_the_fullest_resource_is_named() -> None:
    used = nanos("cpu=62,memory=250Gi,storage=1Ti")
    assert denial.near_limit("project-alpha", used, LIMITS, 90) == (
        "seedquota/project-alpha: memory 250Gi/256Gi (97%) after this"
    )
    assert denial.near_limit("project-alpha", nanos("cpu=62"), LIMITS, 90) == (
        "seedquota/project-alpha: cpu 62/64 (96%) after this"
    )
    assert denial.near_limit("project-alpha", nanos("cpu=57"), LIMITS, 90) is None
    assert denial.near_limit("project-alpha", nanos("cpu=57"), {"cpu": 0}, 90) is None


def test_where_the_quota_only_warns_the_warning_says_by_how_much() -> None:
    need, used = nanos("cpu=8"), nanos("cpu=60")
    over = resources.over_limit(need, used, LIMITS)
    assert denial.over_allowed("project-alpha", over, nanos("cpu=68"), LIMITS) == (
        "seedquota/project-alpha: over by cpu=4 (68/64); allowed because enforcement is warn"
    )


def test_in_a_user_cluster_with_local_copies_a_full_quota_names_the_command_that_shows_them() -> None:
    full = refused("cpu=8,memory=16Gi,machines=1", "cpu=60,memory=232Gi", "cpu=2")
    see = "; see: kubectl get lsq -n kube-system; decision 01JD3Y6K"
    assert denial.with_copies(full).message(DECISION) == f"{full.text}{see}"
    beyond = denial.with_copies(denial.beyond_surge(full, refused("cpu=8", "cpu=64"))).message(DECISION)
    assert f"{see}; its rollout may use surge" in beyond
    busy = denial.unavailable("project-alpha", "the ledger does not answer")
    assert denial.with_copies(busy) == busy, "what it shows says nothing of that"


def test_a_full_allocation_names_the_command_that_shows_it_in_the_namespace() -> None:
    used, limits = nanos("pods=30"), nanos("pods=50")
    full = denial.exceeded("allocation.owner-ann", nanos("pods=30"), used, limits, {})
    assert "; see: kubectl get lsqa -n db; decision 01JD3Y6K" in denial.with_copies(full, "db").message(DECISION)
