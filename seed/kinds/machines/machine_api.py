"""A user cluster's API server, from which Machines are read only while it serves them itself.

A tenant who is cluster admin can hand the API group to another server (an APIService with `spec.service`). That one
may tell of no Machines at all, and asks no webhook.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden, NotFound, Unavailable
from common.kube.client.meta import Object
from common.kube.client.resource import Listing, Resource
from common.kube.client.watch import WatchStream
from seed.machines.machine_controller import MACHINES

TAKEN_OVER = "APITakenOver"
SETTLED = 3.0  # seconds in which an API server takes up a changed APIService

T = TypeVar("T", bound=Object)


class _Service(msgspec.Struct, frozen=True):
    namespace: str = ""
    name: str = ""


class _Spec(msgspec.Struct, frozen=True):
    service: _Service | None = None


class APIService(Object, frozen=True, kw_only=True):
    spec: _Spec = _Spec()


API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", False, APIService)
NAME = f"{MACHINES.version}.{MACHINES.group}"


class MachineApi(Cluster):
    """`taken_over` says by whom the Machines are served, as far as `check` found it, or is None.

    A list is only returned, and a watch entered, if the APIService was found to be the same before and after, with the
    API server itself behind it. Without the right to read it nothing is known, and nothing is read.
    """

    taken_over: str | None = None
    _version: str | None = None  # of the APIService, when it was last read
    _changed_at = float("-inf")

    async def check(self) -> str:
        """The APIService's version. Raises ApiError."""
        try:
            found = await self.get(API_SERVICES, NAME)
        except NotFound:
            found = None
        except Forbidden as error:
            why = "the kubeconfig may not read it, so what it lists proves nothing: bind charts/rbac/user-cluster.yaml"
            raise Forbidden(error.status, error.reason, f"APIService {NAME}: {why}") from error
        version = found.metadata.resource_version if found is not None else ""
        service = found.spec.service if found is not None else None
        if self._version not in (None, version):
            self._changed_at = time.monotonic()
        self._version = version
        self.taken_over = None
        if service is not None:
            self.taken_over = (
                f"APIService {NAME} hands the Machines of this cluster to Service {service.namespace}/{service.name}: "
                "they are not checked, and what is listed is not counted. The last count stays. Delete that APIService"
            )
            raise Unavailable(0, TAKEN_OVER, self.taken_over)
        if time.monotonic() - self._changed_at < SETTLED:
            raise _changed()
        return version

    async def list(self, resource: Resource[T], namespace: str | None = None, **named: Any) -> Listing[T]:
        if resource.group != MACHINES.group:
            return await super().list(resource, namespace, **named)
        before = await self.check()
        listing = await super().list(resource, namespace, **named)
        await self._check_same(before)
        return listing

    @asynccontextmanager
    async def open_watch(
        self, resource: Resource[T], namespace: str | None = None, **named: Any
    ) -> AsyncIterator[WatchStream[T]]:
        if resource.group != MACHINES.group:
            async with super().open_watch(resource, namespace, **named) as stream:
                yield stream
            return
        before = await self.check()
        async with super().open_watch(resource, namespace, **named) as stream:
            await self._check_same(before)
            yield stream

    async def _check_same(self, before: str) -> None:
        if await self.check() != before:  # another check may have seen the change long ago
            raise _changed()


def _changed() -> Unavailable:
    return Unavailable(0, "Unavailable", f"APIService {NAME} was changed a moment ago")
