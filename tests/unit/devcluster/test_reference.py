"""What `python -m devcluster.reference` writes is in docs/reference, and leaves nothing out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster.charts import NAMES
from devcluster.objects import CHARTS
from devcluster.reference.charts import readmes
from devcluster.reference.conditions import set_by_master
from devcluster.reference.pages import DIRECTORY, MADE
from seed.admission import denial

ROOT = Path(__file__).parents[3]
NAMES_OF_TYPES = ("NamespacesLimited", "NearLimit", "ResourceNotCounted")


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_as_it_is_made(name: str) -> None:
    assert (DIRECTORY / name).read_text() == MADE[name](), "run `python -m devcluster.reference`"


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_of_a_chart_has_the_values_as_they_are(name: str) -> None:
    assert (CHARTS / name / "README.md").read_text() == readmes()[name], "run `python -m devcluster.reference`"


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_of_a_chart_leaves_no_value_out(name: str) -> None:
    """By another way than the page finds them."""

    def leaves(value: object, path: str = "") -> Iterator[str]:
        if isinstance(value, dict) and value and not path.endswith(("resources.requests.", "resources.limits.")):
            for key, each in value.items():
                yield from leaves(each, f"{path}{key}.")
        else:
            yield path.removesuffix(".")

    values = yaml.safe_load((CHARTS / name / "values.yaml").read_text())
    page = readmes()[name]
    assert [leaf for leaf in leaves(values) if f"| `{leaf}` |" not in page] == []


def test_every_other_page_is_listed_as_written_by_hand() -> None:
    by_hand = MADE["README.md"]().partition("written by hand")[2]
    assert {path.name for path in DIRECTORY.iterdir()} - MADE.keys() == set(re.findall(r"\]\(([^)]+)\)", by_hand))


def test_every_reason_of_a_condition_that_the_master_sets_is_named() -> None:
    """By another way than the page finds them: every literal that stands third in a call of `condition`."""
    reasons = set()
    for path in (ROOT / "master").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "condition":
                literals = (leaf.value for leaf in ast.walk(node.args[2]) if isinstance(leaf, ast.Constant))
                reasons |= {literal for literal in literals if isinstance(literal, str)}
    assert len(reasons) > 20
    page = MADE["conditions.md"]()
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in page] == []


def test_a_condition_has_no_reason_of_another_one() -> None:
    """Functions that decide conditions have variables of the same name."""
    reasons = {name: {each[2] for each in set_by_master("ResourceQuota") if each[0] == name} for name in NAMES_OF_TYPES}
    assert reasons == {
        "NamespacesLimited": {"AllLimited", "NoResourceQuota"},
        "NearLimit": {"AboveWarnPercent", "BelowWarnPercent", "Full"},
        "ResourceNotCounted": {"NeverCounted", "NotServed"},
    }


def test_every_argument_of_a_command_has_a_name() -> None:
    assert "`None`" not in MADE["flags.md"]()


def test_every_cause_of_a_refusal_is_named() -> None:
    tree = ast.parse((ROOT / "seed" / "admission" / "denial.py").read_text())
    places = {"Cause": 0, "_refusal": 1}  # which argument it is
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [node.args[places[name]] for node in calls if (name := getattr(node.func, "id", "")) in places]
    causes = {cause.value for cause in named if isinstance(cause, ast.Constant)}
    causes.remove("SurgeOccupied")  # said beside another refusal
    assert len(causes) >= 12
    page = MADE["messages.md"]()
    assert [cause for cause in sorted(map(str, causes)) if f"| `{cause}` |" not in page] == []


def test_why_a_quota_cannot_decide_is_named_although_several_places_share_the_text() -> None:
    assert f"- `{denial.limits_missing('{project}')}`" in MADE["messages.md"]()


@pytest.mark.parametrize("path", sorted((ROOT / "charts" / "crds").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_description_of_a_crd_is_cut_at_a_comma(path: Path) -> None:
    """`{description: Why, for people.}` is a description `Why` and a field `for people.` that nobody knows."""
    assert [key for key in keys(yaml.safe_load(path.read_text())) if " " in key] == []


def keys(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield str(key)
            yield from keys(value)
    elif isinstance(node, list):
        for item in node:
            yield from keys(item)


def test_no_metric_has_a_label_that_targets_or_fleets_have() -> None:
    """Prometheus renames such a label to `exported_...`, or the label of the fleet is lost."""
    rows = [line for line in MADE["metrics.md"]().splitlines() if line.startswith("| `seedquota_")]
    assert len(rows) > 40
    labels = {label for row in rows for label in re.findall(r"`(\w+)`", row.split("|")[3])}
    targets = {"job", "instance", "namespace", "pod", "container", "endpoint", "service", "node"}
    assert labels & {*targets, "cluster", "region", "environment", "severity", "alertname"} == set()
