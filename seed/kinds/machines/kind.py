"""Machines, in user clusters and of Cluster API. Their sources in user clusters are those of
seed/controllers/user_clusters.py: what else is done in a user cluster goes through the same connection."""

from __future__ import annotations

from seed.kinds.kind import AskedOfSeed, CountedKind, InTerm, Kind, Parts, Serving
from seed.kinds.machines import cluster_api_configuration as cluster_api
from seed.kinds.machines.admission import MachineAdmission
from seed.kinds.machines.cluster_api_source import ClusterApiInformers
from seed.kinds.machines.cluster_api_webhook import ClusterApiWebhook
from seed.kinds.machines.rollouts import Rollouts, in_cluster_api, in_user_clusters
from seed.kinds.machines.scale_webhook import ScaleWebhook
from seed.kinds.machines.webhook import MachineWebhook, StampWebhook
from seed.model import asked_of_seed
from seed.sizing.stamper import Stamping


def serving(parts: Parts) -> Serving:
    replica, admission = parts.replica, parts.admission
    quotas, clusters, view = replica.caches.quotas, replica.caches.clusters, replica.caches.cluster_api
    sizing, copies = replica.sizing, replica.local_copies
    rollouts = Rollouts()
    of_user_clusters = in_user_clusters(rollouts, parts.connections, sizing)
    of_cluster_api = in_cluster_api(rollouts, replica.cluster, view, sizing)
    machines = MachineAdmission(quotas, admission, sizing, of_user_clusters)
    return Serving(
        webhooks={
            "machines": MachineWebhook(clusters, machines, local_copies=copies),
            "stamp": StampWebhook(Stamping(clusters, sizing)),
            "cluster-api": ClusterApiWebhook(view, MachineAdmission(quotas, admission, sizing, of_cluster_api)),
            "scale": ScaleWebhook(
                quotas, clusters, replica.registry, sizing, parts.connections, view, local_copies=copies
            ),
        }
    )


def counting(term: InTerm) -> CountedKind:
    replica, caches = term.replica, term.replica.caches
    informers = ClusterApiInformers(
        replica.cluster,
        caches.quotas,
        caches.clusters,
        caches.cluster_api,
        replica.sizing,
        term.enforcements[asked_of_seed.CLUSTER_API],
        on_change=term.on_change,
        on_state=term.on_state,
    )
    return CountedKind(informers.sources, {"Cluster API": informers.run})


MACHINES = Kind(
    serving=serving,
    counting=counting,
    of_seed=AskedOfSeed(
        key=asked_of_seed.CLUSTER_API,
        name=cluster_api.NAME,
        caller=cluster_api.CALLER,
        desired=cluster_api.desired,
        sample=cluster_api.sample_of,
        of_clusters=True,
    ),
)
