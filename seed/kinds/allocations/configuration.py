"""The configuration that makes the master's own API server ask about Allocations."""

from __future__ import annotations

from common.api.types import ALLOCATIONS
from seed.registration.configuration import CREATE, UPDATE, WebhookConfiguration, WebhookServer, configuration, rule
from seed.registration.probe import Sample

CALLER = "allocations"
"""The webhook's kind, and whom the token in the URL proves: the seed's own API server."""

NAME = "seedquota-allocations"
WEBHOOK = "allocations.seedquota.io"


def desired(server: WebhookServer) -> WebhookConfiguration:
    """It holds a token: never log it."""
    return configuration(
        NAME,
        WEBHOOK,
        server,
        server.url(CALLER),
        rules=[rule(ALLOCATIONS.group, [ALLOCATIONS.version], [ALLOCATIONS.plural], CREATE, UPDATE)],
    )


def sample(namespace: str) -> Sample:
    """A canary: of no organization, in a namespace that is none's."""
    name = "seedquota-canary"
    spec = {"organization": name, "project": name, "kind": name, "id": name, "resources": []}
    return Sample(ALLOCATIONS, namespace, spec, WEBHOOK)
