"""Deliberate breakages of what counts and admits promises of core ResourceQuotas: see tests/sim/mutants.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec

from common.quota import reservations
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.accounts.reservation_collector import ReservationCollector
from seed.accounts.usage_writer import Counting
from seed.kinds.namespaces import admission, promise_totals, promises
from seed.kinds.namespaces.evaluators import resource_quotas
from seed.kinds.namespaces.evaluators.amounts import amount
from seed.kinds.namespaces.evaluators.resource_quotas import CoreQuota, Promise
from seed.kinds.namespaces.promise_totals import PromiseTotals
from seed.kinds.namespaces.totals import ObjectTotals
from tests.sim import namespace_side, promise_scenes
from tests.sim.mutant import Mutant

FOCUS = ("promises",)
UPDATED = (*FOCUS, "updates", "slow")
BUDGET = 200


def the_largest_that_ever_was(totals: PromiseTotals, namespace: str, before: ResourceList, after: ResourceList) -> None:
    known = totals.by_namespace.get(namespace, {})
    ObjectTotals._moved(totals, namespace, {}, {name: max(n - known.get(name, 0), 0) for name, n in after.items()})


def without_base(write: Any, limited: Iterable[str], others: ResourceList) -> Promise:
    return Promise(_added(write, limited, others).amount, {})


def the_whole_amount(write: Any, limited: Collection[str], others: ResourceList) -> Promise:
    """An update costs as much as a creation."""
    return _added(msgspec.structs.replace(write, old=None), limited, others)


def by_the_spec_alone(subject: CoreQuota, limited: Iterable[str]) -> ResourceList:
    hard = subject.spec.hard
    return {name: amount(hard[name]) for name in limited if name in hard}


def nobody_looks_again(*_arguments: object) -> Any:
    async def confirm() -> str:
        return ""

    return confirm


def as_of_other_counts(self: ReservationCollector, quota: Any, checks: Any, found: Any) -> Any:
    return _conclude(self, msgspec.structs.replace(quota, promises=False), checks, found)


def bases_of_what_is_counted(totals: PromiseTotals, kept: Mapping[str, Reservation]) -> ResourceList:
    """... only."""
    return _used_beside(totals, {uid: each for uid, each in kept.items() if uid in totals._objects})


def the_first_base(known: Reservation, wanted: Reservation) -> tuple[Reservation, ResourceList]:
    after, extra = _on_top(known, wanted)
    return msgspec.structs.replace(after, base=known.base), extra


_added = resource_quotas.added
_conclude = ReservationCollector._conclude
_used_beside = PromiseTotals.used_beside
_on_top = reservations.on_top


def _instead(added: Any) -> tuple[Any, str, Any]:
    return admission, "resource_quotas", SimpleNamespace(**{**vars(resource_quotas), "added": added})


ALL: tuple[Mutant, ...] = (
    Mutant("what a namespace promises is added up", ((PromiseTotals, "_moved", ObjectTotals._moved),), FOCUS, BUDGET),
    Mutant(
        "a namespace promises the largest that ever was",
        ((PromiseTotals, "_moved", the_largest_that_ever_was),),
        FOCUS,
        BUDGET,
    ),
    Mutant(
        "what core still admits by is promised elsewhere",
        tuple(
            (module, "promised", by_the_spec_alone)
            for module in (resource_quotas, promise_totals, promises, namespace_side)
        ),
        FOCUS,
        BUDGET,
        promise_scenes.the_status_follows_late,
    ),
    Mutant("a raise costs the whole amount", (_instead(the_whole_amount),), UPDATED, BUDGET),
    Mutant(
        "what others promise stays",
        (_instead(without_base),),
        UPDATED,
        BUDGET,
        promise_scenes.the_other_goes,
    ),
    Mutant(
        "a count has no bases",
        ((PromiseTotals, "used_beside", ObjectTotals.used_beside),),
        UPDATED,
        BUDGET,
        promise_scenes.the_other_goes,
    ),
    Mutant(
        "only what is counted has a base",
        ((PromiseTotals, "used_beside", bases_of_what_is_counted),),
        UPDATED,
        BUDGET,
        promise_scenes.the_other_goes,
    ),
    Mutant(
        "the others are not read again",
        ((admission, "confirming", nobody_looks_again),),
        UPDATED,
        BUDGET,
        promise_scenes.the_other_goes_before_the_write,
    ),
    Mutant(
        "evidence of a promise takes up no bases",
        ((ReservationCollector, "_conclude", as_of_other_counts),),
        FOCUS,
        BUDGET,
        promise_scenes.the_other_was_never_seen,
    ),
    Mutant(
        "bases stay in the count",
        ((Counting, "_end_bases", lambda *_arguments: None),),
        FOCUS,
        BUDGET,
        promise_scenes.the_other_goes_before_it_is_read_again,
    ),
    Mutant(
        "an update keeps the first base",
        ((reservations, "on_top", the_first_base),),
        UPDATED,
        5 * BUDGET,  # few updates come while an earlier one of the same object is reserved
    ),
)
