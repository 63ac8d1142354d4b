"""Seconds as a part of `make test`, minutes by `make fuzz`: EXAMPLES says how many inputs each test tries."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))

settings.register_profile(
    "fuzz", max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
