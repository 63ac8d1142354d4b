"""Errors that nobody expected of one of many: they are counted and logged, and the others go on.

Whatever a tenant, a cluster or a seed sends may make code fail in a way that its author did not think of. What is done
for one of them runs in `contained`, and what runs all the time in `kept_running`. Errors that are expected are caught
where they arise. Nothing here says that the failed work is done: who calls it does not take it for done, either.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from common.runtime import metrics
from common.runtime.token_bucket import TokenBucket

log = logging.getLogger(__name__)

LOGGED_PER_SECOND = 0.1  # with a traceback, of each part; each is counted
LOGGED_AT_ONCE = 10
FIRST_PAUSE = 1.0  # seconds before what failed is run again; twice as long after each failure ...
LONGEST_PAUSE = 60.0  # ... up to this; what ran for so long begins anew with the first

_buckets: dict[str, TokenBucket] = {}


def note(part: str) -> bool:
    """Counts one. Whether there is room for it in the log. `part`: of the program; there are not many."""
    metrics.unexpected(part)
    bucket = _buckets.setdefault(part, TokenBucket(LOGGED_PER_SECOND, LOGGED_AT_ONCE))
    return bucket.take(time.monotonic())


def is_contained(error: BaseException) -> bool:
    """Not the end of the program or of the task. That only something was cancelled which the task waits for is not."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, Exception)


def tell(part: str, whose: str, error: BaseException) -> None:
    if note(part):
        log.error("unexpected error", exc_info=error, extra={"part": part, "whose": whose})


class contained:  # noqa: N801 (a context manager, used as a statement)
    """What is done for one of many, `whose`: an Exception ends that alone. `error` is that afterwards.

    It is for the outermost edge: what catches a narrower error is inside.
    """

    def __init__(self, part: str, whose: str = "") -> None:
        self.error: BaseException | None = None
        self._part = part
        self._whose = whose

    @property
    def failed(self) -> bool:
        return self.error is not None

    def __enter__(self) -> contained:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        if error is None or not is_contained(error):
            return False
        self.error = error
        tell(self._part, self._whose, error)
        return True


def kept_task(
    part: str, work: Callable[[], Awaitable[None]], whose: str = "", *, ends: tuple[type[Exception], ...] = ()
) -> asyncio.Task[None]:
    """`kept_running`, beside the caller."""
    name = f"{part} of {whose}" if whose else part
    return asyncio.create_task(kept_running(part, work, whose=whose, ends=ends), name=name)


async def kept_running(
    part: str, work: Callable[[], Awaitable[None]], *, whose: str = "", ends: tuple[type[Exception], ...] = ()
) -> None:
    """Runs the work again, after a pause, when it fails; not after one of `ends`, which it raises."""
    failures = 0
    while True:
        began = time.monotonic()
        try:
            await work()
            return
        except BaseException as error:
            if isinstance(error, ends) or not is_contained(error):
                raise
            if isinstance(error, BaseExceptionGroup) and error.subgroup(ends) is not None:
                raise
            tell(part, whose, error)
        failures = failures + 1 if time.monotonic() - began < LONGEST_PAUSE else 1
        await asyncio.sleep(min(FIRST_PAUSE * 2.0 ** min(failures - 1, 30), LONGEST_PAUSE))
