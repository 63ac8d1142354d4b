"""What the dashboards of the charts show of running programs, in a real Prometheus that scrapes them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.charts import MASTER, SEED
from devcluster.install import NAMESPACE
from devcluster.load import machine
from devcluster.objects import CHARTS
from devcluster.processes import ProcessGroup
from tests.chart import prometheus
from tests.chart.prometheus import Prometheus
from tests.integration.installed.site import QUOTA, SMALL, Site, cpus, until
from tests.integration.installed.test_quotas import break_glass, unsizable

pytestmark = pytest.mark.integration

IDLE = {
    MASTER: {"Requests to the HTTP API": "The HTTP API is off, or nobody has called it"},
    SEED: {"Questions to clouds": "No cloud was asked"},
}
"""Panels of what this installation does not do, and what they say."""


def jobs(site: Site) -> list[dict[str, Any]]:
    """As the charts' monitors have them."""

    def job(chart: str, program: str, **labels: str) -> dict[str, Any]:
        address = site.program(program).health.removeprefix("http://")
        targets = [{"targets": [address], "labels": {"namespace": NAMESPACE, "pod": program, **labels}}]
        return {"job_name": f"{chart}-metrics", "static_configs": targets}

    first, *rest = (job(SEED, seed, seed=seed) for seed in site.installed.seeds)
    for each in rest:
        first["static_configs"] += each["static_configs"]
    return [job(MASTER, "master"), first]


async def empty(server: Prometheus, chart: str) -> dict[str, str]:
    """Panels of which a query has no data, and what they say then."""
    dashboard = json.loads((CHARTS / chart / "files" / "dashboard.json").read_text())
    found = {}
    for panel in dashboard["panels"]:
        for query in panel["targets"]:
            expression = re.sub(r"\$\w+", ".*", query["expr"])
            if not (await server.get("query", query=expression))["result"]:
                found[panel["title"]] = panel["fieldConfig"]["defaults"].get("noValue", "")
    return found


async def causes(server: Prometheus, chart: str) -> list[str]:
    """The alerts that fire if what is there stays. What a busy machine answered late is over after seconds here, not
    after minutes."""
    rules = yaml.safe_load((CHARTS / chart / "files" / "alerts.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    found = []
    for alert in alerts:
        expression = re.sub(r"\[\d+m\]", "[20s]", re.sub(r"INSTALLATION(, )?", "", alert["expr"]))
        if (await server.get("query", query=expression))["result"]:
            found.append(alert["alert"])
    assert len(alerts) > 10
    return found


async def test_programs_that_work_cause_no_alert_and_one_that_ends_does(site: Site, tmp_path: Path) -> None:
    group = ProcessGroup()
    try:
        server = await prometheus.started(tmp_path, group, jobs(site))
        await site.quota(cpus(20))
        await site.admitted("user-1", 2)
        await site.uses(cpus(2))

        async def cause(chart: str, *alerts: str) -> None:
            assert await causes(server, chart) == list(alerts)

        for chart in (MASTER, SEED):
            await until(lambda chart=chart: cause(chart), 120)
        await site.kill(site.program("seed-2"))
        await until(lambda: cause(SEED, "SeedQuotaReplicaNotScraped"), 120)
    finally:
        await asyncio.to_thread(group.close)


async def test_every_panel_has_data_of_running_programs_or_says_why_not(site: Site, tmp_path: Path) -> None:
    """One quota is over its limit, one cluster has Machines that nobody admitted, and one seed's agent ends."""
    group = ProcessGroup()
    try:
        server = await prometheus.started(tmp_path, group, jobs(site))
        await site.quota(cpus(3))
        await site.admitted("user-1", 2)
        await site.admitted("user-2")
        await site.refused("user-2")
        await site.uses(cpus(3))  # only what comes after a count is known to be admitted by nobody
        await break_glass(site, "user-1", unsizable("sizeless"))
        await break_glass(site, "user-1", machine("urgent", SMALL))
        await site.comes("master", f"resourcequotas/{QUOTA}", "Exceeded", "True", "UsageNotAdmitted")

        async def shows(chart: str) -> None:
            assert await empty(server, chart) == IDLE[chart]

        await until(lambda: shows(SEED), 60)
        await site.kill(site.program("seed-2"))
        await until(lambda: shows(MASTER), 90)
    finally:
        await asyncio.to_thread(group.close)
