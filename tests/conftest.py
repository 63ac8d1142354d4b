"""How tests are spread over processes: the longest begin first. And what the report of a test that hangs says."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.closed_connections import closed_connections  # noqa: F401 (a fixture of all tests)
from tests.left_running import nothing_left_running  # noqa: F401 (a fixture of all tests)
from tests.waiting_tasks import described

# A machine that is busy with other things is no fault of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Many API servers share few cores: each on one of them needs an eighth less of it, and as much less with more memory
# between two collections of garbage.
os.environ.setdefault("GOMAXPROCS", "1")
os.environ.setdefault("GOGC", "400")

# By folders and files below tests/, those that take longest first. What is not named comes as it is collected.
LONGEST = (
    "integration/page",
    "integration/cluster_api",
    "integration/tenancy",
    "integration/installed/test_redis_programs.py",
    "integration/installed/test_namespaces.py",
    "integration/installed/test_programs.py",
    "integration/installed/test_default_quotas.py",
    "integration/installed/test_lives.py",
    "integration/installed/test_releases.py",
    "integration/installed/test_clusters.py",
    "integration/installed",
    "integration/test_one_cluster.py",
    "chart/test_installation.py",
    "integration/test_master_program.py",
    "chaos/test_chaos.py",
    "integration/test_rights.py",
    "integration/test_move.py",
    "integration/test_http_api.py",
    "fuzz/test_hostile_api.py",
    "integration/test_tutorial.py",
    "integration/test_core_quotas.py",
    "integration/test_webhook_configuration.py",
    "integration/test_namespaces_webhook.py",
    "integration/test_ledger_store.py",
    "integration/test_devcluster.py",
    "chart/test_rules.py",
    "chart/test_gitops.py",
    "chart/test_prometheus.py",
    "integration",
    "sim",
    "chart",
    "property",
)
UNIT = Path(__file__).parent / "unit"
UNIT_SECONDS = 120  # a loop without an end takes all memory before the ten minutes of others are over
# Each shares one installation, in one process.
TOGETHER = ("/integration/cluster_api/", "/integration/tenancy/", "/integration/page/")
INSTALLED = "/integration/installed/"  # each process that runs one of these starts an installation for all of them
COMPUTING = ("tests/sim/", "tests/property/", "tests/unit/")  # they fill the time in which others wait


def _rank(path: Path) -> int:
    name = path.relative_to(Path(__file__).parent).as_posix()
    found = (rank for rank, start in enumerate(LONGEST) if name.startswith(start))
    return next(found, len(LONGEST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))
    for item in items:
        if item.path.is_relative_to(UNIT):
            item.add_marker(pytest.mark.timeout(UNIT_SECONDS))


def pytest_collection_finish() -> None:
    """What is loaded by now stays. To look through it for garbage takes a twentieth of the unit tests."""
    gc.collect()
    gc.freeze()


class BySharedInstallation(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return next((folder for folder in TOGETHER if folder in file), file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """One process computes, as long as there is something for that. Half of all get an installation, and the others
        what needs none. Each takes anything when there is no more for it."""
        having = [one for one, files in self.assigned_work.items() if any(INSTALLED in file for file in files)]
        wanted = node in having or len(having) < max(1, self.numnodes // 2)
        chosen = next((file for file in self.workqueue if (INSTALLED in file) == wanted), None)
        if self.numnodes > 1 and node is self.nodes[0]:
            chosen = next((file for file in self.workqueue if file.startswith(COMPUTING)), chosen)
        if chosen is not None:
            self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BySharedInstallation:
    return BySharedInstallation(config, log)


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
