"""Waits that have an end."""

from __future__ import annotations

import asyncio

import pytest

from common.runtime.waiting import first_of, within


async def test_within_says_whether_the_event_came() -> None:
    event = asyncio.Event()
    assert not await within(event, 0.01)
    asyncio.get_running_loop().call_soon(event.set)
    assert await within(event, 30)
    assert await within(event, None)
    assert await within(event, 0), "it is set already"


async def test_the_rest_has_ended_when_the_first_is_returned() -> None:
    ended = []

    async def rest() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("rest")

    async def first() -> str:
        return "first"

    assert (await first_of(rest(), first())).result() == "first"
    assert ended == ["rest"]


async def test_of_two_that_end_at_once_the_one_named_first_is_returned() -> None:
    async def fails() -> None:
        raise ValueError("a failure is not lost because the wait for the end ended, too")

    ended = asyncio.Event()
    ended.set()
    with pytest.raises(ValueError, match="not lost"):
        (await first_of(fails(), ended.wait())).result()


async def test_a_caller_that_is_cancelled_leaves_nothing_running() -> None:
    begun, ended = asyncio.Event(), []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    calling = asyncio.create_task(first_of(work(), work()))
    await begun.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended == ["work", "work"]
