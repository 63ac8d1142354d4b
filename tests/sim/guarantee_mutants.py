"""Deliberate breakages of guaranteed shares (rule 4.16): see tests/sim/mutants.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from common.quota import guarantees, resources
from common.quota.account import Account
from common.quota.guarantees import Guarantee, Room
from common.quota.resources import ResourceList
from master.grants import fair_share
from master.grants.allocation_state import SeedDemand
from seed.accounts import source_count
from tests.sim.mutant import Mutant

FOCUS = ("guarantees",)
BUDGET = 600

_of_counters = guarantees.of_counters
_init = Room.__init__


def all_may_take_all(room: Room, resource: str, _source: str) -> int:
    return room._total[resource]


def no_sum_is_looked_at(room: Room, *arguments: Any) -> None:
    """A guarantee is lent although its capacity is under other use."""
    _init(room, *arguments)
    room._total = dict.fromkeys(room._total, 1_000)


def what_is_charged_is_returned(used: ResourceList, _projects: ResourceList, held: ResourceList) -> dict[str, int]:
    return resources.subtract(held, used)


def the_sum_may_be_returned(used: ResourceList, projects: ResourceList, held: ResourceList) -> dict[str, int]:
    by_counter = guarantees.split(used, guarantees.charges(projects, held))
    return {name: amount - by_counter.get(name, 0) for name, amount in held.items()}


def nothing_is_kept(
    limits: ResourceList, held: Iterable[str] = (), charged: ResourceList | None = None
) -> ResourceList:
    """The rest may be as large as the limit."""
    return {**_of_counters(limits, held, charged), **guarantees.plain(limits)}


def kept_from_everybody(given: Iterable[Guarantee], _project: str) -> dict[str, int]:
    return resources.total(each.unused for each in given)


def of_what_is_counted(account: Account) -> dict[str, int]:
    """What is reserved is nobody's."""
    used: dict[str, ResourceList] = {}
    for source, amounts in account.used.items():
        if (project := account.owners.get(source)) is not None:
            used[project] = resources.add(used.get(project, {}), amounts)
    names = guarantees.counters(account.granted)
    return {name: used.get(guarantees.parts(name)[0], {}).get(guarantees.parts(name)[1], 0) for name in names}


ALL: tuple[Mutant, ...] = (
    Mutant("siblings take what is guaranteed", ((Room, "_of", all_may_take_all),), FOCUS, BUDGET),
    Mutant("a guarantee is lent twice", ((Room, "__init__", no_sum_is_looked_at),), ("guarantees", "moves"), 2000),
    Mutant("what is charged is returned", ((guarantees, "returnable", what_is_charged_is_returned),), FOCUS, BUDGET),
    Mutant("more is returned than is free", ((guarantees, "returnable", the_sum_may_be_returned),), FOCUS, BUDGET),
    Mutant("guarantees come on top of the limit", ((guarantees, "of_counters", nothing_is_kept),), FOCUS, BUDGET),
    Mutant("the sum of what is granted is not bounded", ((guarantees, "together", dict),), FOCUS, BUDGET),
    Mutant(
        "use on top of idle guarantees is covered past the limit",
        ((SeedDemand, "beside", property(lambda _seed: {})),),
        FOCUS,
        BUDGET,
    ),
    Mutant("no use takes over a guarantee", ((fair_share, "take_over", lambda _state: None),), FOCUS, BUDGET),
    Mutant("nobody asks for a guarantee", ((guarantees, "asked", lambda need, *_a: need),), FOCUS, BUDGET),
    Mutant("a guarantee is kept from its project", ((guarantees, "kept_from", kept_from_everybody),), FOCUS, BUDGET),
    Mutant("no source has an owner", ((source_count, "owned", lambda account, *_a: account),), FOCUS, BUDGET),
    Mutant("what is reserved is charged to nobody", ((guarantees, "of_projects", of_what_is_counted),), FOCUS, BUDGET),
)
