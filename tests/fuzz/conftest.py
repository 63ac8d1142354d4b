"""Seconds as a part of `make test`, minutes by `make fuzz`: EXAMPLES says how many inputs each test tries."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))

settings.register_profile(
    "fuzz", max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.fixture(scope="module", autouse=True)
def _looks_for_garbage_in_little() -> Iterator[None]:
    """What thousands of tests left in this process is looked through at no input's expense: it took half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
