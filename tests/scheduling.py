"""How tests are spread over processes: the longest first, and no more at once than the machine can answer."""

from __future__ import annotations

import os
import time
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from devcluster.patience import is_busy

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
    "unit/seed/instance_types/test_outages.py",
    "unit/common/kube/controller/test_spinning.py",
    "unit/seed/test_isolation.py",
    "unit/seed/admission/test_admitter.py",
    "unit/common/server/test_health.py",
    "unit/master/apiserver/test_floods.py",
    "unit/test_supply_chain.py",
)
# Each shares one installation, in one process.
TOGETHER = ("/integration/cluster_api/", "/integration/tenancy/", "/integration/page/")
INSTALLED = "/integration/installed/"  # each process that runs one of these starts an installation for all of them
COMPUTING = ("tests/sim/", "tests/property/", "tests/unit/")  # they fill the time in which others wait
# The last process computes, and two others never wait. The three use 1.3 of two cores. Each further process waits
# before a file until the machine is not busy: on a busy one little is answered in time, and some tests judge less. It
# does not wait before a file that only computes.
STEADY = 2
WAIT_AT_MOST = 180.0  # seconds, if something else keeps the machine busy


def rank(path: Path) -> int:
    name = path.relative_to(Path(__file__).parent).as_posix()
    return next((place for place, start in enumerate(LONGEST) if name.startswith(start)), len(LONGEST))


class BySharedInstallation(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return next((folder for folder in TOGETHER if folder in file), file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """The last process computes, as long as there is something for that. Half of all get an installation, and the
        others what needs none. Each takes anything when there is no more for it, but one that waits takes nothing that
        shares an installation, which nobody would look after meanwhile."""
        having = [one for one, files in self.assigned_work.items() if any(INSTALLED in file for file in files)]
        wanted = node in having or len(having) < max(1, self.numnodes // 2)
        queue = list(self.workqueue)
        if waits(node.gateway.id, self.numnodes):
            queue = [file for file in queue if INSTALLED not in file and file not in TOGETHER]
            if not queue:
                node.shutdown()
                return
        elif self.numnodes > 1 and node.gateway.id == _computing(self.numnodes):
            queue.sort(key=lambda file: not file.startswith(COMPUTING))
        else:
            queue.sort(key=lambda file: (INSTALLED in file) != wanted)
        self.workqueue.move_to_end(queue[0], last=False)
        super()._assign_work_unit(node)


def _computing(processes: int) -> str:
    return f"gw{processes - 1}"


def waits(process: str, processes: int) -> bool:
    return process != _computing(processes) and int(process.removeprefix("gw")) >= STEADY


def wait_while_busy(file: str) -> None:
    """Before the file, in a process that waits."""
    process, processes = os.environ.get("PYTEST_XDIST_WORKER"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    if process is not None and waits(process, int(processes)) and not file.startswith(COMPUTING):
        deadline = time.monotonic() + WAIT_AT_MOST
        while is_busy() and time.monotonic() < deadline:
            time.sleep(1)
