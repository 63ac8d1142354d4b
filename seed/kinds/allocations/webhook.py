"""The webhook for Allocations, in the master's own cluster."""

from __future__ import annotations

import msgspec

from common.api.types import Allocation
from common.quota import names
from seed.admission.types import Verdict
from seed.kinds.allocations.admission import AllocationAdmission
from seed.kinds.allocations.configuration import CALLER
from seed.webhooks.endpoint import Question, Webhook, WebhookAnswer
from seed.webhooks.review import MAX_NAME, Review

_review = msgspec.json.Decoder(Review[Allocation]).decode

KIND = "Allocation"


class AllocationWebhook(Webhook[Allocation]):
    """At `/allocations/<token>`."""

    about = "an Allocation"
    caller = CALLER

    def __init__(self, admission: AllocationAdmission) -> None:
        self._admission = admission

    def decode(self, body: bytes) -> Question[Allocation]:
        review = _review(body).request
        if review.operation not in {"CREATE", "UPDATE"}:
            return Question(review, None)
        return Question(review, review.object, review.old_object if review.operation == "UPDATE" else None)

    def is_named(self, question: Question[Allocation]) -> bool:
        """Also of whom and of what it is: a definition that an API server has bounds that, and a refusal names it."""
        if question.new is None:
            return True
        spec = question.new.spec
        short = max(len(spec.organization), len(spec.project)) <= MAX_NAME
        return short and all(len(each.type) <= names.MAX_NAME for each in spec.resources) and super().is_named(question)

    async def decide(self, caller: str, question: Question[Allocation], deadline: float) -> WebhookAnswer:
        allocation = question.new
        if allocation is None:
            return WebhookAnswer(verdict=Verdict(), kind=KIND)
        verdict = await self._admission.decide(
            allocation, question.old, dry_run=question.head.dry_run, deadline=deadline
        )
        return WebhookAnswer(verdict=verdict, kind=KIND, subject=allocation.metadata)
