"""One Kubernetes API server: typed requests over a pool of connections.

aiohttp carries, msgspec decodes into narrow structs. Nothing is retried here: who asks knows whether asking again is
right.
"""

from __future__ import annotations

import time
from asyncio import Lock, Semaphore
from asyncio import timeout as timeout_after
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from common.kube.client import kubeconfig
from common.kube.client.errors import (
    ApiError,
    Gone,
    Malformed,
    Unavailable,
    _api_error,
)
from common.kube.client.kubeconfig import Access, InvalidKubeconfig
from common.kube.client.meta import Object, object_key
from common.kube.client.resource import Broken, Listing, Resource, WatchEvent, read_page
from common.kube.client.transport import describe, new_session, read_body
from common.kube.client.watch import MAX_BODY, T, WatchStream

ONE_PIECE = 1024 * 1024  # bytes of a body that is sent in one piece
MAX_PAGE = 128 * 1024 * 1024  # bytes of one page of a list
PAGE = 500  # objects in one page of a list
MAX_ITEMS = 500_000  # objects in one list
LIST_RESTARTS = 3  # how often a list begins again because its continue token expired
LEASE_CONNECTIONS = 4  # the lease, a replica's own record, the leader's look at all records, and one more
SILENT = 5.0  # seconds after which a watch must have ended that the API server was told to end
REFRESH_CREDENTIALS = 60.0  # seconds between looks at credentials that may expire
USER_AGENT = "seedquota"

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
METADATA = f"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
"""What to accept of a write of much: its answer without what was written."""


_encoder = msgspec.json.Encoder()


RequestHook = Callable[[str, str, int, float], None]


class Cluster:
    """One API server. Made on a running event loop; `close()` it.

    `on_request(verb, plural, status, seconds)` is called after each request; status 0 means no answer. Every method
    raises ApiError; a message names the cluster and the operation.
    """

    def __init__(
        self,
        access: Access,
        *,
        name: str,
        timeout: float = 10.0,
        connections: int = 64,
        on_request: RequestHook | None = None,
    ) -> None:
        self.name = name
        self.on_request = on_request
        self.timeout = timeout
        self._access = access
        self._default_timeout = aiohttp.ClientTimeout(total=timeout)
        # Watches hold their connections: with a pool of their own they cannot starve requests. And who renews a lease
        # must not wait behind a pile of other requests until it is lost.
        self._requests = new_session(access.tls, connections)
        self._watches = new_session(access.tls, connections)
        self._leases = new_session(access.tls, LEASE_CONNECTIONS)
        # First come, first served. In aiohttp's pool whoever asks while a connection returns passes all who wait.
        self._turns = Semaphore(connections)
        self._headers: dict[str, CIMultiDict[str]] = {}
        self._set_authorization(access.authorization)
        self._refresh_lock = Lock()
        self._refresh_at = time.monotonic() + REFRESH_CREDENTIALS

    @classmethod
    async def from_kubeconfig(
        cls,
        text: str,
        *,
        name: str,
        context: str | None = None,
        timeout: float = 10.0,
        on_request: RequestHook | None = None,
    ) -> Self:
        """From a Secret's text. Raises InvalidKubeconfig, also if it would read files, run commands or skip TLS."""
        return cls(await kubeconfig.from_text(text, context), name=name, timeout=timeout, on_request=on_request)

    @classmethod
    async def from_kubeconfig_file(
        cls,
        path: str | Path,
        *,
        name: str,
        context: str | None = None,
        timeout: float = 10.0,
        on_request: RequestHook | None = None,
    ) -> Cluster:
        """From the operator's own file. Raises InvalidKubeconfig."""
        return cls(await kubeconfig.from_file(Path(path), context), name=name, timeout=timeout, on_request=on_request)

    @classmethod
    async def in_cluster(cls, *, name: str, timeout: float = 10.0, on_request: RequestHook | None = None) -> Cluster:
        """From the pod's service account. Raises InvalidKubeconfig."""
        return cls(await kubeconfig.in_cluster(), name=name, timeout=timeout, on_request=on_request)

    @property
    def server(self) -> str:
        return self._access.server

    async def close(self) -> None:
        for pool in (self._watches, self._leases, self._requests):
            await pool.close()

    async def get(self, resource: Resource[T], name: str, namespace: str | None = None) -> T:
        path = resource.path(namespace, name)
        return resource.decode(await self.request("GET", path, verb="get", plural=resource.plural))

    async def find(self, resource: Resource[T], name: str, namespace: str | None = None) -> T | None:
        """None is proof that it is not there. `get` gives none: an API that is not served answers as if only the object
        were missing."""
        listing = await self.list(resource, namespace, field_selector=f"metadata.name={name}")
        if any(broken.key in ("", object_key(namespace or "", name)) for broken in listing.broken):
            raise Malformed(200, "Malformed", f"cluster {self.name}: {resource.kind} {name} cannot be read")
        return next((found for found in listing.items if found.metadata.name == name), None)

    async def list(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = PAGE,
        timeout: float | None = None,
        afresh: bool = False,
    ) -> Listing[T]:
        """Everything, page by page, as of one moment not before this call: never from a cache that may lag.

        `timeout` is for each page. `afresh`: over a new connection, since those that are open may all be dead.
        Malformed objects come in `broken`.
        """
        query = {"limit": str(limit), "labelSelector": label_selector, "fieldSelector": field_selector}
        async with new_session(self._access.tls, 1) if afresh else nullcontext() as pool:
            for _ in range(LIST_RESTARTS):
                try:
                    return await self._list(resource, namespace, dict(query), timeout, pool)
                except Gone as error:
                    gone = error
        raise gone

    async def _list(
        self,
        resource: Resource[T],
        namespace: str | None,
        query: dict[str, str],
        timeout: float | None,
        pool: aiohttp.ClientSession | None,
    ) -> Listing[T]:
        items: list[T] = []
        broken: list[Broken] = []
        while True:
            content = await self.request(
                "GET",
                resource.path(namespace) + _query(query),
                timeout=timeout,
                verb="list",
                plural=resource.plural,
                max_body=MAX_PAGE,
                pool=pool,
            )
            try:
                meta = read_page(resource, content, items, broken)
            except msgspec.MsgspecError as error:
                what = f"cluster {self.name}: list {resource.plural}"
                raise Malformed(200, "Malformed", f"{what}: answer is not a list: {error}") from None
            if len(items) > MAX_ITEMS:
                raise Malformed(200, "Malformed", f"cluster {self.name}: more than {MAX_ITEMS} {resource.plural}")
            if not meta.continue_:
                return Listing(items, meta.resource_version, broken)
            query["continue"] = meta.continue_

    async def create(self, resource: Resource[T], body: Mapping[str, object] | T, namespace: str | None = None) -> T:
        path = resource.path(namespace if namespace is not None else _identity(body)[0])
        content = await self.request("POST", path, resource.encode(body), verb="create", plural=resource.plural)
        return resource.decode(content)

    async def replace(self, resource: Resource[T], body: Mapping[str, object] | T, subresource: str = "") -> T:
        """Compare-and-set by metadata.resourceVersion. What a narrow struct does not name is removed."""
        namespace, name = _identity(body)
        path = resource.path(namespace, name, subresource)
        content = await self.request("PUT", path, resource.encode(body), verb="update", plural=resource.plural)
        return resource.decode(content)

    async def apply(
        self,
        resource: Resource[T],
        body: Mapping[str, object],
        manager: str,
        subresource: str = "",
        force: bool = True,
    ) -> T:
        """Server-side apply. Raises Conflict if not `force` and another manager owns one of the fields."""
        namespace, name = _identity(body)
        path = resource.path(namespace, name, subresource)
        content = await self.request(
            "PATCH",
            path + _query({"fieldManager": manager, "force": "true" if force else "false"}),
            resource.encode(body),
            APPLY_PATCH,
            verb="apply",
            plural=resource.plural,
        )
        return resource.decode(content)

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, object],
        namespace: str | None = None,
        subresource: str = "",
    ) -> T:
        """RFC 7386: null removes a field. With metadata.resourceVersion in the patch it is a compare-and-set."""
        path = resource.path(namespace, name, subresource)
        content = await self.request(
            "PATCH", path, _encoder.encode(patch), MERGE_PATCH, verb="patch", plural=resource.plural
        )
        return resource.decode(content)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Raises NotFound, and Conflict if the object has another uid or resource version."""
        given = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in given.items() if value}
        body = _encoder.encode({"preconditions": preconditions}) if preconditions else None
        path = resource.path(namespace, name)
        await self.request("DELETE", path, body, verb="delete", plural=resource.plural)

    async def watch(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = 300,
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after `resource_version` until the server ends the watch. Close it with `contextlib.aclosing`."""
        opened = self.open_watch(
            resource,
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
            timeout_seconds=timeout_seconds,
        )
        async with opened as stream:
            while (events := await stream.read()) is not None:
                for event in events:
                    yield event

    @asynccontextmanager
    async def open_watch(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int = 300,
    ) -> AsyncIterator[WatchStream[T]]:
        """As `watch`, in batches; entered once the server has accepted the watch."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
        }
        path = resource.path(namespace) + _query(query)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout, connect=self.timeout)
        response = await self._open(path, limits, resource.plural)
        try:
            yield WatchStream(self.name, resource, response, timeout_seconds + SILENT)
        finally:
            response.close()

    async def _open(self, path: str, limits: aiohttp.ClientTimeout, plural: str) -> aiohttp.ClientResponse:
        what = f"watch {plural}"
        headers = await self._headers_for("", what)
        started = time.monotonic()
        status = 0
        try:
            async with timeout_after(self.timeout):
                response = await self._watches.get(
                    URL(self._access.server + path, encoded=True),
                    headers=headers,
                    timeout=limits,
                    allow_redirects=False,
                    server_hostname=self._access.tls_server_name,
                )
                status = response.status
                if status == 200:
                    return response
                async with response:
                    content = await read_body(response, MAX_BODY, what)
                    raise self._error(status, content, what, response)
        except (aiohttp.ClientError, OSError) as error:
            raise self._unavailable(what, error, self.timeout) from None
        finally:
            if self.on_request is not None:
                self.on_request("watch", plural, status, time.monotonic() - started)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
        *,
        verb: str = "",
        plural: str = "",
        max_body: int = MAX_BODY,
        accept: str = JSON,
        pool: aiohttp.ClientSession | None = None,
    ) -> bytes:
        """The bare request; `path` includes the query, already quoted. Returns the body of a 2xx answer.

        `timeout` is in seconds, for everything from a free connection to the last byte, and once more for the wait for
        that connection. `verb` and `plural` are for `on_request` and messages.
        """
        verb = verb or method.lower()
        headers = await self._headers_for(content_type if body is not None else "", verb)
        if accept != JSON:
            headers = headers.copy()
            headers["Accept"] = accept
        limits = self._default_timeout if timeout is None else aiohttp.ClientTimeout(total=timeout)
        started = time.monotonic()
        status = 0
        try:
            async with (
                self._connection(plural, timeout or self.timeout, pool) as session,
                session.request(
                    method,
                    URL(self._access.server + path, encoded=True),
                    data=BytesIO(body) if body is not None and len(body) > ONE_PIECE else body,
                    headers=headers,
                    timeout=limits,
                    allow_redirects=False,
                    server_hostname=self._access.tls_server_name,
                ) as response,
            ):
                content = await read_body(response, max_body, f"cluster {self.name}: {verb} {path}")
                status = response.status
        except (aiohttp.ClientError, OSError) as error:
            raise self._unavailable(f"{verb} {path}", error, timeout or self.timeout) from None
        finally:
            if self.on_request is not None:
                self.on_request(verb, plural, status, time.monotonic() - started)
        if 200 <= status < 300:
            return content
        raise self._error(status, content, f"{verb} {path}", response)

    @asynccontextmanager
    async def _connection(
        self, plural: str, timeout: float, pool: aiohttp.ClientSession | None
    ) -> AsyncIterator[aiohttp.ClientSession]:
        """The pool to ask, when one of its connections is free."""
        if pool is not None or plural == "leases":
            yield pool or self._leases
            return
        if self._turns.locked():
            async with timeout_after(timeout):
                await self._turns.acquire()
        else:
            await self._turns.acquire()
        try:
            yield self._requests
        finally:
            self._turns.release()

    def _set_authorization(self, authorization: str | None) -> None:
        common = {"User-Agent": USER_AGENT, "Accept": JSON, "Accept-Encoding": "identity"}
        if authorization is not None:
            common["Authorization"] = authorization
        self._headers = {"": CIMultiDict(common)}
        for content_type in (JSON, MERGE_PATCH, APPLY_PATCH):
            self._headers[content_type] = CIMultiDict({**common, "Content-Type": content_type})

    async def _headers_for(self, content_type: str, what: str) -> CIMultiDict[str]:
        if self._requests.closed:
            raise Unavailable(0, "Unavailable", f"cluster {self.name}: {what}: this client is closed")
        if self._access.refresh is not None and time.monotonic() >= self._refresh_at:
            await self._refresh_credentials(self._access, what)
        return self._headers[content_type]

    async def _refresh_credentials(self, access: Access, what: str) -> None:
        async with self._refresh_lock:
            if access.refresh is None or time.monotonic() < self._refresh_at:
                return
            try:
                self._set_authorization(await access.refresh())
            except InvalidKubeconfig as error:
                raise Unavailable(0, "Unavailable", f"cluster {self.name}: {what}: {error}") from None
            self._refresh_at = time.monotonic() + REFRESH_CREDENTIALS

    def _error(self, status: int, content: bytes, what: str, response: aiohttp.ClientResponse) -> ApiError:
        if status == 401:
            self._refresh_at = 0.0
        return _api_error(status, content, f"cluster {self.name}: {what}", response.headers.get("Retry-After"))

    def _unavailable(self, what: str, error: Exception, timeout: float) -> Unavailable:
        why = f"no answer within {timeout:g} s" if isinstance(error, TimeoutError) else describe(error)
        return Unavailable(0, "Unavailable", f"cluster {self.name}: {what}: {why}")


def _query(parameters: Mapping[str, str]) -> str:
    return "?" + urlencode({name: value for name, value in parameters.items() if value})


def _identity(body: Mapping[str, object] | Object) -> tuple[str, str | None]:
    """Namespace and name of an object."""
    if isinstance(body, Object):
        return body.metadata.namespace, body.metadata.name or None
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        return "", None
    return metadata.get("namespace") or "", metadata.get("name")
