"""When a writer waits for the writers of other replicas that write the same account."""

from __future__ import annotations

import asyncio

LONGEST_TURN = 0.02  # seconds: for another's write after one's own ...
TURN_WRITES = 6  # ... and so many times as long as that took: the other receives, reads, decides, and writes
CLOSE_CONFLICTS = 4  # with no more writes between them others write all the time, not only now and then
LONGEST_TAKEN = 0.1  # seconds to wait for the replica that took the account: it is sure to write


class Contention:
    def __init__(self) -> None:
        self.contended = False  # others write to this account as often
        self._since_conflict = CLOSE_CONFLICTS + 1  # writes
        self._other_wrote = asyncio.Event()  # set: another has written since our last write

    def wrote(self) -> None:
        self._other_wrote.clear()
        self._since_conflict += 1

    def other_wrote(self) -> None:
        self._other_wrote.set()

    def conflicted(self) -> None:
        self.contended = self.contended or self._since_conflict <= CLOSE_CONFLICTS
        self._since_conflict = 0

    async def wait_for_turn(self, took: float) -> None:
        """Two replicas that write without a pause refuse each other nearly every time. So after conflicts each waits
        for a write of another after each of its own, which took `took` seconds: by then it has read that write."""
        if self.contended:
            await self._wait(min(TURN_WRITES * took, LONGEST_TURN))

    async def wait_for_taker(self) -> None:
        """Another replica has taken the account, and nothing is written until it writes."""
        self._other_wrote.clear()
        await self._wait(LONGEST_TAKEN)

    async def _wait(self, longest: float) -> None:
        try:
            async with asyncio.timeout(longest):
                await self._other_wrote.wait()
        except TimeoutError:
            self.contended = False
