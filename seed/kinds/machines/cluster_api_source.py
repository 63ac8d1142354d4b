"""What the seed's leader counts of Cluster API: a source for each Cluster with a project, fed by two watch caches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Malformed, Unavailable
from common.kube.client.meta import object_key
from common.kube.client.resource import Broken, by_name
from common.kube.controller.discovery import FollowedKind
from common.kube.controller.dynamic_informers import Following
from common.kube.controller.reflector import Reflector
from common.kube.controller.store import Change, IndexFunction
from common.runtime.unexpected import contained, kept_task
from seed import metrics
from seed.cache.cluster_api import Subject, View
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.kinds.machines.size_backfill import SizeBackfill
from seed.kinds.machines.totals import MachineTotals
from seed.machines import cluster_api
from seed.machines.cluster_api import ClusterMachine, MachinePool
from seed.machines.infrastructure import Described, undescribed
from seed.machines.machine_controller import Machine
from seed.model.cluster_key import hosted_key, is_hosted
from seed.model.consumer import Consumer, consumer_of
from seed.model.source_key import SourceKey
from seed.providers.size import Footprint, ProviderUnavailable
from seed.registration.enforcement import Enforcement
from seed.sizing.sizer import Sizing
from seed.usage.shared_informers import SharedInformers, SharedInformerSource
from seed.usage.source import Generation, Taken

log = logging.getLogger(__name__)

MACHINES, POOLS = "machines", "pools"


class Unseen(Described, frozen=True):
    """Of a Machine whose infrastructure object is not in the watch cache, and was not read either."""


def _cluster_of(subject: Subject) -> str:
    return hosted_key(subject.metadata.namespace, subject.spec.cluster_name)


def _unread(struct: type[Subject], broken: Broken) -> Subject:
    """Stands for one that cannot be read. It names no Cluster, as no other does: their API requires one."""
    return struct(metadata=broken.metadata)


def _infrastructure_of(subject: Subject) -> str:
    spec = subject.spec.template.spec if isinstance(subject, MachinePool) else subject.spec
    reference = spec.infrastructure_ref
    return f"{reference.kind}/{object_key(subject.metadata.namespace, reference.name)}"


def _metal3_namespace(subject: Subject) -> list[str]:
    return [subject.metadata.namespace] if _infrastructure_of(subject).startswith("Metal3Machine/") else []


_INDEXES: Mapping[str, IndexFunction[Any]] = {
    "cluster": lambda subject: [_cluster_of(subject)],
    "infrastructure": lambda subject: [_infrastructure_of(subject)],
    "metal3": _metal3_namespace,
}


class ClusterSource(SharedInformerSource):
    """One Cluster's Machines and MachinePools."""

    def __init__(
        self, feed: ClusterApiInformers, user_cluster: UserCluster, totals: MachineTotals | None = None
    ) -> None:
        super().__init__(feed)
        self.user_cluster = user_cluster
        self.key = SourceKey(user_cluster.metadata.key)
        self.consumer = consumer_of(user_cluster)
        self._feed = feed
        self.totals = MachineTotals(totals, self._size)
        self._asking = SizeBackfill(self.totals, self._ask, self._summed, self._renewed)
        self._task = kept_task("sizes", self._asking.run, self.key)
        for subject in feed.subjects_of(self.key):
            self.apply(None, subject)

    @property
    def counted(self) -> bool:
        """Not while something in its namespace could never be read: nobody knows of which Cluster that is."""
        return super().counted and not self._feed.subjects_of(hosted_key(self.user_cluster.metadata.namespace, ""))

    async def generation(self, namespaced_name: str, uid: str) -> Generation:
        return await self._feed.generation(namespaced_name, uid)

    def apply(self, old: Subject | None, new: Subject | None) -> bool:
        """True if something became free. One that fails stops no other."""
        seen = new if new is not None else old
        assert seen is not None, "a change has an object before or after"
        with contained("Machines of Cluster API", f"{self.key} {seen.metadata.key}"):
            before = Machine(metadata=old.metadata) if old is not None else None
            freed = self.totals.apply(Change(before, self._known(new) if new is not None else None))
            self._asking.look()
            self.taken(seen.metadata.uid)
            return freed
        self.not_taken(seen.metadata.uid, seen.metadata.key)
        self._feed.state_changed(self)
        return False

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _known(self, subject: Subject) -> Machine:
        found = self._feed.view.machine_of(subject)
        if found is not None:
            return found
        replicas = subject.replicas if isinstance(subject, MachinePool) else None
        described = undescribed("", f"{subject.metadata.key} is made of what has not been seen yet", replicas)
        return Machine(metadata=subject.metadata, spec=Unseen(provider_spec=described.provider_spec))

    def _renewed(self, machine: Machine) -> Machine:
        subject = self._feed.subject(machine)
        return self._known(subject) if subject is not None else machine

    def _size(self, machine: Machine) -> Footprint:
        if isinstance(machine.spec, Unseen):
            raise ProviderUnavailable(machine.metadata.key, "is made of what has not been seen yet")
        return self._feed.sizing.counted(self.user_cluster.metadata.uid, machine)

    async def _ask(self, machine: Machine, deadline: float) -> None:
        if not isinstance(machine.spec, Unseen):
            await self._feed.sizing.size(self.user_cluster, machine, deadline)
            return
        subject = self._feed.subject(machine)
        if subject is None:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._feed.view.look_up(subject)
        except (ApiError, TimeoutError) as error:
            raise ProviderUnavailable(machine.metadata.key, "is made of what cannot be read now") from error

    def _summed(self, freed: bool) -> None:
        self._feed.on_change(self, freed)


class ClusterApiInformers(SharedInformers):
    """The watch caches, and what all sources of Cluster API share. `run()` it while this replica leads."""

    def __init__(
        self,
        cluster: Cluster,
        quota_cache: QuotaCache,
        cluster_cache: ClusterCache,
        view: View,
        sizing: Sizing,
        enforcement: Enforcement,
        *,
        on_change: Callable[[ClusterSource, bool], None],
        on_state: Callable[[ClusterSource], None],
    ) -> None:
        self._enforcement = enforcement
        self._keeping: asyncio.Task[None] | None = None
        self.sources: dict[str, ClusterSource] = {}
        self.view = view
        self.sizing = sizing
        self.on_change = on_change
        self._on_state = on_state
        self._cluster = cluster
        self._quota_cache = quota_cache
        self._cluster_cache = cluster_cache
        self._endings: set[asyncio.Task[None]] = set()
        kinds: tuple[tuple[str, str, type[Any]], ...] = (
            (MACHINES, "Machine", ClusterMachine),
            (POOLS, "MachinePool", MachinePool),
        )
        self._following = Following(
            cluster,
            view.served,
            {
                name: FollowedKind(
                    cluster_api.GROUP,
                    kind,
                    cluster_api.VERSIONS,
                    struct,
                    on_change=self._changed,
                    indexes=_INDEXES,
                    unread=partial(_unread, struct),
                )
                for name, kind, struct in kinds
            },
            on_state=self._tell,
        )

    @property
    def reflectors(self) -> list[Reflector[Any]]:
        return self._following.reflectors

    async def run(self) -> None:
        view = self.view
        following = kept_task("Machines of Cluster API", self._following.run)
        try:
            await self._following.wait_settled()
            view.on_cluster, view.on_infrastructure, view.on_hosts = self._cluster_changed, self._remade, self._moved
            for key in filter(is_hosted, list(self._cluster_cache.hosted)):
                with contained("Machines of Cluster API", key):
                    self._cluster_changed(key)
            while True:
                self._judge()
                await self._keep_webhook()
                await asyncio.sleep(1)
        finally:
            view.on_cluster = lambda _key: None
            view.on_infrastructure = lambda _kind, _key: None
            view.on_hosts = lambda _namespace: None
            sources = list(self.sources.values())
            self.sources.clear()
            following.cancel()
            if self._keeping is not None:
                self._keeping.cancel()
                await asyncio.gather(self._keeping, return_exceptions=True)
                self._keeping = None
            await asyncio.gather(following, *(source.stop() for source in sources), return_exceptions=True)

    def subjects_of(self, key: str) -> list[Subject]:
        return self._indexed("cluster", key)

    def subject(self, machine: Machine) -> Subject | None:
        for name in (MACHINES, POOLS):
            reflector = self._following.get(name)
            found: Subject | None = reflector.store.get(machine.metadata.key) if reflector is not None else None
            if found is not None and found.metadata.uid == machine.metadata.uid:
                return found
        return None

    async def generation(self, namespaced_name: str, uid: str) -> Generation:
        """As Source's: by consistent lists, since a name may be a Machine's and a MachinePool's."""
        namespace, name = namespaced_name.split("/", 1)
        resources = [self._following.resource(kind) for kind in (MACHINES, POOLS)]
        if not any(resources):
            raise Unavailable(0, "Unavailable", "the seed serves no Machines of Cluster API")
        taken = False
        for resource in resources:
            if resource is None:
                continue
            listing = await self._cluster.list(resource, namespace, field_selector=by_name(name))
            if listing.may_hide(uid):
                raise Malformed(200, "Malformed", f"{resource.kind} {namespaced_name} cannot be read")
            for found in listing.items:
                if found.metadata.uid == uid:
                    return int(found.metadata.generation)
            taken = taken or bool(listing.items)
        return Taken.TAKEN if taken else None

    def _changed(self, change: Change[Any]) -> None:
        old, new = change.old, change.new
        if old is not None and new is not None and _cluster_of(old) != _cluster_of(new):
            self._changed(Change(old, None))  # only a Cluster API whose own webhooks are off lets this happen
            self._changed(Change(None, new))
            return
        seen = new if new is not None else old
        assert seen is not None, "a change has an object before or after"
        source = self.sources.get(_cluster_of(seen))
        if source is not None:
            self.on_change(source, source.apply(old, new))

    def _remade(self, kind: str, key: str) -> None:
        self._apply_again(self._indexed("infrastructure", f"{kind}/{key}"))

    def _moved(self, namespace: str) -> None:
        self._apply_again(self._indexed("metal3", namespace))

    def _apply_again(self, subjects: Iterable[Subject]) -> None:
        for subject in subjects:
            source = self.sources.get(_cluster_of(subject))
            if source is not None:
                self.on_change(source, source.apply(subject, subject))

    def _cluster_changed(self, key: str) -> None:
        wanted, source = self._cluster_cache.hosted.get(key), self.sources.get(key)
        if source is not None and wanted is not None and source.user_cluster == wanted:
            self._apply_again(self.subjects_of(key))  # it may have moved
            return
        if source is not None:
            del self.sources[key]
            self._ending(source)
        if wanted is not None:
            self.sources[key] = made = ClusterSource(self, wanted, source.totals if source is not None else None)
            self.on_change(made, True)
            self._on_state(made)
        elif source is not None:
            metrics.no_machines(key)

    def _ending(self, source: ClusterSource) -> None:
        task = asyncio.create_task(source.stop(), name=f"end of {source.key}")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _keep_webhook(self) -> None:
        served = bool(self._following.reflectors)
        if served and self._keeping is None:
            self._keeping = kept_task("webhook configuration for Cluster API", self._enforcement.run)
        elif not served and self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
            try:
                await self._enforcement.remove()
            except ApiError as error:
                log.warning("webhook configuration left behind", extra={"error": str(error)})

    def _tell(self) -> None:
        if self._look():
            for source in self.sources.values():
                self.state_changed(source)

    def _judge(self) -> None:
        self._tell()
        for source in self.sources.values():
            with contained("Machines of Cluster API", source.key):
                totals = source.totals
                unsized = totals.unsized(self._limited(source.consumer))
                metrics.machines(source.key, unsized.counts, 0, len(totals.unadmitted))

    def state_changed(self, source: ClusterSource) -> None:
        with contained("Machines of Cluster API", source.key):
            self._on_state(source)

    def _limited(self, consumer: Consumer) -> set[str]:
        quotas = self._quota_cache.quotas_of(consumer)
        return {name for quota in quotas if quota.enforced for name in quota.limits}

    def _indexed(self, index: str, value: str) -> list[Subject]:
        return [
            subject for reflector in self._following.reflectors for subject in reflector.store.by_index(index, value)
        ]
