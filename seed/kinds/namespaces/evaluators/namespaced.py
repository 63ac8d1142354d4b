"""What objects in namespaces use of quotas, and what a write adds to that. Pure.

The rules are those of Kubernetes 1.35 (k8s.io/apiserver/pkg/quota/v1, Evaluator, and
k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go, CheckRequest). Paths in comments of this folder are
those of k8s.io/kubernetes, unless they begin with another module. Admission and counting ask the same evaluators, so
that they cannot disagree. Where SeedQuota counts otherwise:

- A resize that a node called infeasible counts as infeasible only until the pod's spec changes again. Core does not
  charge the next resize at all, since it still sees the condition of the one before. Where a node of Kubernetes 1.33
  called it infeasible, the condition has no observedGeneration. Then what the spec wants counts until it is set back,
  since nothing tells which resize the node has seen (pods.py).
- `requests.deviceclass.resource.kubernetes.io/gpu` counts devices of ResourceClaims alone. Core counts those of pods,
  too, and takes the claim that the scheduler makes for a pod off again, by looking at the pod. Each device is claimed,
  so it counts once here; the claim is refused instead of the pod (resource_claims.py).
- `requests.example.com/gpu` counts what pods request. Core also counts claims of a DeviceClass that has this name as
  its extendedResourceName. Limit these by the name of the class.
- A qualified name alone, as `example.com/gpu`, counts what `requests.example.com/gpu` does. Core accepts the name and
  never counts it (common/quota/object_names.py).
- A pod that is deleted with a grace period of more than 292 years counts until it is gone. In core the sum of its times
  overflows, and it counts no more at once (pods.py).
- A limit may be finer than a thousandth. Core rounds it up.
- An amount above 10**24, or one that cannot be read, counts as 10**24 (amounts.py).
- Writes of a claim's status are not asked. Core adds them to what is used and never refuses them; here they are
  counted once they are seen.
- A message names at most 32 containers for a resource.
- `sum.databases.v1.example.com/spec.replicas` adds up a field of objects. Core has nothing like it (fields.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec

from common.kube.client.meta import Object
from common.quota import object_names
from common.quota.object_names import RESOURCE_QUOTAS, GroupResource
from common.quota.resources import ResourceList
from common.quota.scopes import ScopeRequirement

CREATE = "CREATE"
UPDATE = "UPDATE"

ObjectT = TypeVar("ObjectT", bound=Object)
ObjectT_co = TypeVar("ObjectT_co", bound=Object, covariant=True)


class Refused(Exception):
    """The object lacks what a quota asks for, whatever is free. `str()` says what."""


class AsSent(msgspec.Struct, frozen=True):
    """Both objects of a write as they came, in this version."""

    version: str
    new: msgspec.Raw
    old: msgspec.Raw


class Write(msgspec.Struct, Generic[ObjectT], frozen=True, kw_only=True):
    """An admission request. `old` is None where nothing was stored before. `now`: seconds since 1970, UTC. `sent`: of
    which each quota reads the fields that it names."""

    operation: str
    subresource: str = ""
    new: ObjectT
    old: ObjectT | None = None
    now: float
    sent: AsSent | None = None


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a quota counts: the names that it limits, and its scopes. `promises`: not objects by these names, but what
    core ResourceQuotas promise of them (resource_quotas.py)."""

    limited: frozenset[str]
    scopes: Sequence[ScopeRequirement] = ()
    promises: bool = False

    @property
    def kinds(self) -> frozenset[GroupResource]:
        """The objects that it counts."""
        return frozenset({RESOURCE_QUOTAS}) if self.promises else object_names.resources_of(self.limited)

    def counting(self, kinds: Set[GroupResource]) -> frozenset[str]:
        """The names that count objects of some of these kinds."""
        if self.promises:
            return self.limited if RESOURCE_QUOTAS in kinds else frozenset()
        return frozenset(name for name in self.limited if not kinds.isdisjoint(object_names.counted(name)))


class NamespacedEvaluator(Protocol[ObjectT]):
    """What objects of one kind use.

    `type`: what their JSON is decoded as. `versions`: those in which it can be decoded, the best first; none: in any.
    `version`: the only one, if there is one; empty: none. `asked_of`: by subresource (empty for the object itself), the
    operations that can add to what is used.
    """

    @property
    def resource(self) -> GroupResource: ...

    @property
    def type(self) -> type[ObjectT]: ...

    @property
    def versions(self) -> tuple[str, ...]: ...

    @property
    def version(self) -> str: ...

    @property
    def asked_of(self) -> dict[str, frozenset[str]]: ...

    def adds(self, write: Write[ObjectT]) -> bool:
        """Whether an update may add to what is used. Only asked of writes that are in `asked_of`."""

    def usage(self, subject: ObjectT, now: float) -> dict[str, int]:
        """In nanos, by every name that counts the object."""

    def meets(self, requirement: ScopeRequirement, subject: ObjectT) -> bool:
        """Whether it is in the scope."""

    def lacking(self, limited: Collection[str], subject: ObjectT) -> str:
        """What it must say, since quotas limit these names, and does not; empty if it lacks nothing."""

    def released_at(self, subject: ObjectT) -> float | None:
        """When it stops to count although nothing is written; None if that never comes."""


class Counting(Generic[ObjectT]):
    """Most kinds have no scopes, lack nothing and do not change by themselves."""

    resource: GroupResource
    type: type[ObjectT]
    versions: tuple[str, ...] = ()
    version: str = ""
    asked_of: ClassVar[dict[str, frozenset[str]]] = {"": frozenset({CREATE, UPDATE})}

    def adds(self, write: Write[ObjectT]) -> bool:
        return True

    def meets(self, requirement: ScopeRequirement, subject: ObjectT) -> bool:
        return False

    def lacking(self, limited: Collection[str], subject: ObjectT) -> str:
        return ""

    def released_at(self, subject: ObjectT) -> float | None:
        return None


def is_asked(evaluator: NamespacedEvaluator[ObjectT], write: Write[ObjectT]) -> bool:
    """Whether the write can add to what any quota counts (Evaluator.Handles)."""
    return write.operation in evaluator.asked_of.get(write.subresource, ()) and (
        write.operation != UPDATE or evaluator.adds(write)
    )


def matching(evaluator: NamespacedEvaluator[ObjectT], limited: Iterable[str]) -> frozenset[str]:
    """Those of the names that count objects of this kind (Evaluator.MatchingResources)."""
    return frozenset(name for name in limited if evaluator.resource in object_names.counted(name))


def used(evaluator: NamespacedEvaluator[ObjectT], terms: Terms, subject: ObjectT, now: float) -> dict[str, int]:
    """What the object uses of a quota: nothing outside its scopes (generic/evaluator.go, CalculateUsageStats)."""
    if not all(evaluator.meets(requirement, subject) for requirement in terms.scopes):
        return {}
    found = evaluator.usage(subject, now)
    return {name: amount for name, amount in found.items() if name in terms.limited}


def added(evaluator: NamespacedEvaluator[ObjectT], terms: Terms, write: Write[ObjectT]) -> ResourceList:
    """What the write adds to the use of a quota; all of them above zero. Raises Refused.

    What an update gives back is not there: it is free once the object shows it. An update into the quota's scopes adds
    all that the object uses (controller.go, CheckRequest).
    """
    if not is_asked(evaluator, write):
        return {}
    limited = matching(evaluator, terms.limited)
    if not limited or not all(evaluator.meets(requirement, write.new) for requirement in terms.scopes):
        return {}
    if lacking := evaluator.lacking(limited, write.new):
        raise Refused(lacking)
    after = used(evaluator, terms, write.new, write.now)
    before: ResourceList = {}
    if write.old is not None and write.old.metadata.resource_version:  # without one, the update creates it
        before = used(evaluator, terms, write.old, write.now)
    return {name: more for name, amount in after.items() if (more := amount - before.get(name, 0)) > 0}
