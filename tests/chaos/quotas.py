"""What the chaos limits, and where what counts lives."""

from __future__ import annotations

from collections.abc import Mapping

from common.quota import resources
from devcluster import objects
from devcluster.load import Size
from devcluster.manifests import Manifest
from tests.chaos.truth import Limit

ORGANIZATION = "acme"
SMALLEST = Size("1", "1Gi", "1Gi")
PROJECTS = {"alpha": ("user-1", "user-2"), "beta": ("user-3",)}
HOSTS = {"user-1": "seed-1", "user-2": "seed-2", "user-3": "seed-1"}


def key(quota: str, cluster: str) -> str:
    """Of what a quota of namespaces counts in a user cluster. What has the cluster's name alone are its Machines."""
    return f"{cluster}/{quota}"


def cluster_of(counted: str) -> str:
    return counted.partition("/")[0]


class Quota:
    """One quota: what it is called, what it allows, and the user clusters that it spans."""

    def __init__(self, name: str, kind: str, subject: str, quota: Mapping[str, str], clusters: tuple[str, ...]) -> None:
        self.name = name
        self.kind = kind
        self.subject = subject
        self.quota = quota
        self.limit = Limit(name, clusters, resources.parse(quota))

    @property
    def manifest(self) -> Manifest:
        return objects.quota(self.name, self.subject, self.quota, self.kind)

    def clusters_on(self, seed: str) -> list[str]:
        return [name for name in self.limit.clusters if HOSTS[cluster_of(name)] == seed]


QUOTAS = (
    Quota("project-alpha", "project", "alpha", {"cpu": "48", "machines": "32"}, PROJECTS["alpha"]),
    Quota("project-beta", "project", "beta", {"cpu": "28"}, PROJECTS["beta"]),
    Quota("org-acme", "organization", ORGANIZATION, {"cpu": "64", "memory": "112Gi"}, tuple(HOSTS)),
)
