"""Cluster API: what a Machine costs, by its infrastructure object. Pure.

The infrastructure providers have a kind of their own each (seed/machines/infrastructure_kinds.py). Of its spec a few
fields are kept (`describe`): the size is read from them, cached and stamped by them, as it is by machine-controller's
provider spec. Sizes that only a cloud knows are asked for by the same providers.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from seed.machines.infrastructure_kinds import KINDS, Where
from seed.machines.machine_controller import LONGEST_SPEC, MachineSpec
from seed.providers.flavour import Lookup
from seed.providers.size import Footprint, NotSized
from seed.providers.spec import Spec, quoted

GROUP = "infrastructure.cluster.x-k8s.io"
TEMPLATE = "Template"


class Described(MachineSpec, kw_only=True, frozen=True):
    """`provider_spec` is what `describe` or `undescribed` made: no API server has such an object."""


class _Description(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: str
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    where: Where = Where()
    replicas: int | None = None
    problem: str = ""


_Fields = dict[str, msgspec.Raw]
_decode_fields = msgspec.json.Decoder(_Fields).decode
_decode = msgspec.json.Decoder(_Description).decode
_encode = msgspec.json.Encoder(order="sorted").encode


def describe(kind: str, spec: bytes | msgspec.Raw, where: Where, replicas: int | None = None) -> Described:
    """`spec` of an infrastructure object, or of a template of one. `replicas`: it is a pool of so many machines.

    Two objects that differ in nothing that costs have the same description.
    """
    if kind.endswith(TEMPLATE):
        kind = kind.removesuffix(TEMPLATE)
        spec = in_template(spec)
    if len(bytes(spec)) > LONGEST_SPEC:
        return undescribed(kind, f"the spec of its {kind} is larger than {LONGEST_SPEC // 1024} KiB", replicas)
    fields = KINDS[kind].fields if kind in KINDS else ()
    try:
        given = _decode_fields(spec or b"{}")
        kept = {name: msgspec.json.decode(given[name]) for name in fields if name in given}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return undescribed(kind, f"the spec of its {kind} cannot be read", replicas)
    return _described(_Description(kind, msgspec.Raw(_encode(kept)), where, replicas))


def undescribed(kind: str, problem: str, replicas: int | None = None) -> Described:
    """There is nothing to describe: why not, for people."""
    return _described(_Description(kind, problem=problem, replicas=replicas))


def size(raw: bytes) -> Footprint | Lookup:
    """Of a description. Raises NotSized."""
    described = _decode(raw)
    if described.problem:
        raise NotSized("", described.problem)
    kind = KINDS.get(described.kind)
    if kind is None:
        raise NotSized(
            "", f"infrastructure {quoted(described.kind)} is not supported; supported: {', '.join(sorted(KINDS))}"
        )
    found = kind.size(Spec(kind.provider, described.spec, ""), described.where)
    if described.replicas is None:
        return found
    if isinstance(found, Lookup):
        return replace(found, count=described.replicas)
    return found.times(described.replicas)


def least(raw: bytes) -> ResourceList:
    """What it costs whatever its size is."""
    replicas = _decode(raw).replicas
    return {"machines": UNIT if replicas is None else replicas * UNIT}


def _described(description: _Description) -> Described:
    return Described(provider_spec=msgspec.Raw(_encode(description)))


def in_template(spec: bytes | msgspec.Raw) -> msgspec.Raw:
    """The spec of what a template makes, of the template's own."""
    return msgspec.Raw(_inner(_inner(spec, "template"), "spec"))


def _inner(raw: bytes | msgspec.Raw, name: str) -> bytes | msgspec.Raw:
    try:
        return _decode_fields(raw or b"{}").get(name, b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return b"[]"  # as unreadable further down as it is here
