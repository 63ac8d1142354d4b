"""Kinds of objects: where they are served, and how their JSON becomes narrow structs. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta

from common.kube.client import deep_json
from common.kube.client.meta import Object, ObjectMeta, object_key

T = TypeVar("T", bound=Object)

_encoder = msgspec.json.Encoder()


_EMPTY, _VALUE = 1000, 72  # bytes that an object takes, and each value in it: an empty list has so many
_LONGEST_NAME = 512  # API servers have at most 253 characters; longer ones would come into URLs and logs

Name = Annotated[str, Meta(max_length=_LONGEST_NAME)]


U = TypeVar("U")


class Event(msgspec.Struct, Generic[U]):
    type: str
    object: U


class _Identity(msgspec.Struct, rename="camel"):
    name: Name = ""
    namespace: Name = ""
    uid: Name = ""
    resource_version: Name = ""


class _Identified(msgspec.Struct):
    metadata: _Identity


class _AnyEvent(Event[msgspec.Raw]):
    pass


@dataclass(frozen=True, slots=True)
class Broken:
    """An object that does not fit its type. `uid` and `key` are empty where not even its metadata could be read."""

    key: str
    uid: str
    resource_version: str
    error: str

    @property
    def metadata(self) -> ObjectMeta:
        """Which one it is. It has no resourceVersion: whatever can be read of it later is newer."""
        namespace, _, name = self.key.rpartition("/")
        return ObjectMeta(name=name, namespace=namespace, uid=self.uid)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A consistent list: everything as it was at `resource_version`, without the objects in `broken`."""

    items: list[T]
    resource_version: str
    broken: list[Broken] = field(default_factory=list)

    def may_hide(self, uid: str) -> bool:
        """Whether the object with this uid may be one of those that cannot be read."""
        return any(broken.uid in ("", uid) for broken in self.broken)


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """`type` is ADDED, MODIFIED, DELETED or BOOKMARK.

    `object` is None for a bookmark and for a malformed object; the latter is described by `broken`.
    """

    type: str
    resource_version: str
    object: T | None = None
    broken: Broken | None = None


@dataclass(frozen=True)
class Resource(Generic[T]):
    """A kind of object, where it is served, and the struct it is read as.

    `most`: bytes that all of one API server may take here; None: whoever writes them is trusted. `weigh`: what one
    takes once it is read; None: as many bytes as came. `metadata_only`: lists and watches ask for no more than that.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    type: type[T]
    most: int | None = None
    weigh: Callable[[T], int] | None = None
    metadata_only: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """The URL path. No namespace means all namespaces. Raises ValueError for names that would change the path."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"
        return _path(root, self.plural, namespace or "", name, subresource)

    @cached_property
    def object_decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self.type)

    @cached_property
    def event_decoder(self) -> msgspec.json.Decoder[Event[T]]:
        event: Any = Event
        return msgspec.json.Decoder(event[self.type])

    @cached_property
    def _type_meta(self) -> bytes:
        """Opens an encoded object: our structs do not carry apiVersion and kind."""
        return _encoder.encode({"apiVersion": self.api_version, "kind": self.kind})[:-1]

    def encode(self, body: Mapping[str, object] | Object) -> bytes:
        """The object as JSON with apiVersion and kind."""
        if isinstance(body, Mapping):
            return _encoder.encode({"apiVersion": self.api_version, "kind": self.kind, **body})
        return self._type_meta + b"," + _encoder.encode(body)[1:]

    def decode(self, content: bytes | msgspec.Raw) -> T:
        """Raises Malformed."""
        return deep_json.read(self.read, content, self.kind)

    def read(self, content: bytes | msgspec.Raw) -> T:
        """One object of a page. Raises msgspec.MsgspecError, UnicodeDecodeError and RecursionError."""
        found = self.object_decoder.decode(content)
        check_names(found.metadata)
        return found


def weigh(found: Object) -> int:
    """About the bytes that it takes here, whatever it has in fields that are read whole."""
    encoded = _encoder.encode(found)
    return _EMPTY + len(encoded) + _VALUE * deep_json.values(encoded)


def by_name(name: str) -> str:
    """The field selector for the object of this name. Some kinds have names with the characters that selectors use:
    escaped as `fields.EscapeValue` of apimachinery does."""
    return "metadata.name=" + re.sub(r"[\\,=]", r"\\\g<0>", name)


class InvalidName(ValueError):
    """Of an object: it would change the path."""


@lru_cache(maxsize=16384)
def _path(root: str, plural: str, namespace: str, name: str | None, subresource: str) -> str:
    for part in (namespace, name):
        if part in (".", "..") or (part and ("/" in part or "%" in part)):
            raise InvalidName(f"{part!r} cannot be the name of an object")
    if name == "":
        raise InvalidName("an object's name is empty")
    path = f"{root}/namespaces/{quote(namespace)}" if namespace else root
    path += f"/{plural}"
    if name is not None:
        path += f"/{quote(name)}"
    return f"{path}/{subresource}" if subresource else path


_LONGEST_ERROR = 256

any_event = msgspec.json.Decoder(_AnyEvent)
_identified = msgspec.json.Decoder(_Identified)


def check_names(metadata: ObjectMeta) -> None:
    """Raises msgspec.ValidationError."""
    names = metadata.name, metadata.namespace, metadata.generate_name, metadata.uid, metadata.resource_version
    if max(map(len, names)) > _LONGEST_NAME:
        raise msgspec.ValidationError(f"a name, uid or version has more than {_LONGEST_NAME} characters")


def describe_broken(raw: msgspec.Raw, error: Exception) -> Broken:
    try:
        meta = deep_json.decode(_identified.decode, raw, most=memoryview(raw).nbytes).metadata
    except msgspec.MsgspecError:
        meta = _Identity()
    return Broken(object_key(meta.namespace, meta.name), meta.uid, meta.resource_version, str(error)[:_LONGEST_ERROR])
