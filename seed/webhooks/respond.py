"""How a webhook concludes a decision: its log line, and who is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from common.api.types import UserCluster
from common.kube.client.meta import Object, ObjectMeta
from common.quota import resources
from common.server.http_parser import Response
from seed.admission.decision_log import Decisions
from seed.admission.denial import Refusal
from seed.admission.machines import log
from seed.admission.record import quota_record
from seed.admission.types import Verdict
from seed.webhooks.review import AdmissionRequest, RawRequest, decided

ObjectT = TypeVar("ObjectT", bound=Object)
OnDecision = Callable[[str, str, str, float], None]
"""decision, reason, path, seconds"""


def conclude(
    review: AdmissionRequest[ObjectT] | RawRequest,
    subject: ObjectMeta | None,
    cluster: UserCluster | None,
    found: Verdict,
    seconds: float,
    on_decision: OnDecision,
    decisions: Decisions,
    *,
    consumer: str = "machine",
) -> Response:
    """The answer to a request, once it stands in the metrics, among the last decisions, and of a refusal in the log."""
    if found.refusal is None:
        on_decision("allowed", "", "recall" if found.waited else "local", seconds)
    else:
        path = "unavailable" if found.refusal.code == 503 else "recall" if found.waited else "local"
        on_decision("denied", found.refusal.cause, path, seconds)
        _log_refusal(review, subject, found, found.refusal, seconds, consumer)
    decisions.made(
        found,
        cluster,
        subject,
        operation=review.operation,
        user=review.user_info.username,
        dry_run=review.dry_run,
        seconds=seconds,
        consumer=consumer,
    )
    return decided(review.uid, found)


def _log_refusal(
    review: AdmissionRequest[ObjectT] | RawRequest,
    subject: ObjectMeta | None,
    found: Verdict,
    refusal: Refusal,
    seconds: float,
    consumer: str,
) -> None:
    request = found.request
    log.info(
        f"{consumer} refused",
        extra={
            "decision": found.decision,
            consumer: subject.key if subject is not None else review.name,
            "uid": subject.uid if subject is not None else "",
            "cluster": request.reservation.source if request is not None else "",
            "operation": review.operation,
            "user": review.user_info.username,
            "dry_run": review.dry_run,
            "reason": refusal.cause,
            "text": refusal.message,
            "needs": resources.text(request.need) if request is not None else "",
            "quotas": [msgspec.to_builtins(quota_record(attempt)) for attempt in found.attempts],
            "duration_ms": round(seconds * 1000, 1),
        },
    )
