"""Objects of an installation, as manifests."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from devcluster.manifests import Manifest, load

CHARTS = Path(__file__).parent.parent / "charts"
API = "seedquota.io/v1alpha1"


def namespace(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def secret(name: str, in_namespace: str, kubeconfig: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": in_namespace},
        "data": {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()},
    }


def quota(name: str, subject: str, limits: Mapping[str, str], kind: str = "project") -> Manifest:
    return named("ResourceQuota", name, subject={"kind": kind, "name": subject}, quota=dict(limits))


def project(name: str, organization: str = "") -> Manifest:
    return named("Project", name, **({"organization": organization} if organization else {}))


def named(kind: str, name: str, **spec: object) -> Manifest:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def rights(file: str, user: str, in_namespace: str = "") -> list[Manifest]:
    """The roles in a file of `charts/rbac`, each bound to the user: in that namespace alone, if one is named."""
    group = "rbac.authorization.k8s.io"
    manifests: list[Manifest] = []
    for role in load(CHARTS / "rbac" / f"{file}.yaml"):
        if role["kind"] not in ("Role", "ClusterRole"):
            continue
        metadata = role["metadata"]
        assert isinstance(metadata, dict), "a role has metadata"
        of_namespace = {"namespace": in_namespace} if in_namespace else {}
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding" if in_namespace else f"{role['kind']}Binding",
            "metadata": {**metadata, **of_namespace, "name": f"{metadata['name']}-{user}"},
            "roleRef": {"apiGroup": group, "kind": role["kind"], "name": metadata["name"]},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        manifests += [role, binding]
    return manifests
