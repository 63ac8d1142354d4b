"""Whether an API server's custom resource definitions have all that this version writes. Newer ones may have more."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from common.api.definitions import definitions
from common.api.labels import GROUP, VERSION
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.runtime.metrics import build_version

MAX_NAMED = 5
_CURE = "set crds.install, or apply charts/crds"


class Schema(msgspec.Struct, rename="camel"):
    """What decides which objects an API server takes, and which of their fields."""

    properties: dict[str, Schema] = {}
    items: Schema | None = None
    additional_properties: Schema | bool | None = None
    enum: list[object] | None = None
    max_length: int | None = None
    max_items: int | None = None
    max_properties: int | None = None


class _Validation(msgspec.Struct):
    schema: Schema = msgspec.field(name="openAPIV3Schema")


class _Version(msgspec.Struct):
    schema: _Validation


class _Names(msgspec.Struct):
    kind: str
    plural: str


class _Spec(msgspec.Struct):
    names: _Names
    versions: list[_Version]


class _Definition(msgspec.Struct):
    spec: _Spec


class _Schemas(msgspec.Struct):
    schemas: dict[str, msgspec.Raw] = {}


class _Document(msgspec.Struct):
    """What /openapi/v3 says of one API group: whoever may discover it may read it."""

    components: _Schemas = msgspec.field(default_factory=_Schemas)


async def problems(cluster: Cluster) -> list[str]:
    """Each with what to do about it."""
    try:
        answer = await cluster.request("GET", f"/openapi/v3/apis/{GROUP}/{VERSION}")
    except NotFound:
        answer = b"{}"
    served = msgspec.json.decode(answer, type=_Document).components.schemas
    prefix = ".".join([*reversed(GROUP.split(".")), VERSION])
    missing, found = [], []
    for each in definitions(_Definition):
        names, (version,) = each.spec.names, each.spec.versions
        there = served.get(f"{prefix}.{names.kind}")
        if there is None:
            missing.append(names.plural)
        elif older := list(lacks(version.schema.schema, msgspec.json.decode(there, type=Schema))):
            more = f" and {len(older) - MAX_NAMED} more" if len(older) > MAX_NAMED else ""
            found.append(
                f"the definition {names.plural}.{GROUP} that the API server has is older than {build_version()}, and "
                f"lacks {', '.join(older[:MAX_NAMED])}{more}: {_CURE} of this version"
            )
    if missing:
        found.append(f"the API server does not serve {', '.join(missing)} of {GROUP}: {_CURE}")
    return found


def lacks(ours: Schema, theirs: Schema, path: str = "") -> Iterator[str]:
    """What an API server with their schema refuses or drops of an object that ours allows."""
    for name, field in ours.properties.items():
        here = f"{path}.{name}"
        if name not in theirs.properties:
            yield here
        elif here != ".metadata":  # each API server has its own schema of that
            yield from lacks(field, theirs.properties[name], here)
    for mine, other, inner in (
        (ours.items, theirs.items, f"{path}[]"),
        (ours.additional_properties, theirs.additional_properties, f"{path}.*"),
    ):
        if isinstance(mine, Schema):
            yield from lacks(mine, other if isinstance(other, Schema) else Schema(), inner)
    if theirs.enum is not None:
        yield from (f"{path} {value}" for value in ours.enum or () if value not in theirs.enum)
    for wanted, most in (
        (ours.max_length, theirs.max_length),
        (ours.max_items, theirs.max_items),
        (ours.max_properties, theirs.max_properties),
    ):
        if most is not None and (wanted is None or wanted > most):
            yield f"{path} of more than {most}"
