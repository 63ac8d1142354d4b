"""When the master must hear of an account."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.api.convert import report_from_wire, report_to_wire
from common.api.types import AccountWait, NamespaceUse, StaleSource, WireReport
from common.quota.account import Account, Ask
from common.quota.escrow import Report
from seed.accounts.publish import (
    BUSY_INTERVAL,
    CHANGES_OF_ONE,
    QUIET_INTERVAL,
    USE_INTERVAL,
    Published,
    Sources,
    pause_after,
    publish_in,
    stale_source,
)
from seed.model.source_key import SourceKey
from seed.usage.source import NOT_LISTED, Problem

SAID = Report(incarnation="life", sequence=7, master="m", granted={"cpu": 8}, used={"cpu": 4})
BEFORE = Published("copy", SAID, Sources(), at=0.0)


def changed(**facts: object) -> Report:
    return msgspec.structs.replace(SAID, sequence=8, **facts)


def after(said: Report = SAID, shown: Report | None = SAID, before: Published | None = BEFORE) -> float | None:
    return publish_in(before, said, Sources(), shown, now=0.0)


def test_what_was_published_and_is_shown_is_not_published_again() -> None:
    assert after() is None
    assert after(changed()) is None  # a write that changed nothing that the master wants to know
    assert after(shown=None) is None


@pytest.mark.parametrize("news", [{"nonce": "n"}, {"returned": {"cpu": 1}}, {"master": "other"}])
def test_what_somebody_waits_for_goes_at_once(news: dict[str, object]) -> None:
    assert after(changed(**news)) == 0.0


def test_use_goes_soon_and_what_moves_no_total_later() -> None:
    assert after(changed(used={"cpu": 5})) == USE_INTERVAL
    assert after(changed(used={"cpu": 3}, reserved={"cpu": 1})) == QUIET_INTERVAL


def published_again_and_again(writes: int, objects: int, late: float = 0.02) -> tuple[list[float], Published, float]:
    """The pauses, the last publication and its time, where the account is written so often between two of them, and so
    many objects are admitted. `late`: by how many seconds each comes later than it may."""
    published, now, pauses = BEFORE, 0.0, []
    for turn in range(5):
        now += published.pause + late
        assert published.report is not None
        said = msgspec.structs.replace(published.report, sequence=published.report.sequence + writes)
        reserved = published.reserved | {("user-1", f"{turn}-{number}") for number in range(objects)}
        pause = pause_after(published, said, reserved, now)
        published = Published("copy", said, Sources(), now, reserved, pause)
        pauses.append(pause)
    return pauses, published, now


def test_objects_that_are_created_one_after_the_other_are_each_reported_soon() -> None:
    pauses, _, _ = published_again_and_again(CHANGES_OF_ONE, objects=1)
    assert pauses == [USE_INTERVAL] * 5


@pytest.mark.parametrize("late", [0.02, 0.15])
@pytest.mark.parametrize(("writes", "objects"), [(CHANGES_OF_ONE + 1, 1), (1, CHANGES_OF_ONE + 1)])
def test_use_that_changes_without_a_pause_is_reported_less_often(writes: int, objects: int, late: float) -> None:
    """Also where one write admits many, and where a slow API server makes all of it slower."""
    pauses, published, now = published_again_and_again(writes, objects, late)
    assert pauses == [0.1, 0.2, BUSY_INTERVAL, BUSY_INTERVAL, BUSY_INTERVAL]
    assert publish_in(published, changed(used={"cpu": 5}), Sources(), SAID, now) == pytest.approx(BUSY_INTERVAL)
    assert publish_in(published, changed(nonce="n"), Sources(), SAID, now) == 0.0, "somebody waits for it"
    assert pause_after(published, changed(), published.reserved, now + 2 * BUSY_INTERVAL) == USE_INTERVAL


def test_what_somebody_waits_for_does_not_make_the_pause_shorter() -> None:
    _, published, now = published_again_and_again(1, objects=48)
    assert pause_after(published, changed(), published.reserved, now + 0.01) == BUSY_INTERVAL


def test_what_an_account_waits_for_next_is_reported_when_it_is_quiet() -> None:
    """In a cold start each of thousands of accounts goes through all of it."""
    waiting = Sources(waits_for=AccountWait(reason="Sources"))
    assert publish_in(BEFORE, SAID, waiting, SAID, now=0.0) == QUIET_INTERVAL
    assert publish_in(BEFORE, SAID, waiting, SAID, now=QUIET_INTERVAL) == 0.0


def test_what_may_not_have_arrived_is_said_again() -> None:
    assert after(before=Published("copy", None, Sources(), at=0.0)) == USE_INTERVAL


def test_an_earlier_report_that_took_the_place_of_the_last_is_overwritten_once_the_watch_has_had_its_time() -> None:
    earlier = msgspec.structs.replace(SAID, sequence=6, nonce="before")
    assert after(shown=earlier) == QUIET_INTERVAL
    assert publish_in(BEFORE, SAID, Sources(), earlier, now=QUIET_INTERVAL) == 0.0


@pytest.mark.parametrize("other", [{"nonce": "before"}, {"used": {"cpu": 9}}])
def test_one_of_before_a_restore_is_overwritten_although_it_has_the_same_number(other: dict[str, object]) -> None:
    assert after(shown=msgspec.structs.replace(SAID, **other)) == QUIET_INTERVAL


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "surge.cpu"]), st.integers(-(10**24), 10**24))
asks = st.builds(Ask, number=st.integers(0, 10**6), first=amounts, wanted=amounts)


@given(
    st.builds(
        Report,
        incarnation=st.just("life"),
        sequence=st.integers(0, 10**9),
        granted=amounts,
        returned=amounts,
        used=amounts,
        reserved=amounts,
        ask=asks,
    )
)
def test_what_the_copy_shows_is_what_was_published(said: Report) -> None:
    wire = msgspec.json.decode(msgspec.json.encode(report_to_wire(said)), type=WireReport)
    assert after(said, report_from_wire(wire), Published("copy", said, Sources(), at=0.0)) is None


@pytest.mark.parametrize(
    ("counted", "used", "never"),
    [(False, {}, True), (False, {"alpha/c1": {}}, False), (True, {}, False)],
)
def test_a_source_without_a_count_here_and_in_the_account_was_never_counted(
    counted: bool, used: dict[str, dict[str, int]], never: bool
) -> None:
    key, problem = SourceKey("alpha/c1"), Problem("Unreachable", "")
    source: Any = SimpleNamespace(key=key, problem=problem, lost_at=10.0, counted=counted, in_namespaces=None)
    account = Account(incarnation="life", used=used)
    assert stale_source(source, "alpha/c1", account, now=140.0) == StaleSource(
        source="alpha/c1", seconds=120, never_counted=never
    )
    source.problem = None
    assert stale_source(source, "alpha/c1", account, now=140.0) is None


def test_which_namespaces_use_the_most_is_published_when_it_is_quiet() -> None:
    """A namespace that moves no total is no reason to hurry, and no total may come without it."""
    lines = (NamespaceUse(cluster="alpha/c1", namespace="web", used={"pods": "1"}),)
    moved = Sources(namespaces=lines)
    assert publish_in(BEFORE, SAID, moved, SAID, now=0.0) == QUIET_INTERVAL
    assert publish_in(BEFORE, SAID, moved, SAID, now=QUIET_INTERVAL) == 0.0
    assert publish_in(Published("copy", SAID, moved, at=0.0), SAID, moved, SAID, now=9.0) is None
    assert publish_in(BEFORE, SAID, Sources(namespaces=lines, unenforced=("alpha/c1",)), SAID, now=0.0) == 0.0


def test_what_cannot_be_listed_is_reported_in_words_and_under_the_clusters_name() -> None:
    problem = Problem(NOT_LISTED, "secrets cannot be listed: forbidden")
    counted = SimpleNamespace(doubtful=lambda _since: None)
    key = SourceKey.of_namespaces("uid", "alpha/c1")
    source: Any = SimpleNamespace(key=key, problem=problem, lost_at=0.0, counted=False, in_namespaces=counted)
    found = stale_source(source, "alpha/c1", Account(incarnation="life"), 125.0)
    assert found == StaleSource(
        source="alpha/c1", seconds=120, never_counted=True, not_listed="secrets cannot be listed: forbidden"
    )
    counted.doubtful = lambda _since: frozenset({"secrets", "configmaps"})
    found = stale_source(source, "alpha/c1", Account(incarnation="life", used={key.text: {"configmaps": 1}}), 125.0)
    assert found == StaleSource(
        source="alpha/c1", seconds=120, never_counted=True, not_listed="secrets: secrets cannot be listed: forbidden"
    )
    found = stale_source(
        source, "alpha/c1", Account(incarnation="life", used={key.text: {"configmaps": 1, "secrets": 2}}), 125.0
    )
    assert found is not None and not found.never_counted, "the last count of both is there"
