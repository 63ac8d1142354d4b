"""The metrics: as the programs declare them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from inspect import signature
from typing import Any, cast

from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from common.runtime import logs, metrics
from common.server import serving_certificate
from devcluster.reference.markdown import code, table
from master.apiserver import metrics as api
from master.history import refusal_metrics
from master.notifications import metrics as notifications
from master.reporting.metrics import MasterMetrics
from seed import collectors
from seed import metrics as observed

_HEAD = """\
# Metrics

Each program serves its metrics at `/metrics` on `--health-address`, by default port 8081, beside those of Python and
of the process
(`python_...`, `process_...`). Which values are bad and what to do then:
[Metrics that are bad](../how-to/alerts.md#metrics-that-are-bad).
"""
_BOTH = "## Both programs\n"
_MASTER = """\
## seedquota-master

Only the replica that leads has samples. Those of the HTTP API are on each replica that serves it.
Refusals of quotas are there only with `--history-prometheus-url`, for
[the page](../how-to/page.md#the-last-30-days): of at most 1,000 quotas and resources in each two hours. If there are
more, those of the quotas that refused most are kept, and not all of these two hours is known.
An amount is in cores for `cpu`, in bytes for memory and storage, else in pieces; `unit` says which.
What seeds hold of a quota, and what of that is idle, is on the seeds: `seedquota_seed_held`, `seedquota_seed_idle`.
"""
_SEED = """\
## seedquota-seed

Every replica has samples of what it answers and writes itself, the leader also of what it counts. `user_cluster`
is a UserCluster's `NAMESPACE/NAME`, `cluster-api` for the seed's own Machines, `clusters`, `Allocations`, or for
objects in namespaces also the name of the Seed.
"""


class _Nothing(dict[str, Any]):
    """Stands for whatever a collector reads, and has nothing: the families show without a sample."""

    def __getattr__(self, _name: str) -> _Nothing:
        return self

    def __call__(self) -> _Nothing:
        return self


def page() -> str:
    both = [
        *_declared(logs),
        *_declared(metrics),
        *_declared(serving_certificate),
        *_collected(metrics.QueuesCollector().collect()),
    ]
    seed = [
        *_declared(observed),
        *(row for collector in _collectors(collectors) for row in _collected(collector.collect())),
    ]
    master = [
        *_declared(api),
        *_declared(notifications),
        *_collected(MasterMetrics(lambda: None).collect()),
        *_collected(refusal_metrics.families((), {})),
    ]
    parts = ((_BOTH, both), (_MASTER, master), (_SEED, seed))
    tables = [f"{text}\n{table(('metric', 'kind', 'labels', 'what it is'), sorted(rows))}\n" for text, rows in parts]
    return "\n".join([_HEAD, *tables])


def _collectors(module: object) -> Iterator[Collector]:
    for found in vars(module).values():
        if isinstance(found, type) and Collector in found.__bases__:
            yield found(*(_Nothing() for _ in signature(found).parameters))


def _declared(module: object) -> Iterator[tuple[str, ...]]:
    for found in vars(module).values():
        if isinstance(found, MetricWrapperBase):
            yield _row(found._name, str(found._type), found._labelnames, found._documentation)


def _collected(families: Iterable[Metric]) -> Iterator[tuple[str, ...]]:
    for found in families:
        yield _row(found.name, found.type, cast(Any, found)._labelnames, found.documentation)


def _row(name: str, kind: str, labels: Iterable[str], what: str) -> tuple[str, ...]:
    shown = f"{name}_total" if kind == "counter" else name
    return code(shown), kind, ", ".join(map(code, labels)) or "none", what
