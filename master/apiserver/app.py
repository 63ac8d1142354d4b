"""The HTTP API of one replica: each request from its bytes to its answer, what is logged of it, and the server.

It is served by common/server/http_server.py, as the webhooks are: that bounds connections, heads, bodies and the time
for each, which aiohttp's server does not. Whose a token is, is found out before a body is read. Then connections are
counted by user, all others by address: who only guesses tokens takes no place from users, and few from who comes new.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.runtime import metrics as runtime_metrics
from common.runtime.flags import Address
from common.server.access_reviews import User
from common.server.connections import UNNAMED
from common.server.http_parser import Head, RefusedError, Request, Response
from common.server.http_server import HttpServer
from common.server.serving_certificate import Certificates
from master.apiserver import metrics
from master.apiserver.allocation_handlers import AllocationHandlers
from master.apiserver.auth import MAX_ASKED, Identities, Rights, bearer, from_another_site, unauthenticated
from master.apiserver.call import Call, RouteResponse, of_api_error
from master.apiserver.client_certificates import ClientAuthority, user_of
from master.apiserver.conditions import COMPRESSED, tag_of
from master.apiserver.encoding import LARGE, compressed, takes_gzip
from master.apiserver.handlers import Handlers
from master.apiserver.limits import Limits
from master.apiserver.preview_handlers import PreviewHandlers
from master.apiserver.problem import MEDIA_TYPE, ProblemError
from master.apiserver.reading import LONGEST, read_body, read_conditions, read_query
from master.apiserver.routes import OPTIONS, ROUTES, Route, find
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches

log = logging.getLogger(__name__)
audit = logging.getLogger("master.apiserver.audit")

SECRET_NAME = "seedquota-api-tls"  # noqa: S105 (its name)
MAX_BODY = 256 * 1024
SECONDS = 15.0  # for one request
TOO_MANY_SECONDS = 1.0  # until it is answered that it was too many: those who go on ask no more than once in it
CONNECTIONS = 3 * MAX_ASKED  # to the API server, also for what is not a review: apart from the master's other work
CERTIFICATE_SECONDS = 60.0
STOP_SECONDS = 10.0

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class App:
    """`handle`, `identify` and `refusal` are for an HttpServer."""

    def __init__(self, cluster: Cluster, caches: Caches, allocations: AllocationCache) -> None:
        self._caches = caches
        self._allocations = allocations
        self._identities = Identities(cluster)
        rights = Rights(cluster)
        self._handlers = handlers(
            Handlers(cluster, caches, allocations, rights),
            AllocationHandlers(cluster, caches, allocations, rights),
            PreviewHandlers(caches, rights),
        )
        self._limits = Limits()
        self._compressing = asyncio.Lock()

    def identify(self, head: Head) -> str | Awaitable[str | None]:
        """Raises RefusedError: nothing more is read of whoever has neither a valid token nor a certificate."""
        route, _, _ = find(head.method, head.path)
        if route is not None and route.public:
            return UNNAMED
        certified = user_of(head.certificate)
        if certified is not None:
            return _party(certified)
        token = bearer(head)
        if token is None:
            detail = "a token is needed, Authorization: Bearer TOKEN, or a valid client certificate"
            raise _refused(head, unauthenticated(detail))
        user = self._identities.kept(token)
        return _party(user) if user is not None else self._find_out(head, token)

    async def _find_out(self, head: Head, token: str) -> str:
        """Whose the token is. Raises RefusedError."""
        try:
            return _party(await self._identities.user(token, head.address))
        except ProblemError as problem:
            raise _refused(head, problem) from None

    def refusal(self, response: Response) -> Response:
        """What the server itself refuses."""
        metrics.REQUESTS.labels("none", "none", str(response.status)).inc()
        if response.content_type == MEDIA_TYPE:
            return response
        return _response(ProblemError(response.status, response.body.decode().strip()), _new_id())

    async def handle(self, request: Request) -> Response:
        begun = time.monotonic()
        served = _Served(request, _id(request))
        try:
            async with asyncio.timeout(SECONDS):
                response = await self._answer(served)
        except TimeoutError:
            late = ProblemError(503, f"not answered within {SECONDS:g} s; what was written is not known")
            response = served.problem(late)
        except ProblemError as problem:
            if problem.status == 429:
                await asyncio.sleep(TOO_MANY_SECONDS)
            response = served.problem(problem)
        except ApiError as error:
            facts = {"request_id": served.id, "caller": served.caller[:LONGEST], "error": error.message[:LONGEST]}
            log.warning("request failed", extra=facts)
            response = served.problem(of_api_error(error))
        except Exception:  # the outermost edge of a request
            log.exception("request failed", extra={"request_id": served.id, "caller": served.caller[:LONGEST]})
            response = served.problem(ProblemError(500, "the request failed here"))
        finally:
            served.note(time.monotonic() - begun)
        return response

    async def _answer(self, served: _Served) -> Response:
        request = served.request
        route, parameters, methods = find(request.method, request.path)
        served.route = route
        # As in an API server, the token is looked at where there is no certificate.
        certified = user_of(request.certificate)
        if route is None or not route.public:
            served.user = certified or await self._identities.user(bearer(request) or "", request.address)
        with self._limits.one(served.caller):
            served.begun = True
            if route is None:
                raise _no_route(methods)
            if certified is not None and route.writes and from_another_site(request):
                detail = "a page of another site sent it, for which a browser shows the client certificate"
                raise ProblemError(403, detail, code="cross_site")
            if not route.public and (self._caches.not_synced() or self._allocations.not_synced()):
                raise ProblemError(503, "the lists of the API server are not complete yet")
            if route is OPTIONS:
                return served.answer(route, RouteResponse(None, [("Allow", ", ".join(methods))]))
            query, body = read_query(route, request.query), read_body(route, request)
            preconditions = read_conditions(route, request)
            served.call = call = Call(served.user or User(), parameters, query, body, preconditions)
            answer = await self._handlers[route.handler](call)
            return await self._compressed(request, route, served.answer(route, answer))

    async def _compressed(self, request: Request, route: Route, response: Response) -> Response:
        """One at a time, on a thread beside the others' requests; what comes meanwhile is sent as it is.

        Nothing that a page of another site made a browser ask for: by the size of such answers, with data beside it
        that it chose, it could guess what it may not read (BREACH).
        """
        if route.method != "GET" or response.status != 200 or len(response.body) < LARGE:
            return response
        takes = takes_gzip(request.field("accept-encoding") or "") and not from_another_site(request)
        if not takes or self._compressing.locked():
            return response
        async with self._compressing:
            body = await asyncio.to_thread(compressed, response.body)
        headers = tuple(
            (name, f'{value[:-1]}{COMPRESSED}"' if name == "ETag" else value) for name, value in response.headers
        )
        return msgspec.structs.replace(response, body=body, headers=(*headers, ("Content-Encoding", "gzip")))


class _Served:
    """One request, and what is known of it until it is logged."""

    def __init__(self, request: Request, id: str) -> None:
        self.request = request
        self.id = id
        self.route: Route | None = None
        self.user: User | None = None
        self.call: Call | None = None
        self.status = 0  # nobody was there for the answer
        self.code = ""
        self.begun = False  # it was within the limits of its user

    @property
    def caller(self) -> str:
        return _party(self.user) if self.user is not None else self.request.address

    def answer(self, route: Route, answer: RouteResponse) -> Response:
        self.status = answer.status or route.status
        content = answer.content
        if not isinstance(content, bytes):
            content = b"" if content is None else msgspec.json.encode(content)
        headers = (*_headers(self.id, lasting=route.public), *answer.headers)
        if route.method == "GET":  # also where it is small, or 304: the next answer may be compressed
            headers = (*headers, ("Vary", "Accept-Encoding"))
        if route.method == "GET" or answer.version:
            tag = tag_of(answer.version, content)
            had = self.call.preconditions.had_already(tag) if route.method == "GET" and self.call is not None else None
            headers = (*headers, ("ETag", f'"{had or tag}"'))
            if had is not None:
                self.status = 304
                return Response(304, b"", "", headers)
        return Response(self.status, content, route.media_type, headers)

    def problem(self, problem: ProblemError) -> Response:
        self.status, self.code = problem.status, problem.code
        return _response(problem, self.id)

    def note(self, seconds: float) -> None:
        """The line of what is served to a user is always written: a user has so many a second. So is the audit line of
        a write. Other lines are limited by their caller."""
        request, route, user = self.request, self.route, self.user
        method = _method(request)
        template = route.path if route is not None else "none"
        metrics.REQUESTS.labels(method, template, str(self.status) if self.status else "none").inc()
        metrics.SECONDS.labels(template).observe(seconds)
        facts = {
            "request_id": self.id,
            "method": method,
            "route": template,
            "path": request.path[:LONGEST],
            "user": user.username[:LONGEST] if user is not None else "",
            "status": self.status,
            "code": self.code,
        }
        served = user is not None and 0 < self.status < 400
        limited = {} if served else {"caller": self.caller[:LONGEST]}
        log.info("request", extra={**facts, **limited, "duration_ms": round(seconds * 1000, 3)})
        if route is not None and route.writes and self.begun:
            audit.info("write", extra={**facts, "changes": self.call.changes if self.call is not None else None})


def handlers(*several: object) -> dict[str, Callable[[Call], Awaitable[RouteResponse]]]:
    """By the routes' names for them."""
    return {
        route.handler: next(getattr(each, route.handler) for each in several if hasattr(each, route.handler))
        for route in ROUTES
    }


class ApiServer:
    """Serves until cancelled. `names`: DNS names and IP addresses of the certificate."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        namespace: str,
        address: Address,
        names: Sequence[str],
        *,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cluster = Cluster(
            cluster.access, name="master", connections=CONNECTIONS, on_request=runtime_metrics.kubernetes_request
        )
        self._address = address
        self._allocations = AllocationCache(cluster)
        self._app = App(self._cluster, caches, self._allocations)
        self.certificates = Certificates(self._cluster, namespace, names, secret=SECRET_NAME)
        self._client_authority = ClientAuthority(self._cluster, self._trust_callers)
        self.server = HttpServer(
            self._app.handle,
            max_body=MAX_BODY,
            identify=self._app.identify,
            stopping=stopping,
            refusal=self._app.refusal,
        )

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
            await self.server.stop(STOP_SECONDS)


def _response(problem: ProblemError, request_id: str) -> Response:
    content = msgspec.json.encode(problem.problem())
    headers = (*_headers(request_id), *problem.headers)
    return Response(problem.status, content, MEDIA_TYPE, headers, close=problem.status == 401)


def _headers(request_id: str, *, lasting: bool = False) -> tuple[tuple[str, str], ...]:
    """`lasting`: whoever keeps the answer must ask whether it is still right, and may keep it."""
    kept = "no-cache" if lasting else "no-store"
    return (("X-Request-Id", request_id), ("Cache-Control", kept), ("X-Content-Type-Options", "nosniff"))


def _refused(head: Head, problem: ProblemError) -> RefusedError:
    """By its head alone."""
    refused = RefusedError(problem.status, str(problem))
    id = _id(head)
    refused.response = _response(problem, id)
    facts = {"request_id": id, "method": _method(head), "path": head.path[:LONGEST], "caller": head.address}
    log.info("request refused", extra={**facts, "status": problem.status, "code": problem.code})
    return refused


def _party(user: User) -> str:
    return f"user {user.username}"


def _method(request: Head | Request) -> str:
    return request.method if request.method in _METHODS else "other"


def _id(request: Head | Request) -> str:
    given = request.field("x-request-id") or ""
    return given if _REQUEST_ID.fullmatch(given) else _new_id()


def _new_id() -> str:
    return secrets.token_hex(8)


def _no_route(methods: Sequence[str]) -> ProblemError:
    if not methods:
        return ProblemError(404, "there is no such route; /openapi.json names them")
    return ProblemError(405, f"it has {', '.join(methods)}", headers=(("Allow", ", ".join(methods)),))
