"""What Kubernetes' core ResourceQuotas count as: each as one object, and what they promise to their namespace. Pure.

A quota that limits promises (a ResourceQuotaAllocation) counts, in each namespace, the largest amount of each resource
in `spec.hard` of the namespace's ResourceQuotas. API servers admit by `status.hard`, which kube-controller-manager
makes the same some time later: until then the larger one counts. Of one that was lowered below its use `status.used`
counts. If the quota has scopes, only ResourceQuotas that have all of them count: those limit nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from common.api.types import Quantities
from common.kube.client.meta import Object
from common.quota import resources
from common.quota.object_names import ALIASES, RESOURCE_QUOTAS, count_of
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from common.quota.scopes import (
    BEST_EFFORT,
    EXISTS,
    NOT_BEST_EFFORT,
    NOT_TERMINATING,
    TERMINATING,
    ScopeRequirement,
    requirements,
)
from seed.kinds.namespaces.evaluators.amounts import amount
from seed.kinds.namespaces.evaluators.namespaced import Counting, Write

Scopes = frozenset[str]

_OTHER: Final = "?"  # a scope that has no opposite
_WHOLE: Final = ((TERMINATING, NOT_TERMINATING), (BEST_EFFORT, NOT_BEST_EFFORT))


class ScopeSelector(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    match_expressions: tuple[ScopeRequirement, ...] = ()


class CoreQuotaSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    hard: Quantities = {}
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector = ScopeSelector()


class CoreQuotaStatus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    hard: Quantities = {}
    used: Quantities = {}


class CoreQuota(Object, frozen=True, kw_only=True):
    """Its status is Kubernetes' own: who may write the object may not write that. Who may write it, a cluster admin,
    can make the quota promise more: that counts as what nobody admitted, in the quotas that select the namespace."""

    spec: CoreQuotaSpec = CoreQuotaSpec()
    status: CoreQuotaStatus = CoreQuotaStatus()


class ResourceQuotaEvaluator(Counting[CoreQuota]):
    resource = RESOURCE_QUOTAS
    type = CoreQuota

    def adds(self, write: Write[CoreQuota]) -> bool:
        """Lowering is always allowed, whatever is known of quotas. An update of the object leaves its status alone.
        Another selector of scopes may be one in which a quota counts it."""
        rescoped = write.old is not None and set(_scopes(write.old)) != set(_scopes(write.new))
        return rescoped or bool(raised(write, write.new.spec.hard))

    def usage(self, subject: CoreQuota, now: float) -> dict[str, int]:
        return {count_of(RESOURCE_QUOTAS): UNIT, ALIASES[RESOURCE_QUOTAS]: UNIT}


class Promise(msgspec.Struct, frozen=True):
    """What a write adds to what is promised in its namespace. `amount` comes on top of `base`: what other
    ResourceQuotas of the namespace promise already, as far as it matters here."""

    amount: ResourceList
    base: ResourceList


def promised(subject: CoreQuota, limited: Iterable[str]) -> ResourceList:
    """In nanos. What core still admits by: also what the spec does not name any more. At least what is used: else
    whoever has used all could lower it and use the same elsewhere, again and again. A name that it does not have is
    left out, which is not the same as 0: the condition NamespacesLimited names such a namespace."""
    hard, status = subject.spec.hard, subject.status
    return {
        name: max(amount(amounts.get(name, 0)) for amounts in (hard, status.hard, status.used))
        for name in limited
        if name in hard or name in status.hard
    }


def scopes_of(subject: CoreQuota, within: Sequence[ScopeRequirement] = ()) -> Scopes:
    """Which pods it limits, of those in the scopes `within`; none: all of them."""
    apart = {_meaning(each) for each in within}
    found = (each for each in _scopes(subject) if _meaning(each) not in apart)
    return frozenset(each.scope_name if each.operator == EXISTS else _OTHER for each in found)


def has_scopes(subject: CoreQuota, wanted: Sequence[ScopeRequirement]) -> bool:
    """Whether it limits only objects that are in all of these scopes. A quota with scopes counts no other ones."""
    return not wanted or {_meaning(each) for each in wanted} <= {_meaning(each) for each in _scopes(subject)}


def seen_within(write: Write[CoreQuota], wanted: Sequence[ScopeRequirement]) -> Write[CoreQuota] | None:
    """The write as a quota with these scopes sees it: what gets such scopes is new there. None: it counts it not."""
    if not wanted:
        return write
    if not has_scopes(write.new, wanted):
        return None
    counted_before = write.old is not None and has_scopes(write.old, wanted)
    return write if counted_before else msgspec.structs.replace(write, old=None)


def _scopes(subject: CoreQuota) -> tuple[ScopeRequirement, ...]:
    return requirements(subject.spec.scopes, subject.spec.scope_selector.match_expressions)


def _meaning(requirement: ScopeRequirement) -> tuple[str, str, frozenset[str]]:
    return requirement.scope_name, requirement.operator, frozenset(requirement.values)


def limits_all(several: Collection[Scopes]) -> bool:
    """Whether ResourceQuotas with these scopes limit all pods together."""
    return Scopes() in several or any(all(frozenset({scope}) in several for scope in both) for both in _WHOLE)


def largest(subjects: Iterable[ResourceList]) -> ResourceList:
    found: ResourceList = {}
    for each in subjects:
        found = resources.maximum(found, each)
    return found


def raised(write: Write[CoreQuota], limited: Iterable[str]) -> ResourceList:
    """Of what the new object promises, that of which the old one promised less. Lowering is not there."""
    before = _before(write, limited)
    return {name: more for name, more in promised(write.new, limited).items() if more > before.get(name, 0)}


def added(write: Write[CoreQuota], limited: Iterable[str], others: ResourceList) -> Promise:
    """`others`: the largest amounts of the other ResourceQuotas of the namespace.

    What the old object promised is certain: an API server writes an update only over the version on which it was
    admitted. What others promise may be lowered or deleted at any moment, so that part is named.
    """
    before = _before(write, limited)
    more: dict[str, int] = {}
    base: dict[str, int] = {}
    for name, wanted in raised(write, limited).items():
        beside, own = min(others.get(name, 0), wanted), before.get(name, 0)
        if beside > own:
            base[name] = beside
        if wanted > max(beside, own):
            more[name] = wanted - max(beside, own)
    return Promise(more, base)


def _before(write: Write[CoreQuota], limited: Iterable[str]) -> ResourceList:
    old = write.old
    return promised(old, limited) if old is not None and old.metadata.resource_version else {}


EVALUATOR: Final = ResourceQuotaEvaluator()
