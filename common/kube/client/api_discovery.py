"""How an API server serves a kind of objects, by its own discovery: also built-in kinds and those of other servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from common.kube.client import deep_json
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.kube.client.meta import Object
from common.kube.client.resource import Name, Resource

MAX_VERSIONS = 64  # of one group: each is asked for


class ServedKind(msgspec.Struct, frozen=True):
    version: str
    kind: str


class _Version(msgspec.Struct, frozen=True):
    version: Name = ""


class _Group(msgspec.Struct, frozen=True, rename="camel"):
    versions: Annotated[list[_Version], Meta(max_length=MAX_VERSIONS)] = []
    preferred_version: _Version = _Version()


class _Resource(msgspec.Struct, frozen=True):
    name: str
    kind: Name = ""
    namespaced: bool = False
    verbs: list[str] = []


class _Resources(msgspec.Struct, frozen=True):
    resources: list[_Resource] = []


_group = msgspec.json.Decoder(_Group)
_resources = msgspec.json.Decoder(_Resources)


async def find_namespaced(cluster: Cluster, group: str, plural: str, known: Sequence[str] = ()) -> ServedKind | None:
    """`known`: versions that can be read, the best first; else the preferred one. None proves that there are no objects
    of it in namespaces, which could be listed and watched. Raises ApiError.

    An API server answers 404 only once it knows all that it serves; before that it answers 503.
    """
    for version in _in_order(await _versions(cluster, group), known):
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            found = await _served(cluster, path, plural)
        except NotFound:
            continue
        for resource in found:
            if resource.name == plural and resource.namespaced and {"list", "watch"} <= {*resource.verbs}:
                return ServedKind(version, resource.kind)
    return None


async def _versions(cluster: Cluster, group: str) -> list[str]:
    if not group:
        return ["v1"]
    try:
        content = await cluster.request("GET", f"/apis/{group}", verb="discover", plural=group)
    except NotFound:
        return []
    found = deep_json.read(_group.decode, content, f"cluster {cluster.name}: /apis/{group}")
    return [found.preferred_version.version, *(version.version for version in found.versions)]


async def _served(cluster: Cluster, path: str, plural: str) -> list[_Resource]:
    content = await cluster.request("GET", path, verb="discover", plural=plural)
    return deep_json.read(_resources.decode, content, f"cluster {cluster.name}: {path}").resources


def _in_order(served: Iterable[str], known: Sequence[str]) -> Iterator[str]:
    """Each once. Others than the known come last: what is in them may still be readable."""
    present = dict.fromkeys(filter(None, served))
    yield from (version for version in known if version in present)
    yield from (version for version in present if version not in known)


async def find_kind(cluster: Cluster, api_version: str, kind: str) -> Resource[Object] | None:
    """None: the API server does not serve it. Raises ApiError."""
    group, _, version = api_version.rpartition("/")
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        found = await _served(cluster, path, kind)
    except NotFound:
        return None
    for resource in found:
        if resource.kind == kind and "/" not in resource.name:
            return Resource(group, version, resource.name, kind, resource.namespaced, Object)
    return None
