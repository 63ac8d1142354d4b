"""When a deadline has passed: later on a machine that is busy, and there not for ever."""

from __future__ import annotations

import os
import time

import pytest

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
