"""The configuration that makes the seed ask about Machines of Cluster API."""

from __future__ import annotations

from common.kube.client.resource import Resource
from common.kube.controller.discovery import FollowedKind, Served
from seed.kinds.machines.configuration import changes_size, with_scale_checks
from seed.machines import cluster_api, infrastructure
from seed.machines.cluster_api import ClusterMachine
from seed.registration.configuration import CREATE, UPDATE, WebhookConfiguration, WebhookServer, configuration, rule
from seed.registration.probe import Sample

_MACHINES = FollowedKind(cluster_api.GROUP, "Machine", cluster_api.VERSIONS, ClusterMachine)

CALLER = "cluster-api"
"""The webhook's kind, and whom the token in the URL proves: the seed's own API server."""

NAME = "seedquota-cluster-api"
WEBHOOK = "cluster-api.seedquota.io"
MACHINES_AND_POOLS = ("machines", "machinepools", "machinepools/scale")


def desired(server: WebhookServer) -> WebhookConfiguration:
    """It holds tokens: never log it."""
    admitting = configuration(
        NAME,
        WEBHOOK,
        server,
        server.url(CALLER),
        rules=[rule(cluster_api.GROUP, cluster_api.VERSIONS, MACHINES_AND_POOLS, CREATE, UPDATE)],
        conditions=changes_size(["clusterName", "infrastructureRef", "failureDomain", "replicas", "template"]),
    )
    return with_scale_checks(admitting, server.url("scale", CALLER))


def sample_of(served: Served, namespace: str) -> Sample | None:
    resource = served.find(_MACHINES)
    return sample(resource, namespace) if resource is not None else None


def sample(resource: Resource[ClusterMachine], namespace: str) -> Sample:
    """A canary: of no Cluster, so it would cost nobody anything."""
    group, version = infrastructure.GROUP, resource.version
    reference = {"kind": "SeedQuotaCanary", "name": "seedquota-canary"}
    reference |= {"apiGroup": group} if version == "v1beta2" else {"apiVersion": f"{group}/v1beta1"}
    spec = {
        "clusterName": "seedquota-canary",
        "bootstrap": {"dataSecretName": "seedquota-canary"},
        "infrastructureRef": reference,
    }
    return Sample(resource, namespace, spec, WEBHOOK)
