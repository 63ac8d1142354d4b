"""What the master may do on a seed: the objects of charts/rbac/master-on-seed.yaml, which is also in the wheel."""

from __future__ import annotations

import copy
from importlib import resources
from typing import Any

import yaml

from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.kube.client.meta import Object
from common.kube.client.resource import Resource

ACCOUNT = "seedquota-master-on-seed"
MANAGER = "seedquota-cli"
FILE = "master-on-seed.yaml"
HELM = "meta.helm.sh/release-name"  # an annotation on each object of a release

_RBAC = "rbac.authorization.k8s.io"
KINDS = {
    found.kind: found
    for found in (
        Resource("", "v1", "serviceaccounts", "ServiceAccount", True, Object),
        Resource(_RBAC, "v1", "clusterroles", "ClusterRole", False, Object),
        Resource(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False, Object),
        Resource(_RBAC, "v1", "roles", "Role", True, Object),
        Resource(_RBAC, "v1", "rolebindings", "RoleBinding", True, Object),
    )
}


def objects(namespace: str) -> list[dict[str, Any]]:
    text = (resources.files("cli") / FILE).read_text()
    return [_in_namespace(found, namespace) for found in yaml.safe_load_all(text) if found is not None]


async def apply(seed: Cluster, namespace: str) -> None:
    for each in objects(namespace):
        await seed.apply(KINDS[each["kind"]], each, MANAGER)


async def remove(seed: Cluster, namespace: str) -> None:
    """The bindings first: what is left if this ends in between gives nothing. What a Helm release has, it keeps."""
    for each in sorted(objects(namespace), key=lambda found: not found["kind"].endswith("Binding")):
        resource, name, of = KINDS[each["kind"]], each["metadata"]["name"], each["metadata"].get("namespace")
        try:
            if HELM not in (await seed.get(resource, name, of)).metadata.annotations:
                await seed.delete(resource, name, of)
        except NotFound:
            continue


def _in_namespace(found: dict[str, Any], namespace: str) -> dict[str, Any]:
    made = copy.deepcopy(found)
    for place in (made["metadata"], *made.get("subjects", ())):
        if "namespace" in place:
            place["namespace"] = namespace
    return made
