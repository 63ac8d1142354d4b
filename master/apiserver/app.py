"""The HTTP API: from a request of aiohttp's to its answer, and what is logged of it.

common/server/web_server.py bounds connections, heads and the time for each. Whose a token is, is found out before a
body is read. Then connections are counted by user, all others by address: who only guesses tokens takes no place from
users, and few from who comes new.

A page can be mounted beside the routes. It asks `App.viewer` who looks, and `App.ask` what the API answers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import msgspec
from aiohttp import web

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.server.access_reviews import User
from common.server.http_parser import RefusedError
from common.server.web_server import ask_later, connection_of, read_body
from master.apiserver import metrics
from master.apiserver.allocation_handlers import AllocationHandlers
from master.apiserver.auth import Identities, Rights, bearer, from_another_site, unauthenticated
from master.apiserver.call import Call, RouteResponse, of_api_error
from master.apiserver.client_certificates import user_of
from master.apiserver.cluster_handlers import ClusterHandlers
from master.apiserver.conditions import COMPRESSED, Preconditions, tag_of
from master.apiserver.encoding import LARGE, compressed, takes_gzip
from master.apiserver.events import Events
from master.apiserver.handlers import Handlers
from master.apiserver.manifest_handlers import ManifestHandlers
from master.apiserver.namespace_handlers import NamespaceHandlers
from master.apiserver.platform_handlers import PlatformHandlers
from master.apiserver.preview_handlers import PreviewHandlers
from master.apiserver.problem import MEDIA_TYPE, ProblemError
from master.apiserver.reading import LONGEST, check_media_type, decode_body, field, read_conditions, read_query
from master.apiserver.request_limits import Limits
from master.apiserver.route import Route
from master.apiserver.routes import ROUTES
from master.apiserver.served import Served
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches
from master.seeds.agent_pages import AgentPages

log = logging.getLogger(__name__)

MAX_BODY = 256 * 1024
SECONDS = 15.0  # for what one request asks
TOO_MANY_SECONDS = 1.0  # until it is answered that it was too many: those who go on ask no more than once in it

_ANY = Preconditions()
_AS_IT_COMES = ("X-Accel-Buffering", "no")  # nginx keeps answers back otherwise

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Mount = Callable[[web.Application], None]
"""Adds routes of its own. `app[API]` is there."""


API: web.AppKey[App] = web.AppKey("api")
SERVED = web.RequestKey("served", Served)


class App:
    """`session`: the token that a request's cookie stands for, where there is a page that sets one. `prefix`: the path
    below which browsers and clients reach all of it, such as "/quota"; a path that this sends them to begins with it.

    Raises ValueError where the prefix begins as paths of its own do: then nobody could tell them apart.
    """

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        allocations: AllocationCache,
        agents: AgentPages,
        mount: Mount = lambda _app: None,
        prefix: str = "",
    ) -> None:
        self.prefix = prefix
        self.session: Callable[[web.Request], str | None] = lambda _request: None
        self.caches = caches
        self.rights = Rights(cluster)
        self.allocations = allocations
        self._identities = Identities(cluster)
        self.events = Events(caches, allocations, self.rights)
        self._handlers = handlers(
            Handlers(cluster, caches, allocations, self.rights, prefix),
            AllocationHandlers(cluster, caches, allocations, self.rights),
            PreviewHandlers(caches, self.rights, agents),
            ClusterHandlers(caches, self.rights, agents),
            ManifestHandlers(caches, self.rights, agents),
            NamespaceHandlers(caches, self.rights, agents),
            PlatformHandlers(cluster, caches, self.rights),
        )
        self._limits = Limits()
        self._compressing = asyncio.Lock()
        self.application = web.Application(middlewares=[self._serve])
        self.application[API] = self
        for route in ROUTES:
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                answer = partial(self._stream if route.streams else self._answer, route)
                self.application.router.add_route(method, route.resource, answer, expect_handler=ask_later)
        mount(self.application)
        own = {resource.canonical.split("/")[1] for resource in self.application.router.resources()}
        if (first := prefix.partition("/")[2].partition("/")[0]) in own - {""}:
            raise ValueError(f"no path below which the page is reached can begin with /{first}: it is one of its own")

    @asynccontextmanager
    async def viewer(self, request: web.Request) -> AsyncIterator[User]:
        """Who asks, by certificate, token or cookie. Within it the request counts in the user's limits.

        Raises ProblemError, also where a page of another site uses what a browser shows by itself.
        """
        user, shown_by_itself = await self._who(request)
        request[SERVED].user = user
        connection_of(request).name(request[SERVED].caller)
        async with self.limited(request):
            if shown_by_itself and request.method not in ("GET", "HEAD") and from_another_site(request):
                detail = "a page of another site sent it, for which a browser shows the certificate and the cookie"
                raise ProblemError(403, detail, code="cross_site")
            yield user

    async def identify(self, token: str, request: web.Request) -> User:
        """Whose the token is. Raises ProblemError, 401 where it is nobody's."""
        return await self._identities.user(token, connection_of(request).address)

    async def _who(self, request: web.Request) -> tuple[User, bool]:
        """Who asks, and whether a browser shows by itself what proves it. Raises ProblemError."""
        # As in an API server, the token is looked at where there is no certificate.
        user = user_of(connection_of(request).certificate)
        if user is not None:
            return user, True
        token = bearer(request)
        kept = self.session(request) if token is None else None
        if token is None and kept is None:
            detail = "a token is needed, Authorization: Bearer TOKEN, or a valid client certificate"
            raise unauthenticated(detail)
        return await self.identify(token or kept or "", request), token is None

    @asynccontextmanager
    async def limited(self, request: web.Request) -> AsyncIterator[None]:
        """For what everybody may read: viewer has it. Raises ProblemError."""
        try:
            with self._limits.one(request[SERVED].caller):
                yield
        except ProblemError as problem:
            if problem.status == 429:
                await asyncio.sleep(TOO_MANY_SECONDS)
            raise

    async def ask(
        self,
        request: web.Request,
        handler: str,
        user: User,
        *,
        parameters: Mapping[str, str] = {},
        query: Mapping[str, str] = {},
        body: object = None,
        preconditions: Preconditions = _ANY,
    ) -> RouteResponse:
        """What a route answers to the user, by the name of its handler. A write is in the audit log.

        Raises ProblemError and ApiError.
        """
        served, route = request[SERVED], _BY_HANDLER[handler]
        if not route.public and (self.caches.not_synced() or self.allocations.not_synced()):
            raise ProblemError(503, "the lists of the API server are not complete yet")
        served.call = call = Call(user, parameters, query, body, preconditions)
        if route.writes:
            served.writes = route
        try:
            async with asyncio.timeout(SECONDS):
                return await self._handlers[handler](call)
        except TimeoutError:
            detail = f"not answered within {SECONDS:g} s; what was written is not known"
            raise ProblemError(503, detail) from None

    def problem(self, request: web.Request, error: Exception) -> ProblemError:
        """What an error is for whoever asked."""
        served = request[SERVED]
        facts = {"request_id": served.id, "caller": served.caller[:LONGEST]}
        if isinstance(error, RefusedError):
            problem = ProblemError(error.response.status, str(error))
        elif isinstance(error, ApiError):
            log.warning("request failed", extra={**facts, "error": error.message[:LONGEST]})
            problem = of_api_error(error)
        elif isinstance(error, web.HTTPException) and error.status < 500:
            problem = ProblemError(error.status, error.reason.lower())
        elif isinstance(error, ProblemError):
            problem = error
        else:
            log.error("request failed", exc_info=error, extra=facts)
            problem = ProblemError(500, "the request failed here")
        served.code = problem.code
        return problem

    @web.middleware
    async def _serve(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        served = request[SERVED] = Served(request)
        try:
            try:
                unmatched = request.match_info.http_exception
                response = await (handler(request) if unmatched is None else self._unmatched(request, unmatched))
            except Exception as error:  # noqa: BLE001 (the outermost edge of a request; `problem` logs it)
                response = respond(self.problem(request, error), served.id)
            served.status = response.status
            return response
        finally:
            served.note()

    async def _unmatched(self, request: web.Request, why: web.HTTPException) -> web.Response:
        """Raises ProblemError. Which methods a path has may everybody know, and only users that there is no path."""
        methods = _methods(route.method for route in ROUTES) if request.raw_path == "*" else ""
        if isinstance(why, web.HTTPMethodNotAllowed):
            methods = _methods(why.allowed_methods)
        if request.method == "OPTIONS" and methods:
            async with self.limited(request):
                return web.Response(status=204, headers=[*_headers(request[SERVED].id), ("Allow", methods)])
        async with self.viewer(request):
            if methods:
                raise ProblemError(405, f"it has {methods}", headers=(("Allow", methods),))
            raise ProblemError(404, "there is no such route; /openapi.json names them")

    async def _answer(self, route: Route, request: web.Request) -> web.Response:
        if route.public:
            async with self.limited(request):
                return await self._answered(route, request, User())
        async with self.viewer(request) as user:
            return await self._answered(route, request, user)

    async def _answered(self, route: Route, request: web.Request, user: User) -> web.Response:
        if route.writes:
            request[SERVED].writes = route  # also where the body is wrong
        query = read_query(route, request.rel_url.raw_query_string)
        preconditions, body = read_conditions(route, request), None
        if route.body is not None:
            check_media_type(request)
            body = decode_body(route, await read_body(request, MAX_BODY))
        answer = await self.ask(
            request,
            route.handler,
            user,
            parameters=request.match_info,
            query=query,
            body=body,
            preconditions=preconditions,
        )
        return await self._shown(route, request, answer, preconditions)

    async def _stream(self, route: Route, request: web.Request) -> web.StreamResponse:
        """It counts in the user's limits until it begins, then in those of streams."""
        served, events = request[SERVED], self.events
        async with self.viewer(request) as user:
            query = read_query(route, request.rel_url.raw_query_string)
            if why := self.caches.not_synced():
                raise ProblemError(503, f"the lists of the API server are not complete yet: {why}")
            stream = events.stream(query.get("project", ""), query.get("organization", ""))
            await events.prove(user, stream)

        async def still() -> None:
            await events.prove((await self._who(request))[0], stream)

        with events.follow(user, stream):
            headers = [*_headers(served.id), ("Content-Type", f"{route.media_type}; charset=utf-8"), _AS_IT_COMES]
            response = web.StreamResponse(headers=headers)
            if request.method == "HEAD":
                return response
            served.status, served.lasts = 200, True
            with suppress(ConnectionError):  # whoever followed has gone
                await response.prepare(request)
                await events.send(stream, response, still)
        return response

    async def _shown(
        self, route: Route, request: web.Request, answer: RouteResponse, preconditions: Preconditions
    ) -> web.Response:
        content = answer.content
        if not isinstance(content, bytes):
            content = b"" if content is None else msgspec.json.encode(content)
        headers = [*_headers(request[SERVED].id, lasting=route.public), *map(self._below, answer.headers)]
        reads = route.method == "GET"
        tag = tag_of(answer.version, content) if reads or answer.version else ""
        if reads:  # also where it is small, or 304: the next answer may be compressed
            headers.append(("Vary", "Accept-Encoding"))
            had = preconditions.had_already(tag)
            if had is not None:
                return web.Response(status=304, headers=[*headers, ("ETag", f'"{had}"')])
            if len(content) >= LARGE and self._may_compress(request):
                async with self._compressing:
                    content = await asyncio.to_thread(compressed, content)
                headers.append(("Content-Encoding", "gzip"))
                tag += COMPRESSED
        if tag:
            headers.append(("ETag", f'"{tag}"'))
        status = answer.status or route.status
        kind = None if status == 204 else route.media_type
        return web.Response(body=content, status=status, headers=headers, content_type=kind)

    def _below(self, header: tuple[str, str]) -> tuple[str, str]:
        """Of what a route answers: an address in it is below the prefix."""
        name, value = header
        return name, {"Location": f"{self.prefix}{value}", "Link": f"<{self.prefix}{value[1:]}"}.get(name, value)

    def _may_compress(self, request: web.Request) -> bool:
        """One at a time, on a thread beside the others' requests; what comes meanwhile is sent as it is.

        Nothing that a page of another site made a browser ask for: by the size of such answers, with data beside it
        that it chose, it could guess what it may not read (BREACH).
        """
        takes = takes_gzip(field(request, "Accept-Encoding")) and not from_another_site(request)
        return takes and not self._compressing.locked()


_BY_HANDLER = {route.handler: route for route in ROUTES}


def handlers(*several: object) -> dict[str, Callable[[Call], Awaitable[RouteResponse]]]:
    """By the routes' names for them."""
    return {
        route.handler: next(getattr(each, route.handler) for each in several if hasattr(each, route.handler))
        for route in ROUTES
        if not route.streams
    }


def respond(problem: ProblemError, request_id: str) -> web.Response:
    content = msgspec.json.encode(problem.problem())
    headers = [*_headers(request_id), *problem.headers]
    response = web.Response(body=content, status=problem.status, headers=headers, content_type=MEDIA_TYPE)
    if problem.status == 401:
        response.force_close()
    return response


def refusal(status: int, text: str) -> web.Response:
    """To what is no request."""
    metrics.REQUESTS.labels("none", "none", str(status)).inc()
    return respond(ProblemError(status, text[:LONGEST]), secrets.token_hex(8))


def _headers(request_id: str, *, lasting: bool = False) -> Sequence[tuple[str, str]]:
    """`lasting`: whoever keeps the answer must ask whether it is still right, and may keep it."""
    kept = "no-cache" if lasting else "no-store"
    fixed = (("Cache-Control", kept), ("X-Content-Type-Options", "nosniff"), ("Server", "SeedQuota"))
    return (("X-Request-Id", request_id), *fixed)


def _methods(of: Iterable[str]) -> str:
    """As the header Allow names them."""
    found = {*of, "OPTIONS"}
    return ", ".join(sorted({*found, *(("HEAD",) if "GET" in found else ())}))
