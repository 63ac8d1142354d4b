"""The log line of a refusal."""

from __future__ import annotations

import logging

import msgspec

from common.kube.client.meta import ObjectMeta
from common.quota import resources
from seed.admission.record import quota_records
from seed.admission.refusal import Refusal
from seed.admission.types import Verdict
from seed.webhooks.review import Head

log = logging.getLogger(__name__)


def log_refusal(
    head: Head, consumer: str, subject: ObjectMeta | None, verdict: Verdict, refusal: Refusal, seconds: float
) -> None:
    """`consumer`: the kind of the object, in lower case."""
    request = verdict.request
    log.info(
        f"{consumer} refused",
        extra={
            "decision": verdict.decision,
            consumer: subject.key if subject is not None else head.name,
            "uid": subject.uid if subject is not None else "",
            "cluster": request.reservation.source if request is not None else "",
            "operation": head.operation,
            "user": head.user_info.username,
            "dry_run": head.dry_run,
            "reason": refusal.cause,
            "text": verdict.message,
            "needs": resources.text(request.need) if request is not None else "",
            "quotas": [msgspec.to_builtins(found) for found in quota_records(verdict)],
            "duration_ms": round(seconds * 1000, 1),
        },
    )
