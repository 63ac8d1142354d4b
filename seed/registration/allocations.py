"""The configuration that makes the master's own API server ask about Allocations."""

from __future__ import annotations

from collections.abc import Callable

from common.api.types import ALLOCATIONS
from seed.registration.configuration import WebhookConfiguration, configuration
from seed.registration.probe import Sample

CALLER = "allocations"
"""The webhook's kind, and whom the token in the URL proves: the seed's own API server."""

NAME = "seedquota-allocations"
WEBHOOK = "allocations.seedquota.io"


def desired(
    *,
    base_url: str,
    token: Callable[[str], str],
    ca_bundle: bytes,
    timeout_seconds: int,
    break_glass_group: str,
) -> WebhookConfiguration:
    """`token`: by the webhook's kind. It holds a token: never log it."""
    return configuration(
        NAME,
        WEBHOOK,
        url=f"{base_url}/{CALLER}/{token(CALLER)}",
        ca_bundle=ca_bundle,
        timeout_seconds=timeout_seconds,
        break_glass_group=break_glass_group,
        rules=[
            {
                "apiGroups": [ALLOCATIONS.group],
                "apiVersions": [ALLOCATIONS.version],
                "operations": ["CREATE", "UPDATE"],
                "resources": [ALLOCATIONS.plural],
                "scope": "Namespaced",
            }
        ],
    )


def sample(namespace: str) -> Sample:
    """A canary: of no organization, in a namespace that is none's."""
    name = "seedquota-canary"
    spec = {"organization": name, "project": name, "kind": name, "id": name, "resources": []}
    return Sample(ALLOCATIONS, namespace, spec, WEBHOOK, kind=ALLOCATIONS.kind)
