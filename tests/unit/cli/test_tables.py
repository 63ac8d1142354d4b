"""The tables of `top`, `describe` and `doctor`, as they are on a terminal of 80 and of 200 columns, and in a file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli import denials, describe, figures, largest_and_last, reading, top
from cli.doctor import findings, report, signs
from cli.doctor.report import Report
from cli.largest_and_last import LargestAndLast, Told
from cli.seeds.on_master import Held
from common.api.types import AccountWait, CatalogueEntry, Condition, UserCluster, WireGuarantee
from common.quota import resources
from master.cache.objects import MasterQuota, OverrideStatus, SeedUsage
from tests.unit.quota_examples import (
    ALPHA,
    ANN,
    CURRENT,
    ENFORCED,
    GPUS,
    HELD,
    NEW,
    NONE,
    NOW,
    QUOTAS,
    SEEDS,
    STALE,
    quota,
)

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = {"80": 80, "200": 200, "file": None}


def same_as(file: str, text: str, width: int | None) -> None:
    assert text + "\n" == (GOLDEN / file).read_text()
    if width is not None:
        assert max(map(len, text.splitlines())) <= width


def top_of(quotas: list[MasterQuota], width: int | None, **options: Any) -> str:
    return top.table(top.picked([figures.of_quota(each) for each in quotas], "peak", None), NOW, width, **options)


def described(of: MasterQuota, held: dict[str, Held] | None, width: int | None, told: Told | None = None) -> str:
    seeds = {each.metadata.name: each for each in SEEDS}
    known = largest_and_last.known(of, told or Told())
    return describe.text(of, figures.of_quota(of), held if of is ALPHA else None, seeds, known, NOW, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_top_leaves_out_columns_that_have_no_room_and_names_them(width: str) -> None:
    same_as(f"top-{width}.txt", top_of(QUOTAS, WIDTHS[width]), WIDTHS[width])


def test_top_says_until_when_a_limit_is_raised_and_has_no_column_where_none_is() -> None:
    until = "2026-12-31T08:00:00Z"
    said = {status: Condition(type="Overridden", status=status, reason="R", message="") for status in ("True", "False")}
    raised, nothing = (
        msgspec.structs.replace(
            ALPHA,
            status=msgspec.structs.replace(
                ALPHA.status, overrides=[OverrideStatus(until=until, quota={"cpu": "64"})], conditions=[said[status]]
            ),
        )
        for status in ("True", "False")
    )
    others = [each for each in QUOTAS if each is not ALPHA]
    for width in (80, 200, None):
        lines = top_of([*others, raised], width).splitlines()
        assert "RAISED-UNTIL" in lines[0] and all(len(line) <= (width or 1000) for line in lines)
        assert [until[:10] in line for line in lines[1:6]] == [line.startswith("project-alpha") for line in lines[1:6]]
    assert until in top_of([*others, raised], 80, wide=True)
    assert figures.of_quota(raised).raised_until == until
    assert "RAISED-UNTIL" not in top_of([*others, nothing], None), "it is in force, and raises nothing"


def test_top_o_wide_leaves_out_nothing() -> None:
    same_as("top-wide.txt", top_of(QUOTAS, 80, wide=True), None)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("of", [ALPHA, ANN, NEW, NONE, GPUS], ids=lambda of: of.metadata.name)
def test_describe_shows_what_is_free_and_who_has_the_rest(of: MasterQuota, width: str) -> None:
    ledgers = {"us-1": HELD["us-1"]["project-alpha"], "eu-1": Held(resources.parse({"cpu": "44"}), known=True)}
    same_as(f"describe-{of.metadata.name}-{width}.txt", described(of, ledgers, WIDTHS[width]), WIDTHS[width])


def test_describe_says_what_a_fenced_account_waits_for() -> None:
    line = SeedUsage(name="eu-1", state="Fenced", waits_for=AccountWait(reason="Sources", sources=["alpha/c1"]))
    status = msgspec.structs.replace(ALPHA.status, seeds=[line])
    text = described(msgspec.structs.replace(ALPHA, status=status), None, None)
    assert "\neu-1 admits nothing yet: it waits for new lists from alpha/c1\n" in text


def test_describe_says_until_when_a_limit_is_raised() -> None:
    """What has ended is no trouble, and has no line."""
    until = "2026-12-31T00:00:00Z"
    raised = OverrideStatus(until=until, quota={"cpu": "128"}, reason="launch", state="EndsSoon")
    ended = OverrideStatus(until="2026-11-01T00:00:00Z", quota={"cpu": "96"}, state="Ended")
    over = Condition(type="Overridden", status="False", reason="Ended", message="over")
    status = msgspec.structs.replace(
        ALPHA.status, overrides=[raised, ended], conditions=[*ALPHA.status.conditions, over]
    )
    found = msgspec.structs.replace(ALPHA, status=status)
    text = described(found, None, None)
    assert [line for line in text.splitlines() if "aised" in line] == [f"Raised: cpu=128 until {until} (launch)"]
    assert "Overridden" not in text
    plain: Any = describe.plain(found, figures.of_quota(found), None, LargestAndLast())
    shown = json.loads(reading.written(plain, "json"))["overrides"]
    assert [(each["until"], each["state"]) for each in shown] == [(until, "EndsSoon"), (ended.until, "Ended")]


def test_nobody_writes_a_row_of_a_table_with_an_event() -> None:
    """Whoever may create Events chooses their note, and who is said to report them."""
    note = "quota\n9s   9s   1   QuotaExceeded   machine/others   forged"
    event = {"metadata": {"name": "e"}, "reason": "QuotaExceeded", "reportingController": denials.CONTROLLER}
    event |= {"note": note, "eventTime": NOW.isoformat(), "regarding": {"kind": "Machine", "name": "a"}}
    found = denials.denials([msgspec.convert(event, denials.Event)], NOW, 60, None)
    for most in (None, 200, 80):
        assert len(denials.table(found, NOW, most).splitlines()) == 2


def test_describe_and_top_say_what_is_guaranteed_and_what_is_kept_of_what_is_free() -> None:
    given = [WireGuarantee(project="beta", hard={"cpu": "3"}, used={"cpu": "1"})]
    summary = msgspec.structs.replace(ALPHA.status.summary, guaranteed="cpu 1/3")
    of_all = msgspec.structs.replace(
        ALPHA, status=msgspec.structs.replace(ALPHA.status, guarantees=given, summary=summary)
    )
    text = described(of_all, None, None)
    assert (
        "Guaranteed to beta: cpu=3, of which it uses cpu=1\nOf what is free, cpu=2 is for these projects alone." in text
    )
    wide = top_of([of_all], None, wide=True).splitlines()
    assert "GUARANTEED" in wide[0] and "cpu 1/3" in wide[1]
    assert "GUARANTEED" not in top_of(QUOTAS, None, wide=True)
    assert figures.of_quota(of_all).kept == {"cpu": "2"}
    used_before = msgspec.structs.replace(of_all.status, guarantees=[WireGuarantee(project="beta", hard={"cpu": "60"})])
    before = figures.of_quota(msgspec.structs.replace(of_all, status=used_before))
    assert before.kept["cpu"] == before.resources["cpu"].free, "not more than is free"
    mine = msgspec.structs.replace(ALPHA, spec={**ALPHA.spec, "guaranteed": {"cpu": "3"}})
    assert "Guaranteed: cpu=3; nothing of it is kept, see LimitsFit" in described(mine, None, None)
    mine = msgspec.structs.replace(of_all, spec=mine.spec)
    assert "Guaranteed: cpu=3; used of what fits: cpu 1/3" in described(mine, None, None)


def test_describe_shows_no_amount_that_the_master_has_not_learned_yet() -> None:
    held = {"us-1": Held({}, known=False)}
    text = described(ALPHA, held, None)
    assert [line.split() for line in text.splitlines() if line.startswith("us-1")] == [
        ["us-1", "Stale", "cpu", "20", "?", "?", "7m"]
    ]


def test_what_describe_tells_programs_has_the_ledgers_amounts_or_none() -> None:
    def granted(held: dict[str, Held] | None) -> list[object]:
        found: Any = describe.plain(ALPHA, figures.of_quota(ALPHA), held, LargestAndLast())
        assert (found["name"], found["omitted"]["seeds"], found["resources"]["cpu"].get("free")) == (
            "project-alpha",
            3,
            "4",
        )
        assert {each["type"] for each in json.loads(reading.written(found, "json"))["conditions"]} >= {"UsageCurrent"}
        return [each.get("granted") for each in found["bySeed"]]

    assert granted(None) == [{"cpu": "20"}, {"cpu": "44", "memory": "240Gi"}]
    assert granted({"us-1": Held({}, known=False), "eu-1": HELD["us-1"]["project-alpha"]}) == [None, {"cpu": "24"}]


def test_describe_shows_what_people_call_a_resource() -> None:
    words = {"gpus": "Graphics cards, in card"}
    known = largest_and_last.known(GPUS, Told())
    text = describe.text(GPUS, figures.of_quota(GPUS), None, {}, known, NOW, None, words)
    assert [line.split("  ")[0] for line in text.splitlines()[:4]] == [
        "Resource",
        "--------",
        "cpu",
        "gpus (Graphics cards, in card)",
    ]


@pytest.mark.parametrize(
    ("display", "unit", "word"),
    [("Servers", "", ""), ("Servers", "server", "servers, in server"), ("Licences", "", "Licences"), ("", "", "")],
)
def test_a_name_for_people_is_shown_where_it_says_more_than_the_name(display: str, unit: str, word: str) -> None:
    assert describe._word(CatalogueEntry(name="servers", display_name=display, unit=unit)) == word


def test_describe_shows_what_a_seed_holds_to_the_thousandth() -> None:
    held = {"us-1": Held(resources.parse({"cpu": "33130126953n"}), known=True)}
    text = described(ALPHA, held, None)
    assert [line.split()[3:6] for line in text.splitlines() if line.startswith("us-1")] == [["20", "33130m", "13130m"]]


@pytest.mark.parametrize("width", WIDTHS)
def test_doctor_names_each_trouble_once_with_its_cure(width: str) -> None:
    condition = {"type": "MachinesSized", "status": "False", "reason": "FlavorUnknown", "message": "m-1: no m5.larg"}
    cluster = {"metadata": {"name": "c1", "namespace": "alpha"}, "spec": {"project": "alpha"}}
    more = [
        quota(f"q-{number}", {"kind": "project", "name": "x"}, {"cpu": 1}, conditions=[STALE]) for number in range(4)
    ]
    found = [
        *signs.leader("seedquota-master", [], NOW, everywhere=True),
        *findings.of_seeds(SEEDS, HELD, {}, [each.metadata.name for each in SEEDS]),
        *findings.of_quotas([ALPHA, ANN, NEW, GPUS, *more]),
    ]
    on_seed = [
        *findings.of_user_clusters([msgspec.convert({**cluster, "status": {"conditions": [condition]}}, UserCluster)]),
        *signs.left_over(["ValidatingWebhookConfiguration seedquota"]),
    ]
    certificates = ["when certificates end"]
    reports = [
        Report(found, ["tokens of seeds: no right"], Counter({"seed": 4, "quota": 8})),
        Report(on_seed, ["the seed itself: no answer"], Counter({"user cluster": 1}), certificates, "us-1"),
        *(Report([], ["the seed itself: no answer"], beyond=certificates, seed=f"eu-{number}") for number in range(4)),
    ]
    text = report.text(reports, WIDTHS[width])
    same_as(f"doctor-{width}.txt", text, None)
    whole = report.whole(reports)
    assert [each.seed for each in whole.items].count("us-1") == 3
    assert whole.not_checked[:2] == ["tokens of seeds: no right", "seed us-1: the seed itself: no answer"]
    assert text.count("the seed itself") == 1, "what several seeds have in common is said once"


def test_describe_says_how_a_selector_or_a_kind_that_is_misspelt_is_found() -> None:
    subject = {"kind": "namespaces", "selector": {"matchLabels": {"owner": "nobody"}}}
    limits = {"pods": "5", "count/deployments": "3"}
    used = {"pods": "0", "count/deployments": "0"}

    def said(**status: Any) -> str:
        found = quota("q", subject, limits, globalUsage=used, conditions=[ENFORCED, CURRENT], **status)
        return described(found, None, None)

    assert "Namespaces: owner=nobody\nNo namespace uses anything of it. If one should, compare its labels" in said()
    web = {"cluster": "alpha/c1", "namespace": "web", "used": {"pods": "1"}}
    assert "Nothing is counted of count/deployments. If there are such objects" in said(namespaces=[web])
