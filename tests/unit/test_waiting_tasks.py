from __future__ import annotations

import asyncio

from tests.waiting_tasks import described


async def inner(never: asyncio.Event) -> None:
    await never.wait()


async def outer(never: asyncio.Event) -> None:
    await inner(never)


async def test_each_task_is_named_with_the_calls_that_it_waits_in() -> None:
    never = asyncio.Event()
    task = asyncio.create_task(outer(never), name="hangs")
    await asyncio.sleep(0)
    name, *frames = described([task]).splitlines()
    assert name == "hangs"
    assert [frame.rpartition(" in ")[2] for frame in frames] == ["outer", "inner", "wait"]
    never.set()
    await task
