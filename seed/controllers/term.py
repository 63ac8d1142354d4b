"""What the leader runs in one term: sources, accounts and their counts, webhook configurations, the seed's status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from common.api.labels import UNINSTALLED_ANNOTATION
from common.api.types import Condition, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.kube.client.reach import DEFAULT, Reach
from common.kube.controller.leader_election import Lease, LeaseLost, Term
from common.runtime import metrics
from common.runtime.unexpected import kept_running
from seed.accounts.controller import Accounts
from seed.accounts.registry import AccountRegistry
from seed.accounts.usage_writer import Counting
from seed.cache.cluster_api import View
from seed.cache.clusters import ClusterCache
from seed.cache.kubermatic import KubermaticView
from seed.cache.quotas import QuotaCache
from seed.cache.replicas import Replicas
from seed.cache.source_keys import ALLOCATIONS, CLUSTER_API, CLUSTERS, OWN_API_SERVER, is_of_kubermatic
from seed.controllers.cloud_quotas import CloudQuotas
from seed.controllers.seed_status import SeedStatus
from seed.controllers.unadmitted_events import UnadmittedEvents
from seed.controllers.unknown_projects import UnknownProjects
from seed.controllers.user_cluster_conditions import own_conditions
from seed.controllers.user_clusters import UserClusters
from seed.controllers.wanted import WantedConfigurations
from seed.kinds.allocations import configuration as allocations
from seed.kinds.allocations.source import AllocationSources
from seed.kinds.clusters import configuration as clusters
from seed.kinds.clusters.evaluator import Kind
from seed.kinds.clusters.source import ClusterSources
from seed.kinds.machines import cluster_api_configuration as cluster_api
from seed.kinds.machines.cluster_api_source import ClusterApiInformers
from seed.kinds.machines.source import Source
from seed.kinds.namespaces import configuration as namespaces
from seed.kinds.namespaces.enforcement import NamespacedWebhook
from seed.kinds.namespaces.source import NamespacedSource, NamespacedSources
from seed.ledger.store import Store, StoreUnavailableError
from seed.projections.local_copies import LocalCopies
from seed.registration import withdrawal
from seed.registration.configuration import WEBHOOK_CONFIGURATIONS, WebhookConfiguration
from seed.registration.enforcement import Enforcement
from seed.registration.health import Proof
from seed.registration.probe import Sample
from seed.sizing.sizer import Sizing
from seed.usage.source import Problem, UsageSource

log = logging.getLogger(__name__)

LOOK_EVERY = 0.5  # seconds, at what the Lease asks for
LOOK_AGAIN = 5.0  # ... once no webhook is left
ENDS = (ApiError, StoreUnavailableError, LeaseLost)  # what ends a term: another replica may be in a better place


@dataclass(frozen=True, kw_only=True)
class Replica:
    """The parts of this process that the leader works with. `in_flight_window` is in seconds."""

    cluster: Cluster
    quota_cache: QuotaCache
    cluster_cache: ClusterCache
    registry: AccountRegistry
    store: Store
    lease: Lease
    wanted: WantedConfigurations
    sizing: Sizing
    cluster_api: View
    kubermatic: KubermaticView
    kinds: tuple[Kind, ...]
    in_flight_window: float
    local_copies: bool = True
    reach: Reach = DEFAULT


class AllSources(Mapping[str, UsageSource]):
    """Of user clusters, of what the seed itself is for, of projects' clusters and Allocations, and of namespaces."""

    def __init__(self, *parts: Mapping[str, UsageSource]) -> None:
        self._parts = parts

    def __getitem__(self, key: str) -> UsageSource:
        for part in self._parts:
            found = part.get(key)
            if found is not None:
                return found
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))


class Leadership:
    """`run()` it for as long as the lease is held. Nothing is asked of the cluster before."""

    def __init__(self, replica: Replica, term: Term) -> None:
        self._replica = replica
        cluster, sizing = replica.cluster, replica.sizing
        quota_cache, cluster_cache = replica.quota_cache, replica.cluster_cache
        cluster_cache.forget_told()
        replica.wanted.withdrawn = bool(withdrawal.asked(replica.lease.annotations))  # before anything is kept
        self._status = SeedStatus(cluster, cluster_cache, replica.wanted.are_wanted, self._own_conditions)
        self._unknown_projects = UnknownProjects(cluster, quota_cache, cluster_cache)
        self._local_copies = LocalCopies(quota_cache, cluster_cache, replica.registry, enabled=replica.local_copies)
        self._user_clusters = UserClusters(
            cluster,
            quota_cache,
            cluster_cache,
            replica.wanted.for_cluster,
            replica.wanted.stamping_for_cluster,
            sizing,
            self._local_copies,
            on_change=self._changed,
            on_state=self._cluster_state_changed,
            on_proof=self._status.proven,
            wanted=replica.wanted.are_wanted,
            reach=replica.reach,
            on_reconcile=metrics.reconciled,
            beside=self._follow_namespaces,
            in_namespaces=self._proof_in_namespaces,
        )
        self._namespaces = NamespacedSources(
            cluster,
            quota_cache,
            cluster_cache,
            replica.registry,
            on_change=self._namespaces_changed,
            on_state=self._state_changed,
            unreached=self._unreached,
        )
        self._unadmitted = UnadmittedEvents(cluster, self._user_clusters.sources)
        self._cloud_quotas = CloudQuotas(cluster, cluster_cache.user_clusters.store.values, sizing.account_quota)
        self._enforce()
        self._own_namespaced = self._namespaced_webhook(OWN_API_SERVER, OWN_API_SERVER, cluster, self._status.look)
        self._namespaced = {OWN_API_SERVER: self._own_namespaced}  # webhooks by cluster, as far as they are connected
        self._informers = ClusterApiInformers(
            cluster,
            quota_cache,
            cluster_cache,
            replica.cluster_api,
            sizing,
            self._for_cluster_api,
            on_change=self._changed,
            on_state=self._state_changed,
        )
        self._clusters = self._cluster_sources()
        self._allocations = AllocationSources(
            cluster, quota_cache, on_change=self._changed, on_state=self._state_changed
        )
        sources = AllSources(
            self._user_clusters.sources, self._informers.sources, self._clusters, self._allocations, self._namespaces
        )
        self._replicas = Replicas(cluster, replica.lease.namespace, replica.lease.name, quota_cache, self._known)
        self.accounts = self._make_accounts(term, sources)
        self._counting = Counting(
            cluster,
            quota_cache,
            cluster_cache,
            replica.registry,
            self.accounts,
            sources,
            in_flight_window=replica.in_flight_window,
            find_hosted=self._find_hosted,
        )

    def _make_accounts(self, term: Term, sources: Mapping[str, UsageSource]) -> Accounts:
        replica = self._replica
        return Accounts(
            replica.cluster,
            replica.quota_cache,
            replica.cluster_cache,
            replica.registry,
            replica.store,
            sources,
            term=term.number,
            since=term.since,
            cold=not term.continuous,
            raise_term=replica.lease.raise_term,
            in_flight_window=replica.in_flight_window,
            known=self._replicas.generation,
            on_reconcile=metrics.reconciled,
        )

    def _cluster_sources(self) -> ClusterSources:
        replica = self._replica
        return ClusterSources(
            replica.cluster,
            replica.cluster_api.served,
            replica.kinds,
            on_change=self._changed,
            on_state=self._state_changed,
        )

    async def _keep_for_allocations(self) -> None:
        """One that is there stays until it is known what this seed is."""
        await self._replica.quota_cache.wait_in_cluster()
        await self._for_allocations.run()

    def _enforce(self) -> None:
        """What the seed's own API server asks about. Canaries are sent to the release's namespace."""
        wanted, namespace = self._replica.wanted, self._replica.lease.namespace
        served = self._replica.cluster_api.served
        self._for_cluster_api = self._enforcement(
            CLUSTER_API, wanted.for_cluster_api, lambda: cluster_api.sample_of(served, namespace)
        )
        self._for_clusters = self._enforcement(CLUSTERS, wanted.for_clusters, lambda: clusters.sample(namespace))
        self._for_allocations = self._enforcement(
            ALLOCATIONS, wanted.for_allocations, lambda: allocations.sample(namespace)
        )

    def _enforcement(
        self, key: str, desired: Callable[[], WebhookConfiguration], sample: Callable[[], Sample | None]
    ) -> Enforcement:
        replica = self._replica
        return Enforcement(
            replica.cluster,
            key,
            desired,
            sample,
            on_proof=self._proven_of_seed,
            wanted=replica.wanted.are_wanted,
        )

    async def run(self) -> None:
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "accounts": self.accounts.run,
            "replicas": self._replicas.run,
            "counting": self._counting.run,
            "user clusters": self._user_clusters.run,
            "Cluster API": self._informers.run,
            "clusters": self._clusters.run,
            "allocations": self._allocations.run,
            "namespaces": self._namespaces.run,
            "seed status": self._status.run,
            "unknown projects": self._unknown_projects.run,
            "local copies": self._local_copies.run,
            "Events of what was not admitted": self._unadmitted.run,
            "quotas of cloud accounts": self._cloud_quotas.run,
            "webhook configuration for clusters": self._for_clusters.run,
            "webhook configuration for Allocations": self._keep_for_allocations,
            "webhook for namespaces of the seed": self._own_namespaced.run,
            "local copies in namespaces of the seed": self._copy_in_own_namespaces,
            "withdrawal of webhooks": self._withdraw,
        }
        async with asyncio.TaskGroup() as group:
            for part, run in parts.items():
                group.create_task(kept_running(part, run, ends=ENDS), name=part)

    async def _copy_in_namespaces(self, key: str, cluster: Cluster) -> None:
        look = self._user_clusters.look
        await self._local_copies.keep_in_namespaces(key, cluster, self._namespaces, lambda: look(key))

    async def _copy_in_own_namespaces(self) -> None:
        cluster = self._replica.cluster
        await self._local_copies.keep_in_namespaces(OWN_API_SERVER, cluster, self._namespaces, self._status.look)

    @property
    def in_namespaces(self) -> list[NamespacedSource]:
        return self._namespaces.all()

    def configuration_changed(self) -> None:
        self._user_clusters.configuration_changed()
        self._for_cluster_api.changed()
        self._for_clusters.changed()
        self._for_allocations.changed()
        for webhook in self._namespaced.values():
            webhook.configuration_changed()

    async def _withdraw(self) -> None:
        """Removes the webhooks while that is asked for, and says what is left."""
        lease, wanted = self._replica.lease, self._replica.wanted
        while True:
            question = withdrawal.asked(lease.annotations)
            if wanted.withdrawn != bool(question):
                wanted.withdrawn = bool(question)
                log.warning("webhooks are withdrawn" if question else "webhooks are wanted again")
                self.configuration_changed()
                self._status.look()
            left = await self._with_webhooks() if question else []
            if question:
                lease.notes[UNINSTALLED_ANNOTATION] = withdrawal.answer(question, left)
            await asyncio.sleep(LOOK_EVERY if left or not question else LOOK_AGAIN)

    async def _with_webhooks(self) -> list[str]:
        found = self._user_clusters.with_webhooks()
        found += [f"{namespaces.NAME} of {key}" for key, webhook in self._namespaced.items() if not webhook.absent]
        cluster = self._replica.cluster
        try:
            await self._for_cluster_api.withdraw()
            names = [clusters.NAME, cluster_api.NAME]
            if self._replica.quota_cache.in_cluster:
                names.append(allocations.NAME)
            for name in names:
                if await cluster.find(WEBHOOK_CONFIGURATIONS, name) is not None:
                    found.append(f"{name} on the seed itself")
        except ApiError as error:
            log.warning("webhook configurations of the seed not seen", extra={"error": error.message})
            found.append("the seed itself")
        return found

    def _changed(self, source: UsageSource, freed: bool) -> None:
        self._counting.changed(source, freed)

    def _namespaces_changed(self, source: UsageSource, freed: bool) -> None:
        self._local_copies.counted_in_namespaces(source.consumer.cluster)
        self._changed(source, freed)

    def _state_changed(self, source: UsageSource) -> None:
        self.accounts.look_again(source.consumer)

    def _own_conditions(self) -> list[Condition]:
        """Of the namespaces of the seed's own API server, where they take part."""
        copies = self._local_copies.in_namespaces(OWN_API_SERVER)
        return own_conditions(self._own_namespaced.shown, copies if self._local_copies.enabled else None)

    def _proof_in_namespaces(self, key: str) -> Proof | None:
        webhook = self._namespaced.get(key)
        return webhook.shown if webhook is not None else None

    def _namespaced_webhook(
        self, key: str, caller: str, cluster: Cluster, on_state: Callable[[], None]
    ) -> NamespacedWebhook:
        replica = self._replica
        return NamespacedWebhook(
            cluster,
            key,
            replica.quota_cache,
            replica.cluster_cache,
            replica.registry,
            lambda quotas: replica.wanted.for_namespaces(key, caller, quotas, replica.cluster_cache.exempt(key)),
            wanted=replica.wanted.are_wanted,
            on_enforced=self._enforced,
            on_state=on_state,
        )

    def _enforced(self, name: str) -> None:
        """Of the quota, something else than before is proven of what is asked in some cluster."""
        self.accounts.look_at(name)

    async def _follow_namespaces(self, source: Source, cluster: Cluster) -> None:
        if source.on_seed:
            return  # its namespaces are the seed's, which have their own webhook and copies
        key = source.key
        webhook = self._namespaced_webhook(key, source.uid, cluster, lambda: self._user_clusters.look(key))
        self._namespaced[key] = webhook
        try:
            async with asyncio.TaskGroup() as group:
                for part, run in (
                    ("namespaces", lambda: self._namespaces.follow(key, cluster)),
                    ("webhook for namespaces", webhook.run),
                    ("local copies in namespaces", lambda: self._copy_in_namespaces(key, cluster)),
                ):
                    group.create_task(kept_running(part, run, whose=key))
        finally:
            if self._namespaced.get(key) is webhook:
                del self._namespaced[key]

    def _unreached(self, key: str) -> Problem | None:
        source = self._user_clusters.sources.get(key)
        return source.problem if source is not None else None

    def _cluster_state_changed(self, source: Source) -> None:
        self._state_changed(source)
        self._namespaces.look(source.key)

    def _proven_of_seed(self, key: str, proof: Proof | None, refused: bool | None) -> None:
        """Machines of Cluster API are taken for checked until it is known better; the others once that is proven."""
        self._status.proven(key, proof)
        cluster_cache = self._replica.cluster_cache
        if key == CLUSTER_API:
            enforced = proof.enforced if proof is not None else None
            if enforced is not None and cluster_cache.tell_enforced(key, enforced):
                for source in self._informers.sources.values():
                    self._state_changed(source)
        elif refused is not None and cluster_cache.tell_proven(key, refused):
            for quota in self._replica.quota_cache.all_quotas():
                self.accounts.look_at(quota.name)

    def _known(self, name: str) -> None:
        """Another generation of the quota's copy is known to all replicas."""
        self.accounts.look_at(name)

    async def _find_hosted(self, key: str) -> UserCluster | None:
        """By a consistent read. Raises ApiError."""
        view = self._replica.kubermatic if is_of_kubermatic(key) else self._replica.cluster_api
        return await view.find_hosted(key)
