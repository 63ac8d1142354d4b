"""The webhook for clusters of projects on the seed itself, and the configuration that calls it.

It is asked only when one is created. While no replica answers, none can be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from common.api.labels import GROUP
from common.kube.client.errors import ApiError
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from common.server.http_parser import Request, Response
from seed.admission import denial, projects
from seed.admission.admitter import Admission
from seed.admission.decision_log import Decisions
from seed.admission.types import Request as Claim
from seed.admission.types import Verdict
from seed.cache.quotas import Catalog
from seed.cache.same_cluster import DuplicateClusters
from seed.cache.source_keys import clusters_key
from seed.evaluators.clusters import NOTHING, ONE, RESOURCE, Kind, Owned
from seed.registration.clusters import CALLER, PATH
from seed.webhooks.respond import OnDecision, conclude
from seed.webhooks.review import AdmissionRequest, GroupResource, is_named, patience


class _Request(AdmissionRequest[Owned], rename="camel", kw_only=True):
    resource: GroupResource


class _Review(msgspec.Struct):
    request: _Request


_review = msgspec.json.Decoder(_Review).decode


class ClusterWebhook:
    """Handles `POST /clusters/<token>`."""

    def __init__(
        self,
        catalog: Catalog,
        admission: Admission,
        kinds: Sequence[Kind],
        twins: DuplicateClusters,
        verify: Callable[[str, str], bool],
        on_decision: OnDecision = lambda _decision, _reason, _path, _seconds: None,
        decisions: Decisions | None = None,
    ) -> None:
        self._decisions = decisions if decisions is not None else Decisions()
        self._catalog = catalog
        self._admission = admission
        self._kinds = {(kind.group, kind.plural): kind for kind in kinds}
        self._twins = twins
        self._verify = verify
        self._on_decision = on_decision

    async def handle(self, request: Request) -> Response:
        started = time.monotonic()
        if request.method != "POST" or not self._verify(CALLER, request.path.removeprefix(PATH)):
            return Response(404, b"not found\n")
        try:
            review = _review(request.body).request
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Response(400, f"not an AdmissionReview of a cluster: {error}\n".encode(errors="replace"))
        cluster, kind = review.object, self._kinds.get((review.resource.group, review.resource.resource))
        if cluster is not None and kind is not None and not is_named(cluster, namespaced=kind.namespaced):
            return Response(400, b"the cluster has no proper name, namespace and uid\n")
        deadline = asyncio.get_running_loop().time() + patience(request.query)
        found = await self._decide(kind, review, deadline)
        metadata, seconds = cluster.metadata if cluster is not None else None, time.monotonic() - started
        return conclude(review, metadata, None, found, seconds, self._on_decision, self._decisions, consumer="cluster")

    async def _decide(self, kind: Kind | None, review: _Request, deadline: float) -> Verdict:
        cluster = review.object
        if kind is None or cluster is None or review.operation != "CREATE":
            return Verdict(decision="")
        project = kind.project(cluster)
        if project and (undecided := self._admission.undecided()) is not None:
            return undecided
        if not project or not self._catalog.may_limit(project, RESOURCE):
            # Nobody limits it: then no account that is fenced, and no ledger that is away, keeps it from being made.
            return projects.new_cluster(self._catalog, project, declared=kind.group == GROUP)

        async def claim(need: ResourceList) -> Verdict:
            return await self._admission.decide(
                Claim(
                    uid=cluster.metadata.uid,
                    project=project,
                    need=need,
                    reservation=Reservation(source=clusters_key(project), object=cluster.metadata.key, amount=need),
                    dry_run=review.dry_run,
                    deadline=deadline,
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
                refusal = denial.unavailable("of the project", why, found.decision)
                return Verdict(decision=found.decision, refusal=refusal)
            if there:
                return found
        return await claim(ONE)
