"""What a user cluster needs before it can have LocalResourceQuotas: their definition, and the right to read them.

The definition is that of charts/crds/localresourcequota.yaml, which is not where the program runs.
"""

from __future__ import annotations

from typing import Final

from common.api.labels import GROUP, MANAGED_BY_LABEL, SEED_MANAGER, VERSION
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from seed.projections.local_quota import LOCAL_QUOTAS

DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False, Object
)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False, Object)

ROLE: Final[dict[str, object]] = {
    "metadata": {
        "name": "seedquota-local-quotas",
        "labels": {MANAGED_BY_LABEL: SEED_MANAGER, "rbac.authorization.k8s.io/aggregate-to-view": "true"},
    },
    "rules": [{"apiGroups": [GROUP], "resources": [LOCAL_QUOTAS.plural], "verbs": ["get", "list", "watch"]}],
}
"""Who may view a namespace may view its LocalResourceQuotas. The API server asks the writer for the same rights."""


def _text(length: int, description: str) -> dict[str, object]:
    return {"type": "string", "maxLength": length, "description": description}


def _object(description: str, **properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
    }


def _amounts(description: str) -> dict[str, object]:
    values = {"x-kubernetes-int-or-string": True, "maxLength": 64}
    return {"type": "object", "description": description, "maxProperties": 80, "additionalProperties": values}


def _column(name: str, path: str, description: str, kind: str = "string", **more: int) -> dict[str, object]:
    return {"name": name, "type": kind, "jsonPath": path, "description": description, **more}


_STATUS = {
    "total": _object(
        "Of all clusters that the quota counts, together.",
        hard=_amounts("The limit of each resource."),
        used=_amounts("What is used, with what is being created."),
    ),
    "here": _object(
        "Of this cluster alone; of a quota of kind namespaces, of this namespace alone.",
        used=_amounts("What is used here, with what is being created here."),
    ),
    "summary": _object(
        "The same in words, for the columns of kubectl get.",
        usage=_text(16384, "Used and limit of each resource, such as cpu 60/64."),
        here=_text(16384, "What is used here, such as cpu 24."),
    ),
    "currentTime": {
        "type": "string",
        "format": "date-time",
        "description": "When all amounts were last known to be current. Not set if that is not known.",
    },
    "stale": _text(1024, "Why an amount may be old. Not set while all are current."),
}

_SCHEMA = {
    "type": "object",
    "description": (
        "What a quota says in a cluster that it counts, or in a namespace: its limit, what is used in all of them "
        "together, and what of that is used here. Written by SeedQuota, which restores it about once a minute; nothing "
        "is decided by it."
    ),
    "properties": {
        "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
        "kind": {"type": "string", "description": LOCAL_QUOTAS.kind},
        "metadata": {"type": "object"},
        "status": {
            "type": "object",
            "description": "The amounts, as far as they are known.",
            "x-kubernetes-map-type": "atomic",
            "properties": _STATUS,
        },
    },
}

DEFINITION: Final[dict[str, object]] = {
    "metadata": {"name": f"{LOCAL_QUOTAS.plural}.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {
            "kind": LOCAL_QUOTAS.kind,
            "listKind": f"{LOCAL_QUOTAS.kind}List",
            "plural": LOCAL_QUOTAS.plural,
            "singular": LOCAL_QUOTAS.kind.lower(),
            "shortNames": ["lsq"],
            "categories": ["seedquota-all"],
        },
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "additionalPrinterColumns": [
                    _column(
                        "Usage",
                        ".status.summary.usage",
                        "Used and limit of each resource in all clusters together",
                    ),
                    _column("Here", ".status.summary.here", "What of it is used in this cluster or namespace"),
                    _column(
                        "Current",
                        ".status.currentTime",
                        "How long ago all of this was known to be current; more than three minutes is old",
                        "date",
                    ),
                    _column("Stale", ".status.stale", "Why it may be old", priority=1),
                ],
                "schema": {"openAPIV3Schema": _SCHEMA},
            }
        ],
    },
}
