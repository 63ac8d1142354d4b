"""Objects of which quotas count numbers in fields, such as `sum.databases.v1.example.com/spec.replicas`. Pure.

A field is a number or a quantity of Kubernetes, at least 0, rounded up to thousandths. An object that cannot be decoded
so is one that cannot be read: it is never zero. One that has no such field has nothing of it; a request that leaves it
out is refused, as core refuses a pod without requests where a quota limits them. So nobody relies on a default that
only the kind's own controller knows.

`kubectl scale` and autoscalers write the subresource `scale`, of which an API server sends no object of the kind, but a
Scale. Its replicas are the field that the kind's definition names (`specReplicasPath`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Meta

from common.kube.client.meta import Object
from common.quota import object_names
from common.quota.object_names import Field, GroupResource
from common.quota.quantity import UNIT
from seed.kinds.namespaces.evaluators.amounts import amount
from seed.kinds.namespaces.evaluators.namespaced import CREATE, UPDATE, AsSent, Counting, Refused, Write
from seed.kinds.namespaces.evaluators.object_count import Numbered

SCALE: Final = "scale"
Replicas = Mapping[str, tuple[str, ...]]
"""By version of a kind, the path of the field that a Scale sets; without versions in which that is not known."""

USUAL_REPLICAS: Final = ("spec", "replicas")
"""Of kinds without a definition, such as Deployments."""

_QUANTITY: Final = r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?\Z"
_Text = Annotated[str, Meta(max_length=64, pattern=_QUANTITY)]
_Amount = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)] | _Text
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class _ScaleSpec(msgspec.Struct, frozen=True):
    replicas: Annotated[int, Meta(ge=0)] = 0


class _Scale(Numbered, frozen=True, kw_only=True):
    spec: _ScaleSpec = _ScaleSpec()


class _Scaled(Object, frozen=True, kw_only=True):
    """What a Scale tells of the object: nothing but the field at `path`."""

    path: tuple[str, ...]
    replicas: int


class FieldEvaluator(Counting[Object]):
    """By these names, and by number. All of them are read in one version."""

    asked_of: ClassVar = {"": frozenset({CREATE, UPDATE}), SCALE: frozenset({UPDATE})}

    def __init__(self, fields: Mapping[str, Field]) -> None:
        """By name; at least one. They are of one kind and version."""
        first = next(iter(fields.values()))
        self.resource, self.version = first.of, first.version
        self.type = _type_of(tuple(sorted({field.path for field in fields.values()})))
        self.fields = dict(fields)
        self._count = object_names.count_of(first.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldEvaluator) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash((self.resource, frozenset(self.fields)))

    def adds(self, write: Write[Object]) -> bool:
        return write.old is None or self._values(write.new) != self._values(write.old)

    def usage(self, subject: Object, now: float) -> dict[str, int]:
        return {self._count: UNIT, **self._values(subject)}

    def lacking(self, limited: Collection[str], subject: Object) -> str:
        if isinstance(subject, _Scaled):
            return ""
        values = self._values(subject)
        missing = [field.shown for name, field in sorted(self.fields.items()) if name in limited and name not in values]
        return f"must specify {', '.join(missing)} for: {subject.metadata.name}" if missing else ""

    def read(self, write: Write[Any], replicas: Replicas) -> Write[Object]:
        """The same write, with the fields. Raises Refused."""
        sent, name = write.sent, write.new.metadata.name
        assert sent is not None, "a write of a kind that is counted by number has it"
        counted, scaled = f"{self.resource.group}/{self.version}, of which it counts fields", replicas.get(self.version)
        if write.subresource != SCALE and sent.version != self.version:
            raise Refused(f"must be written as {counted}, for: {name}")
        if write.subresource == SCALE and not scaled:
            raise Refused(f"must be edited, not scaled: {counted}, has no scale, for: {name}")
        try:
            new, old = self._decoded(write, sent, scaled or ())
        except _UNREADABLE:
            shown = ", ".join(sorted(field.shown for field in self.fields.values()))
            raise Refused(f"must specify {shown} as a number or quantity that is not negative for: {name}") from None
        return Write(operation=write.operation, subresource=write.subresource, new=new, old=old, now=write.now)

    def _decoded(self, write: Write[Any], sent: AsSent, scaled: tuple[str, ...]) -> tuple[Object, Object | None]:
        """An old object that cannot be read counts nothing: a count of it is not known, and may be zero."""
        if write.subresource == SCALE:
            both = (msgspec.json.decode(each, type=_Scale) for each in (sent.new, sent.old))
            new, old = (_Scaled(metadata=each.metadata, path=scaled, replicas=each.spec.replicas) for each in both)
            return new, old
        decoded: Object = msgspec.json.decode(sent.new, type=self.type)
        if write.old is None:
            return decoded, None
        try:
            return decoded, msgspec.json.decode(sent.old, type=self.type)
        except _UNREADABLE:
            return decoded, Object(metadata=write.old.metadata)

    def _values(self, subject: Object) -> dict[str, int]:
        """In nanos, of the fields that are there."""
        if isinstance(subject, _Scaled):
            of_path = [name for name, field in self.fields.items() if field.path == subject.path]
            return dict.fromkeys(of_path, amount(subject.replicas))
        found = {name: _at(subject, field.path) for name, field in self.fields.items()}
        return {name: amount(value) for name, value in found.items() if value is not None}


def may_be_asked(write: Write[Any]) -> bool:
    """Whether it can add to what a quota counts of fields."""
    return write.sent is not None and write.operation in FieldEvaluator.asked_of.get(write.subresource, ())


def evaluator_of(kind: GroupResource, limited: Iterable[str]) -> FieldEvaluator | None:
    """Of the fields of a kind that these names count; None if they count none."""
    return _evaluator_of(kind, frozenset(name for name in limited if name.startswith(object_names.SUM)))


@lru_cache(maxsize=1024)
def _evaluator_of(kind: GroupResource, limited: frozenset[str]) -> FieldEvaluator | None:
    counted = sorted(limited - object_names.of_other_versions(limited))
    found = {name: field for name in counted if (field := object_names.field(name)) is not None and field.of == kind}
    return FieldEvaluator(found) if found else None


@lru_cache(maxsize=1024)
def _type_of(paths: tuple[tuple[str, ...], ...]) -> type[Object]:
    """Nothing else of the objects is decoded."""
    struct = _struct(paths)
    made = msgspec.defstruct("Fields", [("spec", struct | None, None)], bases=(Numbered,), frozen=True, kw_only=True)
    assert issubclass(made, Object), "as its base is"
    return made


def _struct(paths: Iterable[tuple[str, ...]]) -> type[msgspec.Struct]:
    """Of what is below the first part of these paths."""
    below: dict[str, list[tuple[str, ...]]] = {}
    for _, *rest in paths:
        below.setdefault(rest[0], []).append(tuple(rest))
    fields: list[tuple[str, Any, None]] = []
    for key, parts in below.items():
        deeper = [part for part in parts if len(part) > 1]
        kinds: Any = None
        if len(deeper) < len(parts):
            kinds = _Amount
        if deeper:
            kinds = _struct(deeper) if kinds is None else kinds | _struct(deeper)
        fields.append((_attribute(key), kinds | None, None))
    return msgspec.defstruct("Part", fields, frozen=True, rename={_attribute(key): key for key in below})


def _attribute(key: str) -> str:
    """A name for Python: those of fields may have a dash."""
    return f"f_{key.replace('-', '__dash__')}"


def _at(subject: Object, path: tuple[str, ...]) -> int | str | None:
    found: Any = getattr(subject, path[0], None)
    for key in path[1:]:
        found = getattr(found, _attribute(key), None)
    if isinstance(found, float):
        return repr(found)
    return found if isinstance(found, int | str) else None
