"""A key that calls for itself again and again, without a wait, takes no time from others, in any controller."""

from __future__ import annotations

import ast
import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from prometheus_client import REGISTRY

from common.kube.controller import workqueue
from common.kube.controller.controller import Controller
from common.kube.controller.workqueue import WorkQueue
from master.notifications.controller import Notifications
from master.quotas.controller import Quotas
from master.quotas.status_writer import StatusWriter
from master.reporting.seed_status import SeedStatuses
from master.reporting.tenant_status import Tenants
from master.seeds.replicator import CopySync
from master.seeds.status_publisher import Publisher
from master.tenancy.default_quotas import DefaultQuotas
from master.tenancy.kubermatic_projects import KubermaticProjects
from master.tenancy.organization_namespaces import OrganizationNamespaces
from master.tenancy.quota_allocations import QuotaAllocations
from seed.accounts.controller import Accounts
from seed.controllers.user_clusters import UserClusters
from tests.unit.fake_api_server import eventually

ROOT = Path(__file__).parents[5]
OWNERS: tuple[Callable[..., Any], ...] = (
    Accounts,
    CopySync,
    DefaultQuotas,
    KubermaticProjects,
    Notifications,
    OrganizationNamespaces,
    Publisher,
    QuotaAllocations,
    Quotas,
    SeedStatuses,
    StatusWriter,
    Tenants,
    UserClusters,
)
SPIN = 1.0  # seconds


def made(owner: Callable[..., Any]) -> list[Controller[Any]]:
    needed = (each for each in inspect.signature(owner).parameters.values() if each.default is inspect.Parameter.empty)
    arguments = {each.name: MagicMock() for each in needed}
    found = [value for value in vars(owner(**arguments)).values() if isinstance(value, Controller)]
    assert found
    return found


@asynccontextmanager
async def running(controller: Controller[Any]) -> AsyncIterator[None]:
    task = asyncio.create_task(controller.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def spin(controller: Controller[Any]) -> list[float]:
    """Makes it reconcile by what never waits, and adds its key again. Returns when its turns were."""
    turns: list[float] = []

    async def reconcile(key: str) -> None:
        assert len(turns) < 100_000, "the loop is not given back: the test itself would hang"
        turns.append(time.monotonic())
        controller.queue.add(key)

    controller._reconcile = reconcile
    controller.queue.add("spins")
    return turns


async def beats(seconds: float) -> list[float]:
    """How late each wait of a millisecond was, of at least twenty."""
    late: list[float] = []
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until or len(late) < 20:
        await asyncio.sleep(0.001)
        late.append(time.monotonic() - began - 0.001)
    return late


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner.__name__)
async def test_a_key_that_always_calls_for_itself_leaves_the_loop_to_others(
    owner: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "WINDOW", 600.0)
    for controller in made(owner):
        turns = spin(controller)
        began = time.monotonic()
        async with running(controller):
            await eventually(lambda turns=turns: len(turns) > workqueue.OFTEN)  # with pauses it takes 50 s
            await beats(SPIN)
        most = workqueue.OFTEN + (time.monotonic() - began) / workqueue.PAUSE
        assert workqueue.OFTEN < len(turns) <= most + 2, "at once after quiet, then now and then"


def test_each_controller_is_tried_here() -> None:
    places = set()
    for program in ("common", "master", "seed"):
        for path in (ROOT / program).rglob("*.py"):
            calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            if any(isinstance(call.func, ast.Name) and call.func.id == "Controller" for call in calls):
                places.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert places == {owner.__module__ for owner in OWNERS}


async def test_what_is_kept_busy_for_one_seed_delays_no_other() -> None:
    """Each seed has its own controllers. Here a thousand keys of one of them call for themselves."""
    busy, quiet = made(CopySync)[0], made(CopySync)[0]
    done: list[float] = []

    async def spins(key: str) -> None:
        until = time.thread_time() + 0.0002  # of work
        while time.thread_time() < until:
            pass
        busy.queue.add(key)

    async def answers(_key: str) -> None:
        done.append(time.thread_time())  # what else the machine does is not counted

    busy._reconcile, quiet._reconcile = spins, answers
    async with running(busy), running(quiet):
        for number in range(1000):
            busy.queue.add(f"quota-{number}")
        latencies = []
        for number in range(50):
            began = time.thread_time()
            quiet.queue.add(f"quota-{number}")
            await eventually(lambda number=number: len(done) > number)
            latencies.append(done[-1] - began)
        assert sorted(latencies)[25] < 0.05, (
            "a turn of each of the busy workers, not of each of its thousand keys (0.2 s)"
        )


async def test_changes_of_one_key_are_not_put_off_and_one_that_never_ends_is_named_and_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "OFTEN", 100)  # each turn is waited for here
    monkeypatch.setattr(workqueue, "WINDOW", 600.0)
    turns: list[str] = []

    async def reconcile(key: str) -> None:
        turns.append(key)

    def throttled() -> float:
        return REGISTRY.get_sample_value("seedquota_workqueue_throttled_total", {"controller": "often"}) or 0.0

    before = throttled()
    controller = Controller("often", reconcile)
    async with running(controller):
        for number in range(workqueue.OFTEN):
            controller.queue.add("burst")
            await eventually(lambda number=number: len(turns) > number)
        assert throttled() == before
        for number in range(workqueue.OFTEN, workqueue.OFTEN + 5):
            controller.queue.add("burst")
            controller.queue.add("other")
            await eventually(lambda number=number: turns.count("burst") > number)
        assert throttled() == before + 5
    assert turns.count("other") == 5, "another key is not delayed by it"
    (warning,) = (record for record in caplog.records if record.getMessage() == "key is reconciled too often")
    assert vars(warning)["key"] == "burst"


async def test_after_quiet_a_key_is_handled_at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(workqueue, "time", MagicMock(monotonic=lambda: clock[0]))
    queue = WorkQueue[str]()
    often: list[str] = []
    queue.on_often = often.append
    for _ in range(workqueue.OFTEN):
        queue.add("a")
        queue.done(await queue.get())
    clock[0] += workqueue.WINDOW
    queue.add("a")
    assert len(queue) == 1 and often == []
    assert queue._turns == {}, "what was counted before takes no memory any more"


async def test_turns_of_keys_that_came_and_went_are_bounded() -> None:
    queue = WorkQueue[int](max_keys=50)
    for number in range(1000):
        queue.add(number)
        queue.done(await queue.get())
    assert len(queue._turns) <= 51


async def test_a_worker_does_not_end_because_what_it_waited_for_was_cancelled() -> None:
    """Else one after another would end, and nobody would know."""
    done: list[str] = []

    async def reconcile(key: str) -> None:
        if key != "good":
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone
        done.append(key)

    controller = Controller("stray", reconcile, workers=2)
    async with running(controller):
        for number in range(4):
            controller.queue.add(f"cancelled-{number}")
        await eventually(lambda: controller.queue.failures("cancelled-3") > 0)
        controller.queue.add("good")
        await eventually(lambda: done == ["good"])
