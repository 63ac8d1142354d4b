from __future__ import annotations

from master.quotas.publish_delay import LATELY, PROMPT, ROUND, ROUND_PER_SEED, WAITING, publish_delay


def test_mere_changes_come_the_more_seldom_the_more_seeds_there_are() -> None:
    assert publish_delay(None, 0.0, 1) == ROUND
    assert publish_delay(None, 0.0, 1000) == 1000 * ROUND_PER_SEED
    assert publish_delay(None, 1000.0, 1000) == 1000 * ROUND_PER_SEED / 2


def test_who_was_refused_lately_hears_at_once_that_use_has_fallen() -> None:
    assert publish_delay(0.0, 0.0, 1000) == PROMPT
    assert publish_delay(LATELY, 0.0, 1000) > PROMPT


def test_a_controller_that_waits_out_its_pause_is_not_kept_longer_by_many_seeds() -> None:
    assert publish_delay(LATELY, 0.0, 1000) == ROUND
    assert publish_delay(WAITING, 0.0, 1000) == 1000 * ROUND_PER_SEED
