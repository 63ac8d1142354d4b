"""The seed's metrics. Exact integers become floats here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import Counter, Gauge, Histogram

from common.runtime.metrics import WEBHOOK_BUCKETS, no_cluster
from seed.providers.size import CONDITIONS

_REQUESTS = Counter(
    "seedquota_admission_requests_total",
    "Admission requests answered: allowed or denied, with the reason of a refusal.",
    ["consumer", "decision", "reason"],
)
_REFUSALS = Counter(
    "seedquota_refusals_total",
    "Admission requests denied, by the quota that denied them; empty where none did.",
    ["quota", "reason"],
)
_SECONDS = Histogram(
    "seedquota_admission_duration_seconds",
    "Time to answer an admission request, by path: local (from what is held here), recall (after asking the master), "
    "unavailable (503).",
    ["path"],
    buckets=WEBHOOK_BUCKETS,
)
_WRITES = Histogram(
    "seedquota_ledger_write_duration_seconds",
    "Time of one durable ledger write, which may carry many decisions.",
    buckets=WEBHOOK_BUCKETS,
)
_WRITTEN = Counter("seedquota_ledger_changes_total", "Claims and counts that ledger writes carried.")
_CONFLICTS = Counter("seedquota_ledger_conflicts_total", "Ledger writes that another writer was faster than.")
_LOOKUPS = Counter(
    "seedquota_provider_lookups_total",
    "Sizes of machine types that were looked up: hit, stale, shared, fetched, missing or unavailable.",
    ["provider", "result"],
)
_FETCHES = Counter(
    "seedquota_provider_requests_total", "Questions to clouds: ok, refused or failed.", ["provider", "result"]
)
_FETCH_SECONDS = Histogram(
    "seedquota_provider_request_duration_seconds",
    "Time that a cloud took to answer one question, with all its pages and tries.",
    ["provider"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
_UNSIZED = Gauge(
    "seedquota_machines_unsized",
    "Machines that are counted without their size, by the reason of the condition MachinesSized.",
    ["user_cluster", "reason"],
)
_DRIFTED = Gauge(
    "seedquota_machines_drifted", "Machines whose cloud tells another size by now than their stamp.", ["user_cluster"]
)
_CANARY = Gauge(
    "seedquota_canary_success",
    "1 if the last dry run in the user cluster was refused by us, 0 if it was not, none if it proved nothing.",
    ["user_cluster"],
)
_UNADMITTED = Gauge(
    "seedquota_machines_unadmitted",
    "Machines that are counted, and that were created past the webhook: nobody admitted them.",
    ["user_cluster"],
)
_TAKEN_OVER = Gauge(
    "seedquota_machine_api_taken_over",
    "1 while another server than the user cluster's API server serves its Machines, so that they cannot be counted.",
    ["user_cluster"],
)
_RESTORED = Counter(
    "seedquota_webhook_restored_total",
    "Webhook configurations of user clusters that somebody had deleted or changed, and that were restored.",
    ["user_cluster"],
)
_EVENTS = Counter(
    "seedquota_owner_events_total",
    "Events about refused Machines: written, failed, or dropped because there were too many.",
    ["result"],
)
_WOKEN = Counter(
    "seedquota_owners_woken_total",
    "MachineSets, and what makes pods, that try again because capacity is free.",
)
_WAITING = Gauge(
    "seedquota_owners_waiting",
    "MachineSets, and what makes pods, that this replica is to wake when capacity is free.",
)
_LOCAL_COPIES = Gauge(
    "seedquota_local_copies_success",
    "1 if the LocalResourceQuotas in the user cluster are as they should be, 0 if the last try to write them failed.",
    ["user_cluster"],
)
_LOCAL_WRITES = Counter(
    "seedquota_local_copies_writes_total", "LocalResourceQuotas: written, or failed to be.", ["result"]
)
_OF_LEADER = (_UNSIZED, _DRIFTED, _UNADMITTED, _TAKEN_OVER, _CANARY, _LOCAL_COPIES)
_allowed = {path: (_REQUESTS.labels("Machine", "allowed", ""), _SECONDS.labels(path)) for path in ("local", "recall")}


def decision(kind: str, decided: str, reason: str, path: str, seconds: float) -> None:
    known = _allowed.get(path) if (kind, decided, reason) == ("Machine", "allowed", "") else None
    counter, histogram = known or (_REQUESTS.labels(kind, decided, reason), _SECONDS.labels(path))
    counter.inc()
    histogram.observe(seconds)


def refused(quota: str, reason: str) -> None:
    """`quota` is one that this seed has, or empty."""
    _REFUSALS.labels(quota, reason).inc()


def no_quota(quota: str) -> None:
    """It is gone."""
    _REFUSALS.remove_by_labels({"quota": quota})


def owners_notified(result: str, number: int) -> None:
    """Fits Refusals."""
    if result == "woken":
        _WOKEN.inc(number)
    else:
        _EVENTS.labels(result).inc(number)


def watch_waiting(waiting: Callable[[], int]) -> None:
    """It is asked whenever metrics are read."""
    _WAITING.set_function(waiting)


def ledger_write(seconds: float, changes: int) -> None:
    _WRITES.observe(seconds)
    _WRITTEN.inc(changes)


def ledger_conflict() -> None:
    _CONFLICTS.inc()


def flavour_lookup(provider: str, result: str) -> None:
    _LOOKUPS.labels(provider, result).inc()


def provider_request(provider: str, result: str, seconds: float) -> None:
    _FETCHES.labels(provider, result).inc()
    _FETCH_SECONDS.labels(provider).observe(seconds)


def machines(cluster: str, unsized: Mapping[str, int], drifted: int, unadmitted: int) -> None:
    """`unsized` by reason."""
    for reason in CONDITIONS:
        _UNSIZED.labels(cluster, reason).set(unsized.get(reason, 0))
    _DRIFTED.labels(cluster).set(drifted)
    _UNADMITTED.labels(cluster).set(unadmitted)


def machine_api(cluster: str, *, taken_over: bool) -> None:
    _TAKEN_OVER.labels(cluster).set(taken_over)


def webhook_restored(cluster: str) -> None:
    _RESTORED.labels(cluster).inc()


def canary(cluster: str, success: bool | None) -> None:
    if success is not None:
        _CANARY.labels(cluster).set(success)
    else:
        _CANARY.remove_by_labels({"user_cluster": cluster})


def local_copies(cluster: str, *, success: bool) -> None:
    _LOCAL_COPIES.labels(cluster).set(success)


def local_copy_written(*, ok: bool) -> None:
    _LOCAL_WRITES.labels("written" if ok else "failed").inc()


def no_machines(cluster: str) -> None:
    """The user cluster is gone."""
    for metric in (*_OF_LEADER, _RESTORED):
        metric.remove_by_labels({"user_cluster": cluster})
    no_cluster(cluster)


def not_leading() -> None:
    """What only the leader knows is not this replica's to tell any more."""
    for gauge in _OF_LEADER:
        gauge.clear()
