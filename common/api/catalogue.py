"""From which side the use of each resource is counted: from Allocations, or from objects. Pure.

What QuotaSettings do not name is counted from objects, and of Allocations that are there, too: a type that is taken out
of the catalogue stays counted for as long as it is allocated.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.api.types import CatalogueEntry
from common.quota import object_names, resources
from common.quota.resources import ResourceList

OF_MACHINES = frozenset({"cpu", "memory", "storage", "machines"})
"""They are counted from objects, whatever the catalogue says. So are the names of objects in namespaces."""


class Catalogue:
    """`allocated`: the types that Allocations may name."""

    def __init__(self, entries: Iterable[CatalogueEntry] = ()) -> None:
        sides = {entry.name: entry.count_from for entry in entries}
        always = OF_MACHINES | object_names.of_objects(sides)
        self.allocated = frozenset(name for name, side in sides.items() if side == "Allocations") - always
        self._of_objects = (frozenset(sides) | always) - self.allocated

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Catalogue):
            return NotImplemented
        return (self.allocated, self._of_objects) == (other.allocated, other._of_objects)

    def __hash__(self) -> int:
        return hash((self.allocated, self._of_objects))

    def from_objects(self, amounts: ResourceList) -> ResourceList:
        """What counts of the use of objects."""
        return _without(amounts, self.allocated)

    def from_allocations(self, amounts: ResourceList) -> ResourceList:
        """What counts of Allocations."""
        return _without(amounts, self._of_objects)


def _without(amounts: ResourceList, names: frozenset[str]) -> ResourceList:
    if names.isdisjoint(amounts):
        return amounts
    return resources.only(amounts, amounts.keys() - names)
