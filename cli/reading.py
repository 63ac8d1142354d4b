"""Reads the objects of the master, and says which right or which CRD is missing where that fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import yaml

from cli.outcome import Failed
from common.api.labels import UID_LABEL
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError, Forbidden, NotFound
from common.kube.client.meta import Object
from common.kube.client.resource import Listing, Resource

T = TypeVar("T", bound=Object)


async def every(cluster: Cluster, resource: Resource[T], namespace: str | None = None) -> list[T]:
    """Raises Failed."""
    return (await listing(cluster, resource, namespace)).items


async def listing(cluster: Cluster, resource: Resource[T], namespace: str | None = None) -> Listing[T]:
    """Raises Failed."""
    try:
        found = await cluster.list(resource, namespace)
    except NotFound:
        another = "" if cluster.name == "seed" else " --kubeconfig and --context name another"
        raise Failed(f"{cluster.server} has no CRDs of SeedQuota: is it the {cluster.name}?{another}") from None
    except Forbidden as error:
        raise Failed(no_right(resource, "list", error)) from None
    if found.broken:
        raise Failed(f"{resource.kind} {found.broken[0].key} cannot be read: {found.broken[0].error}")
    return found


async def if_possible(cluster: Cluster, resource: Resource[T], what: str, missing: list[str]) -> list[T] | None:
    """None where they cannot be read: then it is added to what is missing, with the reason."""
    try:
        return await every(cluster, resource)
    except (Failed, ApiError) as error:
        missing.append(f"{what}: {problem(error)}")
        return None


async def one(cluster: Cluster, resource: Resource[T], name: str, namespace: str | None = None) -> T | None:
    """None: it is not there. Raises Failed."""
    try:
        return await cluster.get(resource, name, namespace)
    except NotFound:
        return None
    except Forbidden as error:
        raise Failed(no_right(resource, "get", error)) from None


def refuse_copies(master: Cluster, found: Sequence[Object], what: str) -> None:
    """Raises Failed where it is no master: what a seed has of these are copies, which nobody may change."""
    if any(UID_LABEL in each.metadata.labels for each in found):
        raise Failed(
            f"{master.server} is a seed, and its {what} are copies: --kubeconfig and --context name the master"
        )


def problem(error: Failed | ApiError) -> str:
    """Of a part that is left out."""
    return error.message if isinstance(error, ApiError) else str(error)


def no_right(resource: Resource[T], verb: str, error: Forbidden) -> str:
    what = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    return f"{error.message}; ask an administrator for the right to {verb} {what}"


def written(found: dict[str, object], output: str) -> str:
    """As `-o json` or `-o yaml`."""
    plain = msgspec.to_builtins(found)
    if output == "json":
        return json.dumps(plain, indent=2)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip("\n")
