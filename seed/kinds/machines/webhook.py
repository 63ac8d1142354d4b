"""The webhooks for Machines in user clusters: the one that admits, and the one that stamps before it."""

from __future__ import annotations

import msgspec

from seed.admission.local_copies import named_in
from seed.admission.objects import undecided
from seed.admission.types import Verdict
from seed.cache.clusters import ClusterCache
from seed.kinds.machines.admission import MachineAdmission
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION, Machine
from seed.sizing.stamper import Stamping
from seed.webhooks.endpoint import Patch, Question, Webhook, WebhookAnswer
from seed.webhooks.review import Review

_review = msgspec.json.Decoder(Review[Machine])


def _decode(body: bytes) -> Question[Machine]:
    review = _review.decode(body).request
    if review.operation not in {"CREATE", "UPDATE"}:
        return Question(review, None)
    return Question(review, review.object, review.old_object if review.operation == "UPDATE" else None)


class MachineWebhook(Webhook[Machine]):
    """At `/machines/<user cluster uid>/<token>`."""

    about = "a Machine"

    def __init__(self, cluster_cache: ClusterCache, admission: MachineAdmission, *, local_copies: bool = True) -> None:
        """`local_copies`: user clusters have LocalResourceQuotas, as far as they can be written there."""
        self._cluster_cache = cluster_cache
        self._admission = admission
        self._local_copies = local_copies

    def decode(self, body: bytes) -> Question[Machine]:
        return _decode(body)

    async def decide(self, caller: str, question: Question[Machine], deadline: float) -> WebhookAnswer:
        machine = question.new
        cluster = self._cluster_cache.user_cluster_by_uid(caller)
        if machine is None:
            verdict = Verdict()
        elif cluster is None:
            verdict = undecided("its user cluster is not known to this seed any more")
        else:
            dry_run = question.head.dry_run
            verdict = await self._admission.decide(cluster, machine, question.old, dry_run=dry_run, deadline=deadline)
            if self._local_copies:
                verdict = named_in(verdict, cluster)
        subject = machine.metadata if machine is not None else None
        return WebhookAnswer(verdict=verdict, kind="Machine", cluster=cluster, subject=subject)


class StampWebhook(Webhook[Machine]):
    """At `/stamp/<user cluster uid>/<token>`. The Machine has no uid yet, and no name if one is generated."""

    about = "a Machine"
    advises = True

    def __init__(self, stamping: Stamping) -> None:
        self._stamping = stamping

    def decode(self, body: bytes) -> Question[Machine]:
        return _decode(body)

    def is_named(self, question: Question[Machine]) -> bool:
        return True

    async def decide(self, caller: str, question: Question[Machine], deadline: float) -> Patch:
        machine = question.new
        if machine is None:
            return Patch(())
        stamp = await self._stamping.stamp(caller, machine, question.old, deadline)
        return Patch([_annotate(machine, stamp)] if stamp is not None else ())


def _annotate(machine: Machine, stamp: str) -> dict[str, object]:
    """An operation of RFC 6902."""
    if machine.metadata.annotations:
        return {"op": "add", "path": f"/metadata/annotations/{FOOTPRINT_ANNOTATION.replace('/', '~1')}", "value": stamp}
    return {"op": "add", "path": "/metadata/annotations", "value": {FOOTPRINT_ANNOTATION: stamp}}
