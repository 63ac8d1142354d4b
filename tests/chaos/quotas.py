"""What the chaos limits, and where what counts lives."""

from __future__ import annotations

from collections.abc import Mapping

from common.quota import resources
from devcluster import objects
from devcluster.load import Size
from devcluster.manifests import Manifest
from tests.chaos.truth import Limit

ORGANIZATION = "acme"
OWN = "seed-3"  # the seed that is the master's own cluster
SMALLEST = Size("1", "1Gi", "1Gi")
PROJECTS = {"alpha": ("user-1", "user-2"), "beta": ("user-3",)}
HOSTS = {"user-1": "seed-1", "user-2": "seed-2", "user-3": OWN}


def key(quota: str, cluster: str) -> str:
    """Of what a quota of namespaces counts in a user cluster. What has the cluster's name alone are its Machines."""
    return f"{cluster}/{quota}"


def allocations_of(project: str) -> str:
    """Of the project's Allocations, which are in the master's own cluster."""
    return f"{OWN}/{project}"


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
        return [name for name in self.limit.clusters if HOSTS.get(cluster_of(name), OWN) == seed]


def _project(name: str, quota: Mapping[str, str]) -> Quota:
    return Quota(f"project-{name}", "project", name, quota, (*PROJECTS[name], allocations_of(name)))


# cpu, memory and machines are counted from Machines, servers and gpus from Allocations.
ALLOCATED = ("servers", "gpus")
QUOTAS = (
    _project("alpha", {"cpu": "48", "machines": "32", "servers": "20"}),
    _project("beta", {"cpu": "28", "gpus": "14"}),
    Quota(
        "org-acme",
        "organization",
        ORGANIZATION,
        {"cpu": "64", "memory": "112Gi", "servers": "28", "gpus": "20"},
        (*HOSTS, *map(allocations_of, PROJECTS)),
    ),
)
