"""What the leader runs in one term: sources, accounts and their counts, webhook configurations, the seed's status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import chain

from common.api.labels import BLOCKS_ANNOTATION, UNINSTALLED_ANNOTATION
from common.api.types import Condition, UserCluster
from common.kube.client.errors import ApiError
from common.kube.controller.leader_election import LeaseLost, Term
from common.runtime import metrics
from common.runtime.unexpected import kept_running
from seed.accounts.controller import Accounts
from seed.accounts.usage_writer import Counting
from seed.cache.replicas import Replicas
from seed.controllers.cloud_quotas import CloudQuotas
from seed.controllers.seed_status import SeedStatus
from seed.controllers.unadmitted_events import UnadmittedEvents
from seed.controllers.unknown_projects import UnknownProjects
from seed.controllers.user_cluster_conditions import own_conditions
from seed.controllers.user_clusters import UserClusters
from seed.kinds.kind import AskedOfSeed, InTerm, Replica, proof_in_namespaces
from seed.kinds.registry import KINDS
from seed.ledger.store import StoreUnavailableError
from seed.model.asked_of_seed import asked_about
from seed.model.cluster_key import is_of_kubermatic
from seed.model.source_key import OWN_API_SERVER
from seed.projections.local_copies import LocalCopies
from seed.registration import withdrawal
from seed.registration.configuration import WEBHOOK_CONFIGURATIONS
from seed.registration.enforcement import Enforcement
from seed.registration.health import Proof
from seed.usage.source import Problem, UsageSource

log = logging.getLogger(__name__)

LOOK_EVERY = 0.5  # seconds, at what the Lease asks for
LOOK_AGAIN = 5.0  # ... once no webhook is left
ENDS = (ApiError, StoreUnavailableError, LeaseLost)  # what ends a term: another replica may be in a better place


class AllSources(Mapping[str, UsageSource]):
    """Of user clusters, and of each kind."""

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
        quota_cache, cluster_cache = replica.caches.quotas, replica.caches.clusters
        cluster_cache.forget_told()
        for quota in quota_cache.all_quotas():  # before it is known what API servers are to ask about
            replica.registry.recall_projects(quota)
        replica.wanted.withdrawn = bool(withdrawal.asked(replica.lease.annotations))  # before anything is kept
        self._status = SeedStatus(cluster, cluster_cache, replica.wanted.are_wanted, self._own_conditions)
        self._unknown_projects = UnknownProjects(cluster, quota_cache, cluster_cache)
        self._local_copies = LocalCopies(quota_cache, cluster_cache, replica.registry, enabled=replica.local_copies)
        self._enforcements = {asked.key: self._enforcement(asked) for asked in _asked_of_seed()}
        in_term = self._in_term()
        self._counted = [kind.counting(in_term) for kind in KINDS]
        self._user_clusters = UserClusters(in_term, self._counted)
        self._unadmitted = UnadmittedEvents(cluster, self._user_clusters.sources)
        self._cloud_quotas = CloudQuotas(cluster, cluster_cache.user_clusters.store.values, sizing.account_quota)
        self.sources = AllSources(self._user_clusters.sources, *(counted.sources for counted in self._counted))
        self._replicas = Replicas(
            cluster, replica.lease.namespace, replica.lease.name, quota_cache, self._known, self._allow_blocks
        )
        self.accounts = self._make_accounts(term, self.sources)
        self._counting = Counting(
            cluster,
            quota_cache,
            cluster_cache,
            replica.registry,
            self.accounts,
            self.sources,
            in_flight_window=replica.options.in_flight_window,
            find_hosted=self._find_hosted,
            proven_at=lambda: replica.caches.watches.proven_at,
        )

    def _in_term(self) -> InTerm:
        return InTerm(
            replica=self._replica,
            copies=self._local_copies,
            enforcements=self._enforcements,
            on_change=self._changed,
            on_state=self._state_changed,
            on_enforced=self._enforced,
            on_cluster_proof=self._status.proven,
            unreached=self._unreached,
            look=self._look,
        )

    def _make_accounts(self, term: Term, sources: Mapping[str, UsageSource]) -> Accounts:
        replica = self._replica
        return Accounts(
            replica.cluster,
            replica.registry,
            sources,
            term=term,
            raise_term=replica.lease.raise_term,
            in_flight_window=replica.options.in_flight_window,
            known=self._replicas.in_force,
            on_reconcile=metrics.reconciled,
            proven_at=lambda: replica.caches.watches.proven_at,
        )

    def _enforcement(self, asked: AskedOfSeed) -> Enforcement:
        """Canaries are sent to the release's namespace."""
        replica = self._replica
        served, namespace = replica.caches.cluster_api.served, replica.lease.namespace
        return Enforcement(
            replica.cluster,
            asked.key,
            lambda: replica.wanted.on_seed(asked.caller, asked.desired),
            lambda: asked.sample(served, namespace),
            on_proof=partial(self._proven_of_seed, asked),
            wanted=replica.wanted.are_wanted,
        )

    async def _keep_asked(self, asked: AskedOfSeed) -> None:
        """A configuration that is there stays until it is known what this seed is."""
        if asked.begins is not None:
            await asked.begins(self._replica.caches.quotas)
        await self._enforcements[asked.key].run()

    async def run(self) -> None:
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "accounts": self.accounts.run,
            "replicas": self._replicas.run,
            "counting": self._counting.run,
            "user clusters": self._user_clusters.run,
            "seed status": self._status.run,
            "unknown projects": self._unknown_projects.run,
            "local copies": self._local_copies.run,
            "Events of what was not admitted": self._unadmitted.run,
            "quotas of cloud accounts": self._cloud_quotas.run,
            "withdrawal of webhooks": self._withdraw,
        }
        for counted in self._counted:
            parts |= counted.runs
        for asked in _asked_of_seed():
            if not asked.of_clusters:
                parts[f"webhook configuration {asked.name}"] = partial(self._keep_asked, asked)
        async with asyncio.TaskGroup() as group:
            for part, run in parts.items():
                group.create_task(kept_running(part, run, ends=ENDS), name=part)

    def configuration_changed(self) -> None:
        self._user_clusters.configuration_changed()
        for enforcement in self._enforcements.values():
            enforcement.changed()
        for counted in self._counted:
            counted.configuration_changed()

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
        for counted in self._counted:
            found += counted.left()
        cluster = self._replica.cluster
        try:
            for asked in _asked_of_seed():
                if asked.of_clusters:
                    await self._enforcements[asked.key].withdraw()
                if not asked.is_there(self._replica.caches.quotas):
                    continue
                if await cluster.find(WEBHOOK_CONFIGURATIONS, asked.name) is not None:
                    found.append(f"{asked.name} on the seed itself")
        except ApiError as error:
            log.warning("webhook configurations of the seed not seen", extra={"error": error.message})
            found.append("the seed itself")
        return found

    def _allow_blocks(self, allowed: bool) -> None:
        self._replica.lease.notes[BLOCKS_ANNOTATION] = str(self.accounts.term) if allowed else ""

    def _changed(self, source: UsageSource, freed: bool) -> None:
        if source.in_namespaces is not None:
            self._local_copies.counted_in_namespaces(source.key.cluster)
        self._counting.changed(source, freed)

    def _state_changed(self, source: UsageSource) -> None:
        self.accounts.look_again(source.consumer)

    def _own_conditions(self) -> list[Condition]:
        """Of the namespaces of the seed's own API server, where they take part."""
        copies = self._local_copies.in_namespaces(OWN_API_SERVER)
        return own_conditions(
            proof_in_namespaces(self._counted, OWN_API_SERVER), copies if self._local_copies.enabled else None
        )

    def _look(self, key: str) -> None:
        """What is proven of the cluster's namespaces, or written there, has changed."""
        if key == OWN_API_SERVER:
            self._status.look()
        else:
            self._user_clusters.look(key)

    def _enforced(self, name: str) -> None:
        """Of the quota, something else than before is proven of what is asked in some cluster."""
        self.accounts.look_at(name)

    def _unreached(self, key: str) -> Problem | None:
        source = self._user_clusters.sources.get(key)
        return source.problem if source is not None else None

    def _proven_of_seed(self, asked: AskedOfSeed, proof: Proof | None, refused: bool | None) -> None:
        self._status.proven(asked.key, proof)
        cluster_cache = self._replica.caches.clusters
        if asked.of_clusters:
            enforced = proof.enforced if proof is not None else None
            if enforced is not None and cluster_cache.tell_enforced(asked.key, enforced):
                for source in self.sources.values():
                    if asked_about(source.key) == asked.key:
                        self._state_changed(source)
        elif refused is not None and cluster_cache.tell_proven(asked.key, refused):
            for quota in self._replica.caches.quotas.all_quotas():
                self.accounts.look_at(quota.name)

    def _known(self, name: str) -> None:
        """Another generation of the quota's copy is known to all replicas."""
        self.accounts.look_at(name)

    async def _find_hosted(self, key: str) -> UserCluster | None:
        """By a consistent read. Raises ApiError."""
        caches = self._replica.caches
        view = caches.kubermatic if is_of_kubermatic(key) else caches.cluster_api
        return await view.find_hosted(key)


def _asked_of_seed() -> list[AskedOfSeed]:
    return [kind.of_seed for kind in KINDS if kind.of_seed is not None]
