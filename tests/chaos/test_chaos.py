"""A short storm over real processes. `make chaos` is the long one."""

from __future__ import annotations

import shutil

import pytest

from tests.chaos.faults import plan
from tests.chaos.run import run

pytestmark = pytest.mark.integration

SECONDS = 7.0
SEED = 2976  # a master and an agent are killed, a seed is cut off, and the master's cluster is restored meanwhile


def test_a_plan_is_drawn_from_its_seed_and_ends_in_time() -> None:
    faults = plan(SEED, 900.0, "redis")
    assert faults == plan(SEED, 900.0, "redis")
    assert faults != plan(SEED + 1, 900.0, "redis")
    assert [fault for fault in faults if fault.at + fault.seconds > 900.0] == []
    assert len({fault.kind for fault in faults}) > 15


async def test_a_short_storm_overdraws_nothing_and_leaves_nothing_behind(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("chaos")
    report = await run(seconds=SECONDS, store="apiserver", seed=SEED, directory=directory)
    assert report.violations == [], report.table()
    for counts in (report.requests, report.inside, report.allocations):
        assert counts["admitted"] > 0, report.table()
    assert report.faults.total() > 2, report.table()
    shutil.rmtree(directory)
