"""When the master must hear of an account."""

from __future__ import annotations

import msgspec
import pytest

from common.grants import Report
from seed.accounts import QUIET_INTERVAL, USE_INTERVAL, Published, Sources, publish_in

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


def test_what_may_not_have_arrived_is_said_again() -> None:
    assert after(before=Published("copy", None, Sources(), at=0.0)) == USE_INTERVAL


def test_an_earlier_report_that_took_the_place_of_the_last_is_overwritten_once_the_watch_has_had_its_time() -> None:
    earlier = msgspec.structs.replace(SAID, sequence=6, nonce="before")
    assert after(shown=earlier) == QUIET_INTERVAL
    assert publish_in(BEFORE, SAID, Sources(), earlier, now=QUIET_INTERVAL) == 0.0
