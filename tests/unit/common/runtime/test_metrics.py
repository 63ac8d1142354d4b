"""Each metric is documented in docs/reference/metrics.md as the code declares it, and none that does not exist."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

import common
import master
import seed
from common.kube.controller.controller import Controller
from common.kube.controller.workqueue import WorkQueue
from common.runtime import logs, metrics
from common.server import serving_certificate
from master.apiserver import metrics as apiserver
from master.history import refusal_metrics
from master.notifications import metrics as notifications
from master.reporting.metrics import MasterMetrics
from seed import collectors
from seed import metrics as observed
from seed.instance_types.cache import FlavourCache

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()
HEAD = ["| metric | kind | labels | what it is |", "|---|---|---|---|"]


class Nothing:
    user_clusters = SimpleNamespace(store={})

    def all_quotas(self) -> list[object]:
        return []

    def oldest(self) -> dict[str, float]:
        return {}


def row(name: str, kind: str, labels: Iterable[str], what: str) -> str:
    shown = f"{name}_total" if kind == "counter" else name
    return f"| `{shown}` | {kind} | {', '.join(f'`{label}`' for label in labels) or 'none'} | {what} |"


def declared(module: object) -> list[str]:
    found = [metric for metric in vars(module).values() if isinstance(metric, MetricWrapperBase)]
    return [row(metric._name, metric._type, metric._labelnames, metric._documentation) for metric in found]


def collected(families: Iterable[Metric]) -> list[str]:
    return [row(found.name, found.type, cast(Any, found)._labelnames, found.documentation) for found in families]


def sections() -> dict[str, list[str]]:
    nothing = cast(Any, Nothing())
    return {
        "## Both programs": sorted(
            declared(logs)
            + declared(metrics)
            + declared(serving_certificate)
            + collected(metrics.QueuesCollector().collect())
        ),
        "## seedquota-master": sorted(
            declared(apiserver)
            + declared(notifications)
            + collected(MasterMetrics(lambda: None).collect())
            + collected(refusal_metrics.families((), {}))
        ),
        "## seedquota-seed": sorted(
            declared(observed)
            + collected(collectors.AccountsCollector(nothing, nothing).collect())
            + collected(collectors.AccountWaitsCollector(dict).collect())
            + collected(collectors.NamespacesCollector(nothing, list).collect())
            + collected(collectors.UserClustersCollector(nothing).collect())
            + collected(collectors.FlavoursCollector(cast(FlavourCache, nothing)).collect())
        ),
    }


@pytest.mark.parametrize("title", sections())
def test_the_page_has_every_metric_as_the_code_declares_it(title: str) -> None:
    text = PAGE.partition(f"{title}\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    wanted = [*HEAD, *sections()[title]]
    assert rows == wanted, "\n".join(["", title, "", *wanted])


def test_no_module_declares_a_metric_that_the_sections_leave_out() -> None:
    for package in (common, master, seed):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    known = {line.split("`")[1].removesuffix("_total") for rows in sections().values() for line in rows}
    assert {family.name for family in REGISTRY.collect() if family.name.startswith("seedquota")} <= known


def test_no_page_names_a_metric_that_does_not_exist() -> None:
    known = {line.split("`")[1] for rows in sections().values() for line in rows}
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        named = set(re.findall(r"\bseedquota_[a-z_]+", page.read_text()))
        assert {re.sub("_(bucket|sum|count)$", "", name) for name in named} <= known, page.name


def test_counters_and_histograms_have_no_series_that_says_when_they_were_made() -> None:
    observed.decision("Machine", "allowed", "", "local", 0.001)
    exposed = generate_latest().decode()
    assert 'seedquota_admission_duration_seconds_bucket{le="0.001",path="local"}' in exposed
    assert "_created" not in exposed


@pytest.mark.parametrize(
    "histogram", ["seedquota_admission_duration_seconds", "seedquota_ledger_write_duration_seconds"]
)
def test_what_ends_just_before_and_after_the_webhooks_time_is_told_apart(histogram: str) -> None:
    before = buckets(histogram)
    for seconds in (2.4, 2.6, 2.9, 3.1, 9.0, 29.0, 31.0):
        observed.ledger_write(seconds, 1)
        observed.decision("Machine", "denied", "QuotaUnavailable", "unavailable", seconds)
    after = buckets(histogram)
    grown = [after[bound] - before.get(bound, 0) for bound in sorted(after)]
    assert [more - less for less, more in zip([0.0, *grown], grown, strict=False)][-7:] == [1.0] * 7


def buckets(histogram: str) -> dict[float, float]:
    (family,) = (found for found in REGISTRY.collect() if found.name == histogram)
    return {
        float(sample.labels["le"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_bucket") and sample.labels.get("path", "unavailable") == "unavailable"
    }


async def test_queues_are_summed_by_controller_and_forgotten_when_they_are_gone() -> None:
    one, two = WorkQueue[str](), WorkQueue[str]()
    for queue, keys in ((one, "ab"), (two, "c")):
        metrics.watch_queue("test", queue)
        for key in keys:
            queue.add(key)
    assert REGISTRY.get_sample_value("seedquota_queue_depth", {"controller": "test"}) == 3
    del two, queue
    assert REGISTRY.get_sample_value("seedquota_queue_depth", {"controller": "test"}) == 2


async def test_every_controller_shows_how_many_keys_wait() -> None:
    async def reconcile(_key: str) -> None:
        pass

    controller = Controller("shown", reconcile)
    controller.queue.add("a")
    assert REGISTRY.get_sample_value("seedquota_queue_depth", {"controller": "shown"}) == 1
