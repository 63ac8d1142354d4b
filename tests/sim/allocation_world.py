"""The simulated world with Allocations: the first seed is the master's own cluster, and one project allocates there.

Machines have some of what the catalogue counts from Allocations, which does not count there. An Allocation that
nobody admitted has some of what is counted from objects, and of a type that the catalogue does not name, which counts
from both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from common.api.labels import SETTINGS
from common.api.types import CatalogueEntry, QuotaSettings, QuotaSettingsSpec
from common.kube.client.meta import ObjectMeta as Meta
from common.quota import resources
from common.quota.resources import ResourceList
from seed.model.consumer import Consumer
from seed.usage.project_sources import ProjectSource
from tests.sim import allocations
from tests.sim.allocation_side import AllocationReplica
from tests.sim.allocations import ALLOCATED, KEY, LICENCES, OF_BOTH, OF_OBJECTS, AllocationServer, MachinesOfAll
from tests.sim.checks import Thing, Truth, Wish
from tests.sim.seed_side import WEBHOOK_TIMEOUT, Replica
from tests.sim.servers import EVERYBODY, Machine, ObjectMeta, Source, Spec, uid_of
from tests.sim.world import PROJECTS, SIZES, Answered, Site, World

WITHOUT = ("rollouts", "projects", "restore_source", "clusters", "copies", "lost")
FIRST = "seed-1"
ENTRIES = [
    CatalogueEntry(name=ALLOCATED, count_from="Allocations"),
    CatalogueEntry(name=LICENCES, count_from="Allocations"),
    CatalogueEntry(name=OF_OBJECTS, count_from="Objects"),
]


class AllocationTruth(Truth):
    keeps_limited = True


class AllocationWorld(World):
    replica_type = AllocationReplica

    def _make_truth(self) -> Truth:
        return AllocationTruth(self.things)

    def _make_quotas(self) -> None:
        for name in WITHOUT:
            self.swarm.rates.pop(name, None)
        rng, units = self.rng, self.rng.randint(2, 10)
        for project in PROJECTS:
            self.master.write_project(project, EVERYBODY)
        self._make_quota(
            "a",
            "a",
            {"cpu": units, "memory": rng.randint(units, 2 * units)}
            | {ALLOCATED: rng.randint(2, 10), LICENCES: rng.randint(4, 12), OF_BOTH: rng.randint(units, 2 * units)},
        )
        limits = {"cpu": units + rng.randint(0, 4), ALLOCATED: rng.randint(2, 10), OF_OBJECTS: 5}
        self._make_quota("all", EVERYBODY, limits | ({OF_BOTH: rng.randint(2, 10)} if rng.random() < 0.5 else {}))

    def add_site(self, name: str) -> Site:
        site = super().add_site(name)
        spec = QuotaSettingsSpec(resources=ENTRIES)
        site.api.settings = QuotaSettings(metadata=Meta(name=SETTINGS, uid=SETTINGS), spec=spec)
        if name == FIRST:
            site.api.in_cluster = True
            site.sources[KEY] = site.ever[KEY] = AllocationServer(name, self)
        for project in self.master.projects:
            site.api.write_project(project, EVERYBODY)
        return site

    def add_cluster(self, site: Site, key: str, project: str) -> None:
        site.sources[key] = site.ever[key] = MachinesOfAll(key, site.name, project)
        site.api.write_cluster(key, project)

    # What is counted -----------------------------------------------------------------------------------------------

    def _size(self, source: Source, size: ResourceList) -> ResourceList:
        """What one of that size counts as there."""
        if isinstance(source, AllocationServer):
            return {ALLOCATED: size["cpu"], LICENCES: size["memory"]}
        return {**size, OF_BOTH: size["cpu"]}

    def counted(self, source: Source, size: ResourceList) -> ResourceList:
        of_side = allocations.of_allocations if isinstance(source, AllocationServer) else allocations.of_machines
        return {name: amount for name, amount in of_side(size).items() if amount}

    def site_of(self, source: str) -> Site:
        return self.sites[FIRST] if source == KEY else super().site_of(source)

    def _used(self, spec: Spec, site: Site) -> dict[str, ResourceList]:
        return {
            source.key: resources.total(self.counted(source, machine.resources) for machine in source.machines.values())
            for source in site.sources.values()
            if self._counts(spec, source)
        }

    def _place(self, left: dict[str, dict[str, int]]) -> None:
        site = self.rng.choice(list(self.sites.values()))
        source = self.rng.choice(list(site.sources.values()))
        size = self._size(source, self.rng.choice(SIZES))
        applying = [spec for spec in self.master.quotas.values() if self._counts(spec, source)]
        if any(resources.short(resources.only(size, spec.limits), left[spec.key.name]) for spec in applying):
            return
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        admitted = {spec.key.uid: size for spec in applying}
        self._was_admitted(source, thing, size, admitted)
        self._take(left, applying, size)

    def there(self, site: Site, subject: str, without: Collection[str] = ()) -> dict[str, int]:
        return resources.total(
            self.counted(source, machine.resources)
            for source in site.sources.values()
            if self._limits(subject, source.project)
            for uid, machine in source.machines.items()
            if uid not in without
        )

    def room_of(self, source: Source) -> int | None:
        return self.room(source.project, self._size(source, SIZES[0]))

    # What users do -------------------------------------------------------------------------------------------------

    def create(self, site: Site, source: Source, size: ResourceList, replaces: Collection[str] = ()) -> Wish:
        return super().create(site, source, self._size(source, size), replaces)

    def resize(self, site: Site, source: Source, thing: Thing, size: ResourceList) -> None:
        super().resize(site, source, thing, self._size(source, size))

    def slip(self, source: Source, size: ResourceList) -> None:
        """... with what is not counted from there."""
        found = self._size(source, size)
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        thing.size, thing.generation = found, 1
        self.things[thing.uid] = thing
        more = {"cpu": 1, OF_OBJECTS: 1, OF_BOTH: 1} if isinstance(source, AllocationServer) else {}
        source.write(None, Machine(ObjectMeta(uid_of(thing.uid), thing.uid, 1), {**found, **more}))
        self.truth.excuse()

    def _serves(self, replica: Replica, source: Source) -> bool:
        return isinstance(source, AllocationServer) or super()._serves(replica, source)

    def _followed(self, source: Source) -> bool:
        return source.is_cluster and super()._followed(source)

    def _asks(
        self,
        replica: Replica,
        source: Source,
        wish: Wish,
        there: set[str],
        answered: Answered,
    ) -> asyncio.Task[None] | None:
        assert isinstance(replica, AllocationReplica), "there are no others here"
        applying = (spec for spec in self.master.quotas.values() if self._counts(spec, source))
        heard_of = (spec for spec in applying if replica.view.limits.get(spec.key.name) == spec.key.uid)
        known = replica.view.quota_cache.quotas_of(Consumer(source.project, source.key))
        deadline = replica.loop.time() + 0.8 * WEBHOOK_TIMEOUT
        make: Any = source.made if isinstance(source, AllocationServer) else allocations.machine
        new = make(wish.thing.uid, wish.size, wish.generation)
        old = make(wish.thing.uid, wish.old, wish.generation - 1) if wish.old is not None else None
        if isinstance(source, AllocationServer):
            known = [quota for quota in known if not quota.limits.keys().isdisjoint(wish.need)]
            there.update({spec.key.uid for spec in heard_of} & {quota.key.uid for quota in known})
            return replica.ask_to_allocate(new, old, known, deadline, answered)
        there.update(spec.key.uid for spec in heard_of)
        return replica.ask_for_machine(source.key, new, old, known, deadline, answered)

    def _seen(self, followed: Any, name: str) -> int | None:
        if isinstance(followed, ProjectSource):
            return followed.totals.seen([uid_of(name)]).get(uid_of(name), 0)
        return super()._seen(followed, name)
