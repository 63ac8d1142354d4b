"""Seconds as a part of `make test`, minutes by `make fuzz`: EXAMPLES says how many inputs each test tries."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))
MAX_GROWTH = 200 * 2**20  # bytes of the process, for all inputs of a file

settings.register_profile(
    "fuzz", max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.fixture(scope="module", autouse=True)
def bounded() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MAX_GROWTH, f"{grown // 2**20} MiB"
