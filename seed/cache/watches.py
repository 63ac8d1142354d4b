"""The watches that this replica's caches are filled from: run, and awaited, together."""

from __future__ import annotations

import asyncio
from typing import Any

from common.kube.controller.fresh_lists import list_anew
from common.kube.controller.reflector import Reflector


class Watches:
    def __init__(self, *reflectors: Reflector[Any]) -> None:
        self._reflectors = reflectors

    def not_ready(self) -> str | None:
        """Fits a check of /readyz. A cache that was complete and lags still serves."""
        for reflector in self._reflectors:
            if not reflector.synced.is_set():
                return reflector.error or "not listed yet"
        return None

    @property
    def proven_at(self) -> float:
        """Nothing that had happened by then is missing here (monotonic)."""
        return min(reflector.proven_at for reflector in self._reflectors)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(reflector.run() for reflector in self._reflectors))

    async def wait_synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()

    async def refresh(self, timeout: float) -> None:
        """Lists every cache anew. Raises Unavailable."""
        await list_anew(self._reflectors, timeout)
