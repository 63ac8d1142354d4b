"""The simulated world of one tenancy: projects of one organization, whose quotas limit what they have of each kind.

Namespaces belong to projects by their label. Beside them, some user clusters are of one project, with Machines. In some
worlds, the first seed is the master's own cluster, and one project allocates there. All of it is in one account.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from common.api.labels import SETTINGS
from common.api.types import CatalogueEntry, QuotaSettings, QuotaSettingsSpec
from common.kube.client.meta import ObjectMeta as Meta
from common.quota import resources
from common.quota.account import Account
from common.quota.resources import ResourceList
from seed.admission.refusal import Refusal
from seed.kinds.namespaces.source import NamespacedSource
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from seed.usage.project_sources import ProjectSource
from tests.sim.allocation_world import FIRST
from tests.sim.allocation_world import WITHOUT as WITHOUT_ALLOCATIONS
from tests.sim.allocations import ALLOCATED, AllocationServer
from tests.sim.checks import Thing, Wish
from tests.sim.members_side import MembersReplica
from tests.sim.namespaces import NamespacedCluster
from tests.sim.seed_side import WEBHOOK_TIMEOUT, Replica
from tests.sim.servers import ELSEWHERE_COUNTED, OF_TENANTS, TENANTS, Copy, Source, Spec, uid_of
from tests.sim.tenancy_world import TenancyWorld
from tests.sim.world import SIZES, UNIT, Answered, Site, World

ALLOCATES = TENANTS[0]
ENTRIES = [CatalogueEntry(name=ALLOCATED, count_from="Allocations")]


class MembersWorld(TenancyWorld):
    replica_type = MembersReplica

    def _make_quotas(self) -> None:
        self.allocates = self.rng.random() < 0.5
        if self.allocates:
            for name in WITHOUT_ALLOCATIONS:
                self.swarm.rates.pop(name, None)
        super()._make_quotas()

    def _elsewhere(self, units: int) -> dict[str, int]:
        limits = {"machines": units}
        if self.rng.random() < 0.4:
            limits["storage"] = 2 * units
        if self.allocates:
            limits[ALLOCATED] = self.rng.randint(2, 8)
        return limits

    def add_site(self, name: str) -> Site:
        site = super().add_site(name)
        if self.allocates:
            site.api.settings = QuotaSettings(
                metadata=Meta(name=SETTINGS, uid=SETTINGS), spec=QuotaSettingsSpec(resources=ENTRIES)
            )
        if self.allocates and name == FIRST:
            site.api.in_cluster = True
            server = AllocationServer(name, self, ALLOCATES, OF_TENANTS)
            site.sources[server.key] = site.ever[server.key] = server
        self._add_machines(site, f"{name}/m{self.token()}")
        return site

    def add_cluster(self, site: Site, key: str, project: str) -> None:
        if site.sources and self.rng.random() < 0.4:
            self._add_machines(site, key)
        else:
            super().add_cluster(site, key, project)

    def _add_machines(self, site: Site, key: str) -> None:
        World.add_cluster(self, site, key, self.rng.choice(TENANTS))

    def site_of(self, source: str) -> Site:
        return super().site_of(source) if source.partition("/")[0] in self.sites else self.sites[FIRST]

    def _organization(self, project: str) -> str:
        return OF_TENANTS if project in TENANTS else ""

    # What is counted -----------------------------------------------------------------------------------------------

    def _size(self, source: Source, size: ResourceList) -> ResourceList:
        """What one of that size has there."""
        if isinstance(source, NamespacedCluster):
            return size
        if isinstance(source, AllocationServer):
            return {ALLOCATED: size["cpu"]}
        return {"machines": size["cpu"], "storage": size["memory"]}

    def _applying(self, thing: Thing) -> list[Spec]:
        source = self._source(thing)
        if isinstance(source, NamespacedCluster):
            return [spec for spec in super()._applying(thing) if not ELSEWHERE_COUNTED.issuperset(spec.limits)]
        names = self._size(source, UNIT).keys()
        return [spec for spec in World._applying(self, thing) if not names.isdisjoint(spec.limits)]

    def _used(self, spec: Spec, site: Site) -> dict[str, ResourceList]:
        return World._used(self, spec, site) | super()._used(spec, site)

    def _place(self, left: dict[str, dict[str, int]]) -> None:
        site = self.rng.choice(list(self.sites.values()))
        source = self.rng.choice(list(site.sources.values()))
        size = self._size(source, self.rng.choice(SIZES))
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        if isinstance(source, NamespacedCluster):
            source.inside[thing.uid] = self.rng.choice(list(source.labels.present))
        applying = self._applying(thing)
        if any(resources.short(resources.only(size, spec.limits), left[spec.key.name]) for spec in applying):
            return
        self._was_admitted(source, thing, size, {spec.key.uid: resources.only(size, spec.limits) for spec in applying})
        self._take(left, applying, size)

    def there(self, site: Site, subject: str, without: Collection[str] = ()) -> dict[str, int]:
        return resources.add(super().there(site, subject, without), World.there(self, site, subject, without))

    def to_count(self, site: Site, copy: Copy, account: Account, without: Collection[str]) -> ResourceList:
        names = {*copy.limits, *account.granted}  # in namespaces, what was never limited is not read
        inside = resources.only(super().there(site, copy.subject, without), names)
        return resources.add(inside, World.there(self, site, copy.subject, without))

    def room_of(self, source: Source) -> int | None:
        if isinstance(source, NamespacedCluster):
            return super().room_of(source)
        return self.room(source.project, self._size(source, UNIT))

    # What users do -------------------------------------------------------------------------------------------------

    def create(self, site: Site, source: Source, size: ResourceList, replaces: Collection[str] = ()) -> Wish:
        return super().create(site, source, self._size(source, size), replaces)

    def _choose(self, source: Source, thing: Thing) -> None:
        if isinstance(source, NamespacedCluster):
            super()._choose(source, thing)

    def resize(self, site: Site, source: Source, thing: Thing, size: ResourceList) -> None:
        super().resize(site, source, thing, self._size(source, size))

    def slip(self, source: Source, size: ResourceList) -> None:
        if isinstance(source, NamespacedCluster):
            super().slip(source, size)
        else:
            World.slip(self, source, self._size(source, size))

    def _serves(self, replica: Replica, source: Source) -> bool:
        return isinstance(source, AllocationServer) or super()._serves(replica, source)

    def _asks(
        self, replica: Replica, source: Source, wish: Wish, there: set[str], answered: Answered
    ) -> asyncio.Task[None]:
        if isinstance(source, NamespacedCluster):
            return super()._asks(replica, source, wish, there, answered)
        consumer = Consumer(source.project, source.key if source.is_cluster else "")

        def limiting() -> set[str]:
            quotas = replica.view.quota_cache.quotas_of(consumer)
            heard_of = {uid for uid in replica.view.limits.values() if uid}
            return {quota.key.uid for quota in quotas if resources.only(wish.need, quota.limits)} & heard_of

        before = limiting()

        def heard(no: Refusal | None, quotas: list[Quota], repeated: bool = False) -> None:
            there.update(before & limiting())
            answered(no, [quota for quota in quotas if resources.only(wish.need, quota.limits)], repeated)

        if not isinstance(source, AllocationServer):
            found = World._asks(self, replica, source, wish, set(), heard)
            assert found is not None, "it answers"
            return found
        assert isinstance(replica, MembersReplica), "there are no others here"
        new = source.made(wish.thing.uid, wish.size, wish.generation)
        old = source.made(wish.thing.uid, wish.old, wish.generation - 1) if wish.old is not None else None
        known = replica.view.quota_cache.quotas_of(consumer)
        deadline = replica.loop.time() + 0.8 * WEBHOOK_TIMEOUT
        return replica.ask_to_allocate(new, old, known, deadline, heard)

    def finish(self, wish: Wish, *, persists: bool) -> None:
        if isinstance(self._source(wish.thing), NamespacedCluster):
            super().finish(wish, persists=persists)
        else:
            World.finish(self, wish, persists=persists)

    def _followed(self, source: Source) -> bool:
        return source.has_machines and World._followed(self, source)

    def move(self, site: Site, source: Source) -> None:
        if isinstance(source, NamespacedCluster):
            super().move(site, source)

    def _seen(self, followed: object, name: str) -> int | None:
        if isinstance(followed, (NamespacedSource, ProjectSource)):
            return followed.totals.seen([uid_of(name)]).get(uid_of(name), 0)
        return World._seen(self, followed, name)  # type: ignore[arg-type]
