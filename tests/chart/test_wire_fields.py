"""What the programs write and read, the CRDs name: an API server drops every other field without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from common.api import types
from common.api.ledger_types import WireMasterLedger
from common.kube.client.meta import Object
from master.cache import objects
from seed.ledger.encoding import WireAccount

CRDS = Path(__file__).parents[2] / "charts" / "crds"


def schema_of(file: str) -> dict[str, Any]:
    crd = yaml.safe_load((CRDS / f"{file}.yaml").read_text(encoding="utf-8"))
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return schema


def missing(struct: type[msgspec.Struct], schema: dict[str, Any], path: str) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        below = schema.get("properties", {}).get(field.encode_name)
        if below is None:
            yield f"{path}.{field.encode_name}"
        else:
            yield from inside(msgspec.inspect.type_info(field.type), below, f"{path}.{field.encode_name}")


def inside(kind: msgspec.inspect.Type, schema: dict[str, Any], path: str) -> Iterator[str]:
    if isinstance(kind, msgspec.inspect.StructType):
        yield from missing(kind.cls, schema, path)
    elif isinstance(kind, msgspec.inspect.ListType):
        yield from inside(kind.item_type, schema["items"], f"{path}[]")
    elif isinstance(kind, msgspec.inspect.DictType) and "additionalProperties" in schema:
        yield from inside(kind.value_type, schema["additionalProperties"], f"{path}{{}}")
    elif isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from inside(one, schema, path)


def fields_of(kind: type[Object]) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for field in msgspec.structs.fields(kind):
        if field.name in ("spec", "status") and isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield field.name, field.type


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("resourcequota", types.ResourceQuota),
        ("resourcequota", objects.MasterQuota),
        ("resourcequotaallocation", objects.QuotaAllocation),
        ("usercluster", types.UserCluster),
        ("seed", types.Seed),
        ("project", types.Project),
        ("organization", types.Organization),
        ("quotasettings", types.QuotaSettings),
        ("allocation", types.Allocation),
    ],
)
def test_every_field_that_is_written_or_read_is_in_the_crd(file: str, kind: type[Object]) -> None:
    schema = schema_of(file)
    unknown = [name for part, struct in fields_of(kind) for name in missing(struct, schema[part], part)]
    assert unknown == []


def test_every_field_of_a_ledger_is_in_the_crd() -> None:
    schema = schema_of("quotaledger")
    assert list(missing(WireAccount, schema["account"], "account")) == []
    assert list(missing(WireMasterLedger, schema["grants"], "grants")) == []
