"""An event loop in a thread of its own, for the little that must go on however much the program's loop has to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OwnLoop:
    """The thread ends with `close`, or with the program. It goes on where the program's loop hangs: a liveness probe
    that the program's loop answers must end such a program."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Does the work there. Where this is cancelled, so is the work, and it has ended when this returns."""
        home = asyncio.get_running_loop()
        ended: asyncio.Future[None] = home.create_future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda _: home.call_soon_threadsafe(ended.set_result, None))

        self._loop.call_soon_threadsafe(begin)
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())  # noqa: PLW0108 (it is made there)
            await asyncio.shield(ended)
            raise
        return tasks[0].result()

    async def close(self) -> None:
        """What runs there still is not waited for."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()


async def on(loop: OwnLoop | None, work: Coroutine[Any, Any, T]) -> T:
    """None: on the caller's."""
    return await (work if loop is None else loop.run(work))
