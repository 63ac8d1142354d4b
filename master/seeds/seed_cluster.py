"""A seed's API server as the master uses it: listed and written to only while it is the cluster that it was before."""

from __future__ import annotations

import time
from asyncio import Lock
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from common.kube.client.api_client import PAGE, Cluster, RequestHook
from common.kube.client.bounds import MAX_BODY
from common.kube.client.errors import ApiError
from common.kube.client.kubeconfig import Access
from common.kube.client.meta import Object
from common.kube.client.resource import Listing, Resource
from common.kube.client.watch import WatchStream

FRESH = 1.0  # seconds: an object is created only in a cluster that was found to be the same so short a time ago

T = TypeVar("T", bound=Object)


class SeedCluster(Cluster):
    """`verify` asks whether it still is the same cluster, and raises ApiError if that is not so or is not known.

    A list is only returned, and a watch entered, after a question that was asked later than they were. Writes to what
    exists name a uid or a resource version: in another cluster they fail.
    """

    def __init__(
        self,
        access: Access,
        *,
        name: str,
        timeout: float = 10.0,
        on_request: RequestHook | None = None,
        max_body: int = MAX_BODY,
        foreign: bool = True,
    ) -> None:
        super().__init__(access, name=name, timeout=timeout, on_request=on_request, max_body=max_body, foreign=foreign)
        self.verify: Callable[[], Awaitable[None]] | None = None
        self._asked_at = float("-inf")
        self._problem: ApiError | None = None
        self._asking = Lock()

    async def check(self, since: float) -> None:
        """That it was verified by a question asked since then (monotonic): those who want it together share one."""
        assert self.verify is not None, "set before the first use"
        async with self._asking:
            if self._asked_at < since:
                asked, self._problem = time.monotonic(), None
                try:
                    await self.verify()
                except ApiError as error:
                    self._problem = error
                self._asked_at = asked
            if self._problem is not None:
                raise self._problem

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
        began = time.monotonic()
        listing = await super().list(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            timeout=timeout,
            afresh=afresh,
        )
        await self.check(began)
        return listing

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
        began = time.monotonic()
        async with super().open_watch(
            resource,
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
            timeout_seconds=timeout_seconds,
        ) as stream:
            await self.check(began)
            yield stream

    async def create(
        self,
        resource: Resource[T],
        body: Mapping[str, object] | T,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
    ) -> T:
        await self.check(time.monotonic() - FRESH)
        return await super().create(resource, body, namespace, dry_run=dry_run)
