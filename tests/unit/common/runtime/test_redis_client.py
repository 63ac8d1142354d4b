from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from common.runtime.redis_access import RedisAccess, redis_url
from common.runtime.redis_client import Primary
from tests.unit.fake_api_server import PATIENCE


class DropsCancellation:
    """As the client library does now and then."""

    def __init__(self, outcome: Exception | bytes) -> None:
        self.outcome = outcome
        self.called = asyncio.Event()

    async def execute_command(self, *_words: str) -> bytes:
        self.called.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize("outcome", [b"late", OSError("late")])
async def test_a_call_that_is_cancelled_ends_with_that_whatever_the_client_library_makes_of_it(
    monkeypatch: pytest.MonkeyPatch, outcome: Exception | bytes
) -> None:
    library = DropsCancellation(outcome)
    monkeypatch.setattr(Primary, "_connect", lambda *_arguments: library)
    call = asyncio.create_task(Primary(redis_url("redis://localhost"), RedisAccess(), "tag").call("PING"))
    await library.called.wait()
    call.cancel()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(asyncio.CancelledError):
            await call
