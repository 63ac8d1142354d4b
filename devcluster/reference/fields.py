"""The kinds: what their CRDs say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from devcluster.manifests import load
from devcluster.objects import CHARTS
from devcluster.reference.markdown import code, table

_Schema = dict[str, Any]
_NO_FIELDS = ("apiVersion", "kind", "metadata")

_HEAD = """\
# Fields

The kinds of group `seedquota.io`, version `v1alpha1`, as `charts/crds` declares them. `kubectl explain` shows the same.
"""


@cache
def crds() -> list[_Schema]:
    loaded: list[_Schema] = [dict(crd) for crd in load(CHARTS / "crds")]
    return [crd["spec"] for crd in loaded]


def page() -> str:
    return "\n".join([_HEAD, *(_kind(crd) for crd in crds())])


def _kind(crd: _Schema) -> str:
    names, (version,) = crd["names"], crd["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    short = ", ".join(code(name) for name in names.get("shortNames", ()))
    parts = [
        f"## {names['kind']}",
        " ".join(schema["description"].split()),
        f"Resource `{names['plural']}`, short names {short}, "
        f"{'cluster-scoped' if crd['scope'] == 'Cluster' else 'namespaced'}.",
        "Columns of `kubectl get`; those marked wide need `-o wide`:",
        table(
            ("column", "what it shows"),
            [
                (
                    column["name"].upper() + (" (wide)" if column.get("priority") else ""),
                    column.get("description", "How long ago it was created"),
                )
                for column in version["additionalPrinterColumns"]
            ],
        ),
        "Fields:",
        table(("field", "type", "default", "description"), _rows(schema)),
    ]
    rules = list(dict.fromkeys(_rules(schema)))
    if rules:
        parts += ["Rules, by the message of each:", "\n".join(f"- {rule}" for rule in rules)]
    return "\n\n".join(parts) + "\n"


def _rows(schema: _Schema, path: str = "") -> Iterator[tuple[str, str, str, str]]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        if not path and name in _NO_FIELDS:
            continue
        here = f"{path}.{name}" if path else name
        default = code(json.dumps(field["default"])) if "default" in field else ""
        what = field.get("description", "")
        yield code(here), _type(field), "required" if name in required else default, what
        yield from _rows(field, here)
        if "items" in field:
            yield from _rows(field["items"], f"{here}[]")
        values = field.get("additionalProperties")
        if isinstance(values, dict):
            yield from _rows(values, f"{here}.*")


def _type(field: _Schema) -> str:
    if "enum" in field:
        return "one of " + ", ".join(code(str(value)) for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    values = field.get("additionalProperties")
    if isinstance(values, dict):
        return f"map to {_type(values)}"
    return "time" if field.get("format") == "date-time" else str(field.get("type", "any"))


def _rules(schema: _Schema) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield " ".join(rule["message"].split())
    for field in schema.get("properties", {}).values():
        yield from _rules(field)
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from _rules(inner)
