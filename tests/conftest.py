"""Which tests run in one process: those of a file, and those that share what takes long to start."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# A machine that is busy with other things is no fault of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Many API servers share few cores: each on one of them needs an eighth less of it.
os.environ.setdefault("GOMAXPROCS", "1")

# Of the tests that share an installation; they take as long as the others.
FIRST_HALF = ("/installed/test_clusters.py", "/installed/test_lives.py")


class BySharedInstallation(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if file.endswith(FIRST_HALF):
            return "installed, first half"
        return "installed, second half" if "/installed/" in file else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BySharedInstallation:
    return BySharedInstallation(config, log)
