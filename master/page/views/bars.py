"""One bar for each resource of a quota: what is used, reserved, idle on seeds, and free of its limit. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from common.quota import resources
from common.quota.names import in_order
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota, SeedUsage, spec_guaranteed, spec_quota
from master.page.views import amounts
from master.page.views.amounts import Amount
from master.quotas import kept_shares

Level = Literal["unknown", "fine", "near", "full", "over"]
WARN_AT_PERCENT = 90


class Idle(NamedTuple):
    """What a seed holds and does not use."""

    seed: str
    amount: Amount


class Part(NamedTuple):
    """A piece of a bar, in percent of its whole length. `begin`: where it starts."""

    kind: Literal["counted", "reserved", "idle", "kept", "over"]
    begin: float
    length: float


class Bar(NamedTuple):
    """`used` includes what is reserved; None: it is not counted, or not yet. `free` may be idle on seeds. `kept`: of
    it, what is guaranteed to projects of the organization, and free for these alone. `guaranteed`: to the project that
    the quota is of, and `in_force` of it, by its organization; None: it is not known to whoever looks."""

    name: str
    level: Level
    limit: Amount
    used: Amount | None
    reserved: Amount | None
    free: Amount | None
    over: Amount | None
    idle: Amount | None
    idle_by_seed: tuple[Idle, ...]
    percent: int | None
    parts: tuple[Part, ...]
    kept: Amount | None = None
    guaranteed: Amount | None = None
    in_force: Amount | None = None


class Shares(NamedTuple):
    """Amounts of an organization's quota that are kept for its projects, and of a project's what is guaranteed to it.
    `in_force`: None: it is not known to whoever looks."""

    kept: ResourceList = {}
    guaranteed: ResourceList = {}
    in_force: ResourceList | None = {}

    def of(self, name: str) -> Amount | None:
        return amounts.amount(name, self.guaranteed[name]) if self.guaranteed.get(name) else None

    def in_force_of(self, name: str) -> Amount | None:
        if self.in_force is None or not self.guaranteed.get(name):
            return None
        return amounts.amount(name, min(self.in_force.get(name, 0), self.guaranteed[name]))


class Standing(NamedTuple):
    """How near a resource is to its limit. `percent`: None also where the limit is 0."""

    name: str
    level: Level
    percent: int | None


def of_quota(quota: MasterQuota, in_force: ResourceList | None = None) -> list[Bar]:
    """Raises QuantityError, and msgspec.ValidationError, for what the API server should have refused. `in_force`: of
    what is guaranteed to its project."""
    status = quota.status
    limits, used = _limits_and_used(quota)
    shares = Shares(kept_shares.kept_from(quota, kept_shares.ANY), resources.parse(spec_guaranteed(quota)), in_force)
    return bars(limits, used, resources.parse(status.reserved), idle_of(status.seeds), warn_at_of(quota), shares)


def standings(quota: MasterQuota) -> list[Standing]:
    """What can be told without the words and the pieces of bars, for a list of very many. Raises as `of_quota`."""
    limits, used = _limits_and_used(quota)
    warn_at = warn_at_of(quota)
    return [
        Standing(name, level_of(used[name], limits[name], warn_at), amounts.percent(used[name], limits[name]))
        if name in used
        else Standing(name, "unknown", None)
        for name in in_order(limits)
    ]


def _limits_and_used(quota: MasterQuota) -> tuple[ResourceList, ResourceList]:
    return resources.parse(quota.status.hard or spec_quota(quota)), resources.parse(quota.status.global_usage)


def warn_at_of(quota: MasterQuota) -> int:
    warn = quota.spec.get("warnAtPercent", WARN_AT_PERCENT)
    return warn if isinstance(warn, int) else WARN_AT_PERCENT


def bars(
    limits: ResourceList,
    used: ResourceList,
    reserved: ResourceList,
    idle: Mapping[str, ResourceList] | None = None,
    warn_at: int = WARN_AT_PERCENT,
    shares: Shares | None = None,
) -> list[Bar]:
    """`idle`: by seed; None: it is not known to whoever looks."""
    found = shares or Shares()
    return [_bar(name, limits[name], used, reserved, idle or {}, warn_at, found) for name in in_order(limits)]


def idle_of(seeds: Sequence[SeedUsage]) -> dict[str, dict[str, int]]:
    """By seed. What a lost one held is given to others."""
    idle = {}
    for seed in seeds:
        if seed.state == "Lost":
            continue
        left = resources.subtract(resources.parse(seed.granted), resources.parse(seed.local_usage))
        idle[seed.name] = {name: amount for name, amount in left.items() if amount > 0}
    return idle


def level_of(used: int, limit: int, warn_at: int) -> Level:
    if used > limit:
        return "over"
    if used == limit:
        return "full"
    return "near" if used * 100 >= limit * warn_at else "fine"


def _bar(
    name: str,
    limit: int,
    used: ResourceList,
    reserved: ResourceList,
    idle: Mapping[str, ResourceList],
    warn_at: int,
    shares: Shares,
) -> Bar:
    limit_shown, guaranteed, in_force = amounts.amount(name, limit), shares.of(name), shares.in_force_of(name)
    if name not in used:
        unknown = Bar(name, "unknown", limit_shown, None, None, None, None, None, (), None, ())
        return unknown._replace(guaranteed=guaranteed, in_force=in_force)
    total, waiting = used[name], min(reserved.get(name, 0), used[name])
    free = max(limit - total, 0)
    by_seed = {seed: held[name] for seed, held in idle.items() if held.get(name)}
    over = max(total - limit, 0)
    kept = min(shares.kept.get(name, 0), free)
    return Bar(
        name=name,
        level=level_of(total, limit, warn_at),
        limit=limit_shown,
        used=amounts.amount(name, total),
        reserved=amounts.amount(name, waiting) if waiting else None,
        free=amounts.amount(name, free),
        over=amounts.amount(name, over) if over else None,
        idle=amounts.amount(name, sum(by_seed.values())) if by_seed else None,
        idle_by_seed=tuple(Idle(seed, amounts.amount(name, held)) for seed, held in sorted(by_seed.items())),
        percent=amounts.percent(total, limit),
        parts=_parts(limit, total - waiting, waiting, sum(by_seed.values()), kept, over),
        kept=amounts.amount(name, kept) if kept else None,
        guaranteed=guaranteed,
        in_force=in_force,
    )


def _parts(limit: int, counted: int, reserved: int, idle: int, kept: int, over: int) -> tuple[Part, ...]:
    """Above the limit the bar is as long as the use, and the piece beyond the limit is `over`. What is kept is its end,
    also where some of that is idle on seeds."""
    whole = max(limit, counted + reserved)
    if whole <= 0:
        return ()
    inside, free = min(counted, limit), max(limit - counted - reserved, 0)
    idle = min(idle, free - kept)
    pieces = (
        ("counted", inside),
        ("reserved", max(min(reserved, limit - inside), 0)),
        ("over", over),
        ("idle", idle),
        ("free", free - idle - kept),
        ("kept", kept),
    )
    parts, begin = [], 0.0
    for kind, piece in pieces:
        length = piece * 100 / whole
        if piece and kind != "free":
            parts.append(Part(kind, round(begin, 3), round(length, 3)))  # type: ignore[arg-type]
        begin += length
    return tuple(parts)
