"""The sockets that a server listens at."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

BACKLOG = 1024  # connections that the kernel accepts ahead of us


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


def _dual_stack(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # a kernel may know IPv6 and have no address of it
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=BACKLOG)
