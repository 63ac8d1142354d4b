"""Deliberate breakages of what counts and admits Allocations, and of the catalogue: see tests/sim/mutants.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from common.api.catalogue import Catalogue
from common.api.types import Allocation
from common.quota.resources import ResourceList
from seed.accounts.account_sources import AccountSources
from seed.admission.admitter import Admission
from seed.kinds.allocations import admission
from seed.kinds.allocations import evaluator as allocations
from seed.kinds.allocations.source import AllocationSources
from seed.kinds.allocations.totals import AllocationTotals
from seed.model import source_key
from seed.model.source_key import SourceKey
from seed.usage.object_sum import ObjectSum
from tests.sim import allocation_scenes
from tests.sim.mutant import Mutant

FOCUS = ("allocations",)
BUDGET = 200


def all_of_it(_catalogue: Catalogue, amounts: ResourceList) -> ResourceList:
    return amounts


def whatever_there_is(_sources: AccountSources, _key: str, used: ResourceList) -> ResourceList:
    return used


def the_other_side(sources: AccountSources, key: str, used: ResourceList) -> ResourceList:
    catalogue = sources._quota_cache.catalogue
    return (
        catalogue.from_objects(used)
        if SourceKey(key).kind == source_key.ALLOCATIONS
        else catalogue.from_allocations(used)
    )


def what_it_names(catalogue: Catalogue, amounts: ResourceList) -> ResourceList:
    """What it does not name counts from neither side."""
    return {name: amount for name, amount in amounts.items() if name in catalogue.allocated}


def the_whole(new: Allocation, _old: Allocation | None) -> ResourceList:
    return allocations.used(new)


def what_is_committed(allocation: Allocation) -> ResourceList:
    return {found.type: found.committed for found in allocation.spec.resources if found.committed}


async def the_project_alone(
    self: Admission, request: Any, replaceable: Any = None, quotas: Any = None, confirm: Any = None
) -> Any:
    if quotas is not None:
        quotas = [quota for quota in quotas if quota.kind == "project"]
    return await _decide(self, request, replaceable, quotas, confirm)


def what_was_put_stays(totals: AllocationTotals, uid: str) -> bool:
    return totals._objects.pop(uid, None) is not None


async def what_the_watch_has(sources: AllocationSources, project: str, _name: str, uid: str) -> int | None:
    return sources._of(project).totals.seen([uid]).get(uid)


def created(_new: Allocation, _old: Allocation | None, need: ResourceList, *_rest: Any) -> Any:
    """Every reservation is one of a creation."""
    return _request(_new, None, need, *_rest)


_decide = Admission.decide
_request = admission.AllocationAdmission._request


def _instead(**changed: Any) -> tuple[Any, str, Any]:
    return admission, "allocations", SimpleNamespace(**{**vars(allocations), **changed})


ALL: tuple[Mutant, ...] = (
    Mutant("the catalogue drops nothing of objects", ((Catalogue, "from_objects", all_of_it),), FOCUS, BUDGET),
    Mutant(
        "the catalogue drops nothing of Allocations",
        ((Catalogue, "from_allocations", all_of_it),),
        (*FOCUS, "slip"),
        BUDGET,
    ),
    Mutant("both sides are counted", ((AccountSources, "counted", whatever_there_is),), FOCUS, BUDGET),
    Mutant("each side is counted from the other", ((AccountSources, "counted", the_other_side),), FOCUS, BUDGET),
    Mutant(
        "what the catalogue does not name is not allocated",
        ((Catalogue, "from_allocations", what_it_names),),
        (*FOCUS, "slip"),
        BUDGET,
    ),
    Mutant("an Allocation that changes costs the whole", (_instead(added=the_whole),), (*FOCUS, "updates"), BUDGET),
    Mutant("only what is committed counts", ((allocations, "used", what_is_committed),), FOCUS, BUDGET),
    Mutant("the project's quota alone is asked", ((Admission, "decide", the_project_alone),), FOCUS, BUDGET),
    Mutant("an Allocation that is gone stays counted", ((ObjectSum, "remove", what_was_put_stays),), FOCUS, BUDGET),
    Mutant(
        "evidence of an Allocation is the watch's",
        ((AllocationSources, "generation", what_the_watch_has),),
        FOCUS,
        BUDGET,
        allocation_scenes.allocations_that_the_leader_does_not_see,
    ),
    Mutant(
        "an Allocation that changes is reserved as of its creation",
        ((admission.AllocationAdmission, "_request", staticmethod(created)),),
        (*FOCUS, "updates"),
        BUDGET,
    ),
)
