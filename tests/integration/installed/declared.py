"""What people have declared in an installation beside quotas, to be put back after whatever failed in the middle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.integration.installed.site import Site

Json = dict[str, Any]
Place = tuple[str, str]  # a cluster, and a path below our API group
OF_TESTS = "example.com/"
PROJECTS = "namespaceProjects"


class Declared:
    """Organizations, Projects, Seeds, settings and UserClusters: `await Declared.in_(site)`, and later `put_back`."""

    def __init__(self, site: Site, kept: Mapping[Place, Json]) -> None:
        self._site = site
        self._kept = kept

    @classmethod
    async def in_(cls, site: Site) -> Declared:
        return cls(site, await _found(site))

    async def put_back(self) -> None:
        """Removes what came, adds what went, and undoes what changed. Raises AssertionError if there was any: what is
        gone and what the API server made of the rest has to be looked at again."""
        found = await _found(self._site)
        changed = [place for place, each in found.items() if _wanted(each) != _wanted(self._kept.get(place))]
        missing = [place for place in self._kept if place not in found]
        for place in changed:
            if place in self._kept:
                await self._undo(place, found[place])
            else:
                await delete(self._site, *place, found[place])
        for cluster, path in missing:
            kept = self._kept[cluster, path]
            metadata = {key: kept["metadata"].get(key) for key in ("name", "namespace", "labels")}
            await self._site.call(cluster, "POST", path.rpartition("/")[0], {**kept, "metadata": metadata})
        assert not changed and not missing, f"changed: {changed}, missing: {missing}"

    async def _undo(self, place: Place, found: Json) -> None:
        cluster, path = place
        kept = self._kept[place]
        if found.get("spec", {}).get(PROJECTS) != kept.get("spec", {}).get(PROJECTS):
            await self._site.delete(cluster, path)  # it is made again: after a change, quotas wait for half a minute
            return
        metadata = {**found["metadata"], "labels": kept["metadata"].get("labels", {})}
        answer = await self._site.call(cluster, "PUT", path, {**kept, "metadata": metadata})
        if answer.status == 422:  # the organization of a project cannot change
            await self._site.delete(cluster, path)


async def delete(site: Site, cluster: str, path: str, found: Json) -> None:
    """Also what only a test's own finalizers keep: the test has failed before it removed them."""
    await site.delete(cluster, path)
    finalizers = found["metadata"].get("finalizers", [])
    if any(each.startswith(OF_TESTS) for each in finalizers):
        others = [each for each in finalizers if not each.startswith(OF_TESTS)]
        answer = await site.call(cluster, "PATCH", path, {"metadata": {"finalizers": others}})
        assert answer.status in (200, 404), answer


async def _found(site: Site) -> dict[Place, Json]:
    collections = [("master", plural) for plural in ("organizations", "projects", "quotasettings", "seeds")]
    collections += [(seed, "userclusters") for seed in site.installed.seeds]
    found = {}
    for cluster, plural in collections:
        for each in await site.items(cluster, plural):
            metadata = each["metadata"]
            below = f"namespaces/{metadata['namespace']}/{plural}" if "namespace" in metadata else plural
            found[cluster, f"{below}/{metadata['name']}"] = each
    return found


def _wanted(found: Json | None) -> object:
    """What people wrote."""
    if found is None:
        return None
    metadata = found["metadata"]
    return found.get("spec", {}), metadata.get("labels", {}), "deletionTimestamp" in metadata
