"""All tests of a process share one event loop: what one of them has left running takes the time of all others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest_asyncio

IDLE_SECONDS = 0.2
MOST = 0.5  # of a core


@pytest_asyncio.fixture(scope="session", autouse=True)
async def nothing_left_running() -> AsyncIterator[None]:
    """A callback that called itself again took a core for all tests after it: more than a quarter of their CPU time."""
    yield
    before = time.thread_time()
    await asyncio.sleep(IDLE_SECONDS)
    assert time.thread_time() - before < MOST * IDLE_SECONDS, "a test has left something that runs without a pause"
