"""The webhooks for Machines, the one that stamps and the one that admits: AdmissionReview in and out, over TLS.

The path names the user cluster and carries a token that only its own webhook configuration knows, so one tenant's
API server cannot speak for another's cluster.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from common.api.types import UserCluster
from common.server.http_parser import Request, Response
from seed.admission import denial
from seed.admission.admitter import Admission
from seed.admission.decision_log import Decisions
from seed.admission.machines import MachineAdmission, undecided
from seed.admission.rollouts import Rolling
from seed.admission.types import Verdict
from seed.cache.quotas import Catalog
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION, Machine
from seed.registration.probe import is_canary
from seed.sizing.sizer import Sizing
from seed.sizing.stamper import Stamping
from seed.webhooks.respond import OnDecision, conclude
from seed.webhooks.review import AdmissionRequest, Review, decided, is_named, patched, patience

log = logging.getLogger(__name__)

_review = msgspec.json.Decoder(Review[Machine])


class MachineWebhook:
    """Handles `POST /machines/<user cluster uid>/<token>`, and `/stamp/...` alike."""

    def __init__(
        self,
        catalog: Catalog,
        admission: Admission,
        sizing: Sizing,
        verify: Callable[[str, str], bool],
        on_decision: OnDecision = lambda _decision, _reason, _path, _seconds: None,
        decisions: Decisions | None = None,
        rolling: Rolling | None = None,
    ) -> None:
        self._catalog = catalog
        self._decisions = decisions if decisions is not None else Decisions()
        self._admission = MachineAdmission(catalog, admission, sizing, rolling)
        self._stamping = Stamping(catalog, sizing)
        self._verify = verify
        self._on_decision = on_decision

    async def handle(self, request: Request) -> Response:
        started = time.monotonic()
        purpose, cluster_uid = self._caller(request.path)
        if request.method != "POST" or cluster_uid is None:
            return Response(404, b"not found\n")
        try:
            review = _review.decode(request.body).request
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Response(400, f"not an AdmissionReview of a Machine: {error}\n".encode(errors="replace"))
        checked = review.object if purpose == "machines" else None  # the stamp comes before a uid and a generated name
        if checked is not None and not is_named(checked):
            return Response(400, b"the Machine has no proper name, namespace and uid\n")
        if checked is not None and is_canary(checked.metadata, dry_run=review.dry_run):
            return decided(review.uid, Verdict(decision="", refusal=denial.canary()))
        deadline = asyncio.get_running_loop().time() + patience(request.query)
        if purpose == "stamp":
            return await self._stamp(cluster_uid, review, deadline)
        cluster = self._catalog.user_cluster_by_uid(cluster_uid)
        found = await self._decide(cluster, review, deadline)
        metadata, seconds = review.object.metadata if review.object is not None else None, time.monotonic() - started
        return conclude(review, metadata, cluster, found, seconds, self._on_decision, self._decisions)

    def _caller(self, path: str) -> tuple[str, str | None]:
        """What is asked, and for which user cluster; None for whoever cannot prove to be its API server."""
        parts = path.split("/")
        if len(parts) != 4 or parts[1] not in {"machines", "stamp"} or not self._verify(parts[2], parts[3]):
            return "", None
        return parts[1], parts[2]

    async def _stamp(self, cluster_uid: str, review: AdmissionRequest[Machine], deadline: float) -> Response:
        stamp = None
        if review.object is not None and review.operation in {"CREATE", "UPDATE"}:
            stamp = await self._stamping.stamp(cluster_uid, review.object, review.old_object, deadline)
        if review.object is None or stamp is None:
            return patched(review.uid, [])
        return patched(review.uid, [_annotate(review.object, stamp)])

    async def _decide(self, cluster: UserCluster | None, review: AdmissionRequest[Machine], deadline: float) -> Verdict:
        machine, old = review.object, review.old_object
        if machine is None or review.operation not in {"CREATE", "UPDATE"}:
            return Verdict(decision="")
        if cluster is None:
            return undecided("its user cluster is not known to this seed any more")
        old = old if review.operation == "UPDATE" else None
        return await self._admission.decide(cluster, machine, old, dry_run=review.dry_run, deadline=deadline)


def _annotate(machine: Machine, stamp: str) -> dict[str, object]:
    """An operation of RFC 6902."""
    if machine.metadata.annotations:
        return {"op": "add", "path": f"/metadata/annotations/{FOOTPRINT_ANNOTATION.replace('/', '~1')}", "value": stamp}
    return {"op": "add", "path": "/metadata/annotations", "value": {FOOTPRINT_ANNOTATION: stamp}}
