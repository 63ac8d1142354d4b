"""How often quotas refused, as each replica of an agent counts it since it began, in parts of two hours. Pure.

A replica keeps the part of now and the one before. Whoever asks at least once in each part misses only what a replica
counted shortly before it ended.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from common.api.types import Wire

PATH: Final = "refused/counts"  # below that of decisions
PART: Final = 2 * 3600  # seconds
MAX_QUOTAS: Final = 1000  # of one part, and as much of each as MAX_PART allows
MAX_RESOURCES: Final = 128
MAX_PART: Final = 96 * 1024  # bytes: two of them fit into what the master reads
MAX_COUNT: Final = 2**40

Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Resource = Annotated[str, Meta(min_length=1, max_length=317, pattern=r"^[!-~]+\Z")]
"""It becomes a label of a metric, and a metric that cannot be read would take all others with it."""


class QuotaRefusals(Wire):
    """`total`: requests that the quota refused, for whatever reason. `short`: those that were short of a resource, by
    its name."""

    total: Count
    short: Annotated[dict[Resource, Count], Meta(max_length=MAX_RESOURCES)] = {}


class CountedPart(Wire):
    """`begin`: Unix time. `quotas`: by the uid on the master. `more`: there was no room for some."""

    begin: int
    quotas: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=64)], QuotaRefusals], Meta(max_length=MAX_QUOTAS)
    ] = {}
    more: bool = False


class RefusalCounts(Wire):
    """`life`: another one after each start of the replica, which then counts from zero. `since`: Unix time of that.
    `parts`: that of now and the one before, also where nothing was refused."""

    life: Annotated[str, Meta(min_length=1, max_length=64)]
    since: float
    parts: Annotated[list[CountedPart], Meta(max_length=2)] = []


_decode = msgspec.json.Decoder(RefusalCounts).decode


def part_of(time: float) -> int:
    """When the part begins that a Unix time is in."""
    return int(time) // PART * PART


def read(content: bytes) -> RefusalCounts | None:
    """None: it cannot be read."""
    try:
        return _decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
