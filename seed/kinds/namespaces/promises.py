"""What a write of a core ResourceQuota adds to what is promised in its namespace.

A namespace counts with the largest of its ResourceQuotas, so a write costs what it promises beyond the others. They may
be lowered or deleted at any moment: what is reserved names them as its base, and they are read once more after that
is durable. If they are still there, no count before has seen them gone, and each later one keeps the base (rule 4.14).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Malformed
from common.kube.client.meta import ObjectMeta
from common.kube.client.resource import Resource
from common.quota.resources import ResourceList
from common.quota.scopes import ScopeRequirement
from seed.admission.types import Confirm
from seed.kinds.namespaces.evaluators.resource_quotas import CoreQuota, has_scopes, largest, promised

MOST = 2**20  # bytes that the ResourceQuotas of one namespace may have: each admission reads all of them
PAGE = 100  # of them

CORE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", True, CoreQuota, most=MOST)


class Connected(Protocol):
    """See seed/kinds/namespaces/cache.py."""

    def connection(self, cluster: str) -> Cluster: ...


class NotReadable(Exception):
    """`str()` says why."""


class Exists(Exception):
    """What is to be created is there already. What would be reserved for it would be kept for a while for nothing."""


async def others(connected: Connected, cluster: str, metadata: ObjectMeta, until: float) -> Sequence[CoreQuota]:
    """The other ResourceQuotas of its namespace, by a consistent read. Raises NotReadable, Exists."""
    try:
        async with asyncio.timeout_at(until):
            listing = await connected.connection(cluster).list(CORE_QUOTAS, metadata.namespace, limit=PAGE)
    except TimeoutError:
        raise NotReadable(f"the ResourceQuotas of namespace {metadata.namespace} could not be read in time") from None
    except ApiError as error:
        why = error.message if isinstance(error, Malformed) else error.reason
        raise NotReadable(f"the ResourceQuotas of namespace {metadata.namespace} cannot be read: {why}") from None
    if any(each.metadata.name == metadata.name and each.metadata.uid != metadata.uid for each in listing.items):
        raise Exists
    return [each for each in listing.items if each.metadata.uid != metadata.uid]


def promise(found: Iterable[CoreQuota], limited: Iterable[str], scopes: Sequence[ScopeRequirement]) -> ResourceList:
    """What they promise together, of what a quota with these scopes counts."""
    names = tuple(limited)
    return largest(promised(each, names) for each in found if has_scopes(each, scopes))


def confirming(
    connected: Connected,
    cluster: str,
    metadata: ObjectMeta,
    bases: Mapping[Sequence[ScopeRequirement], ResourceList],
    until: float,
) -> Confirm:
    """`bases`: the largest of what is reserved, by the scopes of quotas and by resource."""

    async def confirm() -> str:
        try:
            found = await others(connected, cluster, metadata, until)
        except NotReadable as error:
            return str(error)
        except Exists:
            return "it was created by another request at the same time"
        there = {scopes: promise(found, base, scopes) for scopes, base in bases.items()}
        if any(there[scopes].get(name, 0) < amount for scopes, base in bases.items() for name, amount in base.items()):
            return f"another ResourceQuota of namespace {metadata.namespace} was lowered at the same time"
        return ""

    return confirm
