"""The webhook for Cluster API's Machines and MachinePools on the seed itself."""

from __future__ import annotations

import asyncio

import msgspec

from common.api.types import UserCluster
from common.kube.client.errors import ApiError, NotFound
from seed.admission.objects import undecided
from seed.admission.types import Verdict
from seed.cache.cluster_api import Subject, View
from seed.kinds.machines.admission import MachineAdmission
from seed.kinds.machines.cluster_api_configuration import CALLER
from seed.machines.cluster_api import ClusterMachine, MachinePool, PoolSpec
from seed.webhooks.endpoint import Question, Webhook, WebhookAnswer
from seed.webhooks.review import RawRequest, RawReview, Scale

_review = msgspec.json.Decoder(RawReview).decode
_machine = msgspec.json.Decoder(ClusterMachine | None).decode
_pool = msgspec.json.Decoder(MachinePool | None).decode
_scale = msgspec.json.Decoder(Scale | None).decode


class ClusterApiWebhook(Webhook[Subject | Scale]):
    """At `/cluster-api/<token>`."""

    about = "a Machine"
    caller = CALLER

    def __init__(self, view: View, admission: MachineAdmission) -> None:
        self._view = view
        self._admission = admission

    def decode(self, body: bytes) -> Question[Subject | Scale]:
        review = _review(body).request
        if review.operation not in {"CREATE", "UPDATE"}:
            return Question(review, None)
        return Question(review, *_subjects(review))

    async def decide(self, caller: str, question: Question[Subject | Scale], deadline: float) -> WebhookAnswer:
        new, old = question.new, question.old
        if new is None or (old is not None and new.spec == old.spec):
            # A Machine that cannot be sized must still lose its finalizer.
            return WebhookAnswer(verdict=Verdict(), kind="Machine")
        cluster, verdict = await self._decide(new, old, dry_run=question.head.dry_run, deadline=deadline)
        return WebhookAnswer(verdict=verdict, kind="Machine", cluster=cluster, subject=new.metadata)

    async def _decide(
        self, new: Subject | Scale, old: Subject | Scale | None, *, dry_run: bool, deadline: float
    ) -> tuple[UserCluster | None, Verdict]:
        """And whose it is, as far as that was found."""
        cluster: UserCluster | None = None
        try:
            async with asyncio.timeout_at(deadline):
                if isinstance(new, Scale):
                    new, old = await self._scaled(new)
                assert not isinstance(old, Scale), "only a Scale changes a Scale"
                cluster = await self._view.cluster_of(new.metadata.namespace, new.spec.cluster_name)
                if cluster is None:
                    return None, Verdict()  # of no project
                machine = await self._view.find_machine(new)
                before = await self._view.find_machine(old) if old is not None else None
        except NotFound as error:
            return cluster, undecided(f"the Cluster or MachinePool that it is of is not there: {error.message}")
        except (ApiError, TimeoutError) as error:
            return cluster, undecided(f"what the Machine is made of cannot be read now: {error or 'no answer in time'}")
        found = await self._admission.decide(cluster, machine, before, dry_run=dry_run, deadline=deadline)
        return cluster, found

    async def _scaled(self, scale: Scale) -> tuple[MachinePool, MachinePool]:
        """The MachinePool as it will be, and as it is. Raises ApiError."""
        old = await self._view.find_pool(scale.metadata.namespace, scale.metadata.name)
        spec: PoolSpec = msgspec.structs.replace(old.spec, replicas=scale.spec.replicas)
        metadata = msgspec.structs.replace(old.metadata, generation=old.metadata.generation + 1)
        return msgspec.structs.replace(old, metadata=metadata, spec=spec), old


def _subjects(review: RawRequest) -> tuple[Subject | Scale | None, Subject | Scale | None]:
    """Raises msgspec.MsgspecError."""
    old = review.old_object if review.operation == "UPDATE" else b"null"
    match review.resource.resource, review.sub_resource:
        case "machines", "":
            return _machine(review.object), _machine(old)
        case "machinepools", "":
            return _pool(review.object), _pool(old)
        case "machinepools", "scale":
            return _scale(review.object), _scale(old)
    return None, None  # a status, say: costs nothing
