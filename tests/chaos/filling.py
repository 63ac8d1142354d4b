"""Whether a quota is full: who asks for one unit more must be refused, for certain and by all who may ask.

A try that was not decided may have reserved what it asked for, though nothing came of it. Until that is released again,
a refusal says nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum

import msgspec

from devcluster.install import IN_FLIGHT_WINDOW
from devcluster.load import parse_refusal

RELEASED_SECONDS = IN_FLIGHT_WINDOW + 15.0  # two looks for evidence, and time to make them
_FILL_AT_MOST = 300  # requests; more than all limits together allow


class End(Enum):
    MADE = "made"
    REFUSED = "refused"  # by a quota, with numbers that add up
    WRONG = "wrong"  # anything else, also after all tries


class Asked(msgspec.Struct, frozen=True):
    """What became of one unit. `lost`: tries before that were not decided."""

    end: End
    lost: int
    message: str


def refusal(message: str) -> End:
    """What a 403 with this message is."""
    said = parse_refusal(message)
    return End.REFUSED if said is not None and said.adds_up else End.WRONG


Ask = Callable[[], Awaitable[Asked]]


async def fill(what: str, by: Mapping[str, Ask], released_seconds: float = RELEASED_SECONDS) -> list[str]:
    """Until each has been refused since the last unit was made. Returns answers that were wrong."""
    refused: set[str] = set()
    released_at = float("-inf")
    for name, ask in itertools.islice(itertools.cycle(by.items()), _FILL_AT_MOST):
        asked = await ask()
        if asked.lost:
            released_at = time.monotonic() + released_seconds
        match asked.end:
            case End.MADE:
                refused.clear()
            case End.REFUSED:
                refused.add(name)
            case End.WRONG:
                return [f"filling {what} in {name}: {asked.message} after {asked.lost} tries"]
        if len(refused) == len(by):
            left = released_at - time.monotonic()
            if left <= 0:
                return []
            await asyncio.sleep(left)
            refused.clear()
    return [f"filling {what} never ends: {_FILL_AT_MOST} requests in {', '.join(by)}"]
