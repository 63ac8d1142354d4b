"""Which resources of a quota can be counted, and which have been. What nothing counts is not limited."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

from common.api.conditions import some
from common.api.types import ResourceQuotaSpec
from common.quota import names, object_names, scopes
from common.quota.escrow import MasterLedger, Report
from common.quota.resources import ResourceList

NOT_SUPPORTED = "NotSupported"
NAMESPACES = "namespaces"
MAX_KNOWN = 1024  # names; tenants choose them
_ALIKE = 0.7  # of 1: how alike a name is to the one that was probably meant


def unsupported(spec: ResourceQuotaSpec) -> list[str]:
    """What the quota limits and this version never counts."""
    if spec.subject.counts:
        return []
    if spec.subject.kind == NAMESPACES:
        if _scope_problem(spec):
            return sorted(spec.quota)
        return sorted(name for name in spec.quota if not object_names.counted(name))
    return sorted(name for name in spec.quota if name not in names.BASE and "/" not in name)


def unsupported_text(spec: ResourceQuotaSpec) -> str:
    """What to do about it; empty if all of the quota is counted."""
    found = unsupported(spec)
    if not found:
        return ""
    if spec.subject.kind == NAMESPACES and (problem := _scope_problem(spec)):
        return f"{problem}: nothing is counted and nothing is refused"
    text = f"not supported by this version, so not counted and never refused: {some(found)}"
    if "gpus" in found:
        text += "; limit GPUs by the name of the device, such as nvidia.com/gpu"
    return text if len(found) == len(spec.quota) else f"{text}; the other resources of this quota are limited"


def _scope_problem(spec: ResourceQuotaSpec) -> str:
    """Why nothing is counted by its scopes, as core's validation says it."""
    return scopes.problem(spec.quota, scopes.requirements(spec.scopes, spec.scope_selector.match_expressions))


def never_counted_text(name: str, used: Iterable[str]) -> str:
    """`used`: names of resources that Machines of the quota's subject have."""
    meant = _meant(name, frozenset(used) | names.DEVICES)
    return f"{name} (did you mean {meant}?)" if meant else name


@lru_cache(maxsize=256)
def _meant(name: str, known: frozenset[str]) -> str:
    return next(iter(get_close_matches(name, sorted(known - names.BASE - {name}), n=1, cutoff=_ALIKE)), "")


class CountedNames:
    """The devices that some source was seen to use in this term of leadership, under whichever quota."""

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
        """The devices among these limits that no source was seen to use. What was granted once was asked for."""
        unknown = [name for name in limits if "/" in name and name not in self._names]
        if not unknown:
            return []
        granted = {name for holding in ledger.seeds.values() for name, amount in holding.granted.items() if amount}
        return sorted(name for name in unknown if name not in granted)
