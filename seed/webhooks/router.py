"""Which webhook answers a request, and the proof of who asks.

The path is `/<webhook>/<caller>/<token>`, or `/<webhook>/<token>` where only the seed's own API server asks. A token is
of one webhook and one caller, so one tenant's API server cannot speak for another's cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from common.server.http_parser import Request, Response
from seed.webhooks.endpoint import Endpoint

Handler = Callable[[Request], Awaitable[Response]]


def route(endpoints: Mapping[str, Endpoint[Any]], verify: Callable[[str, str, str], bool]) -> Handler:
    """`endpoints` by the first part of the path. `verify(webhook, caller, token)` tells whether the token is theirs."""

    async def handle(request: Request) -> Response:
        name, *rest = request.path.removeprefix("/").split("/")
        endpoint = endpoints.get(name)
        if request.method != "POST" or endpoint is None:
            return _NOT_FOUND
        if endpoint.caller is not None:
            rest = [endpoint.caller, *rest]
        if len(rest) != 2 or not verify(name, rest[0], rest[1]):
            return _NOT_FOUND
        return await endpoint.handle(rest[0], request)

    return handle


_NOT_FOUND = Response(404, b"not found\n")
