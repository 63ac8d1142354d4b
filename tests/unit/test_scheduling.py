"""How tests are spread over processes (tests/scheduling.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from xdist.remote import Producer
from xdist.workermanage import WorkerController

from tests import scheduling
from tests.scheduling import COMPUTING, INSTALLED, TOGETHER, BySharedInstallation

PAGE = ["tests/integration/page/test_a.py", "tests/integration/page/test_b.py"]
SHARED = [f"tests/integration/installed/test_{number}.py" for number in range(12)]
ALONE = [f"tests/integration/test_{number}.py" for number in range(12)]
UNIT = [f"tests/unit/test_{number}.py" for number in range(12)]
TESTS = [f"{file}::test_{name}" for file in [*PAGE, *SHARED, *ALONE, *UNIT] for name in "abc"]


class Process:
    """It runs what it is sent, one after the other."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.sent: list[int] = []

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def ran(processes: int) -> list[list[str]]:
    """The tests of each process, where all take equally long."""
    option = SimpleNamespace(loadscopereorder=False)
    config = SimpleNamespace(getvalue=lambda _: ["popen"] * processes, option=option)
    scheduler = BySharedInstallation(cast(pytest.Config, config), Producer("test", enabled=False))
    nodes = [Process(number) for number in range(processes)]
    for node in nodes:
        scheduler.add_node(cast(WorkerController, node))
        scheduler.add_node_collection(cast(WorkerController, node), TESTS)
    scheduler.schedule()
    for turn in range(len(TESTS)):
        for node in nodes:
            if turn < len(node.sent):
                scheduler.mark_test_complete(cast(WorkerController, node), node.sent[turn])
    return [[TESTS[index] for index in node.sent] for node in nodes]


@pytest.mark.parametrize("processes", [1, 2, 3, 5, 8])
def test_each_test_is_run_once_and_what_shares_an_installation_in_one_process(processes: int) -> None:
    done = ran(processes)
    assert sorted(test for tests in done for test in tests) == sorted(TESTS)
    assert len([tests for tests in done if any(TOGETHER[-1] in test for test in tests)]) == 1


@pytest.mark.parametrize("processes", [2, 3, 5, 8])
def test_the_last_process_computes_first_and_another_has_an_installation(processes: int) -> None:
    done = ran(processes)
    assert done[-1][0].startswith(COMPUTING)
    assert INSTALLED in done[0][0]


def test_of_three_processes_one_alone_computes_and_one_alone_has_an_installation_until_nothing_else_is_left() -> None:
    for tests, mine in zip(ran(3), (SHARED, ALONE, UNIT), strict=True):
        assert [test for test in tests[: 3 * len(mine)] if test.split("::", 1)[0] not in {*mine, *PAGE}] == []


@pytest.mark.parametrize("processes", [5, 8])
def test_whoever_waits_while_the_machine_is_busy_shares_no_installation(processes: int) -> None:
    for tests in ran(processes)[scheduling.STEADY : -1]:
        assert tests
        assert [test for test in tests if INSTALLED in test or "/page/" in test] == []


@pytest.mark.parametrize(
    ("process", "file", "waits"),
    [
        ("gw0", ALONE[0], False),
        ("gw1", ALONE[0], False),
        ("gw2", ALONE[0], True),
        ("gw2", UNIT[0], False),
        ("gw4", ALONE[0], False),
    ],
)
def test_a_process_beyond_the_first_begins_when_the_machine_is_not_busy_or_after_a_while(
    monkeypatch: pytest.MonkeyPatch, process: str, file: str, waits: bool
) -> None:
    slept: list[float] = []
    began = time.monotonic()
    monkeypatch.setenv("PYTEST_XDIST_WORKER", process)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "5")
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: began + sum(slept))
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0 if len(slept) < 7 else 0.0, 0.0, 0.0))
    scheduling.wait_while_busy(file)
    assert len(slept) == (7 if waits else 0)
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0, 0.0, 0.0))
    scheduling.wait_while_busy(file)
    assert sum(slept) == (7 + scheduling.WAIT_AT_MOST if waits else 0)
