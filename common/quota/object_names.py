"""Names of resources that a quota for namespaces can limit, and which objects each of them counts. Pure.

They are the names of Kubernetes' core quotas (1.35: k8s.io/kubernetes/pkg/quota/v1/evaluator/core, each file's
MatchingResources, and k8s.io/apiserver/pkg/quota/v1/generic, ObjectCountQuotaResourceNameFor). Core has no name for a
number in objects; `SUM` begins ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from common.quota import names


class GroupResource(msgspec.Struct, frozen=True):
    """A kind of objects, whichever version it is read in. The core group is empty."""

    resource: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


PODS: Final = GroupResource("pods")
SERVICES: Final = GroupResource("services")
PERSISTENT_VOLUME_CLAIMS: Final = GroupResource("persistentvolumeclaims")
RESOURCE_CLAIMS: Final = GroupResource("resourceclaims", "resource.k8s.io")
RESOURCE_QUOTAS: Final = GroupResource("resourcequotas")

COUNT: Final = "count/"
SUM: Final = "sum."
"""Before the name of a number in objects: `sum.databases.v1.example.com/spec.replicas`. The name says all that is to be
known, so there is no moment at which somebody reads it otherwise than somebody else. See
docs/decisions/0032-fields-are-named-by-the-resource.md."""
REQUESTS: Final = "requests."
LIMITS: Final = "limits."
HUGE_PAGES: Final = "hugepages-"
BY_STORAGE_CLASS: Final = ".storageclass.storage.k8s.io/"
BY_DEVICE_CLASS: Final = ".deviceclass.resource.k8s.io/devices"
REQUESTS_OF_CLASS: Final = "requests.deviceclass.resource.kubernetes.io/"
"""Before the name of a device class (k8s.io/api/core/v1, ResourceImplicitExtendedClaimsPerClass)."""
COMPUTE: Final = ("cpu", "memory", "ephemeral-storage")

ALIASES: Final = {
    GroupResource(name): name for name in ("configmaps", "replicationcontrollers", "resourcequotas", "secrets")
}
"""Older names of counts (evaluator/core/registry.go, legacyObjectCountAliases)."""

_LABEL: Final = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_FIELD: Final = re.compile(
    rf"sum\.(?P<resource>{_LABEL})\.(?P<version>v[0-9]{{1,4}}(?:(?:alpha|beta)[0-9]{{1,4}})?)"
    rf"\.(?P<group>{_LABEL}(?:\.{_LABEL})*)/(?P<path>spec(?:\.[A-Za-z0-9_-]+)+)"
)

NEVER_COUNTED: Final = frozenset(
    {
        GroupResource("bindings"),
        GroupResource("componentstatuses"),
        GroupResource("events"),
        GroupResource("events", "events.k8s.io"),
        GroupResource("tokenreviews", "authentication.k8s.io"),
        GroupResource("selfsubjectreviews", "authentication.k8s.io"),
        GroupResource("subjectaccessreviews", "authorization.k8s.io"),
        GroupResource("selfsubjectaccessreviews", "authorization.k8s.io"),
        GroupResource("localsubjectaccessreviews", "authorization.k8s.io"),
        GroupResource("selfsubjectrulesreviews", "authorization.k8s.io"),
    }
)
"""They are not stored, or not for long (pkg/quota/v1/install/registry.go, ignoredResources)."""

_FIXED: Final = {
    **dict.fromkeys(("pods", *COMPUTE, *(REQUESTS + name for name in COMPUTE)), PODS),
    **dict.fromkeys((LIMITS + name for name in COMPUTE), PODS),
    **dict.fromkeys(("services", "services.nodeports", "services.loadbalancers"), SERVICES),
    **dict.fromkeys(("persistentvolumeclaims", "requests.storage"), PERSISTENT_VOLUME_CLAIMS),
    **{name: resource for resource, name in ALIASES.items()},
}


class Field(msgspec.Struct, frozen=True):
    """A number in the objects of a kind, as one version of their API has it. `path` begins with `spec`."""

    of: GroupResource
    version: str
    path: tuple[str, ...]

    @property
    def shown(self) -> str:
        return ".".join(self.path)


PLAIN: Final = tuple(sorted(_FIXED))
"""The names that have no part to choose."""


def count_of(resource: GroupResource) -> str:
    return f"{COUNT}{resource}"


def is_extended(name: str) -> bool:
    """Whether a container may request it as an extended resource (pkg/apis/core/v1/helper, IsExtendedResourceName)."""
    return not _is_native(name) and not name.startswith(REQUESTS) and names.is_valid(REQUESTS + name)


def is_device(name: str) -> bool:
    """Whether the qualified name alone counts what pods request of an extended resource.

    Not where it is another count, nor where another name was meant, so that nothing would ever be counted.
    """
    other = (
        name.startswith((COUNT, LIMITS, SUM)) or BY_STORAGE_CLASS in name or BY_DEVICE_CLASS.rpartition("/")[0] in name
    )
    return is_extended(name) and not other


@lru_cache(maxsize=4096)
def field(name: str) -> Field | None:
    """What a name that begins with `SUM` adds up. None for one that is not well formed."""
    found = _FIELD.fullmatch(name) if names.is_valid(name) else None
    if found is None:
        return None
    of = GroupResource(found["resource"], found["group"])
    if of == RESOURCE_CLAIMS or of in NEVER_COUNTED:
        return None
    return Field(of, found["version"], tuple(found["path"].split(".")))


def of_other_versions(limited: Iterable[str]) -> frozenset[str]:
    """Those of the names that are not counted, since others of the same kind name another version: an API server sends
    each object in one of them. The first in the alphabet is counted."""
    fields = {name: found for name in sorted(limited) if (found := field(name)) is not None}
    first: dict[GroupResource, str] = {}
    for found in fields.values():
        first.setdefault(found.of, found.version)
    return frozenset(name for name, found in fields.items() if found.version != first[found.of])


def beside(limited: Iterable[str], held: Iterable[str]) -> frozenset[str]:
    """What is limited, and of what was limited once what can be counted with it: of a kind of which fields are limited
    no field of another version."""
    now = frozenset(limited)
    versions = {found.of: found.version for found in map(field, now) if found is not None}
    fields = ((name, field(name)) for name in held)
    return now.union(name for name, of in fields if of is None or versions.get(of.of, of.version) == of.version)


@lru_cache(maxsize=4096)
def counted(name: str) -> tuple[GroupResource, ...]:
    """The objects that the name counts. Nothing for a name that no object uses.

    A qualified name alone, as `example.com/gpu`, is the same as `requests.example.com/gpu`. A core quota accepts the
    first and never counts it.
    """
    if name in _FIXED:
        return (_FIXED[name],)
    if name.startswith(COUNT):
        resource, _, group = name.removeprefix(COUNT).partition(".")
        found = GroupResource(resource, group)
        return (found,) if names.is_valid(name) and found not in NEVER_COUNTED else ()
    if name.startswith(SUM):
        summed = field(name)
        return (summed.of,) if summed is not None else ()
    if not names.is_valid(name):
        return ()
    of_claims = [PERSISTENT_VOLUME_CLAIMS] if _is_by_storage_class(name) else []
    by_class = (name.endswith(BY_DEVICE_CLASS) and not name.startswith(".")) or name.startswith(REQUESTS_OF_CLASS)
    of_devices = [RESOURCE_CLAIMS] if by_class else []
    special = (*of_claims, *of_devices)
    of_pods = name.startswith((HUGE_PAGES, REQUESTS + HUGE_PAGES)) or (
        name.startswith(REQUESTS) and not _is_native(name)
    )
    if of_pods or (not special and is_device(name)):
        return (PODS, *special)
    return special


def counted_in_projects(name: str) -> tuple[GroupResource, ...]:
    """The objects that the name counts in a quota of a project or organization. There `cpu`, `memory` and the name of a
    device alone are what Machines have."""
    return () if name in names.PLAIN or is_device(name) else counted(name)


def is_of_core(name: str) -> bool:
    """Whether its form is that of a name of core quotas, also where no object uses it."""
    return name in _FIXED or name.startswith((COUNT, REQUESTS, LIMITS, HUGE_PAGES, SUM))


def of_objects(limited: Iterable[str]) -> frozenset[str]:
    """Those of a project's names that count objects in namespaces."""
    return frozenset(name for name in limited if counted_in_projects(name))


def resources_of(limited: Iterable[str]) -> frozenset[GroupResource]:
    """All that these names count."""
    return frozenset(resource for name in limited for resource in counted(name))


def _is_by_storage_class(name: str) -> bool:
    return name.endswith((f"{BY_STORAGE_CLASS}persistentvolumeclaims", f"{BY_STORAGE_CLASS}requests.storage"))


def _is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name
