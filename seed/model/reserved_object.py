"""How a reservation names an object in a namespace, and tells its versions apart."""

from __future__ import annotations

from common.kube.client.meta import ObjectMeta, object_key
from common.quota.object_names import GroupResource


def object_in_namespace(resource: GroupResource, namespace: str, name: str) -> str:
    """Its kind is needed to look for it."""
    return f"{resource}:{object_key(namespace, name)}"


def parse_object(text: str) -> tuple[GroupResource, str, str]:
    """Resource, namespace, name."""
    kind, _, key = text.partition(":")
    plural, _, group = kind.partition(".")
    namespace, _, name = key.partition("/")
    return GroupResource(plural, group), namespace, name


def generation_after(old: ObjectMeta) -> int:
    """What a reservation for an update of the object names as the generation that it makes.

    Most objects in namespaces have no metadata.generation. A resourceVersion does the same: an update is admitted on
    the very version that it changes, and what is stored next has a later one. They are compared as numbers (rule 4.11);
    one that is none is 0, which is before all others.
    """
    return generation_of(old) + 1


def generation_of(metadata: ObjectMeta) -> int:
    version = metadata.resource_version
    return int(version) if version.isascii() and version.isdigit() and len(version) < 19 else 0
