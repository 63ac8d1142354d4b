"""When a quota is full if its use goes on to grow as it did. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

DAY = 86400.0
LOOK_BACK = 7 * DAY  # seconds of use that are looked at
AT_LEAST = 1 * DAY  # ... of which so much must be known
POINTS = 12
FIT = 0.5  # how much of what use does the straight line must explain (R squared)
FARTHEST = 365 * DAY


class Point(NamedTuple):
    """`time`: Unix seconds, where the sample begins. `used`, `limit`: cores, bytes or pieces."""

    time: float
    used: float
    limit: float


def full_in(points: Sequence[Point]) -> float | None:
    """Seconds from the last point until a straight line through the last days reaches the limit; 0 where it is full.
    None: the use does not grow, does not grow in a line, grows too slowly, or too little of it is known."""
    if not points:
        return None
    last = points[-1]
    if last.used >= last.limit:
        return 0.0
    known = [point for point in points if point.time >= last.time - LOOK_BACK]
    if len(known) < POINTS or last.time - known[0].time < AT_LEAST:
        return None
    slope, fit = _line(known)
    if slope <= 0 or fit < FIT:
        return None
    seconds = (last.limit - last.used) / slope
    return seconds if seconds <= FARTHEST else None


def words(seconds: float) -> str:
    if seconds <= 0:
        return "full now"
    days = seconds / DAY
    if days < 2:
        hours = max(round(seconds / 3600), 1)
        return f"full in about {hours} {'hour' if hours == 1 else 'hours'}"
    return f"full in about {round(days)} days"


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """Least squares: the slope by second, and R squared."""
    count = len(points)
    mean_time = sum(point.time for point in points) / count
    mean_used = sum(point.used for point in points) / count
    both = sum((point.time - mean_time) * (point.used - mean_used) for point in points)
    time = sum((point.time - mean_time) ** 2 for point in points)
    used = sum((point.used - mean_used) ** 2 for point in points)
    if not time or not used:
        return 0.0, 0.0
    return both / time, both * both / (time * used)
