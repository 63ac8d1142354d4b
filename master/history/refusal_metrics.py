"""How often quotas refused, as metrics of the master, and as read from a Prometheus that kept them. Pure.

The label `part` says in which two hours of its day, so it does not matter when a sample was taken, and by whose clock.
A sample that is there once is enough: of several, by other replicas or later, the largest is what is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily

from common.api.refusal_counts import PART
from master.history.prometheus_api import Series
from master.history.refusals import PartTold, Refusals, refusals

COUNTS = "seedquota_quota_refusals"
KNOWN = "seedquota_quota_refusals_known"

_DAY = 86400
_PARTS = {f"{begin // 3600:02}:00": begin for begin in range(0, _DAY, PART)}
_LABELS = {begin: label for label, begin in _PARTS.items()}


def families(told: Iterable[PartTold], names: Mapping[str, str]) -> Iterator[GaugeMetricFamily]:
    """`told`: of less than a day. `names`: of quotas, by uid; others have no sample."""
    counts = GaugeMetricFamily(
        COUNTS,
        "Requests that the quota refused in the two hours of a day that begin at part (UTC), at least: those that were "
        "short of the resource, or, if resource is empty, all of them. Of replicas and of times, take the largest.",
        labels=("quota", "resource", "part"),
    )
    known = GaugeMetricFamily(
        KNOWN,
        "1 if each agent told all that was refused in the two hours of a day that begin at part (UTC), after their "
        "end; else 0. Where it is 1, a quota without seedquota_quota_refusals refused nothing then.",
        labels=("part",),
    )
    for part in told:
        label = _LABELS[part.begin % _DAY]
        known.add_metric((label,), float(part.whole and part.ended))
        for (uid, resource), count in part.counts.items():
            if uid in names:
                counts.add_metric((names[uid], resource, label), count)
    yield from (counts, known)


def read(counts: Iterable[Series], known: Iterable[Series], created: float) -> Refusals:
    """Of one quota; a value is of the two hours before its time. `created`: before it there may have been another quota
    of this name."""
    found: dict[tuple[int, str], int] = {}
    for begin, resource, amount in _parts(counts):
        if begin >= created:
            found[begin, resource] = max(found.get((begin, resource), 0), int(amount))
    rows = [(begin, resource, count) for (begin, resource), count in found.items()]
    return refusals(rows, {begin for begin, _, value in _parts(known) if value >= 1 and begin >= created})


def _parts(found: Iterable[Series]) -> Iterator[tuple[int, str, float]]:
    """When the part begins, the resource or "", and the value."""
    for series in found:
        begin = _PARTS.get(series.labels.get("part", ""))
        if begin is not None:
            for time, value in series.values:
                yield int(time - (time - begin) % _DAY), series.labels.get("resource", ""), value
