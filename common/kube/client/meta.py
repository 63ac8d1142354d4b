"""The part of Kubernetes objects that is the same for every kind."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""As API servers have integers. What claims to be one may send others: they would be kept, added up and written."""

Generation = Annotated[int, Meta(ge=0, le=2**63 - 1)]


def object_key(namespace: str, name: str) -> str:
    """`namespace/name`, or `name` for a cluster-scoped object."""
    return f"{namespace}/{name}" if namespace else name


class OwnerReference(Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True, gc=False):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """What we read of an object's metadata. Times are RFC 3339 text, as the API server sent them.

    Tuples: the garbage collector would look at each list for as long as the object is kept (see `Object`).
    """

    name: str = ""
    namespace: str = ""
    generate_name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: Generation = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return object_key(self.namespace, self.name)


class Object(Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base of every typed object. Subclasses name only the fields that we read; others are ignored.

    Objects are shared by caches, hence frozen: change one with `msgspec.structs.replace`.
    Subclasses inherit `rename`, `omit_defaults` and `gc`, and say `frozen=True` again because type checkers ask for it.
    `gc`: what was decoded has no cycles. There may be hundreds of thousands, and Python's garbage collector would look
    at all of them in one piece.
    """

    metadata: ObjectMeta
