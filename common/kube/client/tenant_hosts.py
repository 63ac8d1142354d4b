"""Hosts that a tenant names: name resolution, the check of the address, and the message if a host is unreachable."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Sequence
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from common.kube.client.networks import Networks
from common.kube.client.tenant_threads import NotDoneError, TenantThreads

log = logging.getLogger(__name__)

# A name server that never answers keeps a thread for as long as the system's resolver tries.
_LOOKUPS = TenantThreads("lookup of a tenant's host", places=32, seconds=60.0)

_ONE_ADDRESS = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV

UNREACHABLE = "its server cannot be reached; the log of seedquota-seed says why"
FORBIDDEN = "its server has an address that --user-cluster-networks does not allow"


class ForbiddenAddressError(OSError):
    pass


class TenantHosts(AbstractResolver):
    """For the connections to one user cluster. `cluster`: namespace/name."""

    def __init__(self, cluster: str, networks: Networks) -> None:
        self._cluster = cluster
        self._networks = networks
        self._logged = ""

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

    def check(self, address: aiohttp.AddrInfoType) -> None:
        """Asked with what a socket is about to be connected to, whatever the host was called before. Raises OSError."""
        connected_to = str(address[4][0])
        if not self._networks.allows(connected_to):
            raise ForbiddenAddressError(errno.EACCES, f"{connected_to} is not in --user-cluster-networks")

    def told(self, error: Exception, why: str) -> str:
        """What anybody may read of a connection that failed. Where nobody learns whether an address refuses, does not
        answer or speaks another protocol, nobody can search the platform's network through us."""
        if why != self._logged:
            self._logged = why
            log.info("user cluster cannot be reached", extra={"cluster": self._cluster, "error": why})
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        return FORBIDDEN if isinstance(cause, ForbiddenAddressError) else UNREACHABLE
