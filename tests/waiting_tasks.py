"""Where the tasks of an event loop wait, for a test that took too long: its own stack ends in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from types import CoroutineType
from typing import Any


def described(tasks: Iterable[asyncio.Task[Any]]) -> str:
    return "\n".join(line for task in tasks for line in (task.get_name(), *_frames(task.get_coro())))


def _frames(waiting: object) -> Iterator[str]:
    while isinstance(waiting, CoroutineType) and waiting.cr_frame is not None:
        code = waiting.cr_frame.f_code
        yield f'  File "{code.co_filename}", line {waiting.cr_frame.f_lineno}, in {code.co_name}'
        waiting = waiting.cr_await
