"""Writes the status of an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.kube.client.meta import Object
from common.kube.client.resource import Resource

T = TypeVar("T", bound=Object)

NOT_DECLARED = "field not declared in schema"  # says an API server whose definitions are of an earlier release
ECHO = 2.0  # seconds after a write in which the watch may still show what was before


async def write_status(
    cluster: Cluster, resource: Resource[T], there: T, status: Mapping[str, object] | msgspec.Struct, manager: str
) -> bool:
    """Of this object, and of no other that got its name. Whether it is still there. Raises Conflict if another is."""
    metadata = {"name": there.metadata.name, "uid": there.metadata.uid}
    if there.metadata.namespace:
        metadata["namespace"] = there.metadata.namespace
    body = {"metadata": metadata, "status": status}
    try:
        await cluster.apply(resource, body, manager, "status")
    except NotFound:
        return False
    return True
