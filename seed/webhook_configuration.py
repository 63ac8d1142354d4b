"""The ValidatingWebhookConfiguration that makes a cluster ask us about its Machines, and what keeps it there.

A tenant who is admin of his cluster can delete or change it. It is put back at once, and what slipped in meanwhile is
counted.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import cast

from common.api import MANAGED_BY_LABEL, UserCluster
from common.kube.client import AlreadyExists, ApiError, Cluster, Conflict, NotFound, Resource
from common.kube.meta import Object
from common.kube.reflector import Change, Reflector

log = logging.getLogger(__name__)

NAME = "seedquota-machines"
WEBHOOK = "machines.seedquota.io"
LABELS = {MANAGED_BY_LABEL: "seedquota"}

RETRY_SECONDS = (0.2, 10.0)  # first and longest pause after a refused write
MAX_WRITES = 10  # in PACE_SECONDS; whoever fights us over the object gets at most so many answers
PACE_SECONDS = 10.0

Webhook = dict[str, object]


class WebhookConfiguration(Object, frozen=True, kw_only=True):
    webhooks: list[Webhook] = []


WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    False,
    WebhookConfiguration,
)


def name_for(cluster: UserCluster) -> str:
    """On a seed that counts its own Machines there is one for each UserCluster of that kind."""
    if cluster.spec.kubeconfig_secret_ref is not None:
        return NAME
    return f"{NAME}.{cluster.metadata.namespace}.{cluster.metadata.name}"


def desired(
    cluster: UserCluster,
    *,
    base_url: str,
    token: str,
    ca_bundle: bytes,
    timeout_seconds: int = 3,
    break_glass_group: str = "seedquota:break-glass",
) -> WebhookConfiguration:
    """What belongs into the cluster. It holds the token: never log it.

    Everything is written out, also what is the API server's default, so that comparing finds what a tenant changed.
    """
    own_source = cluster.spec.kubeconfig_secret_ref is None
    selector = {"matchLabels": {"kubernetes.io/metadata.name": cluster.metadata.namespace}} if own_source else {}
    webhook: Webhook = {
        "name": WEBHOOK,
        "clientConfig": {
            "url": f"{base_url}/machines/{cluster.metadata.uid}/{token}",
            "caBundle": base64.b64encode(ca_bundle).decode(),
        },
        "rules": [
            {
                "apiGroups": ["cluster.k8s.io"],
                "apiVersions": ["v1alpha1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["machines"],
                "scope": "Namespaced",
            }
        ],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": selector,
        "objectSelector": {},
        "sideEffects": "NoneOnDryRun",  # a dry run decides and writes nothing
        "timeoutSeconds": timeout_seconds,
        "admissionReviewVersions": ["v1"],
        "matchConditions": [
            # Evaluated by the API server: the way in works with every one of our pods dead.
            {"name": "break-glass", "expression": f"!({_cel_string(break_glass_group)} in request.userInfo.groups)"}
        ],
    }
    return {"metadata": {"name": name_for(cluster), "labels": LABELS}, "webhooks": [webhook]}


def _cel_string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
