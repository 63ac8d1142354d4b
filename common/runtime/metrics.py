"""Metrics that both programs have: requests to Kubernetes, reconciles, which build this is."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sized
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from weakref import WeakSet

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from common.runtime.stalls import Stalls

# Else each counter and histogram has a series more, which nobody reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

WEBHOOK_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 2.5, 2.75, 3, 5, 10, 30)
"""Seconds, for what a webhook waits for. API servers wait for 3 s, or as --webhook-timeout says for up to 30 s."""

_REQUESTS = Counter(
    "seedquota_kubernetes_requests_total",
    'Requests to Kubernetes API servers. Status "none": no answer came.',
    ["verb", "resource", "status"],
)
_REQUEST_SECONDS = Histogram(
    "seedquota_kubernetes_request_duration_seconds",
    "Time that requests to Kubernetes API servers took, watches apart.",
    ["verb"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
_RECONCILES = Counter("seedquota_reconciles_total", "Reconciles by result.", ["controller", "result"])
_RECONCILE_SECONDS = Histogram(
    "seedquota_reconcile_duration_seconds",
    "Time that one reconcile took.",
    ["controller"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
_THROTTLED = Counter(
    "seedquota_workqueue_throttled_total",
    "Times that a key had to wait because it was reconciled more than 100 times a second.",
    ["controller"],
)
_UNEXPECTED = Counter(
    "seedquota_unexpected_errors_total",
    "Errors that the program did not expect, by the part of it in which they were. The other parts go on.",
    ["part"],
)
_REFUSED_ANSWERS = Counter(
    "seedquota_api_answers_refused_total",
    "Answers of Kubernetes API servers that were not taken, by what was wrong with them.",
    ["server", "reason"],
)
_MALFORMED = Gauge(
    "seedquota_malformed_objects",
    "Objects that an API server has and that cannot be read. They count with what was last known of them.",
    ["server", "resource"],
)
_malformed: dict[tuple[str, str], int] = {}
_LONGEST_STALL = Gauge(
    "seedquota_event_loop_longest_stall_seconds",
    "Longest time in the last one to two minutes for which the event loop did nothing else than one piece of work.",
)
_BUSIEST_STALL = Gauge(
    "seedquota_event_loop_busiest_stall_cpu_seconds",
    "Most CPU time in the last one to two minutes that the event loop used between two timers, 20 ms apart."
    " If the longest stall is much longer, the process got no CPU.",
)
_LEADER = Gauge("seedquota_leader", "1 while this replica leads, else 0.")
_BUILD_INFO = Gauge("seedquota_build_info", "Always 1; the labels say which build this is.", ["version", "python"])


def build_version() -> str:
    try:
        return version("seedquota")
    except PackageNotFoundError:
        return "unknown"


def announce_build() -> None:
    _BUILD_INFO.labels(build_version(), platform.python_version()).set(1)


def kubernetes_request(verb: str, plural: str, status: int, seconds: float) -> None:
    """Fits `Cluster.on_request`. Status 0: no answer came."""
    _request_counter(verb, plural, status).inc()
    if verb != "watch":
        _request_seconds(verb).observe(seconds)


def reconciled(controller: str, result: str, seconds: float) -> None:
    """Fits `Controller.on_reconcile`."""
    _RECONCILES.labels(controller, result).inc()
    _RECONCILE_SECONDS.labels(controller).observe(seconds)


def throttled(controller: str) -> None:
    _THROTTLED.labels(controller).inc()


def unexpected(part: str) -> None:
    _UNEXPECTED.labels(part).inc()


def api_answer_refused(cluster: str, reason: str) -> None:
    _REFUSED_ANSWERS.labels(cluster, reason).inc()


def no_cluster(cluster: str) -> None:
    """It is gone."""
    _REFUSED_ANSWERS.remove_by_labels({"server": cluster})


def watch_leader(leads: Callable[[], bool]) -> None:
    """It is asked whenever metrics are read."""
    _LEADER.set_function(leads)


def watch_stalls(stalls: Stalls) -> None:
    """They are asked whenever metrics are read."""
    _LONGEST_STALL.set_function(stalls.longest)
    _BUSIEST_STALL.set_function(stalls.busiest)


def watch_queue(controller: str, queue: Sized) -> None:
    """It is asked whenever metrics are read, for as long as somebody else refers to it."""
    _queues.watch(controller, queue)


class QueuesCollector(Collector):
    """How many keys wait. Controllers that have one name, such as those of each seed, are summed up."""

    def __init__(self) -> None:
        self._watched: dict[str, WeakSet[Sized]] = {}

    def watch(self, controller: str, queue: Sized) -> None:
        self._watched.setdefault(controller, WeakSet()).add(queue)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("seedquota_queue_depth", "Keys that wait to be reconciled.", labels=["controller"])
        for controller, queues in self._watched.items():
            family.add_metric([controller], sum(len(queue) for queue in queues))
        yield family


_queues = QueuesCollector()
REGISTRY.register(_queues)


# Looking labels up takes a lock; on the admission path that is worth saving.
@lru_cache(maxsize=1024)
def _request_counter(verb: str, plural: str, status: int) -> Counter:
    return _REQUESTS.labels(verb, plural, str(status) if status else "none")


@lru_cache(maxsize=64)
def _request_seconds(verb: str) -> Histogram:
    return _REQUEST_SECONDS.labels(verb)


def malformed_objects(server: str, resource: str, more: int) -> None:
    """`more` than before, or less: several watches may be of one plural, such as one for each namespace."""
    count = _malformed.pop((server, resource), 0) + more
    if count:
        _malformed[server, resource] = count
        _MALFORMED.labels(server, resource).set(count)
    else:
        _MALFORMED.remove_by_labels({"server": server, "resource": resource})
