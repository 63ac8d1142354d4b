"""What `doctor` looks at on a seed: user clusters, the leader of the agents, certificates, webhooks left over."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cli import reading
from cli.doctor import findings, signs
from cli.doctor.leases import Leases, leases, of_account
from cli.doctor.report import Report
from cli.outcome import Failed
from common.api.core import SECRETS
from common.api.labels import MANAGED_BY_LABEL
from common.api.types import USER_CLUSTERS
from common.kube.client import service_account
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Forbidden, NotFound
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.server.agents import LABEL

AGENT = "seedquota-seed"
CERTIFICATE = "seedquota-webhook-tls"
NO_CERTIFICATES = "when certificates of the webhook end; no kubeconfig in a Secret of a Seed may read their Secret"

_GROUP = "admissionregistration.k8s.io"
_WEBHOOKS = (
    Resource(_GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False, Object),
    Resource(_GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False, Object),
)
_DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Object)


async def look(report: Report, seed: Cluster, named: Sequence[str], now: datetime, *, by_secret: bool) -> None:
    """`named`: where the agents may be if nothing else says it. `by_secret`: with the rights of the master there."""
    async with report.part("user clusters"):
        clusters = await reading.every(seed, USER_CLUSTERS)
        report.looked_at["user cluster"] += len(clusters)
        report.findings += findings.of_user_clusters(clusters)
    async with report.part("the leader of the agents"):
        namespaces = _namespaces(seed, named)
        found = await (of_account(seed, AGENT, namespaces, now) if by_secret else leases(seed, AGENT, namespaces))
        report.findings += signs.leader(AGENT, found.found, now, everywhere=found.everywhere)
        if by_secret:
            report.beyond.append(NO_CERTIFICATES)
        else:
            await _certificates(report, seed, found.namespace(now) or named[0], now)
        await _left_over(report, seed, found, now)


def _namespaces(seed: Cluster, named: Sequence[str]) -> Sequence[str]:
    """The master's account on a seed is in the namespace of the agents."""
    bearer = (seed.access.authorization or "").removeprefix("Bearer ")
    token = service_account.read(bearer)
    return list(dict.fromkeys([*([token.namespace] if token is not None else []), *named]))


async def _certificates(report: Report, seed: Cluster, namespace: str, now: datetime) -> None:
    async with report.part("certificates of the webhook"):
        report.findings += signs.certificates(await reading.one(seed, SECRETS, CERTIFICATE, namespace), now)


async def _left_over(report: Report, seed: Cluster, agents: Leases, now: datetime) -> None:
    """Only where it is certain that no agent uses them, in no namespace."""
    if agents.leading(now):
        return
    async with report.part("webhooks left over"):
        if not agents.everywhere:
            raise Failed("an agent may lead in a namespace of which you may not read the Lease")
        if not await _installed(seed):
            report.findings += signs.left_over(await _webhooks(seed))


async def _installed(seed: Cluster) -> bool:
    """Whether agents are to run there. They lead again when what stops them is repaired."""
    try:
        return bool((await seed.list(_DEPLOYMENTS, label_selector=LABEL)).items)
    except NotFound:  # it serves no Deployments
        return False
    except Forbidden as error:
        raise Failed(reading.no_right(_DEPLOYMENTS, "list", error)) from None


async def _webhooks(seed: Cluster) -> list[str]:
    found = []
    for resource in _WEBHOOKS:
        try:
            listing = await seed.list(resource, label_selector=f"{MANAGED_BY_LABEL}=seedquota")
        except Forbidden as error:
            raise Failed(reading.no_right(resource, "list", error)) from None
        found += [f"{resource.kind} {each.metadata.name}" for each in listing.items]
    return found
