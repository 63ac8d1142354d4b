from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest
import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.kube.client.errors import Conflict, TooManyRequests, Unavailable
from common.kube.controller.controller import Controller
from common.kube.controller.workqueue import AT_ONCE, EARLY, QueueFull, WorkQueue
from tests.running import running
from tests.unit.fake_api_server import eventually


async def test_a_key_added_twice_is_worked_on_once():
    queue = WorkQueue()
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_added_while_worked_on_comes_again_only_afterwards():
    queue = WorkQueue()
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    queue.done(key)
    assert await asyncio.wait_for(waiting, 30) == "a"


async def test_the_earliest_of_several_times_counts():
    queue = WorkQueue()
    loop = asyncio.get_running_loop()
    started = loop.time()
    queue.add_after("a", 500)
    queue.add_after("a", 0.05)
    queue.add_after("a", 300)
    assert await asyncio.wait_for(queue.get(), 30) == "a"
    assert loop.time() - started >= 0.04
    queue.done("a")
    assert queue.known == 0


def test_a_time_that_is_shorter_than_a_tick_of_the_event_loop_is_a_time_as_well():
    """The programs' event loop then makes no timer that can say when it is due."""

    async def first():
        queue = WorkQueue()
        queue.add_after("a", 0.0001)
        queue.add_after("a", 60)
        return await queue.get()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(first()) == "a"


async def test_a_key_added_now_does_not_come_again_for_an_earlier_delay():
    queue = WorkQueue()
    queue.add_after("a", 0.02)
    queue.add("a")
    queue.done(await queue.get())
    await asyncio.sleep(0.05)
    assert len(queue) == 0 and queue.known == 0


async def test_retries_come_later_and_later_up_to_a_cap_until_forgotten():
    queue = WorkQueue(first_backoff=1.0, max_backoff=8.0)
    queue.add("a")
    await queue.get()
    waits = [queue.retry("a") for _ in range(6)]
    for wait, longest in zip(waits, [1, 2, 4, 8, 8, 8], strict=True):
        assert longest / 2 <= wait <= longest
    assert queue.retry("a", at_least=20) == 20
    queue.forget("a")
    assert queue.retry("a") <= 1


async def test_a_full_queue_refuses_new_keys_only():
    queue = WorkQueue(max_keys=2)
    queue.add("a")
    queue.add_after("b", 5)
    with pytest.raises(QueueFull):
        queue.add("c")
    with pytest.raises(QueueFull):
        queue.add_after("c", 1)
    queue.add("b")
    queue.done(await queue.get())
    queue.add("c")


async def test_a_cancelled_worker_takes_no_key_with_it():
    queue = WorkQueue()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 30) == "a"


async def test_keys_whose_time_comes_at_once_come_in_pieces_and_only_once():
    queue, number = WorkQueue(), 3 * AT_ONCE
    most = before = 0

    async def look():
        nonlocal most, before
        while True:
            most, before = max(most, len(queue) - before), len(queue)
            await asyncio.sleep(0)

    for seconds in (0.4, 0.3, 0.2, 0.1):
        for key in range(number):
            queue.add_after(key, seconds)
    async with running(look()), asyncio.timeout(30):
        got = [await queue.get() for _ in range(number)]
    assert sorted(got) == list(range(number))
    assert 0 < most <= AT_ONCE
    await asyncio.sleep(0.4)
    assert queue.known == number == len(queue._working)


async def test_what_is_delayed_again_and_again_leaves_nothing_behind():
    queue = WorkQueue()
    queue.add_after("b", 60.0)
    for number in range(10 * AT_ONCE):
        key = number % 10  # one key that comes too often would have to wait
        queue.add_after(key, 60.0)
        queue.add(key)
        queue.done(await queue.get())
    assert len(queue._times) <= 2 * AT_ONCE
    assert set(queue._delayed) == {"b"}


class QueueMachine(RuleBasedStateMachine):
    """Against a model: what is owed work, and what is being worked on."""

    keys = st.integers(0, 4)

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.now = self.loop.time()
        self.loop.time = lambda: self.now
        self.queue = WorkQueue(max_keys=4, first_backoff=100.0)
        self.owed: set[int] = set()
        self.later: set[int] = set()
        self.working: set[int] = set()

    def teardown(self):
        self.loop.close()

    def call(self, function, *args):
        async def inside():
            return function(*args)

        return self.loop.run_until_complete(inside())

    @rule(key=keys)
    def add(self, key):
        known = self.owed | self.later | self.working
        if key not in known and len(known) == 4:
            with pytest.raises(QueueFull):
                self.call(self.queue.add, key)
            return
        self.call(self.queue.add, key)
        self.owed.add(key)
        self.later.discard(key)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def fail(self, data):
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.call(self.queue.retry, key)
        if key not in self.owed:
            self.later.add(key)

    @precondition(lambda self: self.later)
    @rule(data=st.data())
    def time_comes(self, data):
        key = data.draw(st.sampled_from(sorted(self.later)))
        times = dict(self.queue._delayed)
        self.now = max(self.now, times[key])
        due = {each for each, when in times.items() if when <= self.now + EARLY}
        self.call(lambda: None)
        self.later -= due
        self.owed |= due

    @precondition(lambda self: self.later)
    @rule(data=st.data(), seconds=st.floats(0.01, 100.0))
    def earlier(self, data, seconds):
        self.call(self.queue.add_after, data.draw(st.sampled_from(sorted(self.later))), seconds)

    @precondition(lambda self: self.owed - self.working)
    @rule()
    def get(self):
        key = self.loop.run_until_complete(asyncio.wait_for(self.queue.get(), 30))
        assert key in self.owed and key not in self.working
        self.owed.discard(key)
        self.working.add(key)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def done(self, data):
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.call(self.queue.done, key)
        self.working.discard(key)

    @invariant()
    def nothing_is_lost_or_invented(self):
        assert len(self.queue) == len(self.owed - self.working)
        assert self.queue.known == len(self.owed | self.later | self.working)
        assert set(self.queue._delayed) == self.later
        assert not self.later or self.queue._timer_at <= min(self.queue._delayed.values())
        assert set(self.queue._failures) <= self.owed | self.later | self.working


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=30)


async def run_controller(controller, until, timeout=30.0):
    running = asyncio.create_task(controller.run())
    try:
        await eventually(until, timeout)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_controller_never_works_on_one_key_twice_at_the_same_time():
    active, most, count = {}, {}, 0

    async def reconcile(key):
        nonlocal count
        active[key] = active.get(key, 0) + 1
        most[key] = max(most.get(key, 0), active[key])
        await asyncio.sleep(0.001)
        active[key] -= 1
        count += 1
        if count < 60:
            controller.queue.add(key)

    controller = Controller("test", reconcile, workers=8)
    for key in range(5):
        controller.queue.add(key)
    await run_controller(controller, lambda: count >= 60)
    assert set(most.values()) == {1}


async def test_a_controller_comes_again_when_asked_to():
    calls = []

    async def reconcile(key):
        calls.append(key)
        return 0.01 if len(calls) < 3 else None

    controller = Controller("test", reconcile)
    controller.queue.add("a")
    await run_controller(controller, lambda: len(calls) == 3 and controller.queue.known == 0)


async def test_failures_are_logged_retried_and_counted(caplog):
    errors = [
        Conflict(409, "Conflict", "changed"),
        Unavailable(0, "Unavailable", "away"),
        TooManyRequests(429, "TooManyRequests", "busy", 0.1),
        RuntimeError("a bug"),
        "hang",
    ]
    results = []

    async def reconcile(key):
        if not errors:
            return
        error = errors.pop(0)
        if error == "hang":
            await asyncio.sleep(60)
        raise error

    controller = Controller(
        "test",
        reconcile,
        timeout=0.05,
        queue=WorkQueue(first_backoff=0.001),
        on_reconcile=lambda name, result, seconds: results.append((name, result)),
    )
    controller.queue.add("a")
    with caplog.at_level(logging.INFO):
        await run_controller(controller, lambda: ("test", "ok") in results)
    assert results == [("test", "error")] * 5 + [("test", "ok")]
    assert [(r.levelname, r.error, r.failures, r.key) for r in caplog.records] == [
        ("INFO", "changed", 1, "a"),
        ("WARNING", "away", 2, "a"),
        ("WARNING", "busy", 3, "a"),
        ("ERROR", "a bug", 4, "a"),
        ("WARNING", "not done within 0.05 s", 5, "a"),
    ]
    assert caplog.records[2].again_in_seconds >= 0.1, "the server said when to come again"
    assert controller.queue.failures("a") == 0


async def test_cancelling_ends_what_is_under_way():
    begun, ended = asyncio.Event(), []

    async def reconcile(key):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(key)
            raise

    controller = Controller("test", reconcile)
    controller.queue.add("a")
    running = asyncio.create_task(controller.run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["a"]
