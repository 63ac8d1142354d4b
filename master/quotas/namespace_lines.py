"""Which namespaces a quota's status names. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from common.api.bounded import MAX_COUNT
from common.api.types import NamespaceLack, NamespaceUse, Quantities
from common.quota import resources
from common.quota.largest import largest
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList


class Reported(Protocol):
    """What a seed says of its namespaces: the largest, and how many others there are."""

    @property
    def namespaces(self) -> Sequence[NamespaceUse]: ...
    @property
    def namespaces_omitted(self) -> int: ...


def largest_of(seeds: Mapping[str, Reported], limits: ResourceList) -> tuple[list[NamespaceUse], int]:
    """Over all seeds, by name, and how many others there are. `limits`: what is counted of the quota."""
    if not limits:
        return [], 0
    lines = {(line.cluster, line.namespace, name): line for name, seed in seeds.items() for line in seed.namespaces}
    shown = largest(((key, _parsed(line.used)) for key, line in lines.items()), limits)
    omitted = len(lines) - len(shown) + sum(seed.namespaces_omitted for seed in seeds.values())
    return [_on_seed(lines[key], key[2]) for key, _ in shown], min(omitted, MAX_COUNT)


def _parsed(used: Quantities) -> ResourceList:
    try:
        return resources.parse(used)
    except QuantityError:
        return {}  # only the order depends on it


def place(seed: str, lack: NamespaceLack) -> str:
    return f"{lack.namespace} in {lack.cluster if '/' in lack.cluster else seed}"


def _on_seed(line: NamespaceUse, seed: str) -> NamespaceUse:
    """The seed's own API server has the name of its Seed; every UserCluster has a namespace, too."""
    return line if "/" in line.cluster else msgspec.structs.replace(line, cluster=seed)
