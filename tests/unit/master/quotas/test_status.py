from __future__ import annotations

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from common.api.conditions import transition
from common.api.label_selector import LabelSelector
from common.api.subject_text import subject_text
from common.api.types import AccountWait, Condition, NamespaceUse, ResourceQuotaSpec, StaleSource, Subject
from common.quota import guarantees, names, resources
from common.quota.guarantees import Guarantee
from common.quota.use_text import peak_text, usage_text
from devcluster.objects import CHARTS
from master.cache.objects import OverrideStatus, QuotaStatus
from master.cache.organization_limits import OrganizationLimits
from master.quotas.grant_publisher import usage_stale
from master.quotas.quota_view import QuotaView, SeedView
from master.quotas.stale_sources import age
from master.quotas.status import MAX_SEEDS, quota_status, same
from master.reporting.seed_conditions import SeedHealth, seed_conditions, skewed

NOW = "2026-11-20T10:00:00Z"
LATER = "2026-11-20T11:00:00Z"


def amounts(**quantities):
    return resources.parse(quantities)


def seed(name="eu-1", use=None, reserved=None, **more):
    return SeedView(name=name, use=amounts(**(use or {})), reserved=amounts(**(reserved or {})), **more)


def view(*seeds, limits=None, enforcement="deny", **more):
    quota = limits or {"cpu": "64"}
    spec = ResourceQuotaSpec(
        subject=Subject(kind="project", name="alpha"), quota=quota, enforcement=enforcement, warn_at_percent=90
    )
    known = {"generation": 3, "subject_exists": True, "learning": False, **more}
    return QuotaView(spec=spec, limits=resources.parse(quota), seeds=seeds, **known)


def status(*seeds, before=None, **more):
    return quota_status(view(*seeds, **more), before or QuotaStatus(), NOW)


def test_a_line_of_a_seed_says_what_of_that_is_kept_for_whom():
    held = amounts(cpu="20", memory="8Gi")
    found = status(seed(use={"cpu": "4"}, held=held, kept_for={"beta": amounts(cpu="5", gpus="1"), "gamma": {}}))
    (line,) = found.seeds
    assert (line.granted, line.kept_for) == ({"cpu": "20"}, {"beta": {"cpu": "5"}})


def test_a_status_has_room_for_all_that_can_be_said_of_guarantees():
    """A seed that is away holds also of those that others had before: one entry too many, and nothing is written."""
    (definition,) = yaml.safe_load_all((CHARTS / "crds" / "resourcequota.yaml").read_text())
    parts = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    kept = parts["seeds"]["items"]["properties"]["keptFor"]
    for held, most in (
        ({guarantees.counter(f"p{number}", "cpu"): 1 for number in range(names.MAX_COUNTERS)}, kept),
        (
            {guarantees.counter("alpha", f"r{number}"): 1 for number in range(names.MAX_COUNTERS)},
            kept["additionalProperties"],
        ),
    ):
        resource_names = {name for each in guarantees.idle_by_project({}, held).values() for name in each}
        limits = dict.fromkeys(resource_names, "9")
        (line,) = status(seed(kept_for=guarantees.idle_by_project({}, held)), limits=limits).seeds
        assert max(len(line.kept_for), *map(len, line.kept_for.values())) == most["maxProperties"]
    longest = {f"{number:0{names.MAX_NAME}}": 10**39 - 1 for number in range(guarantees.MOST)}
    assert len(usage_text(longest, longest)) <= parts["summary"]["properties"]["guaranteed"]["maxLength"]


def test_the_summary_says_what_is_used_of_what_is_guaranteed():
    limits = OrganizationLimits(own=amounts(cpu="100"), guaranteed={"alpha": amounts(cpu="16", memory="8Gi")})
    mine = view(seed(use={"cpu": "20"}), limits={"cpu": "64", "memory": "9Gi"}, organization_limits=limits)
    for wanted, text in (
        ({}, ""),
        ({"cpu": "16"}, "cpu 16/16"),
        ({"cpu": "20", "memory": "8Gi"}, "cpu 16/16, memory 0/8Gi"),
    ):
        spec = replace(mine.spec, guaranteed=wanted)
        assert quota_status(replace(mine, spec=spec), QuotaStatus(), NOW).summary.guaranteed == text
    given = [
        Guarantee(project="alpha", hard=amounts(cpu="16"), used=amounts(cpu="20")),
        Guarantee(project="beta", hard=amounts(cpu="8"), used=amounts(cpu="3")),
    ]
    subject = Subject(kind="organization", name="acme")
    of_all = replace(view(seed(use={"cpu": "50"})), spec=replace(mine.spec, subject=subject), guarantees=given)
    assert quota_status(of_all, QuotaStatus(), NOW).summary.guaranteed == "cpu 19/24"


def condition(found, kind):
    (match,) = (each for each in found.conditions if each.type == kind)
    return match.status, match.reason, match.message


def test_example_of_the_contract():
    found = status(
        seed("eu-1", {"cpu": "40", "memory": "116Gi"}, {"cpu": "2"}, held=amounts(cpu="44")),
        seed("us-1", {"cpu": "20", "memory": "116Gi"}, held=amounts(cpu="20")),
        limits={"cpu": "64", "memory": "256Gi"},
    )
    assert found.hard == {"cpu": "64", "memory": "256Gi"}
    assert found.global_usage == {"cpu": "60", "memory": "232Gi"}
    assert found.reserved == {"cpu": "2"}
    assert msgspec.to_builtins(found.summary) == {
        "subject": "project/alpha",
        "usage": "cpu 60/64, memory 232Gi/256Gi",
        "peak": "cpu 93%",
        "seeds": "2/2",
    }
    assert [(line.name, line.state, line.local_usage["cpu"], line.granted) for line in found.seeds] == [
        ("eu-1", "Current", "40", {"cpu": "44"}),
        ("us-1", "Current", "20", {"cpu": "20"}),
    ]
    assert condition(found, "Ready") == ("True", "Enforced", "")
    assert condition(found, "Enforced")[:2] == ("True", "AllSeeds")
    assert condition(found, "UsageCurrent")[:2] == ("True", "AllReported")
    assert condition(found, "NearLimit")[:2] == ("True", "AboveWarnPercent")
    assert condition(found, "Exceeded")[:2] == ("False", "WithinLimit")
    assert {each.observed_generation for each in found.conditions} == {3}


def test_where_no_agent_counts_the_use_is_not_current():
    found = status(seed("eu-1", {"cpu": "4"}), seed("us-1", {"cpu": "2"}, agent_silent=True, last_report_time=NOW))
    assert condition(found, "UsageCurrent") == (
        "False",
        "AgentSilent",
        "no agent leads on us-1, so nothing is counted there; what was counted last is kept",
    )
    assert [(line.name, line.state) for line in found.seeds] == [("us-1", "Stale"), ("eu-1", "Current")]
    assert condition(found, "Enforced")[0] == "True", "without an agent nothing is admitted there"


def test_a_quota_that_not_every_replica_of_a_seed_has_is_not_enforced():
    found = condition(status(seed("eu-1"), seed("us-1", behind=True)), "Enforced")
    assert found[:2] == ("False", "ReplicasBehind")
    assert found[2].startswith("us-1: not every replica of the agent has the present quota yet")
    assert condition(status(seed(behind=True, synced=False)), "Enforced")[1] == "SeedNotSynced"
    assert condition(status(seed(behind=True, fenced=True)), "Enforced")[1] == "AccountFenced"
    assert condition(status(seed(behind=True, connected=False)), "Enforced")[1] == "ReplicasBehind"
    assert condition(status(seed("eu-1"), seed("us-1", behind=True, lost=True)), "Enforced")[0] == "True"


def test_silent_seed_keeps_its_count_and_is_named_with_its_age():
    found = status(
        seed("eu-1", {"cpu": "4"}),
        seed("us-1", {"cpu": "20"}, connected=False, silent=7 * 60 + 12.0, last_report_time=NOW),
    )
    assert condition(found, "UsageCurrent") == (
        "False",
        "SeedUnreachable",
        "us-1 last reported 7m ago; its last count is kept",
    )
    assert found.global_usage == {"cpu": "24"}
    assert found.summary.seeds == "1/2"
    assert (found.seeds[0].name, found.seeds[0].state) == ("us-1", "Stale")
    assert condition(found, "Ready")[0] == "True"


def test_short_silence_is_no_news():
    assert condition(status(seed(connected=False, silent=3.0)), "UsageCurrent")[0] == "True"


def test_seed_deleted_without_being_lost_keeps_what_it_holds_and_says_how_to_free_it():
    found = condition(status(seed("us-1", {"cpu": "20"}, connected=False, silent=None, gone=True)), "UsageCurrent")
    assert "create the Seed again, or with state Lost to free that if its machines are gone" in found[2]


def test_source_out_of_reach_is_named():
    found = status(seed("eu-1", stale_sources=[StaleSource(source="alpha/c1", seconds=125)]))
    assert condition(found, "UsageCurrent") == (
        "False",
        "SourceUnreachable",
        "alpha/c1 on eu-1 has not been reached for 2m: its last count is kept",
    )


def test_a_source_that_was_never_counted_has_no_last_count():
    c1 = StaleSource(source="alpha/c1", seconds=0)
    c2 = StaleSource(source="alpha/c2", seconds=0, never_counted=True)
    assert condition(status(seed("eu-1", stale_sources=[c1, c2])), "UsageCurrent") == (
        "False",
        "SourceUnreachable",
        "alpha/c2 on eu-1 cannot be reached, and nothing of it is counted yet; "
        "alpha/c1 on eu-1 has not been reached for less than 1m: its last count is kept",
    )
    assert condition(status(seed("eu-1", stale_sources=[c1])), "Enforced")[0] == "True", (
        "its API server asks all the same"
    )
    assert condition(status(seed("eu-1", stale_sources=[c1, c2])), "Enforced") == (
        "Unknown",
        "SourceUnreachable",
        "alpha/c2 on eu-1 cannot be reached, and nothing of it is counted yet; whether anything is refused "
        "there is not known",
    )
    of_clusters = status(seed("eu-1", stale_sources=[c2]), limits={"clusters": "3"})
    assert condition(of_clusters, "Enforced")[0] == "True", "the seed's own API server asks about these"


@pytest.mark.parametrize(
    ("about", "text"),
    [
        ({"synced": False}, "the present quota is not yet on {}"),
        ({"synced": None}, "whether the present quota is on {} cannot be told: not connected"),
        ({"fenced": True}, "nothing is admitted on {} until everything there is recounted"),
    ],
)
def test_the_words_fit_one_seed_and_several(about, text):
    assert condition(status(seed("s1", **about)), "Enforced")[2] == text.format("s1")
    assert condition(status(seed("s1", **about), seed("s2", **about)), "Enforced")[2] == text.format("s1, s2")


def test_quota_of_a_project_that_does_not_exist_says_what_to_do():
    found = condition(status(seed(), subject_exists=False), "Ready")
    assert found[:2] == ("False", "SubjectNotFound")
    assert found[2].startswith("there is no Project alpha: create it")


def test_learning_names_who_is_missing():
    found = status(seed("eu-1"), seed("us-1", learned=False), learning=True)
    assert condition(found, "Ready")[:2] == ("Unknown", "Learning")
    assert "waiting for us-1" in condition(found, "Ready")[2]


def test_warn_is_not_enforced():
    assert condition(status(seed(), enforcement="warn"), "Ready")[:2] == ("True", "WarnOnly")


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"synced": False}, ("False", "SeedNotSynced")),
        ({"synced": None}, ("Unknown", "SeedNotSynced")),
        ({"fenced": True}, ("False", "AccountFenced")),
        ({"reported": False}, ("False", "AccountFenced")),
    ],
)
def test_seed_that_does_not_enforce_the_quota_now(about, expected):
    found = status(seed(**about))
    assert condition(found, "Enforced")[:2] == expected
    state, reason, message = condition(found, "Ready")
    assert (state, reason) == (expected[0], "Degraded")
    assert message.startswith(f"{expected[1]}: ")


def test_what_fenced_accounts_wait_for_is_in_the_message_and_in_the_seeds_line():
    names = ["eu-1", "eu-2", "eu-3", "us-1"]
    waiting = AccountWait(reason="Sources", sources=["alpha/c1"], sources_omitted=2)
    found = status(seed("de-1", fenced=True), *(seed(name, fenced=True, waits_for=waiting) for name in names))
    text = "waits for new lists from alpha/c1 and 2 more"
    message = (
        "nothing is admitted on de-1, eu-1, eu-2 and 2 more until everything there is recounted; "
        f"eu-1 {text}; eu-2 {text}; eu-3 {text}"
    )
    assert condition(found, "Enforced") == ("False", "AccountFenced", message)
    assert condition(found, "Ready")[2] == f"AccountFenced: {message}"
    assert {line.name: line.waits_for for line in found.seeds} == {"de-1": None} | dict.fromkeys(names, waiting)
    longest = AccountWait(reason="Sources", sources=["x" * 512] * 3)
    assert len(condition(status(seed(fenced=True, waits_for=longest)), "Enforced")[2]) <= 1024
    assert status(seed(waits_for=waiting)).seeds[0].waits_for is None, "it is open by now"


@pytest.mark.parametrize("enforcement", ["deny", "warn"])
def test_a_quota_is_ready_only_where_it_is_enforced(enforcement):
    unchecked = status(seed(unenforced=["alpha/c1"]), enforcement=enforcement)
    assert condition(unchecked, "Ready")[:2] == ("False", "Degraded")
    assert "WebhookNotServing: alpha/c1 on eu-1" in condition(unchecked, "Ready")[2]
    assert condition(status(seed(), enforcement=enforcement), "Ready")[0] == "True"


def test_a_quota_names_what_a_seed_itself_is_not_proven_to_be_asked_about():
    found = status(
        seed("eu-1", unenforced=["Allocations", "clusters", "alpha/c1"]), seed("us-1", unenforced=["clusters"])
    )
    state, reason, message = condition(found, "Enforced")
    assert (state, reason) == ("False", "WebhookNotServing")
    assert message.startswith("Allocations on eu-1: no dry run")
    assert "; clusters on eu-1, us-1: no dry run" in message
    assert "; alpha/c1 on eu-1: Machines are not checked" in message
    only = condition(status(seed(unenforced=["Allocations"])), "Enforced")[2]
    assert "Machines" not in only and "WebhookServing" in only


def test_a_seed_that_never_connected_limits_no_readiness_but_its_own():
    broken = seed("broken", connected=False, never_connected=True, silent=None, synced=None, reported=False)
    found = status(seed("eu-1", {"cpu": "4"}), broken)
    assert condition(found, "Ready") == ("True", "Enforced", "")
    assert condition(found, "Enforced") == ("True", "AllSeeds", "not on broken: never connected")
    assert condition(found, "UsageCurrent") == ("True", "AllReported", "nothing is known of broken: never connected")
    assert [(line.name, line.state) for line in found.seeds] == [("broken", "NeverConnected"), ("eu-1", "Current")]
    assert found.summary.seeds == "1/2"


def test_one_that_holds_something_was_connected_once_whatever_its_status_says():
    holds = seed("us-1", connected=False, never_connected=True, silent=None, synced=None, held=amounts(cpu="4"))
    found = status(seed("eu-1"), holds)
    assert condition(found, "Ready")[:2] == ("Unknown", "Degraded")
    assert condition(found, "Enforced")[:2] == ("Unknown", "SeedNotSynced")
    assert condition(found, "UsageCurrent")[:2] == ("False", "SeedUnreachable")


def test_a_master_that_may_have_forgotten_what_a_seed_holds_says_how_to_go_on_without_it():
    broken = seed("broken", connected=False, never_connected=True, silent=None, synced=None, learned=False)
    found = status(seed("eu-1"), broken, learning=True)
    state, reason, message = condition(found, "Ready")
    assert (state, reason) == ("Unknown", "Learning")
    assert "waiting for broken" in message
    assert "if broken never was a seed of this master, delete the Seed" in message
    assert condition(found, "Enforced")[0] == "Unknown"


def test_a_quota_that_no_seed_has_is_not_enforced():
    broken = seed("broken", connected=False, never_connected=True, silent=None, synced=None, reported=False)
    for seeds, why in (
        ((), "there is no Seed"),
        ((seed(lost=True),), "there is no Seed"),
        ((broken,), "no Seed has connected yet; see the condition Connected of broken"),
    ):
        found = status(*seeds)
        assert condition(found, "Enforced") == ("False", "NoSeeds", f"nothing is refused: {why}")
        assert condition(found, "Ready")[:2] == ("False", "Degraded")


def test_what_no_cluster_serves_is_unknown_and_not_zero():
    limits = {"pods": "5", "count/deployment.apps": "5"}
    spec = ResourceQuotaSpec(
        subject=Subject(kind="namespaces", selector=LabelSelector(match_labels={"a": "b"})), quota=limits
    )

    def shown(*seeds):
        made = msgspec.structs.replace(view(*seeds, limits=limits), spec=spec)
        return quota_status(made, QuotaStatus(), NOW)

    lacks = {"clusters": 1, "not_served": ["count/deployment.apps"]}
    found = shown(seed("eu-1", {"pods": "2"}, **lacks), seed("us-1", **lacks), seed("ap-1"))
    assert (found.summary.usage, found.global_usage) == ("count/deployment.apps ?/5, pods 2/5", {"pods": "2"})
    enforced, counted = condition(found, "Enforced"), condition(found, "ResourceNotCounted")
    assert enforced == ("Unknown", "NotServed", counted[2]) and counted[:2] == ("True", "NotServed")
    assert condition(found, "Ready")[:2] == ("Unknown", "Degraded")
    assert counted[2].startswith("count/deployment.apps: no cluster that takes part serves such objects")
    somewhere = shown(seed("eu-1", **lacks), seed("us-1", clusters=2))
    assert somewhere.summary.usage == "count/deployment.apps 0/5, pods 0/5"
    assert "ResourceNotCounted" not in {each.type for each in somewhere.conditions}
    assert condition(somewhere, "Enforced")[0] == "True", "where it is not served, there can be none"
    before = shown(seed("eu-1", {"count/deployment.apps": "3"}, **lacks), seed("us-1", **lacks))
    assert before.summary.usage == "count/deployment.apps 3/5, pods 0/5", "it was served, and its count is kept"
    assert condition(before, "Enforced")[0] == "True"
    assert "ResourceNotCounted" not in {each.type for each in before.conditions}
    behind = shown(seed("eu-1", unenforced=["alpha/c1"], **lacks))
    assert condition(behind, "Enforced")[:2] == ("False", "WebhookNotServing"), "what is known to be wrong says more"
    alone = quota_status(
        msgspec.structs.replace(
            view(seed(clusters=1, not_served=["count/deployment.apps"]), limits={"count/deployment.apps": "5"}),
            spec=spec,
        ),
        QuotaStatus(),
        NOW,
    )
    assert condition(alone, "NearLimit")[:2] == ("Unknown", "NotServed")


def test_full_quota_stays_ready():
    found = status(seed(use={"cpu": "64"}))
    assert condition(found, "NearLimit") == ("True", "Full", "cpu 64/64")
    assert condition(found, "Ready")[0] == "True"


def test_limit_of_zero_that_nobody_uses_is_not_near():
    assert condition(status(seed(), limits={"cpu": "0"}), "NearLimit")[0] == "False"


def test_exceeded_says_whether_the_limit_was_lowered_or_use_was_not_admitted():
    before = status(seed(use={"cpu": "60"}))
    lowered = status(seed(use={"cpu": "60"}), limits={"cpu": "32"}, before=before)
    assert condition(lowered, "Exceeded")[:2] == ("True", "LimitLowered")
    still = status(seed(use={"cpu": "50"}), limits={"cpu": "32"}, before=lowered)
    assert condition(still, "Exceeded")[:2] == ("True", "LimitLowered")
    assert condition(status(seed(use={"cpu": "70"}), before=before), "Exceeded")[:2] == ("True", "UsageNotAdmitted")


def test_use_that_was_admitted_with_a_warning_is_not_called_not_admitted():
    warned = status(seed(use={"cpu": "70"}), enforcement="warn")
    assert condition(warned, "Exceeded")[:2] == ("True", "AdmittedWithWarning")
    denied = status(seed(use={"cpu": "70"}), before=warned)
    reason, message = condition(denied, "Exceeded")[1:]
    assert reason == "AdmittedWithWarning"
    assert message == (
        "cpu 70/64: this use was there before the quota, or was admitted with a warning; nothing is removed, "
        "and nothing more is admitted until use has fallen"
    )
    before = status(seed(use={"cpu": "70"}))
    assert condition(before, "Exceeded")[1] == "UsageNotAdmitted"
    again = status(seed(use={"cpu": "71"}), enforcement="warn", before=before)
    assert condition(again, "Exceeded")[1] == "AdmittedWithWarning", "the rest was admitted since"


def test_exceeded_promises_no_refusals_where_the_quota_only_warns():
    use = seed(use={"cpu": "70"})
    assert "nothing more is admitted" in condition(status(use), "Exceeded")[2]
    assert "admitted with a warning" in condition(status(use, enforcement="warn"), "Exceeded")[2]


def test_transition_time_is_kept_while_the_status_is():
    before = status(seed())
    same_status = quota_status(view(seed(use={"cpu": "1"})), before, LATER)
    assert {each.last_transition_time for each in same_status.conditions} == {NOW}
    full = quota_status(view(seed(use={"cpu": "64"})), before, LATER)
    assert {each.type for each in full.conditions if each.last_transition_time == LATER} == {"NearLimit"}


def test_lines_of_seeds_are_bounded_with_those_in_trouble_first_then_the_largest():
    seeds = [seed(f"s{number:03}", {"cpu": str(number)}) for number in range(50)]
    found = status(*seeds, seed("away", connected=False, silent=60.0), seed("gone", lost=True))
    assert [line.name for line in found.seeds[:3]] == ["away", "s049", "s048"]
    assert len(found.seeds) == MAX_SEEDS
    assert found.seeds_omitted == 52 - MAX_SEEDS


def test_lost_seed_counts_nowhere():
    found = status(seed("eu-1", {"cpu": "4"}), seed("us-1", {"cpu": "8"}, lost=True))
    assert found.global_usage == {"cpu": "4"}
    assert found.summary.seeds == "1/1"


def test_only_a_later_report_is_no_reason_to_write():
    early, late = (status(seed(last_report_time=time)) for time in (NOW, LATER))
    assert early != late
    assert same(early, late)
    assert not same(early, status(seed(use={"cpu": "1"})))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "less than 1m"), (61, "1m"), (7 * 60 + 59, "7m"), (14 * 60, "10m"), (3600, "1h"), (49 * 3600, "2d")],
)
def test_age_is_coarser_the_longer_it_is(seconds, text):
    assert age(seconds) == text


def test_texts_list_known_resources_first_and_round_percent_down():
    limits = amounts(storage="4Ti", cpu="3", **{"nvidia.com/gpu": "8", "memory": "256Gi"})
    use = amounts(cpu="2", memory="64Gi")
    assert usage_text(use, limits) == "cpu 2/3, memory 64Gi/256Gi, storage 0/4Ti, nvidia.com/gpu 0/8"
    assert peak_text(use, limits) == "cpu 66%"
    assert usage_text(amounts(cpu="2000", memory="2Gi"), amounts(cpu="2003", memory="2049Mi")) == (
        "cpu 2000/2003, memory 2Gi/2049Mi"
    )
    assert usage_text(amounts(cpu="1500m"), amounts(cpu="2", memory="0")) == "cpu 1500m/2, memory 0/0"
    assert peak_text(amounts(cpu="1"), amounts(cpu="0")) == "cpu over 0"


@pytest.mark.parametrize(
    ("name", "use", "limit", "text"),
    [
        ("cpu", "100m", "20", "cpu 100m/20"),
        ("memory", "1536Mi", "4Gi", "memory 1536Mi/4Gi"),
        ("memory", "1610612736", "4Gi", "memory 1536Mi/4Gi"),
        ("memory", "100M", "1Gi", "memory 100M/1Gi"),
        ("memory", "1173741824", "4Gi", "memory ~1120Mi/4Gi"),
        ("memory", "1000001", "4Gi", "memory 1000001/4Gi"),
        ("cpu", "333333333n", "2", "cpu ~334m/2"),
        ("cpu", "7n", "2", "cpu 7n/2"),
        ("pods", "99999", "100000", "pods 99999/100k"),
        ("count/deployments.apps", "1999", "2000", "count/deployments.apps 1999/2000"),
    ],
)
def test_amounts_are_written_in_the_unit_in_which_people_read_them(name: str, use: str, limit: str, text: str) -> None:
    assert usage_text(amounts(**{name: use}), amounts(**{name: limit})) == text


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ({"kind": "project", "name": "alpha"}, "project/alpha"),
        ({"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}, "namespaces/owner=ann"),
        (
            {"kind": "namespaces", "counts": "ResourceQuotas", "selector": {"matchLabels": {"owner": "ann"}}},
            "resourcequotas/owner=ann",
        ),
        (
            {
                "kind": "namespaces",
                "selector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
                "clusters": {"matchLabels": {"tier": "prod"}},
            },
            "namespaces/team in clusters tier=prod",
        ),
        ({"kind": "namespaces", "selector": {"matchLabels": {"a": "b" * 200}}}, f"namespaces/a={'b' * 104}..."),
    ],
)
def test_the_subject_shows_what_is_picked(subject: dict[str, object], text: str) -> None:
    assert subject_text(msgspec.convert(subject, Subject)) == text


SERVING = Condition(type="WebhookServing", status="True", reason="CanaryDenied", observed_generation=7)


def health(**known):
    return SeedHealth(**{"generation": 1, "connected": True, "synced": True, "said": [SERVING], **known})


def condition_of(view, kind):
    return next(each for each in seed_conditions(view, [], NOW) if each.type == kind)


@pytest.mark.parametrize(
    ("known", "status", "reason"),
    [
        ({"said": [replace(SERVING, status="False", reason="WebhookMissing")]}, "False", "WebhookMissing"),
        ({"said": [replace(SERVING, status="Unknown", reason="NotProven")]}, "Unknown", "NotProven"),
        ({"said": []}, "Unknown", "NotReported"),
        ({"silent": 89.0}, "True", "CanaryDenied"),
        ({"silent": 90.0}, "Unknown", "AgentSilent"),
        ({"connected": False, "reason": "Unreachable", "silent": 90.0}, "Unknown", "NotConnected"),
    ],
)
def test_what_the_agent_says_of_its_webhook_holds_while_it_is_heard_of(known, status, reason):
    found = condition_of(health(**known), "WebhookServing")
    assert (found.status, found.reason, found.observed_generation) == (status, reason, 1)
    ready = condition_of(health(**known), "Ready")
    if known.get("connected", True):
        assert ready.status == status, "a seed is ready only where it is proven that it is asked"
    else:
        assert (ready.status, ready.reason) == ("False", "Unreachable")


def test_a_seed_of_a_version_too_far_away_is_connected_and_not_ready():
    near = health(own_version="0.3.1", version="0.2.9")
    assert condition_of(near, "Connected").reason == "Connected"
    far = health(own_version="0.3.1", version="0.1.9")
    connected, ready = condition_of(far, "Connected"), condition_of(far, "Ready")
    assert (connected.status, connected.reason) == ("True", "VersionSkew")
    assert (ready.status, ready.reason) == ("False", "VersionSkew")
    assert "0.1.9" in connected.message
    assert "0.3.1" in connected.message
    away = health(own_version="0.3.1", version="0.1.9", connected=False, reason="Unreachable")
    assert condition_of(away, "Connected").reason == "Unreachable"


@pytest.mark.parametrize(
    ("own", "other", "far"),
    [
        ("0.1.0", "0.1.7", False),
        ("0.2.0", "0.3.0rc1", False),
        ("0.10.0", "0.9.0", False),
        ("0.1.0", "0.3.0", True),
        ("0.10.0", "0.1.0", True),
        ("1.2.0", "2.2.0", True),
        ("v1.2.0", "1.3.0", False),
        ("unknown", "0.3.0", False),
        ("0.3.0", "", False),
    ],
)
def test_one_minor_version_may_be_between_master_and_seed(own, other, far):
    assert skewed(own, other) is far
    assert skewed(other, own) is far


def test_conditions_of_a_seed():
    def found(health, before=()):
        return {each.type: (each.status, each.reason) for each in seed_conditions(health, list(before), NOW)}

    assert found(SeedHealth(generation=1, connected=True, synced=True, said=[SERVING])) == {
        "Ready": ("True", "Ready"),
        "Connected": ("True", "Connected"),
        "Synced": ("True", "AllCopies"),
        "AccountsOpen": ("True", "AllOpen"),
        "WebhookServing": ("True", "CanaryDenied"),
    }
    away = found(SeedHealth(generation=1, connected=False, reason="Unreachable", message="refused"))
    assert away["Ready"] == ("False", "Unreachable")
    assert away["Synced"][0] == away["AccountsOpen"][0] == away["WebhookServing"][0] == "Unknown"
    behind = SeedHealth(generation=1, connected=True, synced=False, outstanding=2, failing="no such field")
    assert found(behind)["Ready"] == ("False", "CopiesOutstanding")
    fenced = SeedHealth(generation=1, connected=True, synced=True, fenced=["alpha"])
    assert found(fenced)["AccountsOpen"] == ("False", "Fenced")


@pytest.mark.parametrize(
    ("status", "known", "shown", "ready"),
    [
        ("True", {}, "True", "True"),
        ("Unknown", {}, "Unknown", "True"),
        ("False", {}, "False", "False"),
        ("False", {"silent": 90.0}, "Unknown", "Unknown"),
        ("True", {"connected": False, "reason": "Unreachable"}, "Unknown", "False"),
    ],
)
def test_a_seed_whose_own_namespaces_are_not_checked_is_not_ready(status, known, shown, ready):
    said = [SERVING, Condition(type="NamespacesEnforced", status=status, reason="NotServing")]
    assert condition_of(health(said=said, **known), "NamespacesEnforced").status == shown
    assert condition_of(health(said=said, **known), "Ready").status == ready


def test_transitions_start_now_for_a_condition_that_is_new():
    made = transition([], [Condition(type="Ready", status="True")], NOW)
    assert made[0].last_transition_time == NOW


def test_a_quota_that_limits_what_nothing_can_be_granted_of_says_what_to_do():
    found = status(seed(use={"cpu": "2"}), beyond_counters=["example.com/new"])
    state, reason, message = condition(found, "Ready")
    assert (state, reason) == ("False", "TooManyResources")
    assert "example.com/new" in message
    assert "a new quota of the same subject" in message


def test_surge_that_is_used_and_was_withdrawn_is_not_named():
    """Its names would add up without end."""
    use = {f"surge.example.com/{number}": "1" for number in range(100)} | {"surge.cpu": "2"}
    assert status(seed(use=use), surge=amounts(cpu="4")).surge.used == {"cpu": "2"}


NOT_LISTED = StaleSource(source="alpha/c2", not_listed="pods cannot be listed: forbidden", never_counted=True)


def test_a_quota_is_not_enforced_where_something_of_it_was_never_counted():
    found = condition(status(seed("eu-1", stale_sources=[NOT_LISTED])), "Enforced")
    assert found == (
        "False",
        "ResourceNotListed",
        "alpha/c2 on eu-1: pods cannot be listed: forbidden; nothing of that is counted yet; what is there already is "
        "not part of the use",
    )
    counted = msgspec.structs.replace(NOT_LISTED, never_counted=False)
    assert condition(status(seed("eu-1", stale_sources=[counted])), "Enforced")[0] == "True"


def test_what_cannot_be_listed_is_named_after_what_cannot_be_reached():
    found = condition(status(seed("eu-1", stale_sources=[NOT_LISTED])), "UsageCurrent")
    assert found == (
        "False",
        "ResourceNotListed",
        "alpha/c2 on eu-1: pods cannot be listed: forbidden; nothing of that is counted yet",
    )
    away = StaleSource(source="alpha/c1", seconds=125)
    kept = msgspec.structs.replace(NOT_LISTED, never_counted=False)
    found = condition(status(seed("eu-1", stale_sources=[kept, away])), "UsageCurrent")
    assert found == (
        "False",
        "SourceUnreachable",
        "alpha/c1 on eu-1 has not been reached for 2m: its last count is kept; "
        "alpha/c2 on eu-1: pods cannot be listed: forbidden; the last count of that is kept",
    )


def used_by(cluster, namespace, cpu):
    return NamespaceUse(cluster=cluster, namespace=namespace, used={"cpu": str(cpu)})


def test_the_largest_namespaces_of_all_seeds_are_shown_and_the_others_counted():
    many = [used_by("alpha/c1", f"n{number:02}", number) for number in range(2, 34)]
    one = seed("eu-1", namespaces=many, namespaces_omitted=3)
    two = seed("us-1", namespaces=[used_by("seed", "web", 40), used_by("alpha/c1", "n01", 39)])
    found = status(one, two)
    assert found.namespaces[:3] == [used_by("us-1", "web", 40), used_by("alpha/c1", "n01", 39), many[-1]]
    assert len(found.namespaces) == 32
    assert found.namespaces_omitted == 5


@pytest.mark.parametrize(
    ("quota", "stale"),
    [
        (view(seed("eu-1"), seed("us-1")), False),
        (view(seed("eu-1"), seed("gone", lost=True, connected=False, silent=None)), False),
        (view(seed("eu-1"), seed("new", connected=False, silent=None, never_connected=True)), False),
        (view(seed("eu-1"), seed("us-1", connected=False, silent=5.0)), False),
        (view(seed("eu-1"), seed("us-1", connected=False, silent=50.0)), True),
        (view(seed("eu-1", reported=False)), True),
        (view(seed("eu-1", fenced=True)), True),
        (view(seed("eu-1", learned=False)), True),
        (view(seed("eu-1", gone=True)), True),
        (view(seed("eu-1", agent_silent=True)), True),
        (view(seed("eu-1", stale_sources=[StaleSource(source="alpha/c1", seconds=60)])), True),
        (view(seed("eu-1"), learning=True), True),
    ],
)
def test_seeds_are_shown_whether_some_of_the_use_is_an_old_count(quota, stale):
    assert usage_stale(quota) is stale


def test_a_limit_that_is_raised_for_a_time_is_shown_with_its_end() -> None:
    raised = OverrideStatus(until="2026-12-31T00:00:00Z", quota={"cpu": "128"}, reason="launch")
    given = replace(
        view(seed(use={"cpu": "70"})), limits=amounts(cpu="128"), raised=amounts(cpu="128"), overrides=[raised]
    )
    found = quota_status(given, QuotaStatus(), NOW)
    assert (found.hard, found.overrides) == ({"cpu": "128"}, [raised])
    assert (found.summary.usage, found.summary.raised_until) == ("cpu 70/128", raised.until)
    assert condition(found, "Overridden") == ("True", "Raised", "cpu=128 until 2026-12-31T00:00:00Z (launch)")
    assert condition(found, "Exceeded")[:2] == ("False", "WithinLimit")
    over = replace(given, limits=amounts(cpu="64"), raised={}, overrides=[replace(raised, state="Ended")])
    found = quota_status(over, found, LATER)
    assert condition(found, "Overridden")[:2] == ("False", "Ended")
    assert condition(found, "Exceeded")[:2] == ("True", "LimitLowered")
    assert found.summary.raised_until == ""
