"""Manifests of ours, and what of others' does not translate. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import yaml

from cli.outcome import DONE, STALE, Failed, Printed
from common.api.labels import API_VERSION
from common.quota import resources
from common.quota.quantity import QuantityError

Json = Mapping[str, object]


class Translated(msgspec.Struct, frozen=True):
    """`objects` are to be applied; `left` says what is not in them, and `notes` what to know before; one line each."""

    objects: Sequence[Json]
    left: Sequence[str]
    notes: Sequence[str] = ()


Made = tuple[list[Json], list[str]]
"""Of one object: what is to be applied, and what is left."""
OfKind = Callable[[Json, str, str], Made]
"""Of an object, its name, and how it is called in what is said of it."""


def translated(found: Iterable[Json], group: str, kinds: Mapping[str, OfKind]) -> Translated:
    """Each object by its kind. Those of other groups and kinds are left."""
    objects: list[Json] = []
    left: list[str] = []
    known = f"{' and '.join(f'a {kind}' for kind in kinds)} of {group} {'are' if len(kinds) > 1 else 'is'} translated"
    for each in found:
        kind, name = text(each.get("kind")), text(mapping(each.get("metadata")).get("name"))
        of_kind = kinds.get(kind) if text(each.get("apiVersion")).partition("/")[0] == group else None
        if of_kind is None:
            left.append(f"{kind} {name}: only {known}")
            continue
        made_of, why = of_kind(each, name, f"{kind} {name}")
        objects += made_of
        left += why
    return Translated(objects, left)


def documents(text: str, file: str) -> Iterator[Json]:
    """Also of a List. Raises Failed."""
    try:
        found = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Failed(f"{file} is no YAML: {error}") from None
    for each in found:
        yield from _objects(each, file)


def _objects(found: object, file: str) -> Iterator[Json]:
    if found is None:
        return
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise Failed(f"{file} holds something that is no object of Kubernetes")
    if found["kind"].endswith("List"):
        for each in found.get("items") or ():
            yield from _objects(each, file)
        return
    yield found


def made(kind: str, name: str, spec: Json | None = None, namespace: str = "") -> Json:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    found: Json = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata}
    return {**found, "spec": spec} if spec else found


def mapping(found: object) -> Mapping[str, object]:
    return found if isinstance(found, dict) else {}


def items(found: object) -> list[Json]:
    return [mapping(each) for each in found] if isinstance(found, list) else []


def text(found: object) -> str:
    return found if isinstance(found, str) else ""


def quantity(name: str, found: object) -> str | int | None:
    """None: it is no amount of ours."""
    if isinstance(found, bool) or not isinstance(found, str | int):
        return None
    try:
        amount = resources.parse({name: found})[name]
    except QuantityError:
        return None
    return found if amount >= 0 else None


def with_enforcement(found: Json, enforcement: str) -> Json:
    """The quota, or the default quotas of settings, with this `enforcement`."""
    spec = mapping(found.get("spec"))
    if found.get("kind") == "ResourceQuota":
        return {**found, "spec": {**spec, "enforcement": enforcement}}
    if found.get("kind") == "QuotaSettings" and "defaults" in spec:
        defaults = mapping(spec["defaults"])
        warned = {kind: {**mapping(default), "enforcement": enforcement} for kind, default in defaults.items()}
        return {**found, "spec": {**spec, "defaults": warned}}
    return found


def printed(found: Translated) -> Printed:
    """YAML for `kubectl apply -f -`, with what does not translate as comments. Raises Failed."""
    if not found.objects:
        raise Failed("; ".join(["there is nothing to translate", *found.left]))
    written = yaml.safe_dump_all(found.objects, sort_keys=False, allow_unicode=True).rstrip("\n")
    comments = [f"# not translated: {' '.join(line.split())}" for line in found.left]
    comments += [f"# {note}" for note in found.notes]
    return Printed("\n".join([*comments, written]), STALE if found.left else DONE)
