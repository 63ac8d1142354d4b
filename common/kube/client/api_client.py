"""One Kubernetes API server: typed requests over a pool of connections.

msgspec decodes into narrow structs. Nothing is retried here but a list whose continue token expired: who asks knows
whether asking again is right.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import aiohttp
import msgspec

from common.kube.client import kubeconfig
from common.kube.client.bounds import MAX_BODY, MAX_BROKEN, MAX_EMPTY_PAGES, MAX_ITEMS
from common.kube.client.connection import APPLY_PATCH, JSON, MERGE_PATCH, Connection
from common.kube.client.errors import Gone, Malformed, TooLarge, TooMany
from common.kube.client.meta import Object, object_key
from common.kube.client.pages import read_page, weight_of
from common.kube.client.reach import Reach, RequestHook
from common.kube.client.resource import Broken, Listing, Resource, WatchEvent, by_name
from common.kube.client.transport import new_session
from common.kube.client.watch import T, WatchStream
from common.runtime.freeing import free_in_pieces
from common.runtime.pieces import own_time

__all__ = ["BROKEN", "MERGE_PATCH", "METADATA", "Cluster", "RequestHook"]

PAGE = 500  # objects in one page of a list
SMALLER = 8  # by which they become fewer where a page is too large
LARGE_PAGE = 2**20  # bytes, which take half a millisecond in one step: half as many objects are asked for next
BROKEN = 1024  # bytes that one takes which cannot be read
LIST_RESTARTS = 3  # how often a list begins again because its continue token expired
SILENT = 5.0  # seconds after which a watch must have ended that the API server was asked to end

METADATA = f"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
"""What to accept of a write of much: its answer without what was written."""

_METADATA_LIST = f"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"

_encoder = msgspec.json.Encoder()

Items = list[T]  # Cluster has a method of this name


class Cluster(Connection):
    """One API server, as typed operations on its objects. Every method raises ApiError."""

    @classmethod
    async def from_kubeconfig(
        cls,
        text: str,
        *,
        name: str,
        context: str | None = None,
        timeout: float = 10.0,
        on_request: RequestHook | None = None,
        max_body: int = MAX_BODY,
    ) -> Self:
        """From a Secret's text. Raises InvalidKubeconfig, also if it would read files, run commands or skip TLS."""
        access = await kubeconfig.from_text(text, context)
        return cls(access, name=name, timeout=timeout, on_request=on_request, max_body=max_body, foreign=True)

    @classmethod
    async def of_tenant(cls, text: str, *, name: str, reach: Reach, timeout: float = 10.0) -> Self:
        """As `from_kubeconfig`, of a text that a tenant may have written: nothing of the platform waits for it.

        `name`: of the user cluster, as namespace/name.
        """
        access = await kubeconfig.of_tenant(text, name, reach.networks)
        return cls(access, name=name, timeout=timeout, on_request=reach.on_request, foreign=True)

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

    async def get(self, resource: Resource[T], name: str, namespace: str | None = None) -> T:
        path = resource.path(namespace, name)
        return self._decode(resource, await self.request("GET", path, verb="get", plural=resource.plural))

    async def find(self, resource: Resource[T], name: str, namespace: str | None = None) -> T | None:
        """None is proof that it is not there. `get` gives none: an API that is not served answers as if only the object
        were missing."""
        listing = await self.list(resource, namespace, field_selector=by_name(name))
        if any(broken.key in ("", object_key(namespace or "", name)) for broken in listing.broken):
            raise self.refused(
                Malformed(200, "Malformed", f"cluster {self.name}: {resource.kind} {name} cannot be read")
            )
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
        async with new_session(self._access.tls, 1, self._access.hosts) if afresh else nullcontext() as pool:
            for _ in range(LIST_RESTARTS):
                items: list[T] = []
                try:
                    return await self._list(resource, namespace, dict(query), timeout, pool, items)
                except BaseException as error:
                    free_in_pieces(items)
                    if not isinstance(error, Gone):
                        raise
                    gone = error
        raise gone

    async def _list(
        self,
        resource: Resource[T],
        namespace: str | None,
        query: dict[str, str],
        timeout: float | None,
        pool: aiohttp.ClientSession | None,
        items: Items[T],
    ) -> Listing[T]:
        broken: list[Broken] = []
        weight = empty = 0
        while True:
            begin, before = len(items), len(items) + len(broken)
            async with self._pages:
                await self._pace.turn()
                began: float | None = None
                try:
                    content = await self.request(
                        "GET",
                        resource.path(namespace) + _query(query),
                        timeout=timeout,
                        verb="list",
                        plural=resource.plural,
                        max_body=MAX_BODY,
                        accept=_METADATA_LIST if resource.metadata_only else JSON,
                        pool=pool,
                    )
                    began = own_time()
                    meta = await read_page(resource, content, int(query["limit"]), items, broken)
                except TooLarge as error:
                    if query["limit"] == "1":
                        raise self.refused(error) from None
                    query["limit"] = str(max(int(query["limit"]) // SMALLER, 1))
                    continue
                except msgspec.MsgspecError as error:
                    what = f"cluster {self.name}: list {resource.plural}"
                    why = f"{what}: answer is not a list: {error}"
                    raise self.refused(Malformed(200, "Malformed", why)) from None
                finally:
                    if began is not None:
                        self._pace.took(own_time() - began)
            weight += await weight_of(resource, content, items[begin:])
            if resource.most is not None and weight + BROKEN * len(broken) > resource.most:
                what = f"cluster {self.name}: its {resource.plural}"
                raise self.refused(TooMany(f"{what} take more than {resource.most // 2**20} MiB"))
            if len(items) > MAX_ITEMS:
                raise self.refused(TooMany(f"cluster {self.name}: more than {MAX_ITEMS} {resource.plural}"))
            if len(broken) > MAX_BROKEN:
                what = f"cluster {self.name}: more than {MAX_BROKEN} {resource.plural} cannot be read"
                raise self.refused(TooMany(f"{what}: {broken[0].error}"))
            empty += before == len(items) + len(broken)
            if empty > MAX_EMPTY_PAGES:
                raise self.refused(TooMany(f"cluster {self.name}: list {resource.plural}: it does not end"))
            if not meta.continue_:
                return Listing(items, meta.resource_version, broken)
            query["continue"] = meta.continue_
            if len(content) > LARGE_PAGE:
                query["limit"] = str(max(int(query["limit"]) // 2, 1))

    async def create(
        self,
        resource: Resource[T],
        body: Mapping[str, object] | T,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
    ) -> T:
        path = resource.path(namespace if namespace is not None else _identity(body)[0]) + _dry(dry_run)
        content = await self.request("POST", path, resource.encode(body), verb="create", plural=resource.plural)
        return self._decode(resource, content)

    async def replace(self, resource: Resource[T], body: Mapping[str, object] | T, subresource: str = "") -> T:
        """Compare-and-set by metadata.resourceVersion. What a narrow struct does not name is removed."""
        namespace, name = _identity(body)
        path = resource.path(namespace, name, subresource)
        content = await self.request("PUT", path, resource.encode(body), verb="update", plural=resource.plural)
        return self._decode(resource, content)

    async def apply(self, resource: Resource[T], body: Mapping[str, object], manager: str, subresource: str = "") -> T:
        """Server-side apply. Fields that another manager owns are taken from it."""
        namespace, name = _identity(body)
        path = resource.path(namespace, name, subresource)
        content = await self.request(
            "PATCH",
            path + _query({"fieldManager": manager, "force": "true"}),
            resource.encode(body),
            APPLY_PATCH,
            verb="apply",
            plural=resource.plural,
        )
        return self._decode(resource, content)

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, object],
        namespace: str | None = None,
        subresource: str = "",
        *,
        dry_run: bool = False,
    ) -> T:
        """RFC 7386: null removes a field. With metadata.resourceVersion in the patch it is a compare-and-set."""
        path = resource.path(namespace, name, subresource) + _dry(dry_run)
        content = await self.request(
            "PATCH", path, _encoder.encode(patch), MERGE_PATCH, verb="patch", plural=resource.plural
        )
        return self._decode(resource, content)

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

    async def delete_all(self, resource: Resource[T], namespace: str, *, label_selector: str) -> None:
        """All in the namespace that the labels pick, without reading them."""
        path = resource.path(namespace) + _query({"labelSelector": label_selector})
        await self.request("DELETE", path, verb="deletecollection", plural=resource.plural)

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
        accept = METADATA if resource.metadata_only else JSON
        response = await self._open(path, limits, resource.plural, accept)
        try:
            stream = WatchStream(
                self.name, resource, response, timeout_seconds + SILENT, self._room, self._pace, self.refused
            )
            with stream:
                yield stream
        finally:
            response.close()

    def _decode(self, resource: Resource[T], content: bytes) -> T:
        try:
            return resource.decode(content)
        except Malformed as error:
            raise self.refused(error) from None


def _dry(dry_run: bool) -> str:
    return "?dryRun=All" if dry_run else ""


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
