"""The tables of `top`, `describe` and `doctor`, as they are on a terminal of 80 and of 200 columns, and in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli import describe, figures, reading, top
from cli.doctor import findings, report, signs
from cli.seeds.on_master import Held
from common.api.types import UserCluster
from common.quota import resources
from master.cache.objects import MasterQuota
from tests.unit.quota_examples import ALPHA, ANN, GPUS, HELD, NEW, NONE, NOW, QUOTAS, SEEDS, STALE, quota

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = {"80": 80, "200": 200, "file": None}


def same_as(file: str, text: str, width: int | None) -> None:
    assert text + "\n" == (GOLDEN / file).read_text()
    if width is not None:
        assert max(map(len, text.splitlines())) <= width


def top_of(quotas: list[MasterQuota], width: int | None, **options: Any) -> str:
    return top.table(top.picked([figures.of_quota(each) for each in quotas], "peak", None), NOW, width, **options)


@pytest.mark.parametrize("width", WIDTHS)
def test_top_leaves_out_columns_that_have_no_room_and_names_them(width: str) -> None:
    same_as(f"top-{width}.txt", top_of(QUOTAS, WIDTHS[width]), WIDTHS[width])


def test_top_o_wide_leaves_out_nothing() -> None:
    same_as("top-wide.txt", top_of(QUOTAS, 80, wide=True), None)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("of", [ALPHA, ANN, NEW, NONE, GPUS], ids=lambda of: of.metadata.name)
def test_describe_shows_what_is_free_and_who_has_the_rest(of: MasterQuota, width: str) -> None:
    ledgers = {"us-1": HELD["us-1"]["project-alpha"], "eu-1": Held(resources.parse({"cpu": "44"}), known=True)}
    held = ledgers if of is ALPHA else None
    text = describe.text(
        of, figures.of_quota(of), held, {each.metadata.name: each for each in SEEDS}, NOW, WIDTHS[width]
    )
    same_as(f"describe-{of.metadata.name}-{width}.txt", text, WIDTHS[width])


def test_describe_shows_no_amount_that_the_master_has_not_learned_yet() -> None:
    held = {"us-1": Held({}, known=False)}
    text = describe.text(ALPHA, figures.of_quota(ALPHA), held, {}, NOW, None)
    assert [line.split() for line in text.splitlines() if line.startswith("us-1")] == [
        ["us-1", "Stale", "cpu", "20", "?", "?", "7m"]
    ]


def test_what_describe_tells_programs_has_the_ledgers_amounts_or_none() -> None:
    def granted(held: dict[str, Held] | None) -> list[object]:
        found: Any = describe.plain(ALPHA, figures.of_quota(ALPHA), held)
        assert (found["name"], found["omitted"]["seeds"], found["resources"]["cpu"].get("free")) == (
            "project-alpha",
            3,
            "4",
        )
        assert {each["type"] for each in json.loads(reading.written(found, "json"))["conditions"]} >= {"UsageCurrent"}
        return [each.get("granted") for each in found["bySeed"]]

    assert granted(None) == [{"cpu": "20"}, {"cpu": "44", "memory": "240Gi"}]
    assert granted({"us-1": Held({}, known=False), "eu-1": HELD["us-1"]["project-alpha"]}) == [None, {"cpu": "24"}]


def test_describe_shows_what_a_seed_holds_to_the_thousandth() -> None:
    held = {"us-1": Held(resources.parse({"cpu": "33130126953n"}), known=True)}
    text = describe.text(ALPHA, figures.of_quota(ALPHA), held, {}, NOW, None)
    assert [line.split()[3:6] for line in text.splitlines() if line.startswith("us-1")] == [
        ["20000m", "33130m", "13130m"]
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_doctor_names_each_trouble_once_with_its_cure(width: str) -> None:
    condition = {"type": "MachinesSized", "status": "False", "reason": "FlavorUnknown", "message": "m-1: no m5.larg"}
    cluster = {"metadata": {"name": "c1", "namespace": "alpha"}, "spec": {"project": "alpha"}}
    more = [
        quota(f"q-{number}", {"kind": "project", "name": "x"}, {"cpu": 1}, conditions=[STALE]) for number in range(4)
    ]
    found = [
        *signs.leader("seedquota-master", None, NOW),
        *findings.of_seeds(SEEDS, HELD),
        *findings.of_quotas([ALPHA, ANN, NEW, GPUS, *more]),
        *findings.of_user_clusters([msgspec.convert({**cluster, "status": {"conditions": [condition]}}, UserCluster)]),
        *signs.left_over(["ValidatingWebhookConfiguration seedquota"]),
    ]
    made = report.Report(found, ["tokens of seeds: no right"], ["2 seeds", "8 quotas"])
    same_as(f"doctor-{width}.txt", report.text(made, WIDTHS[width]), None)
