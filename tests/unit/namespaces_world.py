"""Quotas of kind namespaces, and the clusters that take part, without Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from common.api.labels import UID_LABEL
from common.api.types import Project, ResourceQuota, SeedCopy, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.controller.store import Change
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.kinds.namespaces.cache import NamespaceCache
from seed.kinds.registry import OF_PROJECTS
from seed.model.quota import Quota

ANN = {"owner": "ann"}
PODS = {"pods": "5"}
PROD = {"matchLabels": {"tier": "prod"}}


class World:
    def __init__(self) -> None:
        seed = cast(Cluster, SimpleNamespace(name="eu-1"))
        self.quotas = QuotaCache(seed)
        self.clusters = ClusterCache(seed, self.quotas, of_projects=OF_PROJECTS)
        self.cache = NamespaceCache(seed, self.quotas, self.clusters)
        self.changes = 0
        self.generation = 0
        self.clusters.on_participants(self.changed)

    def changed(self) -> None:
        self.changes += 1

    def quota(self, name: str, limits: Mapping[str, str] = PODS, /, **subject: object) -> Quota:
        self.generation += 1
        labels = {UID_LABEL: f"{name}-uid"}
        body: dict[str, Any] = {
            "metadata": {"name": name, "uid": f"{name}-copy", "labels": labels, "generation": self.generation},
            "spec": {"subject": {"kind": "namespaces", **subject}, "quota": dict(limits)},
        }
        self.quotas._quota_changed(Change(None, msgspec.convert(body, ResourceQuota)))
        quota = self.quotas.quota(name)
        assert quota is not None
        return quota

    def remove(self, quota: str) -> None:
        self.quotas._put(quota, None)

    def cluster(
        self,
        name: str,
        participation: str = "Enabled",
        *,
        project: str = "alpha",
        of: str = "FromCluster",
        **labels: str,
    ) -> None:
        spec = {"project": project, "kubeconfigSecretRef": {"name": name}, "namespaceQuotas": participation}
        spec["namespaceProjects"] = of
        metadata = {"name": name, "namespace": "alpha", "uid": f"{name}-uid", "labels": labels}
        made = msgspec.convert({"metadata": metadata, "spec": spec}, UserCluster)
        store = self.clusters.user_clusters.store
        before = store.get(made.metadata.key)
        store._set(made.metadata.key, made)
        self.clusters._cluster_changed(Change(before, made))

    def project(self, name: str, organization: str | None) -> None:
        """None: its copy goes."""
        store = self.quotas.projects.store
        before, after = store.get(name), None
        if organization is not None:
            body = {"metadata": {"name": name, "uid": name}, "spec": {"organization": organization}}
            after = msgspec.convert(body, Project)
            store._set(name, after)
        else:
            store._remove(name)
        self.quotas._project_changed(Change(before, after))

    def seed(self, participation: str) -> None:
        spec = {"copyOf": "uid", "namespaceQuotas": participation}
        made = msgspec.convert({"metadata": {"name": "eu-1", "uid": "s"}, "spec": spec}, SeedCopy)
        before = self.quotas.seed.store.get("eu-1")
        self.quotas.seed.store._set("eu-1", made)
        self.quotas._seed_changed(Change(before, made))

    def selected(self, cluster: str, labels: dict[str, str]) -> list[str]:
        return [quota.name for quota in self.cache.select_by(cluster, labels)]

    def sources(self, name: str) -> list[str]:
        quota = self.quotas.quota(name)
        assert quota is not None
        return sorted(key.shown for key in self.clusters.source_keys(quota))
