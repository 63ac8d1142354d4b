"""Guaranteed shares: what of an organization's limit is kept for one of its projects (protocol.md, rule 4.16). Pure.

Of each resource with guarantees, the organization's account has one counter more for each: `guaranteed.alpha/cpu`
beside `cpu`. All of them are granted, returned and recalled alike, and together they are what the account holds.

Nothing is split when it is written. What a project uses is charged to its guarantee, as far as the account holds of
it, and the rest to `cpu`, which everybody may take from. So use, however it is assigned to projects, is at most what
is held of all counters together: a wrong owner of a source costs a guarantee, and never the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from common.quota import resources
from common.quota.resources import ResourceList

if TYPE_CHECKING:
    from common.quota.account import Account

PREFIX = "guaranteed."
MOST = 16  # counters of guarantees in one account at a time: MAX_COUNTERS has room for those that were before, too


class Guarantee(msgspec.Struct, frozen=True, kw_only=True):
    """Of one project, as a seed is told it: what it is guaranteed, and what of that it uses everywhere."""

    project: str
    hard: ResourceList = {}
    used: ResourceList = {}

    @property
    def unused(self) -> dict[str, int]:
        return {name: max(amount - self.used.get(name, 0), 0) for name, amount in self.hard.items()}


def counter(project: str, resource: str) -> str:
    return f"{PREFIX}{project}/{resource}"


def parts(name: str) -> tuple[str, str]:
    """The project and the resource of a counter."""
    project, _, resource = name.removeprefix(PREFIX).partition("/")
    return project, resource


def with_use(given: Iterable[Guarantee], projects: Iterable[ResourceList]) -> tuple[Guarantee, ...]:
    """... of what each project uses. `projects`: by counter, what it has on each seed."""
    everywhere = resources.total(projects)
    return tuple(
        msgspec.structs.replace(each, used={name: everywhere.get(counter(each.project, name), 0) for name in each.hard})
        for each in given
    )


def used_by_others(given: Iterable[Guarantee], used: ResourceList, limits: ResourceList) -> dict[str, int]:
    """What of the guarantees is not in force, since other projects use it. `used`: everywhere."""
    needed = resources.add(used, resources.total(each.unused for each in given))
    names = {name for each in given for name in each.hard}
    return {name: more for name in sorted(names) if (more := needed.get(name, 0) - limits.get(name, 0)) > 0}


def is_of(project: str, name: str) -> bool:
    return name.startswith(PREFIX) and parts(name)[0] == project


def resource(name: str) -> str:
    """Which one the counter is of: its own, if it is of no guarantee."""
    return parts(name)[1] if name.startswith(PREFIX) else name


def counters(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(PREFIX)]


def plain(amounts: ResourceList) -> ResourceList:
    """Without the counters."""
    if not counters(amounts):
        return amounts
    return {name: amount for name, amount in amounts.items() if not name.startswith(PREFIX)}


def only(amounts: ResourceList) -> dict[str, int]:
    """The counters alone."""
    return {name: amounts[name] for name in counters(amounts)}


def merged(amounts: ResourceList) -> ResourceList:
    """What all counters of a resource have together, by its own name."""
    found = counters(amounts)
    if not found:
        return amounts
    return resources.add(plain(amounts), resources.total({parts(name)[1]: amounts[name]} for name in found))


def ceilings(limits: ResourceList, guarantees: Iterable[Guarantee]) -> ResourceList:
    """The limits, beside what is guaranteed of them."""
    more = {counter(each.project, name): amount for each in guarantees for name, amount in each.hard.items()}
    return {**limits, **more} if more else limits


def of_counters(limits: ResourceList, held: Iterable[str] = (), charged: ResourceList | None = None) -> ResourceList:
    """What may be granted of each counter: of a resource what is not guaranteed, and nothing of a guarantee that is
    `held` and not there any more. What is `charged` to a guarantee that was larger can only come back from there: the
    others have what is left of the limit."""
    names = sorted({*counters(limits), *counters(held)})
    if not names:
        return limits
    charged = charged or {}
    of_guarantees = {name: charged.get(name, 0) for name in names}
    shared = {**resources.at_least_zero(resources.subtract(plain(limits), merged(of_guarantees)))}
    for name in names:
        more = min(max(limits.get(name, 0) - of_guarantees[name], 0), shared.get(resource(name), 0))
        of_guarantees[name] += more
        if more:
            shared[resource(name)] -= more
    return {**resources.only(shared, plain(limits)), **of_guarantees}


def together(left: Mapping[str, int]) -> dict[str, int]:
    """What is left of each counter, less what others of the same resource have too much, so that all of it can be
    given. What everybody may take goes first."""
    after = dict(left)
    for resource, names in _by_resource(left).items():
        lacking = sum(-left[name] for name in (resource, *names) if left.get(name, 0) < 0)
        for name in (resource, *names):
            if lacking and after.get(name, 0) > 0:
                less = min(after[name], lacking)
                after[name], lacking = after[name] - less, lacking - less
    return after


def charges(projects: ResourceList, held: ResourceList) -> dict[str, int]:
    """What is charged to each guarantee that is held. `projects`: by counter, what the project uses."""
    return {name: min(projects.get(name, 0), max(held[name], 0)) for name in counters(held)}


def of_projects(account: Account) -> dict[str, int]:
    """What projects with a guarantee use there, by its counter."""
    found = counters(account.granted)
    used: dict[str, dict[str, int]] = {}
    reserved = ((kept.source, kept.amount) for kept in account.reservations.values())
    for source, amounts in (*account.used.items(), *reserved) if found else ():
        if (project := account.owners.get(source)) is not None:
            used[project] = resources.add(used.get(project, {}), amounts)
    return {name: used.get(parts(name)[0], {}).get(parts(name)[1], 0) for name in found}


def room(account: Account, limits: ResourceList) -> Room | None:
    """None without guarantees: then what is free says it all."""
    if not counters((*account.granted, *limits)):
        return None
    used = resources.add(resources.total(account.used.values()), account.reserved)
    held = resources.subtract(account.granted, account.returned)
    return Room(used, of_projects(account), held, limits, account.owners)


def uncharged(projects: ResourceList, held: ResourceList) -> dict[str, int]:
    """By resource: what is held of guarantees that nothing is charged to."""
    charged = charges(projects, held)
    return resources.total({resource(name): held[name] - amount} for name, amount in charged.items())


def idle_by_project(by_counter: ResourceList, held: ResourceList) -> dict[str, dict[str, int]]:
    """What is held of each project's guarantee and not used, neither by it nor by others before it was guaranteed.
    `by_counter`: the use, with what of it is `occupied`."""
    found: dict[str, dict[str, int]] = {}
    for name in counters(held):
        if (idle := held[name] - by_counter.get(name, 0)) > 0:
            project, resource = parts(name)
            found.setdefault(project, {})[resource] = idle
    return found


def split(used: ResourceList, charged: ResourceList) -> dict[str, int]:
    """The use by counter."""
    after = resources.add(used, charged)
    for name, amount in charged.items():
        resource = parts(name)[1]
        after[resource] = after.get(resource, 0) - amount
    return after


def occupied(by_counter: ResourceList, held: ResourceList) -> dict[str, int]:
    """What is held of guarantees and is not charged, as far as it is under use beyond what is held of `cpu`. That may
    be use that nobody admitted, or that was charged to a guarantee before."""
    under: dict[str, int] = {}
    for resource, names in _by_resource(held).items():
        beyond = by_counter.get(resource, 0) - held.get(resource, 0)
        for name in names:
            part = min(beyond, held[name] - by_counter.get(name, 0))
            if part > 0:
                under[name] = part
                beyond -= part
    return under


class Room:
    """What may be admitted of resources with guarantees, while claims are decided in order."""

    def __init__(
        self,
        used: ResourceList,
        projects: ResourceList,
        held: ResourceList,
        limits: ResourceList,
        owners: Mapping[str, str],
    ) -> None:
        """`used`: of all, `projects`: of it, by counter, `limits` with what is guaranteed of them."""
        self._owners = owners
        charged = charges(projects, held)
        by_counter, most, together_held = split(used, charged), of_counters(limits, held), merged(held)
        self._total, self._shared, self._own = dict[str, int](), dict[str, int](), dict[str, int]()
        for resource, names in _by_resource((*held, *limits)).items():
            if resource not in limits:
                continue
            self._total[resource] = min(together_held.get(resource, 0), limits[resource]) - used.get(resource, 0)
            shared = min(held.get(resource, 0), most[resource])
            self._shared[resource] = shared - by_counter.get(resource, 0)
            for name in names:
                own = min(held.get(name, 0), most.get(name, 0))
                self._own[name] = max(own - projects.get(name, 0), 0)

    def free(self, free: ResourceList, source: str) -> dict[str, int]:
        """... for the source, in place of what is `free` otherwise."""
        return {**free, **{name: self._of(name, source) for name in self._total if name in free}}

    def _of(self, resource: str, source: str) -> int:
        own = self._own.get(counter(self._owners.get(source, ""), resource), 0)
        shared = self._shared[resource]
        return min(self._total[resource], own + max(shared, 0) if own else shared)

    def take(self, source: str, amounts: ResourceList) -> None:
        for resource in self._total.keys() & amounts.keys():
            name, amount = counter(self._owners.get(source, ""), resource), amounts[resource]
            own = min(self._own.get(name, 0), amount)
            if own:
                self._own[name] -= own
            self._total[resource] -= amount
            self._shared[resource] -= amount - own


def returnable(used: ResourceList, projects: ResourceList, held: ResourceList) -> dict[str, int]:
    """What may be given back of each counter of a resource with guarantees, and of all of them together under the name
    `all of` it: what is charged stays, and so does as much as all use together needs."""
    by_counter, most = split(used, charges(projects, held)), merged(held)
    found: dict[str, int] = {}
    for resource, names in _by_resource(held).items():
        for name in (resource, *names):
            found[name] = held.get(name, 0) - by_counter.get(name, 0)
        found[all_of(resource)] = most[resource] - used.get(resource, 0)
    return found


def returned(before: ResourceList, recall: ResourceList, left: Mapping[str, int]) -> dict[str, int]:
    """What is returned of each counter after a recall. `left`: as `returnable`, and of all else what is free."""
    after, left = dict(before), dict(left)
    for name, target in recall.items():
        together = all_of(resource(name))
        idle = min(left.get(name, 0), left.get(together, left.get(name, 0)))
        known = after.get(name, 0)
        if idle > 0 and target > known:
            after[name] = min(target, known + idle)
            if together in left:
                left[together] -= after[name] - known
    return after


def all_of(resource: str) -> str:
    return f"all of {resource}"


def asked(need: ResourceList, guarantees: Iterable[Guarantee], project: str) -> ResourceList:
    """What is asked of the master for the project: first of what it is guaranteed and does not use anywhere."""
    mine = next((each for each in guarantees if each.project == project), None)
    if mine is None:
        return need
    own = resources.minimum(resources.only(need, mine.hard), resources.only(mine.unused, need))
    own = {name: amount for name, amount in own.items() if amount > 0}
    return {**resources.subtract(need, own), **{counter(project, name): amount for name, amount in own.items()}}


def kept_from(guarantees: Iterable[Guarantee], project: str) -> dict[str, int]:
    """What the project cannot use: guarantees of others that these do not use."""
    return resources.total(each.unused for each in guarantees if each.project != project)


def _by_resource(names: Iterable[str]) -> dict[str, list[str]]:
    """The counters of each resource that has guarantees, in one order everywhere."""
    found: dict[str, list[str]] = {}
    for name in sorted({name for name in names if name.startswith(PREFIX)}):
        found.setdefault(parts(name)[1], []).append(name)
    return found
