"""Which field of an object a write of its subresource `scale` sets, as the kind's definition says it.

Each version of a kind has a subresource of its own, or has none. Where versions differ in nothing but their names
(`conversion: None`), the field is that of the version that was written, and has the same path in the version that is
counted. A webhook of the kind converts otherwise as it likes: then it is the field that the counted version names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from common.kube.client.errors import ApiError
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.quota.object_names import GroupResource
from seed.kinds.namespaces.evaluators.fields import USUAL_REPLICAS, Replicas
from seed.kinds.namespaces.promises import Connected, NotReadable

MOST = 4 * 2**20  # bytes of a definition here; etcd stores less


class _Scale(msgspec.Struct, frozen=True, rename="camel"):
    spec_replicas_path: str = ""


class _Subresources(msgspec.Struct, frozen=True):
    scale: _Scale = _Scale()


class _Version(msgspec.Struct, frozen=True):
    name: str = ""
    subresources: _Subresources = _Subresources()


class _Conversion(msgspec.Struct, frozen=True):
    strategy: str = "None"


class _Spec(msgspec.Struct, frozen=True):
    versions: list[_Version] = []
    conversion: _Conversion = _Conversion()


class _Definition(Object, frozen=True, kw_only=True):
    spec: _Spec = _Spec()


_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, _Definition, most=MOST
)


async def scaled_fields(
    connected: Connected, cluster: str, kind: GroupResource, versions: Iterable[str], written: str, until: float
) -> Replicas:
    """In these versions, by a consistent read; without those in which it is not known. `written`: the version of the
    Scale. Raises NotReadable."""
    usual = dict.fromkeys(versions, USUAL_REPLICAS)
    if "." not in kind.group:
        return usual  # a definition has a domain as its group
    try:
        async with asyncio.timeout_at(until):
            found = await connected.connection(cluster).find(_DEFINITIONS, str(kind))
    except TimeoutError:
        raise NotReadable(f"CustomResourceDefinition {kind} could not be read in time") from None
    except ApiError as error:
        raise NotReadable(f"CustomResourceDefinition {kind} cannot be read: {error.reason}") from None
    if found is None:
        return usual  # another API server serves it
    paths = {each.name: each.subresources.scale.spec_replicas_path for each in found.spec.versions}
    known = {version: paths[version] for version in versions if version in paths}
    if found.spec.conversion.strategy == "None" and (path := paths.get(written)):
        known = dict.fromkeys(known, path)
    return {version: tuple(path.removeprefix(".").split(".")) for version, path in known.items() if path}
