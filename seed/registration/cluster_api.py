"""That Machines of Cluster API are checked on the seed: the webhook's configuration, and the proof that it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common.kube.client.api_client import Cluster
from common.kube.controller.discovery import Wanted
from seed import metrics
from seed.cache.cluster_api import View
from seed.cache.quotas import CLUSTER_API, Catalog
from seed.machines import cluster_api
from seed.machines.cluster_api import ClusterMachine
from seed.registration.configuration import ConfigurationKeeper, WebhookConfiguration
from seed.registration.health import Proof
from seed.registration.probe import Canary, Sample
from seed.webhooks import cluster_api as webhook

_MACHINES = Wanted(cluster_api.GROUP, "Machine", cluster_api.VERSIONS, ClusterMachine)


class Enforcement:
    """`run()` it while there are Machines to ask about. `on_change` hears when it is proven, or proven wrong."""

    def __init__(
        self,
        cluster: Cluster,
        catalog: Catalog,
        view: View,
        desired: Callable[[], WebhookConfiguration],
        namespace: str,
        *,
        on_change: Callable[[], None],
        on_proof: Callable[[str, Proof | None], None],
    ) -> None:
        """`namespace`: where canaries are sent to."""
        self._canary = Canary(cluster, self._sample, on_proof=self._proven)
        self._keeper = ConfigurationKeeper(cluster, desired, on_state=self._canary.look, on_write=self._canary.look)
        self._catalog = catalog
        self._view = view
        self._namespace = namespace
        self._on_change = on_change
        self._on_proof = on_proof

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keeper.run())
            group.create_task(self._canary.run())

    def changed(self) -> None:
        """What the configuration should be is another."""
        self._keeper.changed()

    async def remove(self) -> None:
        """Nothing is left to ask about. Raises ApiError."""
        self._canary.proof = None
        self._proven()
        await self._keeper.remove()

    def _sample(self) -> Sample | None:
        resource = self._view.served.find(_MACHINES)
        return webhook.sample(resource, self._namespace) if resource is not None else None

    def _proven(self) -> None:
        proof = self._canary.proof
        enforced = proof.enforced if proof is not None else None
        metrics.canary(CLUSTER_API, enforced)
        self._on_proof(CLUSTER_API, proof)
        if self._catalog.tell_enforced(CLUSTER_API, enforced is not False):
            self._on_change()
