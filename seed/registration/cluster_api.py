"""That Machines of Cluster API are checked on the seed: the webhook's configuration, and the proof that it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common.kube.client.api_client import Cluster
from common.kube.client.resource import Resource
from common.kube.controller.discovery import Wanted
from seed import metrics
from seed.cache.cluster_api import View
from seed.cache.clusters import ClusterCache
from seed.cache.source_keys import CLUSTER_API
from seed.machines import cluster_api, infrastructure
from seed.machines.cluster_api import ClusterMachine
from seed.registration import withdrawal
from seed.registration.configuration import WebhookConfiguration, WebhookServer, configuration, with_scale_checks
from seed.registration.health import Proof
from seed.registration.keeper import ConfigurationKeeper
from seed.registration.probe import Canary, Sample

_MACHINES = Wanted(cluster_api.GROUP, "Machine", cluster_api.VERSIONS, ClusterMachine)


class Enforcement:
    """`run()` it while there are Machines to ask about. `on_change` is called when it is proven, or proven wrong."""

    def __init__(
        self,
        cluster: Cluster,
        cluster_cache: ClusterCache,
        view: View,
        desired: Callable[[], WebhookConfiguration],
        namespace: str,
        *,
        on_change: Callable[[], None],
        on_proof: Callable[[str, Proof | None], None],
        wanted: Callable[[], bool],
    ) -> None:
        """`namespace`: where canaries are sent to."""
        self._canary = Canary(cluster, self._sample, on_proof=self._proven)
        look = self._canary.look
        self._keeper = ConfigurationKeeper(cluster, desired, on_state=look, on_write=look, wanted=wanted)
        self._running = False
        self._cluster_cache = cluster_cache
        self._view = view
        self._namespace = namespace
        self._on_change = on_change
        self._on_proof = on_proof

    async def run(self) -> None:
        self._running = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keeper.run())
                group.create_task(self._canary.run())
        finally:
            self._running = False

    def changed(self) -> None:
        """What the configuration should be is another."""
        self._keeper.changed()

    async def withdraw(self) -> None:
        """What an earlier leader may have left, while nobody keeps it. Raises ApiError."""
        if not self._running:
            await self._keeper.remove()

    async def remove(self) -> None:
        """Nothing is left to ask about. Raises ApiError."""
        self._canary.proof = None
        self._proven()
        await self._keeper.remove()

    def _sample(self) -> Sample | None:
        resource = self._view.served.find(_MACHINES)
        return sample(resource, self._namespace) if resource is not None else None

    def _proven(self) -> None:
        proof = self._canary.proof if self._keeper.wanted() else withdrawal.PROOF
        enforced = proof.enforced if proof is not None else None
        metrics.canary(CLUSTER_API, enforced)
        self._on_proof(CLUSTER_API, proof)
        if self._cluster_cache.tell_enforced(CLUSTER_API, enforced is not False):
            self._on_change()


CALLER = "cluster-api"
"""The webhook's kind, and whom the token in the URL proves: the seed's own API server."""

NAME = "seedquota-cluster-api"
WEBHOOK = "cluster-api.seedquota.io"


def desired(server: WebhookServer) -> WebhookConfiguration:
    """It holds tokens: never log it."""
    admitting = configuration(
        NAME,
        WEBHOOK,
        server,
        server.url(CALLER),
        rules=[
            {
                "apiGroups": [cluster_api.GROUP],
                "apiVersions": sorted(cluster_api.VERSIONS),
                "operations": ["CREATE", "UPDATE"],
                "resources": ["machines", "machinepools", "machinepools/scale"],
                "scope": "Namespaced",
            }
        ],
        sized_by=["clusterName", "infrastructureRef", "failureDomain", "replicas", "template"],
    )
    return with_scale_checks(admitting, server.url("scale", CALLER))


def sample(resource: Resource[ClusterMachine], namespace: str) -> Sample:
    """A canary: of no Cluster, so it would cost nobody anything."""
    group, version = infrastructure.GROUP, resource.version
    reference = {"kind": "SeedQuotaCanary", "name": "seedquota-canary"}
    reference |= {"apiGroup": group} if version == "v1beta2" else {"apiVersion": f"{group}/v1beta1"}
    spec = {
        "clusterName": "seedquota-canary",
        "bootstrap": {"dataSecretName": "seedquota-canary"},
        "infrastructureRef": reference,
    }
    return Sample(resource, namespace, spec, WEBHOOK)
