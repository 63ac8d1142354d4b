"""The webhook for MachineDeployments and MachineSets, in user clusters and of Cluster API on the seed.

It only answers, see seed/webhooks/scale_advice.py: it reserves and writes nothing, and whatever goes wrong is a
warning. Refusals are kept among the last decisions; nothing else is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from common.api.labels import SETTINGS
from common.api.types import UserCluster
from common.kube.client.errors import ApiError
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.accounts.registry import AccountRegistry
from seed.accounts.snapshot import QuotaSnapshot
from seed.admission import denial
from seed.admission import fits as fits_asked
from seed.admission.local_copies import named_in
from seed.admission.refusal import Refusal
from seed.admission.types import Attempt, Request, Verdict, decision_id
from seed.cache.cluster_api import View
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.cache.user_cluster_clients import Connections
from seed.kinds.machines import cluster_api_configuration as cluster_api
from seed.machines import machine_controller
from seed.machines.deployments import DEPLOYMENTS, Deployment, cluster_machine_of, machine_of
from seed.machines.machine_controller import Machine
from seed.model.consumer import consumer_of
from seed.model.quota import Quota
from seed.providers.size import NotSized, ProviderUnavailable
from seed.sizing.sizer import Sizing
from seed.webhooks import fits, scale_advice
from seed.webhooks.endpoint import Question, Webhook, WebhookAnswer
from seed.webhooks.fits import Fits
from seed.webhooks.review import RawRequest, RawReview, Scale, has_name, is_short
from seed.webhooks.scale_advice import Asked

OTHER = "Other"  # in metrics: what the webhook configuration does not ask about
CLUSTER_API = cluster_api.CALLER

_RESOURCES = {
    kind: Resource(machine_controller.GROUP, machine_controller.VERSION, plural, kind, True, Deployment)
    for plural, kind in DEPLOYMENTS.items()
}


_review = msgspec.json.Decoder(RawReview).decode
_deployment = msgspec.json.Decoder(Deployment | None).decode
_scale = msgspec.json.Decoder(Scale | None).decode
_subject = msgspec.json.Decoder(Object | None).decode


class _Undecided(Exception):
    """Why it cannot be told what fits."""


class _Question(msgspec.Struct, frozen=True):
    """What is asked for, by which object of which cluster, and its quotas as they are seen."""

    subject: ObjectMeta
    cluster: UserCluster
    asked: Asked
    size: ResourceList
    seen: Sequence[QuotaSnapshot]


class ScaleWebhook(Webhook[RawRequest]):
    """At `/scale/<user cluster uid, or cluster-api>/<token>`."""

    about = "a MachineDeployment or MachineSet"
    advises = True

    def __init__(
        self,
        quota_cache: QuotaCache,
        cluster_cache: ClusterCache,
        registry: AccountRegistry,
        sizing: Sizing,
        connections: Connections,
        view: View,
        *,
        local_copies: bool = True,
    ) -> None:
        """`local_copies`: user clusters have LocalResourceQuotas, as far as they can be written there."""
        self._quota_cache = quota_cache
        self._cluster_cache = cluster_cache
        self._registry = registry
        self._sizing = sizing
        self._connections = connections
        self._view = view
        self._local_copies = local_copies

    def decode(self, body: bytes) -> Question[RawRequest]:
        review = _review(body).request
        asks = review.resource.resource in DEPLOYMENTS and review.operation in {"CREATE", "UPDATE"}
        return Question(review, review if asks else None)

    async def decide(self, caller: str, question: Question[RawRequest], deadline: float) -> WebhookAnswer:
        decision, review = decision_id(), question.new
        if review is None:
            return WebhookAnswer(verdict=Verdict(decision=decision), kind=OTHER, recorded=False)
        kind = DEPLOYMENTS[review.resource.resource]
        if _asks_fits(review):
            return await self._fits(caller, kind, review, decision, deadline)
        try:
            return await self._answer(caller, kind, review, decision, deadline)
        except _Undecided as error:
            advice = scale_advice.undecided(str(error))
            verdict = Verdict(decision=decision, warnings=[advice.warning])
            return WebhookAnswer(verdict=verdict, kind=kind, reason=advice.reason, recorded=False)

    async def _answer(
        self, caller: str, kind: str, review: RawRequest, decision: str, deadline: float
    ) -> WebhookAnswer:
        """Raises _Undecided."""
        settings = self._quota_cache.settings.store.get(SETTINGS)
        mode = settings.spec.scale_check if settings is not None else "warn"
        question = await self._question(caller, kind, review, deadline) if mode != "off" else None
        if question is None:
            return WebhookAnswer(verdict=Verdict(decision=decision), kind=kind, recorded=False)
        project = question.cluster.spec.project
        rooms = [scale_advice.room_of(seen, project) for seen in question.seen]
        advice = scale_advice.advise(question.asked, question.size, rooms, deny=mode == "deny")
        if advice.refusals:
            verdict = _refused(question, advice.refusals, decision, dry_run=review.dry_run)
            if self._local_copies and caller != CLUSTER_API:
                verdict = named_in(verdict, question.cluster)
            return WebhookAnswer(verdict=verdict, kind=kind, cluster=question.cluster, subject=question.subject)
        warnings = [advice.warning] if advice.warning else []
        verdict = Verdict(decision=decision, warnings=warnings)
        return WebhookAnswer(verdict=verdict, kind=kind, reason=advice.reason, recorded=False)

    async def _fits(self, caller: str, kind: str, review: RawRequest, decision: str, deadline: float) -> WebhookAnswer:
        """Whatever the settings say of those who do not ask."""
        try:
            question = await self._question(caller, kind, review, deadline)
        except _Undecided as error:
            refusal = denial.unavailable("of the project", str(error))
            found = fits.of_verdict(Verdict(decision=decision, refusal=refusal), 1)
        else:
            found = Fits(decision=decision, asked=0)
            if question is not None:
                project = question.cluster.spec.project
                found = fits.of_scale(question.asked, question.size, question.seen, project, decision)
        return WebhookAnswer(verdict=Verdict(decision=decision), kind=kind, recorded=False, fits=found)

    async def _question(self, caller: str, kind: str, review: RawRequest, deadline: float) -> _Question | None:
        """None for what costs nothing, or nobody limits. Raises _Undecided."""
        try:
            async with asyncio.timeout_at(deadline):
                change = await self._change(caller, kind, review)
                asked = scale_advice.asked(*change, is_deployment=kind == "MachineDeployment") if change else None
                if change is None or asked is None:
                    return None
                cluster = await self._cluster_of(caller, change[0])
                seen = self._seen(cluster) if cluster is not None else []
                if cluster is None or not seen:
                    return None
                machine = await self._machine_of(caller, change[0])
                size = (await self._sizing.size(cluster, machine, deadline)).footprint
                for quota in (each.quota for each in seen):
                    if quota.enforced:
                        size.require(self._quota_cache.catalogue.from_objects(quota.limits))
        except TimeoutError:
            raise _Undecided("what it is made of was not read in time") from None
        except ApiError as error:
            raise _Undecided(error.message) from error
        except (NotSized, ProviderUnavailable) as error:
            raise _Undecided(str(error)) from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _Undecided(f"the {kind} cannot be read: {error}") from error
        counted = self._quota_cache.catalogue.from_objects(size.resources)
        return _Question(change[0].metadata, cluster, asked, counted, seen)

    async def _change(self, caller: str, kind: str, review: RawRequest) -> tuple[Deployment, Deployment | None] | None:
        """As it will be, and as it is. None for what does not change how many Machines there are. Raises ApiError."""
        if review.sub_resource == "scale":
            new, old = _scale(review.object), _scale(review.old_object)
            if new is None or old is None or new.spec.replicas <= old.spec.replicas:
                return None
            _require(has_name(new.metadata))
            found = await self._find(caller, kind, new.metadata.namespace, new.metadata.name)
            return _with_replicas(found, new.spec.replicas), _with_replicas(found, old.spec.replicas)
        wanted = _deployment(review.object)
        if wanted is None or review.sub_resource or wanted.metadata.deletion_timestamp:
            return None
        _require(is_short(wanted.metadata))
        return wanted, _deployment(review.old_object) if review.operation == "UPDATE" else None

    async def _find(self, caller: str, kind: str, namespace: str, name: str) -> Deployment:
        if caller == CLUSTER_API:
            return await self._view.find_deployment(kind, namespace, name)
        async with self._connections.to(self._user_cluster(caller)) as cluster:
            return await cluster.get(_RESOURCES[kind], name, namespace)

    async def _cluster_of(self, caller: str, deployment: Deployment) -> UserCluster | None:
        """None where it is of no project."""
        if caller == CLUSTER_API:
            return await self._view.cluster_of(deployment.metadata.namespace, deployment.spec.cluster_name)
        return self._user_cluster(caller)

    def _user_cluster(self, uid: str) -> UserCluster:
        found = self._cluster_cache.user_cluster_by_uid(uid)
        if found is None:
            raise _Undecided("its user cluster is not known to this seed any more")
        return found

    async def _machine_of(self, caller: str, deployment: Deployment) -> Machine:
        if caller == CLUSTER_API:
            return await self._view.find_made(cluster_machine_of(deployment))
        return machine_of(deployment)

    def _seen(self, cluster: UserCluster) -> list[QuotaSnapshot]:
        consumer = consumer_of(cluster)
        if self._quota_cache.may_belong(consumer):
            raise _Undecided(denial.limits_missing(consumer.project))
        return [self._snapshot(quota) for quota in self._quota_cache.quotas_of(consumer)]

    def _snapshot(self, quota: Quota) -> QuotaSnapshot:
        handle = self._registry.get(quota)
        if handle is None or handle.writer.account is None:
            raise _Undecided(f"this seed has not opened its account of quota {quota.name} yet")
        return handle.snapshot(quota)


def _refused(question: _Question, refusals: Sequence[Refusal], decision: str, *, dry_run: bool) -> Verdict:
    by_quota = {refusal.quota: refusal for refusal in refusals}
    need = scale_advice.all_replicas(question.asked, question.size)
    subject, cluster = question.subject, question.cluster
    return Verdict(
        decision=decision,
        refusal=refusals[0],
        request=Request(
            uid=subject.uid,
            consumer=consumer_of(cluster),
            need=need,
            reservation=Reservation(source=cluster.metadata.key, object=subject.key, amount=need),
            dry_run=dry_run,
            deadline=0,
        ),
        attempts=[Attempt(snapshot=seen, refusal=by_quota.get(seen.quota.name)) for seen in question.seen],
    )


def _require(proper: bool) -> None:
    """Raises _Undecided."""
    if not proper:
        raise _Undecided("it has no proper name and namespace")


def _asks_fits(review: RawRequest) -> bool:
    if not review.dry_run:
        return False
    try:
        found = _subject(review.object)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return found is not None and bool(fits_asked.asked(found.metadata, dry_run=True))


def _with_replicas(deployment: Deployment, replicas: int) -> Deployment:
    return msgspec.structs.replace(deployment, spec=msgspec.structs.replace(deployment.spec, replicas=replicas))
