"""What all tests share: their order and processes, and what the report of one that hangs says."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.closed_connections import closed_connections  # noqa: F401 (a fixture of all tests)
from tests.left_running import nothing_left_running  # noqa: F401 (a fixture of all tests)
from tests.scheduling import BySharedInstallation, rank, wait_while_busy
from tests.waiting_tasks import described

# A machine that is busy with other things is no fault of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Many API servers share few cores: each on one of them needs an eighth less of it, and as much less with more memory
# between two collections of garbage.
os.environ.setdefault("GOMAXPROCS", "1")
os.environ.setdefault("GOGC", "400")

UNIT = Path(__file__).parent / "unit"
UNIT_SECONDS = 120  # a loop without an end takes all memory before the ten minutes of others are over


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.path))
    for item in items:
        if item.path.is_relative_to(UNIT):
            item.add_marker(pytest.mark.timeout(UNIT_SECONDS))


def pytest_collection_finish() -> None:
    """What is loaded by now stays. To look through it for garbage takes a twentieth of the unit tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def no_garbage_of_other_tests() -> None:
    """What thousands of tests have left in this process is not looked through by those that measure or count it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BySharedInstallation:
    return BySharedInstallation(config, log)


_began: list[Path] = []  # the file that this process is at


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if [item.path] != _began:
        _began[:] = [item.path]
        wait_while_busy(item.nodeid)
    return (yield)


_failed: dict[Path, str] = {}  # the first test of a file that failed


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("steps") is not None and item.path in _failed:
        pytest.xfail(f"it goes on from what {_failed[item.path]} left, which failed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        _failed.setdefault(item.path, item.name)
    loops = getattr(item, "funcargs", {}).get("_session_scoped_runner")
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value) and loops is not None:
        report.sections.append(("Tasks that wait", described(asyncio.all_tasks(loops.get_loop()))))
    return report
