"""The server of one replica's HTTP API: its certificate, the CA of its callers, and what it watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from common.kube.client.api_client import Cluster
from common.runtime import metrics as runtime_metrics
from common.runtime.flags import Address
from common.server.serving_certificate import Certificates
from common.server.web_server import WebServer
from master.apiserver.app import App, Mount, refusal
from master.apiserver.auth import MAX_ASKED
from master.apiserver.client_certificates import ClientAuthority
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches
from master.seeds.agent_pages import AgentPages

log = logging.getLogger(__name__)

SECRET_NAME = "seedquota-api-tls"  # noqa: S105 (its name)
CONNECTIONS = 3 * MAX_ASKED  # to the API server, also for what is not a review: apart from the master's other work
CERTIFICATE_SECONDS = 60.0
STOP_SECONDS = 10.0


class ApiServer:
    """Serves until cancelled. `names`: DNS names and IP addresses of the certificate. `mount`: the page.
    `prefix`: the path below which people reach it. Raises ValueError where that cannot be one."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        namespace: str,
        address: Address,
        names: Sequence[str],
        *,
        mount: Mount = lambda _app: None,
        prefix: str = "",
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cluster = Cluster(
            cluster.access, name="master", connections=CONNECTIONS, on_request=runtime_metrics.kubernetes_request
        )
        self._address = address
        self._allocations = AllocationCache(cluster)
        agents = AgentPages(caches, namespace, runtime_metrics.kubernetes_request)
        self.app = app = App(self._cluster, caches, self._allocations, agents, mount, prefix)
        self.certificates = Certificates(self._cluster, namespace, names, secret=SECRET_NAME)
        self._client_authority = ClientAuthority(self._cluster, self._trust_callers)
        self.server = WebServer(app.application, refusal, stopping, prefix=prefix)

    def not_ready(self) -> str | None:
        """A readiness check."""
        missing = self.certificates.not_ready()
        missing = missing or self._allocations.not_synced()
        return missing if missing is not None or self.server.port else "not listening yet"

    async def run(self) -> None:
        """Raises OSError when the address cannot be had."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.certificates.run(), name="certificate of the HTTP API")
                group.create_task(self._allocations.run(), name="watch allocations")
                group.create_task(self._client_authority.run(), name="watch the CA of client certificates")
                group.create_task(self._serve(), name="HTTP API")
        finally:
            await self._cluster.close()

    def _trust_callers(self, authority: str) -> None:
        self.certificates.trust_callers(authority)
        self.server.use(self.certificates.ssl_context)

    async def _serve(self) -> None:
        while True:
            try:
                await self.certificates.wait_ready(CERTIFICATE_SECONDS)
                break
            except TimeoutError as error:  # the master's other work goes on
                log.warning("the HTTP API has no certificate", extra={"error": str(error)})
        address = self._address
        await self.server.start(address.host or None, address.port, self.certificates.ssl_context)
        self.server.use(self.certificates.ssl_context)  # the CA of callers may have come meanwhile
        log.info("the HTTP API is served", extra={"port": self.server.port})
        try:
            await asyncio.Event().wait()
        finally:
            self.app.events.end()
            await self.server.stop(STOP_SECONDS)
