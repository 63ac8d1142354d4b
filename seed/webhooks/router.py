"""Which webhook answers a request, by the path that it is called at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from common.server.http_parser import Request, Response

Handler = Callable[[Request], Awaitable[Response]]


def route(by_prefix: Mapping[str, Handler], otherwise: Handler) -> Handler:
    async def handle(request: Request) -> Response:
        for prefix, handler in by_prefix.items():
            if request.path.startswith(prefix):
                return await handler(request)
        return await otherwise(request)

    return handle
