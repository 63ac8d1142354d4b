"""Which Events are to be written when: what happens again and again to an object is one Event that counts. Pure.

An Event of events.k8s.io/v1 keeps its first note for ever; only the count and the time of its series change. So one
that has lasted long is followed by a new one, whose note has the numbers of the day.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from common.kube.controller.events import Regarding, event, event_name

EVERY = 5.0  # seconds between two writes of one series
QUIET = 360.0  # seconds after which the next is a new series, as Kubernetes' own components have it
LONGEST = 3600.0  # seconds that one series lasts
RETRY = 30.0  # seconds after a write that failed


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to an object at `time`, RFC 3339 with microseconds. Those of one reason and quota, as one
    spec of it has it, are a series."""

    regarding: Regarding
    quota: str
    reason: str
    note: str
    time: str
    warning: bool = True
    action: str = "Admit"


class Series:
    """`count` have happened, `written` of them are in the Event; 0: there is no Event yet."""

    __slots__ = ("began", "count", "due", "first", "last", "name", "noted", "written")

    def __init__(self, first: Occurrence, now: float) -> None:
        self.first = first
        self.last = first.time
        self.count = self.written = 0
        self.began = self.noted = self.due = now
        self.name = event_name(first.regarding)


class SeriesTable:
    """Times are monotonic seconds. `dropped` counts occurrences that no Event will show."""

    def __init__(self, most: int) -> None:
        self.dropped = 0
        self._most = most
        self._series: OrderedDict[tuple[str, str, str], Series] = OrderedDict()  # the last noted last

    def __len__(self) -> int:
        return len(self._series)

    def note(self, occurrence: Occurrence, now: float) -> None:
        key = (occurrence.regarding.uid, occurrence.quota, occurrence.reason)
        series = self._series.get(key)
        if series is None or now - series.noted >= QUIET or now - series.began >= LONGEST:
            if series is not None:
                self.dropped += series.count - series.written
            elif len(self._series) >= self._most:
                _, oldest = self._series.popitem(last=False)
                self.dropped += oldest.count - oldest.written
            series = self._series[key] = Series(occurrence, now)
        series.count += 1
        series.last, series.noted = occurrence.time, now
        self._series.move_to_end(key)

    def due(self, now: float) -> list[Series]:
        """Those to write now, those noted first before others; what is long over is forgotten."""
        for key, series in list(self._series.items()):
            if now - series.noted < QUIET:
                break
            del self._series[key]
            self.dropped += series.count - series.written
        return [series for series in self._series.values() if series.count > series.written and series.due <= now]

    def next(self) -> float | None:
        """When something is due, or may be forgotten; None when nothing is here."""
        if not self._series:
            return None
        oldest = next(iter(self._series.values()))
        return min(
            (series.due for series in self._series.values() if series.count > series.written),
            default=oldest.noted + QUIET,
        )

    def written(self, series: Series, count: int, now: float) -> None:
        series.written, series.due = count, now + EVERY

    def failed(self, series: Series, now: float, *, lasting: bool) -> None:
        """Lasting: it will never be taken, or there is nothing any more to write to."""
        if not lasting:
            series.due = now + RETRY
            return
        self.dropped += series.count - series.written
        for key, known in self._series.items():
            if known is series:
                del self._series[key]
                return


def created(series: Series, controller: str, instance: str) -> dict[str, object]:
    """The body of the Event that begins the series."""
    first = series.first
    body = event(
        series.name,
        first.regarding,
        reason=first.reason,
        note=first.note,
        warning=first.warning,
        action=first.action,
        controller=controller,
        instance=instance,
        time=first.time,
    )
    return {**body, **repeated(series)} if series.count > 1 else body


def repeated(series: Series) -> dict[str, object]:
    """The patch that brings it up to date."""
    return {"series": {"count": series.count, "lastObservedTime": series.last}}
