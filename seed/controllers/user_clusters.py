"""What the seed's leader does for each UserCluster: follow its Machines, keep its webhook in place, say how it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from common.api import conditions
from common.api.cluster_identity import DUPLICATE
from common.api.labels import SEED_MANAGER
from common.api.types import USER_CLUSTERS, Condition, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, NotFound
from common.kube.controller.controller import Controller
from common.runtime.metrics import reconciled
from seed import metrics
from seed.admission import projects
from seed.controllers.user_cluster_conditions import believed_proof, copied, enforced_in_namespaces, judge
from seed.controllers.user_cluster_status import desired_status, recorded, shown
from seed.kinds.kind import CountedKind, InTerm, proof_in_namespaces
from seed.kinds.machines import configuration as machines
from seed.kinds.machines.cluster_identity import Identities
from seed.kinds.machines.machine_api import TAKEN_OVER
from seed.kinds.machines.source import Source
from seed.model.cluster_key import is_of_kubermatic
from seed.registration.configuration import WEBHOOK_CONFIGURATIONS
from seed.registration.registered_webhook import RegisteredWebhook
from seed.usage.source import Problem

log = logging.getLogger(__name__)

STATUS_DELAY = 1.0  # seconds: a storm of Machines becomes one write a second
LOOK_AGAIN = 5.0  # ... while something is wrong, so that its end is seen


class UserClusters:
    """Runs while this replica leads. `counted`: the kinds, which may need each connection, too."""

    def __init__(self, term: InTerm, counted: Sequence[CountedKind]) -> None:
        self.sources: dict[str, Source] = {}
        self._webhooks: dict[str, RegisteredWebhook] = {}
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._term = term
        self._counted = counted
        self._replica = replica = term.replica
        self._cluster = replica.cluster
        self._quota_cache = replica.caches.quotas
        self._cluster_cache = replica.caches.clusters
        self._copies = term.copies
        self._identities = Identities(replica.cluster, replica.caches.clusters)
        self._controller: Controller[str] = Controller(
            "userclusters", self._reconcile, workers=4, timeout=30, on_reconcile=reconciled
        )

    async def run(self) -> None:
        stop = self._cluster_cache.on_user_cluster(self._controller.queue.add)
        try:
            for cluster in self._cluster_cache.followed():
                self._controller.queue.add(cluster.metadata.key)
            await self._controller.run()
        finally:
            stop()
            sources = list(self.sources.values())
            self.sources.clear()
            await asyncio.gather(*(source.stop() for source in sources))

    def configuration_changed(self) -> None:
        """The CA bundle or a token changed: the configuration of every user cluster must change."""
        for webhook in self._webhooks.values():
            webhook.changed()

    def with_webhooks(self) -> list[str]:
        """The user clusters in which a configuration of ours may still be. Of two that lead to one cluster, the one
        that is not followed is not named."""
        return [
            key
            for cluster in self._cluster_cache.followed()
            if not (self._is_absent(key := cluster.metadata.key) or self._is_duplicate(key))
        ]

    def _is_absent(self, key: str) -> bool:
        webhook = self._webhooks.get(key)
        return webhook is not None and webhook.absent

    def _is_duplicate(self, key: str) -> bool:
        source = self.sources.get(key)
        return source is not None and source.problem is not None and source.problem.reason == DUPLICATE

    async def _reconcile(self, key: str) -> float | None:
        cluster = self._cluster_cache.followed_as(key)
        source = self.sources.get(key)
        if source is not None and (cluster is None or not _same_source(source.user_cluster, cluster)):
            del self.sources[key]
            # Another one of the same cluster takes the configuration over: it must stay in place meanwhile.
            await self._stop_keeping(source, remove=cluster is None and not self._identities.is_shared(source.uid))
            await source.stop()
            self._identities.forget(source.uid)
            source = None
        if cluster is None:
            self._cluster_cache.forget_enforced(key)
            self._term.on_cluster_proof(key, None)
            metrics.no_machines(key)
            return None
        if source is None:
            self.sources[key] = source = Source(
                self._cluster,
                cluster,
                on_change=self._changed,
                on_state=self._state_changed,
                sizing=self._replica.sizing,
                reach=self._replica.reach,
                connected=self._keep_webhook,
                identify=self._identify,
            )
            return STATUS_DELAY
        source.user_cluster = cluster  # where its credentials are may have changed
        return await self._report(cluster, source)

    def _changed(self, source: Source, freed: bool) -> None:
        self._controller.queue.add_after(source.key, STATUS_DELAY)
        self._term.on_change(source, freed)

    def _state_changed(self, source: Source) -> None:
        self._controller.queue.add(source.key)
        self._copies.source_changed(source.key)
        self._tell_state(source)

    def _tell_state(self, source: Source) -> None:
        self._term.on_state(source)
        for counted in self._counted:
            counted.cluster_changed(source.key)

    async def _identify(self, source: Source, cluster: Cluster) -> Problem | None:
        problem = await self._identities.check(source.user_cluster, cluster)
        if problem is None:
            source.identity = self._identities.stands_for(source.user_cluster)
            for key in self._identities.later(source.user_cluster):
                other = self.sources.get(key)
                if other is not None and other.cluster is not None:
                    other.identify_again()
        return problem

    async def _stop_keeping(self, source: Source, *, remove: bool) -> None:
        """A user cluster that is not counted here any more must not send its objects to this webhook."""
        key, cluster = source.key, source.cluster
        webhook, task = self._webhooks.pop(key, None), self._keeping.pop(key, None)
        copies, in_namespaces = self._copies.of(key), self._copies.in_namespaces(key)
        if webhook is None or task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not remove:
            return
        try:
            await webhook.remove()
            names = [name for counted in self._counted for name in counted.configurations(source.user_cluster)]
            if cluster is not None:
                for name in names:
                    with suppress(NotFound):
                        await cluster.delete(WEBHOOK_CONFIGURATIONS, name)
            if copies is not None:
                await copies.remove()
            if in_namespaces is not None:
                await in_namespaces.remove()
        except ApiError as error:
            log.warning("left behind in a user cluster", extra={"cluster": key, "error": str(error)})

    def _keep_webhook(self, source: Source, cluster: Cluster) -> asyncio.Task[None]:
        def look() -> None:
            self._controller.queue.add(source.key)

        def told() -> None:
            look()
            self._tell_state(source)

        def restored() -> None:
            metrics.webhook_restored(source.key)
            self._controller.queue.add_after(source.key, STATUS_DELAY)

        sample = machines.sample(source.namespace)
        webhook = RegisteredWebhook(
            cluster,
            source.key,
            lambda: self._replica.wanted.for_cluster(source.user_cluster, machines.desired),
            lambda: sample,
            wanted=self._replica.wanted.are_wanted,
            on_state=told,
            on_restore=restored,
            stamping=lambda: self._replica.wanted.for_cluster(source.user_cluster, machines.stamping),
        )

        async def keep() -> None:
            copying = self._copies.follow(source, cluster, look)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(webhook.run())
                    group.create_task(self._follow_beside(source, cluster))
            finally:
                if copying is not None:
                    copying.cancel()
                    await asyncio.wait([copying])
                # The connection has ended, and nothing is kept through it any more.
                if self._webhooks.get(source.key) is webhook:
                    del self._webhooks[source.key], self._keeping[source.key]

        self._webhooks[source.key] = webhook
        self._keeping[source.key] = task = asyncio.create_task(keep(), name=f"webhook configurations of {source.key}")
        return task

    async def _follow_beside(self, source: Source, cluster: Cluster) -> None:
        if source.on_seed:
            return  # what is in its namespaces is the seed's
        async with asyncio.TaskGroup() as group:
            for counted in self._counted:
                group.create_task(counted.follow(source.key.text, source.uid, cluster))

    async def _report(self, cluster: UserCluster, source: Source) -> float | None:
        webhook = self._webhooks.get(source.key)
        keeper, proof = (webhook.keeper, webhook.proof) if webhook is not None else (None, None)
        quotas = self._quota_cache.quotas_of(source.consumer)
        unsized = source.totals.unsized({name for quota in quotas if quota.enforced for name in quota.limits})
        said = projects.shown(self._quota_cache, cluster), self._of_namespaces(source), self._written(source)
        wanted = judge(cluster, source, keeper, proof, unsized, *said)
        metrics.canary(source.key, proof.enforced if proof is not None else None)
        self._term.on_cluster_proof(source.key, believed_proof(wanted, proof, source))
        metrics.machines(source.key, unsized.counts, source.drift.count, len(source.totals.unadmitted))
        taken_over = source.problem is not None and source.problem.reason == TAKEN_OVER
        metrics.machine_api(source.key, taken_over=taken_over)
        # a quota that comes to limit what its Machines take in no known amount is not reported to this loop
        settled = all(condition.status == "True" for condition in wanted) and not source.totals.unknown
        if is_of_kubermatic(source.key):  # it has no object of ours with a status
            enforced = next((found.status for found in wanted if found.type == "Enforced"), "Unknown")
            if enforced != "Unknown" and self._cluster_cache.tell_enforced(source.key, enforced == "True"):
                self._tell_state(source)
            return None if settled else LOOK_AGAIN
        used = shown(source.totals.used, [name for quota in quotas for name in quota.limits])
        counted = (len(source.totals), used) if source.counted else None
        unadmitted = recorded(source.totals.unadmitted) if source.counted else None
        status = desired_status(cluster, counted, wanted, conditions.now(), unadmitted)
        if status is not None and not await self._apply(cluster, status):
            return None
        return None if settled else LOOK_AGAIN

    def _of_namespaces(self, source: Source) -> Condition | None:
        quotas = self._quota_cache.object_quotas()
        if not any(self._cluster_cache.covers(quota, source.key) for quota in quotas):
            return None
        return enforced_in_namespaces(source, proof_in_namespaces(self._counted, source.key))

    def _written(self, source: Source) -> Condition | None:
        copies, in_namespaces = self._copies.of(source.key), self._copies.in_namespaces(source.key)
        return copied(source, copies, in_namespaces) if self._copies.enabled else None

    def look(self, key: str) -> None:
        """What is proven of its namespaces, or written there, has changed."""
        self._controller.queue.add(key)

    async def _apply(self, cluster: UserCluster, status: dict[str, object]) -> bool:
        """False if there is no such UserCluster any more."""
        meta = cluster.metadata
        body = {"metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}, "status": status}
        try:
            await self._cluster.apply(USER_CLUSTERS, body, manager=SEED_MANAGER, subresource="status")
        except NotFound:
            return False
        return True


def _same_source(known: UserCluster, present: UserCluster) -> bool:
    return (known.metadata.uid, known.spec.project) == (
        present.metadata.uid,
        present.spec.project,
    ) and known.spec.kubeconfig_secret_ref == present.spec.kubeconfig_secret_ref
