"""Hosts that a tenant names: how they are looked up."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from common.kube.client.tenant_threads import NotDoneError, TenantThreads

# A name server that never answers keeps a thread for as long as the system's resolver tries.
_LOOKUPS = TenantThreads("lookup of a tenant's host", places=32, seconds=60.0)

_ONE_ADDRESS = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class TenantHosts(AbstractResolver):
    """For the connections to one user cluster. `cluster`: namespace/name."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises OSError."""

        def look_up() -> Sequence[tuple[int, int, int, str, Any]]:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG)

        try:
            found = await _LOOKUPS.run(self._cluster, look_up)
        except NotDoneError as error:
            raise OSError(f"lookup of {host}: {error}") from None
        return [
            ResolveResult(
                hostname=host, host=address[0], port=address[1], family=kind, proto=protocol, flags=_ONE_ADDRESS
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Nothing is open."""
