"""What `doctor` looks at on a seed: the leader of its agents, user clusters, certificates, webhooks left over."""

from __future__ import annotations

from datetime import datetime

from cli import reading
from cli.doctor import findings, signs
from cli.doctor.report import Report
from cli.outcome import Failed
from common.api.conditions import count
from common.api.core import SECRETS
from common.api.labels import MANAGED_BY_LABEL
from common.api.types import USER_CLUSTERS
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.kube.controller.leader_election import LEASES

AGENT = "seedquota-seed"
CERTIFICATE = "seedquota-webhook-tls"

_GROUP = "admissionregistration.k8s.io"
_WEBHOOKS = (
    Resource(_GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False, Object),
    Resource(_GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False, Object),
)


async def look(report: Report, seed: Cluster, namespace: str, now: datetime) -> None:
    async with report.part("user clusters of the seed"):
        clusters = await reading.every(seed, USER_CLUSTERS)
        report.looked_at.append(count(len(clusters), "user cluster"))
        report.findings += findings.of_user_clusters(clusters)
    async with report.part("certificates of the webhook"):
        report.findings += signs.certificates(await reading.one(seed, SECRETS, CERTIFICATE, namespace), now)
    async with report.part("the leader of the seed's agents"):
        lease = await reading.one(seed, LEASES, AGENT, namespace)
        report.findings += signs.leader(AGENT, lease, now)
        if not signs.leads(lease, now):
            async with report.part("webhooks left over"):
                report.findings += signs.left_over(await _webhooks(seed))


async def _webhooks(seed: Cluster) -> list[str]:
    found = []
    for resource in _WEBHOOKS:
        try:
            listing = await seed.list(resource, label_selector=f"{MANAGED_BY_LABEL}=seedquota")
        except Forbidden as error:
            raise Failed(reading.no_right(resource, "list", error)) from None
        found += [f"{resource.kind} {each.metadata.name}" for each in listing.items]
    return found
