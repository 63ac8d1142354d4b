"""Objects in namespaces: what core ResourceQuotas count, and promise."""

from __future__ import annotations

from seed.kinds.kind import Kind, Parts, Serving
from seed.kinds.namespaces import configuration
from seed.kinds.namespaces.admission import NamespacedAdmission
from seed.kinds.namespaces.cache import NamespaceCache
from seed.kinds.namespaces.counting import CountedNamespaces
from seed.kinds.namespaces.webhook import NamespacedObjectWebhook


def serving(parts: Parts) -> Serving:
    replica = parts.replica
    quotas, clusters = replica.caches.quotas, replica.caches.clusters
    namespaces = NamespaceCache(replica.cluster, quotas, clusters, reach=replica.reach)
    webhook = NamespacedObjectWebhook(
        clusters,
        NamespacedAdmission(parts.admission, namespaces),
        lambda: quotas.own_conditions,
        local_copies=replica.local_copies,
    )
    return Serving(
        webhooks={configuration.KIND: webhook},
        follows={"namespaces": namespaces.run},
        requests_to_machines=2,  # an API server creates more pods
    )


NAMESPACES = Kind(serving=serving, counting=CountedNamespaces)
