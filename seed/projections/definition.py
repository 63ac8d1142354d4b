"""What a user cluster needs before it can have LocalResourceQuotas and LocalResourceQuotaAllocations.

These are their definitions, and the right to read them.
"""

from __future__ import annotations

from typing import Final

from common.api.definitions import CUSTOM_RESOURCES, definition
from common.api.labels import GROUP, MANAGED_BY_LABEL, SEED_MANAGER
from common.kube.client.api_client import Cluster
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from seed.projections.local_quota import LOCAL_ALLOCATIONS, LOCAL_QUOTAS

ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False, Object)

ROLE: Final[dict[str, object]] = {
    "metadata": {
        "name": "seedquota-local-quotas",
        "labels": {MANAGED_BY_LABEL: SEED_MANAGER, "rbac.authorization.k8s.io/aggregate-to-view": "true"},
    },
    "rules": [
        {
            "apiGroups": [GROUP],
            "resources": [LOCAL_QUOTAS.plural, LOCAL_ALLOCATIONS.plural],
            "verbs": ["get", "list", "watch"],
        }
    ],
}
"""Who may view a namespace may view what is in it of these. The API server asks the writer for the same rights."""


_DEFINITIONS: Final = [definition(kind, dict[str, object]) for kind in (LOCAL_QUOTAS, LOCAL_ALLOCATIONS)]


async def install(cluster: Cluster) -> None:
    for kind in _DEFINITIONS:
        await cluster.apply(CUSTOM_RESOURCES, kind, SEED_MANAGER)
    await cluster.apply(ROLES, ROLE, SEED_MANAGER)
