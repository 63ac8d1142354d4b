"""Workers that reconcile keys from a queue, again and again until it goes well."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from common.kube.client.errors import ApiError, Conflict
from common.kube.controller.workqueue import WorkQueue
from common.runtime import metrics, unexpected
from common.runtime.token_bucket import TokenBucket

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

OFTEN_LOGGED = 1 / 60  # a second, of each controller

# (controller, "ok" | "error", seconds)
ReconcileHook = Callable[[str, str, float], None]


class Controller(Generic[K]):
    """`reconcile(key)` returns in how many seconds it wants to see the key again, or None.

    What it raises is logged, and the key comes again after a backoff. `timeout` is in seconds for one reconcile.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = 4,
        timeout: float = 60.0,
        queue: WorkQueue[K] | None = None,
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = queue if queue is not None else WorkQueue()
        metrics.watch_queue(name, self.queue)
        self.queue.on_often = self._note_often
        self._often_logged = TokenBucket(OFTEN_LOGGED, 1)
        self._reconcile = reconcile
        self._workers = workers
        self._timeout = timeout
        self._on_reconcile = on_reconcile

    async def run(self) -> None:
        """Works until cancelled, which also ends what is under way."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name}-{number}")

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._reconcile_once(key)
            finally:
                self.queue.done(key)

    async def _reconcile_once(self, key: K) -> None:
        started = time.monotonic()
        result = "error"
        deadline = asyncio.timeout(self._timeout)
        try:
            async with deadline:
                again = await self._reconcile(key)
            result = "ok"
            self.queue.forget(key)
            if again is not None:
                self.queue.add_after(key, again)
        except Conflict as error:
            self._failed(key, error, logging.INFO)  # someone else was faster: all in a day's work
        except ApiError as error:
            self._failed(key, error, logging.WARNING)
        except TimeoutError as error:
            late = f"not done within {self._timeout:g} s"
            self._failed(key, TimeoutError(late) if deadline.expired() else error, logging.WARNING)
        except asyncio.CancelledError as error:
            if not unexpected.is_contained(error):
                raise
            self._failed(key, error, logging.ERROR)  # else this worker would end, and nobody would know
        except Exception as error:  # noqa: BLE001 (the worker's outermost edge; logged in _failed)
            self._failed(key, error, logging.ERROR)
        finally:
            if self._on_reconcile is not None:
                self._on_reconcile(self.name, result, time.monotonic() - started)

    def _note_often(self, key: K) -> None:
        metrics.throttled(self.name)
        if self._often_logged.take(time.monotonic()):
            log.warning("key is reconciled too often", extra={"controller": self.name, "key": str(key)})

    def _failed(self, key: K, error: BaseException, level: int) -> None:
        at_least = error.retry_after or 0.0 if isinstance(error, ApiError) else 0.0
        seconds = self.queue.retry(key, at_least)
        log.log(
            level,
            "reconcile failed",
            exc_info=error if level >= logging.ERROR and unexpected.note(self.name) else None,
            extra={
                "controller": self.name,
                "key": str(key),
                "error": str(error) or type(error).__name__,
                "failures": self.queue.failures(key),
                "again_in_seconds": round(seconds, 3),
            },
        )
