"""Threads for blocking work that a tenant can slow down, such as a lookup of a host name that the tenant chose.

The platform's own blocking work has the event loop's threads, which nothing here takes. A thread cannot be ended from
outside, so what never ends keeps its place. A user cluster has one place, and those of a namespace have half of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

MAX_WAITING = 16_384  # pieces of work; each is a waiting task of its caller

T = TypeVar("T")


class NotDoneError(Exception):
    """It was not done in time, or too much waits. It may be done later."""


@dataclass(eq=False)
class _Work:
    cluster: str
    call: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.done = self.loop.create_future()

    @property
    def namespace(self) -> str:
        return self.cluster.rpartition("/")[0] or self.cluster


class TenantThreads:
    """At most `places` threads at a time. They do not delay the end of the process."""

    def __init__(self, name: str, *, places: int, seconds: float) -> None:
        """`seconds`: the longest time from `run` to its result."""
        self._name = name
        self._places = places
        self._seconds = seconds
        self._lock = threading.Lock()  # of what follows, since threads change it when they end
        self._waiting: dict[_Work, None] = {}  # in their order
        self._clusters: Counter[str] = Counter()  # how many threads work for each
        self._namespaces: Counter[str] = Counter()

    async def run(self, cluster: str, call: Callable[[], T]) -> T:
        """What `call` returns or raises in a thread. `cluster`: for whom, as namespace/name. Raises NotDoneError."""
        work = _Work(cluster, call, asyncio.get_running_loop())
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                raise NotDoneError("too much waits to be done")
            self._waiting[work] = None
            self._start()
        try:
            async with asyncio.timeout(self._seconds):
                result: T = await work.done
                return result
        except TimeoutError:
            if work.done.done() and not work.done.cancelled():
                raise  # it is what the work itself failed with
            raise NotDoneError(f"not done within {self._seconds:g} s") from None
        finally:
            with self._lock:
                self._waiting.pop(work, None)

    def _start(self) -> None:
        """All that may begin now. The lock is held."""
        for work in list(self._waiting):
            if self._clusters.total() >= self._places:
                return
            if self._clusters[work.cluster] or self._namespaces[work.namespace] >= max(self._places // 2, 1):
                continue
            del self._waiting[work]
            self._clusters[work.cluster] += 1
            self._namespaces[work.namespace] += 1
            threading.Thread(target=self._do, args=(work,), name=self._name, daemon=True).start()

    def _do(self, work: _Work) -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = work.call()
        except BaseException as error:  # noqa: BLE001 (it is raised where the result is awaited)
            failure = error
        with self._lock:
            for counter, key in ((self._clusters, work.cluster), (self._namespaces, work.namespace)):
                counter[key] -= 1
                if not counter[key]:
                    del counter[key]
            self._start()
        with suppress(RuntimeError):  # the event loop is closed: nobody waits
            work.loop.call_soon_threadsafe(_tell, work.done, result, failure)


def _tell(done: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if done.done():
        return  # nobody waits any more
    if failure is not None:
        done.set_exception(failure)
    else:
        done.set_result(result)
