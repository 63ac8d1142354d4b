"""From which side each resource is counted."""

from __future__ import annotations

from common.api.catalogue import Catalogue
from common.api.types import CatalogueEntry

USE = {"cpu": 1, "clusters": 2, "servers": 3, "nvidia.com/gpu": 4}


def catalogue(**sides: str) -> Catalogue:
    named = {name.replace("_", "/"): side for name, side in sides.items()}
    return Catalogue(CatalogueEntry(name=name, count_from=side) for name, side in named.items())  # type: ignore[arg-type]


def test_each_resource_that_is_named_is_counted_from_one_side_only() -> None:
    found = catalogue(servers="Allocations", clusters="Objects", **{"nvidia.com_gpu": "Allocations"})
    assert found.allocated == {"servers", "nvidia.com/gpu"}
    assert found.from_objects(USE) == {"cpu": 1, "clusters": 2}
    assert found.from_allocations(USE) == {"servers": 3, "nvidia.com/gpu": 4}


def test_what_is_not_named_is_counted_from_objects_and_stays_counted_where_it_is_allocated() -> None:
    nothing = catalogue()
    assert nothing.allocated == frozenset()
    assert nothing.from_objects(USE) == USE
    assert nothing.from_allocations(USE) == {"clusters": 2, "servers": 3, "nvidia.com/gpu": 4}


def test_machines_are_never_counted_from_allocations() -> None:
    found = catalogue(cpu="Allocations")
    assert found.allocated == frozenset()
    assert found.from_objects(USE)["cpu"] == 1
    assert "cpu" not in found.from_allocations(USE)


def test_catalogues_that_count_the_same_are_equal() -> None:
    assert catalogue(servers="Allocations") == catalogue(servers="Allocations")
    assert catalogue(servers="Allocations") != catalogue(servers="Objects") != catalogue()
