"""Which resources of a quota can be counted, and which have been. What nothing counts is not limited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache

from common.api.conditions import some
from common.api.types import ResourceQuotaSpec, Subject
from common.quota import names, object_names, scopes
from common.quota.escrow import MasterLedger, Report
from common.quota.resources import ResourceList
from master.cache.objects import AllocatedTypes

NOT_SUPPORTED = "NotSupported"
NAMESPACES = "namespaces"
MAX_KNOWN = 1024  # names; tenants choose them
_TWICE = "another name counts the kind in another version"
_ALIKE = 0.7  # of 1: how alike a name is to the one that was probably meant

NOTHING_ALLOCATED = AllocatedTypes()


def in_use(allocated: AllocatedTypes, *uses: ResourceList) -> AllocatedTypes:
    """With what these uses of a quota show to be counted."""
    counted = frozenset(name for use in uses for name, amount in use.items() if amount)
    return AllocatedTypes(names=allocated.names, seed=allocated.seed, in_use=counted)


def of_objects(spec: ResourceQuotaSpec) -> list[str]:
    """What the quota limits of objects in namespaces."""
    return sorted(spec.quota if spec.subject.kind == NAMESPACES else object_names.of_objects(spec.quota))


def uncounted(spec: ResourceQuotaSpec, allocated: AllocatedTypes, *, clusters: int) -> list[str]:
    """What has no use that is known. `clusters`: in how many of them its namespaces are counted."""
    found = unsupported(spec, allocated)
    return found if clusters or spec.subject.kind == NAMESPACES else sorted({*found, *of_objects(spec)})


def unsupported(spec: ResourceQuotaSpec, allocated: AllocatedTypes = NOTHING_ALLOCATED) -> list[str]:
    """What the quota limits and nothing counts."""
    if spec.subject.counts:
        return []
    if spec.subject.kind == NAMESPACES:
        if _scope_problem(spec):
            return sorted(spec.quota)
        twice = object_names.of_other_versions(spec.quota)
        return sorted(name for name in spec.quota if not object_names.counted(name) or name in twice)
    objects = frozenset() if _scope_problem(spec) else object_names.of_objects(spec.quota)
    objects -= object_names.of_other_versions(objects)
    machines = _of_machines(spec, allocated)
    if spec.subject.clusters is not None:
        return sorted(spec.quota.keys() - objects - (machines - names.OF_NO_CLUSTER))
    counted = objects | machines | allocated.in_use | (allocated.names if allocated.seed else frozenset())
    return sorted(spec.quota.keys() - counted)


def limits_machines(spec: ResourceQuotaSpec, allocated: AllocatedTypes) -> bool:
    """Whether it limits something that Machines in clusters have."""
    return spec.subject.kind != NAMESPACES and bool(_of_machines(spec, allocated) - names.OF_NO_CLUSTER)


def _of_machines(spec: ResourceQuotaSpec, allocated: AllocatedTypes) -> set[str]:
    """Of a quota of a project or an organization, with clusters."""
    found = {name for name in spec.quota if names.of_machines(name)} - allocated.names
    return {name for name in found if name in names.BASE or not object_names.is_of_core(name)}


def unsupported_text(spec: ResourceQuotaSpec, allocated: AllocatedTypes = NOTHING_ALLOCATED) -> str:
    """What to do about it; empty if all of the quota is counted."""
    found = unsupported(spec, allocated)
    if not found:
        return ""
    if problem := _scope_problem(spec):
        return f"{problem}: nothing is counted and nothing is refused"
    text = "; ".join(_why(found, allocated, spec.subject))
    return text if len(found) == len(spec.quota) else f"{text}; the other resources of this quota are limited"


def _why(found: Sequence[str], allocated: AllocatedTypes, subject: Subject) -> Iterator[str]:
    kind = subject.kind
    if subject.clusters is not None and kind != NAMESPACES:
        in_none = [name for name in found if name in names.OF_NO_CLUSTER or name in allocated.names]
        found = [name for name in found if name not in in_none]
        if in_none:
            yield (
                f"not counted and never refused: {some(in_none)}, since these are in no cluster; limit them in a quota "
                "of the same subject without subject.clusters"
            )
    of_core = [name for name in found if kind == NAMESPACES or object_names.is_of_core(name)]
    if of_core:
        texts = [_with_meant(name, _meant_in_namespaces(name)) for name in of_core if not object_names.field(name)]
        texts += [f"{name} ({_TWICE})" for name in of_core if object_names.field(name)]
        yield f"not supported by this version, so not counted and never refused: {some(texts)}"
    lacks_seed = [name for name in found if name in allocated.names]
    unknown = [name for name in found if name not in allocated.names and name not in of_core]
    if lacks_seed:
        lack = "there is none" if subject.seeds is None else "spec.subject.seeds picks none"
        yield (
            f"not counted and never refused: {some(lacks_seed)}, since a Seed with inCluster: true counts Allocations, "
            f"and {lack}"
        )
    if unknown:
        yield (
            f"not counted and never refused: {some(unknown)}; to count what Allocations have of it, name it in "
            "QuotaSettings, spec.resources, with countFrom: Allocations"
        )
    if "gpus" in unknown:
        yield "limit GPUs of machines by the name of the device, such as nvidia.com/gpu"


def _scope_problem(spec: ResourceQuotaSpec) -> str:
    """Why nothing is counted by its scopes, as core's validation says it."""
    return scopes.problem(spec.quota, scopes.requirements(spec.scopes, spec.scope_selector.match_expressions))


def never_counted_text(name: str, used: Iterable[str]) -> str:
    """`used`: names of resources that Machines of the quota's subject have."""
    return _with_meant(name, _meant(name, frozenset(used) | names.DEVICES))


def _with_meant(name: str, meant: str) -> str:
    return f"{name} (did you mean {meant}?)" if meant else name


@lru_cache(maxsize=256)
def _meant_in_namespaces(name: str) -> str:
    return next(iter(get_close_matches(name, object_names.PLAIN, n=1, cutoff=_ALIKE)), "")


@lru_cache(maxsize=256)
def _meant(name: str, known: frozenset[str]) -> str:
    return next(iter(get_close_matches(name, sorted(known - names.BASE - {name}), n=1, cutoff=_ALIKE)), "")


class CountedNames:
    """The devices and the types of Machines that some source was seen to use in this term of leadership, under
    whichever quota."""

    def __init__(self) -> None:
        self._names = set(names.DEVICES)

    def note(self, said: Report) -> set[str]:
        """Those that were not seen before."""
        new = {
            name
            for amounts in (said.used, said.reserved)
            for name, amount in amounts.items()
            if amount and name not in self._names and name not in names.BASE
        }
        new = set(sorted(new)[: max(MAX_KNOWN - len(self._names), 0)])
        self._names |= new
        return new

    def lacking(self, limits: ResourceList, ledger: MasterLedger) -> list[str]:
        """The devices and types among these limits that no source was seen to use. What was granted was asked for."""
        unknown = [name for name in limits if names.of_machines(name) and name not in self._names | names.BASE]
        if not unknown:
            return []
        granted = {name for holding in ledger.seeds.values() for name, amount in holding.granted.items() if amount}
        return sorted(name for name in unknown if name not in granted)
