from __future__ import annotations

import asyncio
import time

from common.runtime.stalls import WINDOW_SECONDS, Stalls
from tests.cpu import no_garbage_collection
from tests.unit.fake_api_server import eventually


async def test_a_stall_of_the_event_loop_is_seen() -> None:
    stalls = Stalls()
    stalls.start(asyncio.get_running_loop())
    try:
        with no_garbage_collection():
            await asyncio.sleep(0.05)
            time.sleep(0.3)
            await eventually(lambda: stalls.longest() > 0.2)
        assert stalls.busiest() < 0.2
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass
        await eventually(lambda: stalls.busiest() >= 0.2)
    finally:
        stalls.stop()


def test_the_longest_is_shown_for_a_minute_at_least_and_two_at_most() -> None:
    stalls = Stalls()
    stalls.note(0.5, 0.3, 1.0)
    stalls.note(0.1, 0.4, WINDOW_SECONDS - 1)
    assert stalls.longest() == 0.5
    stalls.note(0.1, 0.4, WINDOW_SECONDS + 1)
    assert stalls.longest() == 0.5
    stalls.note(0.2, 0.1, 2 * WINDOW_SECONDS + 2)
    assert (stalls.longest(), stalls.busiest()) == (0.2, 0.4)
