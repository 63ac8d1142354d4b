"""What a quota says of sources whose last count is kept. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from common.api.conditions import NAMED, more
from common.api.types import StaleSource


def reason_and_message(sources: Sequence[tuple[str, StaleSource]]) -> tuple[str, str]:
    """Of all of them, each with its seed. Those that cannot be reached at all come first."""
    found = sorted(sources, key=lambda found: (bool(found[1].not_listed), not found[1].never_counted))
    reason = "ResourceNotListed" if found[0][1].not_listed else "SourceUnreachable"
    return reason, "; ".join(_text(seed, source) for seed, source in found[:NAMED]) + more(found)


def _text(seed: str, source: StaleSource) -> str:
    where = f"{source.source} on {seed}"
    if source.not_listed:
        kept = "nothing of that is counted yet" if source.never_counted else "the last count of that is kept"
        return f"{where}: {source.not_listed}; {kept}"
    if source.never_counted:
        return f"{where} cannot be reached, and nothing of it is counted yet"
    return f"{where} has not been reached for {age(source.seconds)}: its last count is kept"


def age(seconds: float) -> str:
    """Coarser the longer it is, so that a text with an age in it seldom changes."""
    minutes = int(seconds // 60)
    if minutes < 1:
        return "less than 1m"
    if minutes < 10:
        return f"{minutes}m"
    if minutes < 60:
        return f"{minutes // 5 * 5}m"
    hours = minutes // 60
    return f"{hours}h" if hours < 48 else f"{hours // 24}d"
