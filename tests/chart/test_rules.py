"""The charts' alerts, by Prometheus' own promtool: each fires when its cause is there, and ends with it. When all
is gone, that is noticed, whoever else has the same Prometheus.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from devcluster import binaries
from devcluster.charts import MASTER, SEED
from tests.chart.alert_cases import CASES, GONE, RUNS, Case, Growing, Value, with_labels
from tests.chart.helm import Helm, the
from tests.unit.test_docs import ROOT, anchors

NAMESPACE = "quotas"
VALUES: dict[str, dict[str, object]] = {MASTER: {"matchers": {"cluster": "prod"}}, SEED: {}}
OWN = {MASTER: {"namespace": NAMESPACE, "cluster": "prod"}, SEED: {"seed": "eu-1"}}
"""What the chart adds to each alert. Of masters, only the label of the fleet tells two installations apart."""

Phase = tuple[int, str]
"""Minutes, and in which of its states everything is: "well", "sick" or "gone"."""

LIFE: Sequence[Phase] = ((60, "well"), (120, "sick"), (120, "well"), (60, "sick"), (60, "gone"))
WELL, SICK, WELL_AGAIN, GONE_AT = 59, 179, 299, 419  # the last minute of each


@pytest.fixture(scope="module")
async def promtool() -> Path:
    return (await binaries.ensure(["promtool"]))["promtool"]


@pytest.fixture(scope="module")
def rules(helm: Helm) -> dict[str, str]:
    """As the charts install them."""
    return {chart: rendered(helm, chart, VALUES[chart]) for chart in (MASTER, SEED)}


def rendered(helm: Helm, chart: str, given: Mapping[str, object]) -> str:
    found = helm.render(chart, {"prometheusRule": {"enabled": True, **given}}, namespace=NAMESPACE)
    return yaml.safe_dump(the(found, "PrometheusRule")["spec"], width=1000)


def only(rules: str, *names: str) -> str:
    """Of the alerts only these: promtool takes a second for all of them."""
    groups = yaml.safe_load(rules)["groups"]
    for group in groups:
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert") in (None, *names)]
    return yaml.safe_dump({"groups": [group for group in groups if group["rules"]]}, width=1000)


def alerts(rules: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]]


def target(chart: str, *, neighbour: bool = False) -> dict[str, str]:
    """The labels that Prometheus and the fleet give. A neighbour has the same names in another cluster of the fleet."""
    labels = {"namespace": NAMESPACE, "job": f"{chart}-metrics", "pod": "a", "cluster": "dev" if neighbour else "prod"}
    return labels | ({"seed": "us-1" if neighbour else "eu-1"} if chart == SEED else {})


def samples(well: Value, sick: Value, phases: Iterable[Phase]) -> str:
    """One a minute, as promtool reads them."""
    written: list[str] = []
    counted = 0.0
    for minutes, state in phases:
        now = {"well": well, "sick": sick, "gone": None}[state]
        for _ in range(minutes):
            if now is None:
                ends = bool(written) and written[-1] not in ("_", "stale")
                written.append("stale" if ends else "_")
            elif isinstance(now, Growing):
                counted += now.by
                written.append(f"{counted:g}")
            else:
                written.append(f"{now:g}")
    return " ".join(written)


def alert_samples(name: str, minute: int, *expected: Mapping[str, str]) -> dict[str, object]:
    """Which alerts of this name fire then, with all their labels."""
    found = [{"labels": with_labels(f'ALERTS{{alertname="{name}", alertstate="firing"}}', each)} for each in expected]
    return {
        "expr": f'ALERTS{{alertname="{name}", alertstate="firing"}}',
        "eval_time": f"{minute}m",
        "exp_samples": [{**each, "value": 1} for each in found],
    }


def world(case: Case, phases: Iterable[Phase] = LIFE) -> list[dict[str, str]]:
    """The installation in which something happens, and one beside it in which all is well."""
    series = {**RUNS, **case.series}
    hours = sum(minutes for minutes, _ in phases)
    own = [(with_labels(name, target(case.chart)), samples(*values, phases)) for name, values in series.items()]
    others = [
        (with_labels(name, target(case.chart, neighbour=True)), samples(well, well, [(hours, "well")]))
        for name, (well, _) in series.items()
    ]
    return [{"series": name, "values": values} for name, values in (*own, *others)]


def failures(promtool: Path, rules: str, directory: Path, test: Mapping[str, object], every: str = "1m") -> str:
    """What promtool finds wrong; empty if all holds. `every`: how often rules are evaluated."""
    (directory / "rules.yaml").write_text(rules)
    groups = [group["name"] for group in yaml.safe_load(rules)["groups"]]
    content = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": every,
        "group_eval_order": groups,
        "tests": [test],
    }
    (directory / "tests.yaml").write_text(yaml.safe_dump(content, width=100_000))
    command = [promtool, "test", "rules", "tests.yaml"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode == 0) == ("SUCCESS" in done.stdout), done
    return "" if done.returncode == 0 else done.stdout + done.stderr


def checks(case: Case, severity: str) -> dict[str, object]:
    own = {**OWN[case.chart], "severity": severity, **case.labels}
    gone = {**OWN[case.chart], "severity": "page"}
    last = [alert_samples(GONE[case.chart].alert, GONE_AT, gone)]
    if case.alert != GONE[case.chart].alert:
        last.append(alert_samples(case.alert, GONE_AT))
    return {
        "interval": "1m",
        "input_series": world(case),
        "promql_expr_test": [
            alert_samples(case.alert, WELL),
            alert_samples(case.alert, SICK, own),
            alert_samples(case.alert, WELL_AGAIN),
            *last,
        ],
    }


def severity(rules: str, alert: str) -> str:
    (found,) = (rule for rule in alerts(rules) if rule["alert"] == alert)
    return str(found["labels"]["severity"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.chart}-{case.alert}")
def test_an_alert_fires_and_ends_and_when_everything_is_gone_that_is_noticed(
    promtool: Path, rules: dict[str, str], tmp_path: Path, case: Case
) -> None:
    found = only(rules[case.chart], case.alert, GONE[case.chart].alert)
    assert failures(promtool, found, tmp_path, checks(case, severity(found, case.alert))) == ""


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_the_first_unexpected_error_is_noticed_though_its_counter_begins_with_it(
    promtool: Path, rules: dict[str, str], tmp_path: Path, chart: str
) -> None:
    name, labels = "SeedQuotaUnexpectedErrors", {"job": f"{chart}-metrics", "part": "a"}
    own = {**OWN[chart], "severity": severity(rules[chart], name), **labels}
    series = with_labels('seedquota_unexpected_errors_total{part="a"}', target(chart))
    test = {
        "interval": "1m",
        "input_series": [{"series": series, "values": "_x10 1x60"}],
        "promql_expr_test": [alert_samples(name, 9), alert_samples(name, 20, own), alert_samples(name, 40)],
    }
    assert failures(promtool, rules[chart], tmp_path, test) == ""


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_every_alert_has_a_case_and_says_what_to_do(rules: dict[str, str], chart: str) -> None:
    found = alerts(rules[chart])
    assert len(found) > 10
    assert [rule["alert"] for rule in found if rule["alert"] not in {c.alert for c in CASES if c.chart == chart}] == []
    for rule in found:
        assert rule["labels"]["severity"] in ("page", "ticket", "info"), rule
        assert rule["labels"].items() >= OWN[chart].items()
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}, rule
        assert all(rule["annotations"].values()), rule
        page, anchor = rule["annotations"]["runbook_url"].split("#")
        path = re.fullmatch(r"/seedquota/seedquota/blob/v\d+\.\d+\.\d+/(.+)", urlsplit(page).path)
        assert path and anchor in anchors(ROOT / path[1]), anchor
    written = (ROOT / "docs" / "how-to" / "alerts.md").read_text()
    for rule in found:
        section = written.split(f"### {rule['alert']}\n")[1].partition("\n##")[0]
        missing = [what for what in ("Meaning", "Impact", "Look at", "Do") if f"- **{what}**: " not in section]
        assert missing == [], rule["alert"]


def test_the_page_has_no_section_of_an_alert_that_is_gone(rules: dict[str, str]) -> None:
    known = {rule["alert"] for found in rules.values() for rule in alerts(found)}
    written = re.findall(r"^### (SeedQuota\w+)$", (ROOT / "docs" / "how-to" / "alerts.md").read_text(), re.MULTILINE)
    assert sorted(written) == sorted(known)


def test_a_page_of_ones_own_is_taken(helm: Helm) -> None:
    found = alerts(rendered(helm, SEED, {"runbookURL": "https://wiki.example.com/quotas"}))
    assert {rule["annotations"]["runbook_url"].partition("#")[0] for rule in found} == {
        "https://wiki.example.com/quotas"
    }


def test_every_selector_picks_this_installation(rules: dict[str, str]) -> None:
    for chart, found in rules.items():
        for rule in alerts(found):
            selectors = re.findall(r"\b(?:seedquota_\w+|up)\b(\{[^}]*\})?", rule["expr"])
            assert selectors
            for label, value in OWN[chart].items():
                assert all(f'{label}="{value}"' in each for each in selectors), rule["expr"]


@pytest.mark.parametrize("chart", [MASTER, SEED])
def test_an_alert_that_does_not_pick_its_installation_is_masked_by_another(
    promtool: Path, rules: dict[str, str], tmp_path: Path, chart: str
) -> None:
    """So the tests above would notice it."""
    label, value = ("cluster", "prod") if chart == MASTER else ("seed", "eu-1")
    found = only(rules[chart], GONE[chart].alert)
    masked = found.replace(f'{label}="{value}", ', "")
    assert masked != found
    assert f'alertname=\\"{GONE[chart].alert}\\"' in failures(promtool, masked, tmp_path, checks(GONE[chart], "page"))


def test_a_token_that_is_renewed_is_silent_however_short_its_life(
    promtool: Path, rules: dict[str, str], tmp_path: Path
) -> None:
    """API servers may give tokens for one day only."""
    day = 24 * 3600
    days = 60

    def check(life: int, *, renewed: bool, **fires: bool) -> str:
        seconds = life * day
        ends = [
            hour * 3600 // (seconds // 2) * (seconds // 2) + seconds if renewed else seconds
            for hour in range(days * 24)
        ]
        expiring = with_labels('seedquota_seed_token_expiry_timestamp_seconds{seed="us-1"}', target(MASTER))
        own = {**OWN[MASTER], "severity": "ticket", "seed": "us-1"}
        expected = [
            alert_samples("SeedQuotaSeedTokenExpiring", int(at[1:]) * 24 * 60, *([own] if fire else []))
            for at, fire in fires.items()
        ]
        test = {
            "interval": "1h",
            "input_series": [{"series": expiring, "values": " ".join(map(str, ends))}],
            "promql_expr_test": expected,
        }
        return failures(promtool, only(rules[MASTER], "SeedQuotaSeedTokenExpiring"), tmp_path, test, every="1h")

    assert check(30, renewed=False, d22=False, d24=True, d29=True) == ""
    assert check(30, renewed=True, d22=False, d24=False, d29=False, d50=False) == ""
    assert check(1, renewed=True, d9=False, d20=False, d50=False) == ""
    assert check(10, renewed=True, d9=False, d20=False, d50=False) == ""


@pytest.mark.parametrize(
    ("written", "instead", "complaint"),
    [("max by", "maximum by", "could not parse expression"), ("{{ $labels.", "{{ $etiketten.", "undefined variable")],
)
def test_a_mistake_in_an_expression_or_a_text_is_found(
    promtool: Path, rules: dict[str, str], tmp_path: Path, written: str, instead: str, complaint: str
) -> None:
    def said(content: str) -> str:
        (tmp_path / "rules.yaml").write_text(content)
        command = [promtool, "check", "rules", "--lint-fatal", "rules.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        return done.stderr if done.returncode else ""

    for found in rules.values():
        assert said(found) == ""
    assert written in rules[MASTER]
    assert complaint in said(rules[MASTER].replace(written, instead, 1))


def test_the_monitors_give_the_label_that_the_alerts_of_a_seed_need(helm: Helm) -> None:
    metrics: dict[str, object] = {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}
    for chart, wanted in ((SEED, [{"targetLabel": "seed", "replacement": "eu-1"}]), (MASTER, None)):
        objects = helm.render(chart, {"metrics": metrics})
        pods, service = the(objects, "PodMonitor")["spec"], the(objects, "ServiceMonitor")["spec"]
        assert [each.get("relabelings") for each in (*pods["podMetricsEndpoints"], *service["endpoints"])] == [
            wanted,
            wanted,
        ]
