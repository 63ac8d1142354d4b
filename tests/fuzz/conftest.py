"""Seconds as a part of `make test`, minutes by `make fuzz`: EXAMPLES says how many inputs each test tries."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))

settings.register_profile(
    "fuzz", max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.fixture(scope="module", autouse=True)
def _measured_alone(no_garbage_of_other_tests: None) -> None:
    """To look through garbage of others took half a second of one input's CPU time."""
