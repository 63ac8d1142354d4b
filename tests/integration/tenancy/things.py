"""What a quota counts, one class for each resource: how one is made, takes more, goes, and what it uses."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from devcluster.load import Size, machine
from devcluster.objects import API
from tests.integration.installed.site import MACHINES, Answer, Json, Site

STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
Place = tuple[str, str]  # a cluster, and a path there
_numbers = itertools.count(1)


class Things:
    """Of one subject. `places` are collections, of which the emptiest gets the next. `made` has what is there now.

    `one` is what each uses, `more` what `enlarge` adds, `already` how many are there that no row makes.
    """

    one: ClassVar[Mapping[str, str]]
    more: ClassVar[Mapping[str, str]] = {}
    already = 0

    def __init__(self, site: Site, places: Sequence[Place]) -> None:
        self.site = site
        self.places = places
        self.made: list[Place] = []
        self.away: list[Place] = []  # places that are not the subject's now

    async def create(self) -> Answer:
        full = Counter(self._place_of(each) for each in self.made)
        cluster, collection = min((place for place in self.places if place not in self.away), key=lambda at: full[at])
        name = f"m{next(_numbers)}"
        answer = await self.site.call(cluster, "POST", collection, self.body(name))
        if answer.status == 201:
            self.made.append((cluster, f"{collection}/{name}"))
        return answer

    async def enlarge(self, thing: Place) -> Answer:
        return await self.site.call(thing[0], "PATCH", thing[1], self.enlarged())

    async def remove(self, thing: Place) -> None:
        await self.site.delete(*thing)
        self.made.remove(thing)

    def amounts(self, count: int) -> dict[str, str]:
        """What so many use together with those that are always there."""
        total = self.already + count
        return {
            name: f"{int(each.rstrip('Gi')) * total}{'Gi' * each.endswith('Gi')}" for name, each in self.one.items()
        }

    def body(self, name: str) -> Json:
        raise NotImplementedError

    def enlarged(self) -> Json:
        raise NotImplementedError

    @staticmethod
    def _place_of(thing: Place) -> Place:
        return thing[0], thing[1].rpartition("/")[0]


class Machines(Things):
    one: ClassVar = {"cpu": "1", "machines": "1", "memory": "1Gi", "storage": "1Gi"}
    more: ClassVar = {"cpu": "1"}

    def __init__(self, site: Site, *clusters: str) -> None:
        super().__init__(site, [(cluster, MACHINES) for cluster in clusters])

    def body(self, name: str) -> Json:
        return machine(name, Size("1", "1Gi", "1Gi"))

    def enlarged(self) -> Json:
        return {"spec": {"providerSpec": {"value": {"cloudProviderSpec": {"cpu": "2"}}}}}


class Pods(Things):
    one: ClassVar = {"count/pods": "1", "pods": "1", "requests.cpu": "1"}
    more: ClassVar = {"requests.cpu": "1"}

    def __init__(self, site: Site, *namespaces: tuple[str, str]) -> None:
        super().__init__(site, [(cluster, f"/api/v1/namespaces/{name}/pods") for cluster, name in namespaces])

    def body(self, name: str) -> Json:
        return self.with_container({"resources": {"requests": {"cpu": "1"}}}) | {"metadata": {"name": name}}

    def with_container(self, fields: Json) -> Json:
        return {"spec": {"containers": [{"name": "c", "image": "i", **fields}], "terminationGracePeriodSeconds": 0}}

    async def enlarge(self, thing: Place) -> Answer:
        body = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}}
        return await self.site.call(thing[0], "PATCH", f"{thing[1]}/resize", body, headers=STRATEGIC)


class Promises(Things):
    """Core ResourceQuotas, one in a namespace at most: of several, the largest counts."""

    one: ClassVar = {"count/pods": "1", "pods": "1", "requests.cpu": "1"}

    def __init__(self, site: Site, *namespaces: tuple[str, str]) -> None:
        super().__init__(site, [(cluster, f"/api/v1/namespaces/{name}/resourcequotas") for cluster, name in namespaces])

    def body(self, name: str) -> Json:
        return {"metadata": {"name": name}, "spec": {"hard": dict(self.one)}}


class Clusters(Things):
    """UserClusters that nobody reaches, but that are there."""

    one: ClassVar = {"clusters": "1"}

    def __init__(self, site: Site, project: str, already: int) -> None:
        super().__init__(site, [(seed, "namespaces/alpha/userclusters") for seed in ("seed-1", "seed-2")])
        self.project = project
        self.already = already

    def body(self, name: str) -> Json:
        spec = {"project": self.project, "kubeconfigSecretRef": {"name": "none"}}
        return {"apiVersion": API, "kind": "UserCluster", "metadata": {"name": name}, "spec": spec}

    def enlarged(self) -> Json:
        return {"metadata": {"labels": {"size": "large"}}, "spec": {"provider": {"name": "fake", "region": "large"}}}


class Allocations(Things):
    one: ClassVar = {"servers": "1"}
    more: ClassVar = {"servers": "1"}

    def __init__(self, site: Site, organization: str, project: str) -> None:
        super().__init__(site, [("master", f"namespaces/org-{organization}/allocations")])
        self.whose = {"organization": organization, "project": project}

    def body(self, name: str) -> Json:
        spec = {**self.whose, "kind": "cluster", "id": name, "resources": [{"type": "servers", "committed": 1}]}
        return {"apiVersion": API, "kind": "Allocation", "metadata": {"name": name}, "spec": spec}

    def enlarged(self) -> Json:
        return {"spec": {"resources": [{"type": "servers", "committed": 2}]}}
