"""When a deadline has passed: later on a machine that is busy, and there not for ever."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from devcluster import patience
from devcluster.patience import BUSY, LONGER, Deadline

SECONDS = 30.0


@pytest.mark.parametrize(
    ("waited", "load", "passed"),
    [
        (SECONDS - 1, 0.1, False),
        (SECONDS + 1, 0.1, True),
        (SECONDS + 1, BUSY + 1, False),
        (LONGER * SECONDS - 1, BUSY + 1, False),
        (LONGER * SECONDS + 1, BUSY + 1, True),
    ],
)
def test_a_deadline_is_later_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, waited: float, load: float, passed: bool
) -> None:
    """`load`: for each core."""
    deadline, began = Deadline(SECONDS), time.monotonic()
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: began + waited)
    assert deadline.passed() is passed


@pytest.mark.parametrize(("load", "longer"), [(0.1, LONGER), (BUSY + 1, 2.0)])
async def test_a_timeout_ends_at_once_where_the_machine_is_idle_and_later_where_it_is_busy(
    monkeypatch: pytest.MonkeyPatch, load: float, longer: float
) -> None:
    monkeypatch.setattr(patience, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(patience, "LONGER", longer)
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with patience.patient_timeout(0.2):
            await asyncio.Event().wait()
    assert time.monotonic() - began >= (0.4 if load > BUSY else 0.2)


async def test_on_a_busy_machine_what_comes_late_is_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LONGER", 1000.0)
    monkeypatch.setattr(os, "getloadavg", lambda: ((BUSY + 1) * (os.cpu_count() or 1), 0.0, 0.0))
    async with patience.patient_timeout(0.05):
        await asyncio.sleep(0.2)
