"""Publishes what clouds let the accounts of user clusters have, for people who ask where something fits.

Nothing is decided by it: the cloud refuses what is beyond its own limit.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from common.api import conditions
from common.api.convert import wire_quantities
from common.api.labels import CLOUD_QUOTA_MANAGER
from common.api.types import USER_CLUSTERS, CloudQuota, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.runtime.unexpected import contained
from seed.providers.flavour import AccountQuota, Place
from seed.providers.size import NotSized, ProviderUnavailable

log = logging.getLogger(__name__)

ROUND_SECONDS = 10.0  # between two looks at what is due
EVERY = 600.0  # seconds after which a cloud is asked again for one user cluster
AT_A_TIME = 4
MAX_TEXT = 1024  # characters, as the CRD has it

Ask = Callable[[UserCluster], Awaitable[tuple[Place, AccountQuota] | None]]
"""None where the cloud does not tell. Raises NotSized and ProviderUnavailable."""


class CloudQuotas:
    """`run()` it while this replica leads. Each user cluster is asked for with its own credentials: what an account has
    is told to nobody who only names it."""

    def __init__(self, cluster: Cluster, clusters: Callable[[], Iterable[UserCluster]], ask: Ask) -> None:
        self._cluster = cluster
        self._clusters = clusters
        self._ask = ask
        self._due: dict[tuple[str, int], float] = {}  # monotonic, by user cluster's uid and its spec's generation

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contained("quotas of cloud accounts"):
                await self.look()
            await asyncio.sleep(ROUND_SECONDS)

    async def look(self) -> None:
        """Asks for what is due now."""
        now = time.monotonic()
        clusters = {(each.metadata.uid, each.metadata.generation): each for each in self._clusters()}
        self._due = {key: at for key, at in self._due.items() if key in clusters}
        wanted = {key: cluster for key, cluster in clusters.items() if self._due.get(key, now) <= now}
        self._due |= {key: now + EVERY * random.uniform(0.8, 1.2) for key in wanted}  # noqa: S311
        limit = asyncio.Semaphore(AT_A_TIME)
        await asyncio.gather(*(self._publish_one(cluster, limit) for cluster in wanted.values()))

    async def _publish_one(self, cluster: UserCluster, limit: asyncio.Semaphore) -> None:
        with contained("quotas of cloud accounts", cluster.metadata.key):
            await self._publish(cluster, limit)

    async def _publish(self, cluster: UserCluster, limit: asyncio.Semaphore) -> None:
        before = cluster.status.cloud_quota
        async with limit:
            found = await self._found(cluster, before)
            if found == before:
                return
            meta = cluster.metadata
            body = {
                "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
                "status": {"cloudQuota": msgspec.to_builtins(found)} if found is not None else {},
            }
            try:
                await self._cluster.apply(USER_CLUSTERS, body, manager=CLOUD_QUOTA_MANAGER, subresource="status")
            except ApiError as error:
                log.info("quota of a cloud account not published", extra={"cluster": meta.key, "error": error.message})

    async def _found(self, cluster: UserCluster, before: CloudQuota | None) -> CloudQuota | None:
        """What was told before stays, with its age, while the cloud cannot be asked."""
        try:
            told = await self._ask(cluster)
        except (NotSized, ProviderUnavailable) as error:
            return msgspec.structs.replace(before or CloudQuota(), problem=str(error)[:MAX_TEXT])
        if told is None:
            return None
        place, quota = told
        return CloudQuota(
            place=str(place)[:MAX_TEXT],
            limits=wire_quantities(quota.limits),
            used=wire_quantities(quota.used),
            as_of=conditions.now(),
        )
