"""The metrics: as the programs declare them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

from common.runtime import metrics
from common.server import serving_certificate
from devcluster.reference.markdown import code, table
from master.reporting.metrics import MasterMetrics
from seed import collectors
from seed import metrics as observed
from seed.instance_types.cache import FlavourCache

_HEAD = """\
# Metrics

Each program serves its metrics at `/metrics` on `--health-address`, by default port 8081, beside those of Python and
of the process
(`python_...`, `process_...`). Which values are bad and what to do then:
[operations.md](../operations.md#metrics-that-are-bad).
"""
_BOTH = "## Both programs\n"
_MASTER = """\
## seedquota-master

Only the replica that leads has samples. An amount is in cores for `cpu`, in bytes for memory and storage, else in
pieces; `unit` says which.
"""
_SEED = """\
## seedquota-seed

Every replica has samples of what it answers and writes itself, the leader also of what it counts. `cluster` is a
UserCluster's
`NAMESPACE/NAME`, or `cluster-api` for the seed's own Machines.
"""


class _Nothing:
    def all_quotas(self) -> list[object]:
        return []

    def oldest(self) -> dict[str, float]:
        return {}


def page() -> str:
    nothing = cast(Any, _Nothing())
    both = [*_declared(metrics), *_collected(metrics.QueuesCollector().collect())]
    seed = [
        *_declared(observed),
        *_declared(serving_certificate),
        *_collected(collectors.AccountsCollector(nothing, nothing).collect()),
        *_collected(collectors.FlavoursCollector(cast(FlavourCache, nothing)).collect()),
    ]
    master = _collected(MasterMetrics(lambda: None).collect())
    parts = ((_BOTH, both), (_MASTER, master), (_SEED, seed))
    tables = [f"{text}\n{table(('metric', 'kind', 'labels', 'what it is'), sorted(rows))}\n" for text, rows in parts]
    return "\n".join([_HEAD, *tables])


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
