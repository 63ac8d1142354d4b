from __future__ import annotations

from common.kube.controller.events import MAX_NOTE, Regarding
from seed.notifications.event_series import EVERY, LONGEST, QUIET, RETRY, Occurrence, SeriesTable, created, repeated


def occurrence(uid: str = "u", *, quota: str = "q", reason: str = "QuotaExceeded", note: str = "no", time: str = "t"):
    regarding = Regarding(api_version="cluster.k8s.io/v1alpha1", kind="MachineSet", namespace="ns", name=uid, uid=uid)
    return Occurrence(regarding=regarding, quota=quota, reason=reason, note=note, time=time)


def test_the_same_again_is_one_series_that_is_written_every_few_seconds() -> None:
    table = SeriesTable(10)
    table.note(occurrence(time="first"), 0.0)
    (series,) = table.due(0.0)
    assert "series" not in created(series, "c", "i")
    table.written(series, series.count, 0.0)
    for _ in range(19):
        table.note(occurrence(time="last"), 1.0)
    assert table.due(EVERY - 0.1) == []
    assert table.next() == EVERY
    assert table.due(EVERY) == [series]
    assert repeated(series) == {"series": {"count": 20, "lastObservedTime": "last"}}
    table.written(series, series.count, EVERY)
    assert table.due(100.0) == []


def test_what_happened_while_it_was_written_is_written_next() -> None:
    table = SeriesTable(10)
    table.note(occurrence(), 0.0)
    (series,) = table.due(0.0)
    table.note(occurrence(), 0.0)
    table.written(series, 1, 0.0)
    assert table.due(EVERY) == [series]


def test_many_before_the_first_write_are_one_event_with_their_number() -> None:
    table = SeriesTable(10)
    for _ in range(3):
        table.note(occurrence(), 0.0)
    (series,) = table.due(0.0)
    assert created(series, "c", "i")["series"] == {"count": 3, "lastObservedTime": "t"}


def test_owners_quotas_and_reasons_have_series_of_their_own() -> None:
    table = SeriesTable(10)
    for one in (occurrence(), occurrence("v"), occurrence(quota="r"), occurrence(reason="QuotaUnavailable")):
        table.note(one, 0.0)
        table.note(one, 0.0)
    assert [series.count for series in table.due(0.0)] == [2, 2, 2, 2]


def test_after_a_quiet_time_and_after_a_long_one_a_new_event_has_the_present_note() -> None:
    for again in (QUIET, LONGEST):
        table = SeriesTable(10)
        table.note(occurrence(note="old"), 0.0)
        (old,) = table.due(0.0)
        moment = 0.0
        while moment + QUIET / 2 < again:
            moment += QUIET / 2
            if again == LONGEST:
                table.note(occurrence(), moment)
        table.written(old, old.count, moment)
        table.note(occurrence(note="new"), again)
        new = next(series for series in table.due(again) if series is not old)
        assert new.first.note == "new" and new.name != old.name
        assert table.dropped == 0


def test_it_forgets_what_is_long_over() -> None:
    table = SeriesTable(10)
    table.note(occurrence(), 0.0)
    (series,) = table.due(0.0)
    table.written(series, 1, 0.0)
    assert table.next() == QUIET
    assert table.due(QUIET) == []
    assert len(table) == 0 and table.next() is None


def test_too_many_drop_those_not_heard_of_for_longest_and_are_counted() -> None:
    table = SeriesTable(2)
    for uid in ("a", "b", "a", "c", "c"):
        table.note(occurrence(uid), 0.0)
    assert [series.first.regarding.uid for series in table.due(0.0)] == ["a", "c"]
    assert table.dropped == 1


def test_a_write_that_failed_comes_again_later_and_one_that_is_refused_never() -> None:
    table = SeriesTable(10)
    table.note(occurrence("a"), 0.0)
    table.note(occurrence("b"), 0.0)
    a, b = table.due(0.0)
    table.failed(a, 0.0, lasting=False)
    table.failed(b, 0.0, lasting=True)
    assert table.due(1.0) == []
    assert table.due(RETRY) == [a]
    assert table.dropped == 1


def test_an_event_is_what_the_api_server_takes() -> None:
    table = SeriesTable(10)
    table.note(occurrence("x" * 253, note="ü" * MAX_NOTE, time="2026-11-20T10:00:00.000000Z"), 0.0)
    body = created(table.due(0.0)[0], "seedquota.io/webhook", "i" * 200)
    assert len(str(body["note"]).encode()) <= MAX_NOTE
    assert len(str(body["reportingInstance"])) == 128
    metadata = body["metadata"]
    assert isinstance(metadata, dict) and metadata["namespace"] == "ns" and len(metadata["name"]) <= 253
    assert body["regarding"] == {
        "apiVersion": "cluster.k8s.io/v1alpha1",
        "kind": "MachineSet",
        "namespace": "ns",
        "name": "x" * 253,
        "uid": "x" * 253,
    }
