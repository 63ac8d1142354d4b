"""Which seeds are asked, and what is said of those that were not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.api.types import Seed
from master.seeds.agent_pages import MAX_SEEDS, Found


def asked_seeds(seeds: Iterable[Seed], named: str | None) -> list[Seed]:
    """That which is named, or all that are not lost."""
    alive = (seed for seed in seeds if seed.spec.state != "Lost")
    return [seed for seed in alive if named in (None, seed.metadata.name)]


def too_many(seeds: Sequence[Seed]) -> str:
    """Empty: they can be asked."""
    return f"there are {len(seeds)} seeds: name one, with ?seed=NAME" if len(seeds) > MAX_SEEDS else ""


def not_asked(found: Found, seeds: int, *, everything: bool) -> str:
    """Reasons may name addresses: they are for who may list all quotas."""
    if found.not_asked and not everything:
        return f"{len(found.not_asked)} of {seeds} seeds could not be asked"
    return "; ".join(f"{seed}: {why}" for seed, why in sorted(found.not_asked.items()))
