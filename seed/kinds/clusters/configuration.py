"""The configuration that makes the seed ask about its clusters."""

from __future__ import annotations

from collections.abc import Sequence

from common.api.types import USER_CLUSTERS
from seed.kinds.clusters.evaluator import ClusterKind
from seed.registration.configuration import CREATE, WebhookConfiguration, WebhookServer, configuration, rule
from seed.registration.probe import Sample

CALLER = "clusters"
"""The webhook's kind, and whom the token in the URL proves: the seed's own API server."""

NAME = "seedquota-clusters"
WEBHOOK = "clusters.seedquota.io"


def desired(kinds: Sequence[ClusterKind], server: WebhookServer) -> WebhookConfiguration:
    """It holds a token: never log it."""
    return configuration(
        NAME,
        WEBHOOK,
        server,
        server.url(CALLER),
        rules=[
            rule(kind.group, kind.versions, [kind.plural], CREATE, scope="Namespaced" if kind.namespaced else "Cluster")
            for kind in kinds
        ],
    )


def sample(namespace: str) -> Sample:
    """A canary: of the kind that is there on every seed. One webhook asks about all kinds."""
    return Sample(USER_CLUSTERS, namespace, {"project": "seedquota-canary"}, WEBHOOK)
