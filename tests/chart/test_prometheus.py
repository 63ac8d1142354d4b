"""A real Prometheus with the charts' rules and the queries of their dashboards. What it scrapes is served here."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from common.kube.client.meta import ObjectMeta
from devcluster.charts import MASTER, SEED
from devcluster.objects import CHARTS
from devcluster.patience import Deadline
from devcluster.processes import ProcessGroup
from master.cache.objects import MasterQuota
from master.history import prometheus as history_in_prometheus
from master.history.prometheus import PrometheusHistory
from master.history.recent_refusals import RecentRefusals
from master.history.refusal_metrics import COUNTS
from master.history.refusals import ALL, PartTold, Refusals, current
from tests.chart import prometheus
from tests.chart.alert_cases import CASES, GONE, RUNS, Case, Growing, Value, with_labels
from tests.chart.helm import Helm
from tests.chart.prometheus import Prometheus
from tests.chart.test_charts import measured
from tests.chart.test_rules import VALUES, alerts, rendered, target

pytestmark = pytest.mark.integration

SECONDS = 90.0


class Target:
    """Two programs' metrics. `state`: "well", "sick" or "gone", when it does not answer."""

    def __init__(self) -> None:
        self.state = "well"
        self.more: dict[str, list[str]] = {MASTER: [], SEED: []}
        self._counted: dict[str, float] = {}
        self._at = time.monotonic()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def text(self, chart: str) -> str:
        lines = list(self.more[chart])
        series = {name: values for case in CASES if case.chart == chart and self._taken(case) for name, values in
                  case.series.items() if name != "up"}  # fmt: skip
        series.setdefault("seedquota_leader", RUNS["seedquota_leader"])
        for name, values in series.items():
            now: Value = values[0] if self.state == "well" else values[1]
            if isinstance(now, Growing):
                now = now.by * (time.monotonic() - self._at) if self.state == "sick" else 0.0
            if now is not None:
                lines.append(f"{name} {now}")
        return "\n".join([*lines, ""])

    def change(self, state: str) -> None:
        self.state, self._at = state, time.monotonic()

    def _taken(self, case: Case) -> bool:
        """What can be sick at the same time: not what takes all metrics away, nor a leader."""
        return case.alert not in APART

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                gone = outer.state == "gone"
                self.send_response(500 if gone else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(b"" if gone else outer.text(self.path.strip("/")).encode())

            def log_message(self, *_arguments: object) -> None:
                """It is asked each second."""

        return Handler


GONE_ALERTS = {case.alert for case in GONE.values()}
APART = {
    *GONE_ALERTS,
    "SeedQuotaReplicaNotScraped",
    "SeedQuotaMasterWithoutLeader",
    "SeedQuotaSeedWithoutLeader",
    "SeedQuotaWebhookNotProven",
}
"""Those whose cause takes away what others see. When everything is gone, the first three are seen."""


def shortened(rules: str) -> str:
    """Minutes become seconds."""
    rules = re.sub(r"for: \d+[mh]", "for: 1s", rules)
    return re.sub(r"offset \d+m", "offset 10s", re.sub(r"\[\d+m\]", "[10s]", rules))


@pytest.fixture
def served() -> Iterator[Target]:
    target = Target()
    yield target
    target.close()


async def started(helm: Helm, directory: Path, group: ProcessGroup, served: Target) -> Prometheus:
    for chart in (MASTER, SEED):
        (directory / f"{chart}.yaml").write_text(shortened(rendered(helm, chart, VALUES[chart])))
    jobs = [
        {
            "job_name": f"{chart}-metrics",
            "metrics_path": f"/{chart}",
            "static_configs": [{"targets": [served.address], "labels": labels}],
        }
        for chart in (MASTER, SEED)
        for labels in [{name: value for name, value in target(chart).items() if name != "job"}]
    ]
    return await prometheus.started(directory, group, jobs, [f"{MASTER}.yaml", f"{SEED}.yaml"])


async def firing(found: Prometheus) -> dict[tuple[str, str], dict[str, Any]]:
    """By program and name."""
    alerts = [each for each in (await found.get("alerts"))["alerts"] if each["state"] == "firing"]
    return {(SEED if "seed" in each["labels"] and "namespace" not in each["labels"] else MASTER,
             each["labels"]["alertname"]): each for each in alerts}  # fmt: skip


async def fires(server: Prometheus, wanted: set[tuple[str, str]], not_wanted: set[tuple[str, str]]) -> None:
    deadline = Deadline(SECONDS)
    while True:
        found = (await firing(server)).keys()
        if wanted <= found and not found & not_wanted:
            return
        assert not deadline.passed(), (wanted - found, found & not_wanted)
        await asyncio.sleep(0.5)


async def test_alerts_fire_and_end_in_a_real_prometheus(helm: Helm, tmp_path: Path, served: Target) -> None:
    group = ProcessGroup()
    try:
        server = await started(helm, tmp_path, group, served)
        everything = {(c.chart, c.alert) for c in CASES}
        caused = {(c.chart, c.alert) for c in CASES if c.alert not in APART}
        gone = {(chart, case.alert) for chart, case in GONE.items()}
        gone |= {(chart, "SeedQuotaReplicaNotScraped") for chart in GONE}
        await asyncio.sleep(5)
        await fires(server, set(), everything)
        served.change("sick")
        await fires(server, caused, set())
        for found in (await firing(server)).values():
            texts = " ".join(found["annotations"].values())
            assert "<no value>" not in texts and "<error" not in texts, texts
        served.change("well")
        await fires(server, set(), everything)
        served.change("gone")
        await fires(server, gone, everything - gone)
        served.change("well")
        await fires(server, set(), everything)
        assert {
            name for chart in GONE for name in (r["alert"] for r in alerts(rendered(helm, chart, VALUES[chart])))
        } == {alert for _, alert in everything}
    finally:
        await asyncio.to_thread(group.close)


def documented(chart: str) -> list[str]:
    """A sample of each metric that the program has, and of conditions one in each bad state."""
    values = {"status": ["False", "True"], "condition": ["Ready", "Exceeded"], "le": ["1", "+Inf"]}
    lines = []
    for name, labels in measured(chart).items():
        variants: list[dict[str, str]] = [{}]
        for label in sorted(labels):
            variants = [{**v, label: value} for v in variants for value in values.get(label, ["a"])]
        lines += [f"{with_labels(name, each)} {time.monotonic():.1f}" for each in variants]
    return lines


@pytest.mark.parametrize("chart", [MASTER, SEED])
async def test_every_panel_has_data_where_the_programs_have_it_and_else_says_why_not(
    helm: Helm, tmp_path: Path, served: Target, chart: str
) -> None:
    """Only a panel that says why may be empty while a program has nothing to do. None is empty when each metric that
    the reference has, with its labels, has a sample."""
    dashboard = json.loads((CHARTS / chart / "files" / "dashboard.json").read_text())
    group = ProcessGroup()
    try:
        server = await started(helm, tmp_path, group, served)

        async def empty() -> list[str]:
            missing = []
            for panel in dashboard["panels"]:
                for query in panel["targets"]:
                    expression = re.sub(r"\$\w+", ".*", query["expr"]).replace("5m", "20s")
                    if not (await server.get("query", query=expression))["result"]:
                        missing.append(panel["title"])
            return missing

        await asyncio.sleep(3)
        unsaid = {p["title"] for p in dashboard["panels"] if not p["fieldConfig"]["defaults"].get("noValue")}
        deadline = Deadline(SECONDS)
        served.more[chart] = RUNNING[chart]
        while unsaid & set(await empty()):
            assert not deadline.passed(), unsaid & set(await empty())
            await asyncio.sleep(1)
        while missing := await empty():
            assert not deadline.passed(), missing
            served.more[chart] = documented(chart)
            await asyncio.sleep(1)
    finally:
        await asyncio.to_thread(group.close)


async def test_the_page_reads_use_and_limits_of_its_own_installation_from_a_real_prometheus(
    helm: Helm, tmp_path: Path, served: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KEPT_SECONDS", "FAILED_SECONDS"):
        monkeypatch.setattr(history_in_prometheus, name, 0.0)
    group = ProcessGroup()
    try:
        server = await started(helm, tmp_path, group, served)
        rest = 'subject_kind="project",subject="alpha",unit="cores"'
        served.more[MASTER] = [
            f'seedquota_{metric}{{quota="{quota}",resource="cpu",{rest}}} {value}'
            for metric, quota, value in (("used", "q", 12), ("limit", "q", 64), ("used", "r", 99), ("limit", "r", 100))
        ]
        quota = MasterQuota(metadata=ObjectMeta(name="q", uid="uid"), spec={})
        here = {"namespace": target(MASTER)["namespace"]}
        deadline = Deadline(SECONDS)
        while not (found := await PrometheusHistory(server.url, here, told()).points(quota)):
            assert not deadline.passed()
            await asyncio.sleep(0.5)
        assert [(name, points[-1].used, points[-1].limit) for name, points in found.items()] == [("cpu", 12.0, 64.0)]
        assert await PrometheusHistory(server.url, {"namespace": "another"}, told()).points(quota) == {}
    finally:
        await asyncio.to_thread(group.close)


def told(*parts: PartTold) -> RecentRefusals:
    """What a leader knows that was told this by the agents."""
    now = datetime.fromtimestamp(max((part.begin for part in parts), default=0), UTC)
    recent = RecentRefusals(cast(Any, None), cast(Any, None), lambda: True, lambda: now)
    recent._told, recent._names = {part.begin: part for part in parts}, {"uid": "q", "other": "r"}
    return recent


def exposed(recent: RecentRefusals, pod: str) -> list[str]:
    """Its samples, with the label that Prometheus adds."""
    registry = CollectorRegistry()
    registry.register(recent)
    lines = generate_latest(registry).decode().splitlines()
    return [line.replace("{", f'{{pod="{pod}",', 1) for line in lines if not line.startswith("#")]


async def test_refusals_are_read_from_a_real_prometheus_after_those_who_knew_them_are_gone(
    helm: Helm, tmp_path: Path, served: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas led one after the other. The second knows less of the part before, and that it is not all; of
    another quota it knows more."""
    for name in ("KEPT_SECONDS", "FAILED_SECONDS"):
        monkeypatch.setattr(history_in_prometheus, name, 0.0)
    group = ProcessGroup()
    try:
        server = await started(helm, tmp_path, group, served)
        now, before = current(time.time())
        counts = {("uid", ALL): 5, ("uid", "cpu"): 3, ("other", ALL): 99}
        first = told(PartTold(before, counts, whole=True, ended=True))
        less = PartTold(before, {("uid", ALL): 2}, whole=False, ended=True)
        second = told(less, PartTold(now, {("uid", ALL): 1}, whole=True, ended=False))
        quota = MasterQuota(metadata=ObjectMeta(name="q", uid="uid"), spec={})
        here, wanted = {"namespace": target(MASTER)["namespace"]}, {before: {ALL: 5, "cpu": 3}}

        async def read() -> Refusals:
            return await PrometheusHistory(server.url, here, told()).refusals(quota)

        async def until(found: Refusals) -> None:
            deadline = Deadline(SECONDS)
            while (last := await read()) != found:
                assert not deadline.passed(), last
                await asyncio.sleep(0.5)

        assert await read() == Refusals({}, set()), "no sample is not zero"
        served.more[MASTER] = exposed(first, "a")
        await until(Refusals(wanted, {before}))
        served.more[MASTER] = exposed(second, "b")
        await until(Refusals({**wanted, now: {ALL: 1}}, {before}))
        served.more[MASTER], deadline = [], Deadline(SECONDS)
        while (await server.get("query", query=COUNTS))["result"]:
            assert not deadline.passed()
            await asyncio.sleep(0.5)
        assert await read() == Refusals({**wanted, now: {ALL: 1}}, {before})
        assert await PrometheusHistory(server.url, {"namespace": "another"}, told()).refusals(quota) == ({}, set())
    finally:
        await asyncio.to_thread(group.close)


RUNNING = {
    MASTER: ["seedquota_leader 1"],
    SEED: [
        "seedquota_accounts_fenced 0",
        "seedquota_event_loop_longest_stall_seconds 0.01",
        "seedquota_ledger_conflicts_total 0",
    ],
}
"""What a program has as soon as it runs, without anything that it works for."""
