from __future__ import annotations

import subprocess
import sys

import pytest

from common import account as accounts
from tests.sim.world import SeedState, Violation, World, run

SCHEDULES = 1500


def test_no_schedule_breaks_the_promise() -> None:
    admitted = refused = 0
    for number in range(SCHEDULES):
        try:
            world = run(number)
        except AssertionError as error:
            raise AssertionError(f"{error}; again: python -m tests.sim --seed {number}") from error
        admitted += sum(seed.admitted for seed in world.seeds.values())
        refused += sum(seed.refused for seed in world.seeds.values())
    assert admitted > 5 * SCHEDULES
    assert refused > SCHEDULES


def test_a_schedule_is_known_by_its_number() -> None:
    first, again, other = run(7), run(7), run(8)
    assert first.seeds == again.seeds
    assert first.ledger == again.ledger
    assert first.seeds != other.seeds


def test_a_release_without_the_in_flight_window_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(_world: World, seed: SeedState) -> None:
        absent = {uid: kept for uid, kept in seed.account.reservations.items() if uid not in seed.objects}
        seed.account = accounts.release(seed.account, seed.account.epoch, absent)

    monkeypatch.setattr(World, "release", hasty)
    with pytest.raises(Violation, match="admitted, the limit is"):
        for number in range(300):
            run(number)


def test_a_recall_that_forgets_what_was_not_received_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "obey", lambda account, grant: accounts.give_back(account, grant.recall))
    with pytest.raises(Violation, match="refused"):
        for number in range(300):
            run(number)


def test_a_failing_schedule_can_be_run_again_by_hand() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seed", "7"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("schedule 7: admitted ")
