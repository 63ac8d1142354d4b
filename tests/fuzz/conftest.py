"""Seconds as a part of `make test`, minutes by `make fuzz`: EXAMPLES says how many inputs each test tries."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))

settings.register_profile(
    "fuzz", max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.fixture(scope="module", autouse=True)
def _no_garbage_of_other_tests() -> None:
    """To look through what thousands of tests have left in this process took half a second of one input's CPU time."""
    gc.collect()
    gc.freeze()  # as in tests/conftest.py
