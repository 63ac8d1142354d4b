"""What tests have closed is gone when their event loop ends."""

from __future__ import annotations

import asyncio
from asyncio import sslproto
from collections.abc import AsyncIterator

import pytest_asyncio


@pytest_asyncio.fixture(scope="session", autouse=True)
async def closed_connections() -> AsyncIterator[None]:
    """A connection with TLS that is closed waits for the other side to say the same. If it does so longer than the last
    test, it counts as not closed: pytest ends with status 1 then, though all tests passed.

    What nobody has closed stays, and is reported."""
    yield
    for transport in list(asyncio.get_running_loop()._transports.values()):  # type: ignore[attr-defined]
        protocol = transport.get_protocol()
        of_test = protocol._app_transport if isinstance(protocol, sslproto.SSLProtocol) else None
        if transport.is_closing() or (of_test is not None and of_test._closed):
            transport.abort()
    await asyncio.sleep(0)  # in which they tell that they are lost
