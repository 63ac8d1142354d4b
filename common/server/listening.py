"""The sockets that a server listens at, and what it accepts there."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

BACKLOG = 1024  # connections that the kernel accepts ahead of us
ACCEPT_PAUSE = 0.1  # where no descriptors are left


async def listen(host: str | None, port: int) -> list[socket.socket]:
    """Raises OSError."""
    if host is None:
        made = [_dual_stack(port)]
    else:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        made = []
        for family, _, _, _, address in dict.fromkeys(found):
            where = (address[0], made[0].getsockname()[1] if made and not port else port)
            made.append(socket.create_server(where, family=family, backlog=BACKLOG))
    for listener in made:
        listener.setblocking(False)
    return made


async def accept(listener: socket.socket, arrived: Callable[[socket.socket, object], None]) -> None:
    """Until cancelled. `arrived` gets each connection, and the address of its other end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            accepted, peer = await loop.sock_accept(listener)
        except OSError as error:  # no descriptor is left, or the caller has gone again
            log.warning("connection not accepted", extra={"caller": "", "error": str(error)})
            await asyncio.sleep(ACCEPT_PAUSE)
            continue
        with suppress(OSError):  # its caller has gone again
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        arrived(accepted, peer)
        await asyncio.sleep(0)  # what is accepted at once never waits: others have their turn


def _dual_stack(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # a kernel may know IPv6 and have no address of it
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=BACKLOG)
