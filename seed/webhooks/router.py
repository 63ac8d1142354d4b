"""Which webhook answers a request, and the proof of who asks.

The path is `/<webhook>/<caller>/<token>`, or `/<webhook>/<token>` where only the seed's own API server asks. A token is
of one webhook and one caller, so one tenant's API server cannot speak for another's cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from common.runtime.pieces import before_pieces
from common.server.http_parser import Head, Request, Response
from seed.webhooks.endpoint import Endpoint

Handler = Callable[[Request], Awaitable[Response]]
Endpoints = Mapping[str, Endpoint[Any]]
"""By the first part of the path."""

Verify = Callable[[str, str, str], bool]
"""Whether, for a webhook and a caller, a token is theirs."""

MAX_CALLER = 64  # characters: uids, and names of our own


def route(endpoints: Endpoints, verify: Verify) -> Handler:
    async def handle(request: Request) -> Response:
        found = _find(endpoints, verify, request.method, request.path)
        if found is None:
            return _NOT_FOUND
        with before_pieces():
            return await found[0].handle(found[1], request)

    return handle


def identify(endpoints: Endpoints, verify: Verify) -> Callable[[Head], str | None]:
    """Who calls, by the head of a request alone. None where `route` answers that there is nothing."""

    def caller(head: Head) -> str | None:
        found = _find(endpoints, verify, head.method, head.path)
        return found[1] if found is not None else None

    return caller


def _find(endpoints: Endpoints, verify: Verify, method: str, path: str) -> tuple[Endpoint[Any], str] | None:
    """The webhook and who asks it."""
    name, *rest = path.removeprefix("/").split("/", 3)
    endpoint = endpoints.get(name)
    if method != "POST" or endpoint is None:
        return None
    if endpoint.caller is not None:
        rest = [endpoint.caller, *rest]
    if len(rest) != 2 or len(rest[0]) > MAX_CALLER or not verify(name, rest[0], rest[1]):
        return None
    return endpoint, rest[0]


_NOT_FOUND = Response(404, b"not found\n")
