"""The machine types of a project's user clusters, as far as this replica has read them from their clouds already. It
calls no cloud and uses no credentials: whoever asks may see a project, and nothing of its clusters.

`GET /machinetypes/PROJECT` on the port of the metrics of every replica: each has a catalogue of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from common.api.preview_pages import MAX_ANSWER, MAX_TYPES, MachineType, MachineTypesPage, shortened
from common.api.types import UserCluster
from common.quota import resources
from common.quota.quantity import UNIT
from seed.instance_types.cache import FlavourCache
from seed.instance_types.catalogue import Known
from seed.machines.machine_controller import Machine
from seed.providers.flavour import Flavour, Lookup, Place, Setting, type_name
from seed.providers.size import Footprint, ProviderUnavailable, footprint
from seed.sizing.sizer import Sizing

_ROOM = MAX_ANSWER // 2  # bytes of types: what stands around them is less
_REGIONS = ("region", "zone", "location", "regionID")  # as providers call the setting
DISKS = "the type does not tell it: add what the disks of a Machine have"

_encode = msgspec.json.Encoder().encode


class KnownTypes:
    """`clusters`: those of a project."""

    def __init__(self, cache: FlavourCache, sizing: Sizing, clusters: Callable[[str], Iterable[UserCluster]]) -> None:
        self._cache = cache
        self._sizing = sizing
        self._clusters = clusters

    def page(self, rest: str, query: Mapping[str, str]) -> bytes | None:
        """As JSON, of the project of this name; in `query` the `name` of one type."""
        page, room = MachineTypesPage(), _ROOM
        for found in self._listed(self._clusters(rest), query.get("name", "")):
            room -= len(_encode(found))
            if len(page.items) == MAX_TYPES or room < 0:
                page.more = True
                break
            page.items.append(found)
        return _encode(page)

    def _listed(self, clusters: Iterable[UserCluster], name: str) -> Iterator[MachineType]:
        """By place and name."""
        found: dict[tuple[str, str], tuple[Place, Flavour]] = {}
        for place, key, flavour in self._known(clusters):
            shown = type_name(flavour.name or key)  # an id is another name of the type
            if not name or name == shown:
                found.setdefault((str(place), shown), (place, flavour))
        for (where, shown), (place, flavour) in sorted(found.items(), key=lambda each: each[0]):
            size = _of_type(place.provider, flavour).of_type(shown)
            yield MachineType(
                provider=place.provider,
                place=where[:317],
                name=shown,
                resources=resources.render(size.resources),
                unknown={each: shortened(why) for each, why in size.unknown.items()},
            )

    def _known(self, clusters: Iterable[UserCluster]) -> Iterator[tuple[Place, str, Flavour]]:
        for cluster in clusters:
            for place, flavours in self._cache.of_asker(cluster.metadata.uid):
                for key, known in flavours.items():
                    yield place, key, known.flavour

    def size(self, machine: Machine, projects: Iterable[str]) -> Footprint:
        """What a Machine costs, wherever one of these projects may have it. Where a type's sizes differ and the Machine
        does not say which is meant, that is the largest of each resource.

        Raises NotSized, and ProviderUnavailable for a type that was not read from a cloud yet.
        """
        found = self._sizing.read(machine)
        if not isinstance(found, Lookup):
            return found
        clusters = [cluster for project in projects for cluster in self._clusters(project)]
        having = {
            place: flavour
            for cluster in clusters
            for place, flavours in self._cache.of_asker(cluster.metadata.uid)
            if place.provider == found.provider and (flavour := _named(flavours, found.flavour)) is not None
        }
        region = _region(found.where)
        here = {place: flavour for place, flavour in having.items() if region and place.region == region}
        sizes = [
            found.complete(flavour).of_type(type_name(flavour.name or found.flavour))
            for flavour in (here or having).values()
        ]
        if not sizes:
            why = f"has not told this seed of a type {found.flavour} for user clusters of the project"
            raise ProviderUnavailable(found.provider, why)
        return _largest(sizes)


def _named(flavours: Mapping[str, Known], name: str) -> Flavour | None:
    known = flavours.get(name)
    return known.flavour if known is not None else None


def _region(where: Mapping[str, Setting]) -> str:
    """As the Machine itself says it; empty if it does not."""
    return next((where[name].value for name in _REGIONS if name in where and where[name].value), "")


def _of_type(provider: str, flavour: Flavour) -> Footprint:
    storage = DISKS if flavour.storage is None else flavour.storage
    one = footprint(provider, cpu=flavour.cpu, memory=flavour.memory, storage=storage, devices=flavour.devices)
    assert one.resources["machines"] == UNIT, "a type is of one Machine"
    return one


def _largest(sizes: list[Footprint]) -> Footprint:
    largest = sizes[0]
    for each in sizes[1:]:
        largest = Footprint(
            largest.provider,
            resources.maximum(largest.resources, each.resources),
            {**each.unknown, **largest.unknown},
            largest.excess or each.excess,
        )
    return largest
