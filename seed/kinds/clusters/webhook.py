"""The webhook for clusters of projects on the seed itself.

It is asked only when one is created. While no replica answers, none can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from common.api.labels import GROUP
from common.kube.client.errors import ApiError
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.admission import denial, fits, projects
from seed.admission.admitter import Admission
from seed.admission.types import Request, Verdict
from seed.cache.quotas import QuotaCache
from seed.kinds.clusters.configuration import CALLER
from seed.kinds.clusters.evaluator import NOTHING, ONE, RESOURCE, ClusterKind, Owned
from seed.kinds.clusters.same_cluster import DuplicateClusters
from seed.model import source_key
from seed.model.consumer import Consumer
from seed.model.source_key import SourceKey
from seed.webhooks.endpoint import Question, Webhook, WebhookAnswer
from seed.webhooks.review import AdmissionRequest, GroupVersionResource, is_named


class _Request(AdmissionRequest[Owned], rename="camel", kw_only=True):
    resource: GroupVersionResource


class _Review(msgspec.Struct):
    request: _Request


class _Created(msgspec.Struct, frozen=True):
    kind: ClusterKind
    cluster: Owned


_review = msgspec.json.Decoder(_Review).decode


class ClusterWebhook(Webhook[_Created]):
    """At `/clusters/<token>`."""

    about = "a cluster"
    caller = CALLER

    def __init__(
        self, quota_cache: QuotaCache, admission: Admission, kinds: Sequence[ClusterKind], twins: DuplicateClusters
    ) -> None:
        self._quota_cache = quota_cache
        self._admission = admission
        self._kinds = {(kind.group, kind.plural): kind for kind in kinds}
        self._twins = twins

    def decode(self, body: bytes) -> Question[_Created]:
        review = _review(body).request
        kind = self._kinds.get((review.resource.group, review.resource.resource))
        if kind is None or review.object is None or review.operation != "CREATE":
            return Question(review, None)
        return Question(review, _Created(kind, review.object))

    def object_of(self, question: Question[_Created]) -> Owned | None:
        return question.new.cluster if question.new is not None else None

    def is_named(self, question: Question[_Created]) -> bool:
        created = question.new
        return created is None or is_named(created.cluster, namespaced=created.kind.namespaced)

    async def decide(self, caller: str, question: Question[_Created], deadline: float) -> WebhookAnswer:
        created = question.new
        if created is None:
            return WebhookAnswer(verdict=Verdict(), kind="Cluster")
        verdict = await self._decide(created.kind, created.cluster, dry_run=question.head.dry_run, deadline=deadline)
        return WebhookAnswer(verdict=verdict, kind="Cluster", subject=created.cluster.metadata)

    async def _decide(self, kind: ClusterKind, cluster: Owned, *, dry_run: bool, deadline: float) -> Verdict:
        project = kind.project(cluster)
        consumer = Consumer(project)
        if project and (undecided := self._admission.undecided()) is not None:
            return undecided
        elsewhere = RESOURCE in self._quota_cache.catalogue.allocated
        if not project or elsewhere or not self._quota_cache.may_limit(consumer, RESOURCE):
            # Nobody limits it: then no account that is fenced, and no ledger that is away, keeps it from being made.
            return projects.new_cluster(self._quota_cache, project, declared=kind.group == GROUP)

        source = SourceKey.of_project(source_key.CLUSTERS, project).text

        async def claim(need: ResourceList) -> Verdict:
            need = fits.together(need, cluster.metadata, dry_run=dry_run)
            return await self._admission.decide(
                Request(
                    uid=cluster.metadata.uid,
                    consumer=consumer,
                    need=need,
                    reservation=Reservation(source=source, object=cluster.metadata.key, amount=need),
                    dry_run=dry_run,
                    deadline=deadline,
                    asks_fits=fits.asked(cluster.metadata, dry_run=dry_run) > 0,
                )
            )

        if self._twins.known(kind.group, cluster.metadata, project):
            found = await claim(NOTHING)
            if found.refusal is not None:
                return found
            # Only from here on its place is kept: what is there now cannot go without this one taking it.
            try:
                async with asyncio.timeout_at(deadline):
                    there = await self._twins.there(kind.group, cluster.metadata, project)
            except (ApiError, TimeoutError) as error:
                why = f"what stands for the same cluster cannot be read now: {error or 'no answer in time'}"
                refusal = denial.unavailable("of the project", why)
                return Verdict(decision=found.decision, refusal=refusal)
            if there:
                return found
        return await claim(ONE)
