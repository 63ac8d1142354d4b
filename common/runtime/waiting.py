"""Waits that have an end: for an event at most so long, for the first of several to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


async def within(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether the event is set within so many seconds; None: waits until it is.

    Unlike `asyncio.wait_for` before Python 3.12, it does not lose a cancellation that comes together with the event.
    """
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def first_of(*work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Runs all of it until the first has ended, cancels the rest, and waits until that has ended, too.

    Returns the task that ended first; of several that did at once, the one that is named first. It raises nothing by
    itself: the task's `result()` does. What the rest returns or raises is dropped. If the caller is cancelled, all is.
    """
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel it and wait for its end. Unlike awaiting the task, this ends when the caller is cancelled."""
    if task is None:
        return
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task failed", extra={"task": task.get_name(), "error": repr(error)})
