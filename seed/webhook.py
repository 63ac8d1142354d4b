"""The webhooks for Machines, the one that stamps and the one that admits: AdmissionReview in and out, over TLS.

The path names the user cluster and carries a token that only its own webhook configuration knows, so one tenant's
API server cannot speak for another's cluster.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import time
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import parse_qs

import msgspec

from common import resources
from common.account import Reservation
from common.quantity import UNIT
from seed import verdict
from seed.admission import MARGIN, Admission, Verdict
from seed.admission import Request as Claim
from seed.catalog import Catalog
from seed.http_reader import Request, Response
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION, Machine
from seed.providers.size import Footprint, NotSized, ProviderUnavailable
from seed.sizing import Sizing
from seed.stamping import Stamping
from seed.verdict import Refusal

log = logging.getLogger(__name__)

MAX_BODY = 8 * 2**20  # two objects of at most 3 MiB each, as the API server bounds them
DEFAULT_TIMEOUT = 3.0  # seconds, when the API server does not say
LONGEST_TIMEOUT = 30.0
RESERVING = 0.3  # seconds that are left for the ledger when a cloud had to be asked


class _User(msgspec.Struct):
    username: str = ""


class _AdmissionRequest(msgspec.Struct, rename="camel", kw_only=True):
    uid: str
    operation: str
    name: str = ""
    namespace: str = ""
    user_info: _User = msgspec.field(default_factory=_User)
    object: Machine | None = None
    old_object: Machine | None = None
    dry_run: bool = False


class _Review(msgspec.Struct):
    request: _AdmissionRequest


class _Cause(msgspec.Struct, omit_defaults=True):
    reason: str
    message: str
    field: str = ""


class _Details(msgspec.Struct, rename="camel", omit_defaults=True):
    causes: list[_Cause] = []
    retry_after_seconds: int = 0


class _Status(msgspec.Struct):
    code: int
    reason: str
    message: str
    details: _Details
    status: str = "Failure"


class _Response(msgspec.Struct, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    status: _Status | None = None
    warnings: list[str] = []
    patch_type: str = ""
    patch: str = ""


class _Answer(msgspec.Struct, rename="camel"):
    response: _Response
    api_version: str = "admission.k8s.io/v1"
    kind: str = "AdmissionReview"


_UID = re.compile("[0-9A-Za-z-]{1,64}")
_KEY = re.compile("[0-9a-z-]{1,63}/[0-9a-z.-]{1,253}")

_review = msgspec.json.Decoder(_Review)
_encode = msgspec.json.Encoder().encode
_JSON = "application/json"


class MachineWebhook:
    """Handles `POST /machines/<user cluster uid>/<token>`, and `/stamp/...` alike."""

    def __init__(
        self,
        catalog: Catalog,
        admission: Admission,
        sizing: Sizing,
        verify: Callable[[str, str], bool],
        on_decision: Callable[[str, str, str, float], None] = lambda _decision, _reason, _path, _seconds: None,
    ) -> None:
        self._catalog = catalog
        self._admission = admission
        self._sizing = sizing
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
        if purpose == "machines" and not _named(review):  # the stamp comes before the uid and a generated name
            return Response(400, b"the Machine has no proper name, namespace and uid\n")
        deadline = asyncio.get_running_loop().time() + _patience(request.query)
        if purpose == "stamp":
            answer = await self._stamp(cluster_uid, review, deadline)
        else:
            found = await self._decide(cluster_uid, review, deadline)
            self._tell(review, found, time.monotonic() - started)
            answer = _respond(review.uid, found)
        return Response(200, _encode(_Answer(answer)), _JSON)

    def _caller(self, path: str) -> tuple[str, str | None]:
        """What is asked, and for which user cluster; None for whoever cannot prove to be its API server."""
        parts = path.split("/")
        if len(parts) != 4 or parts[1] not in {"machines", "stamp"} or not self._verify(parts[2], parts[3]):
            return "", None
        return parts[1], parts[2]

    async def _stamp(self, cluster_uid: str, review: _AdmissionRequest, deadline: float) -> _Response:
        stamp = None
        if review.object is not None and review.operation in {"CREATE", "UPDATE"}:
            stamp = await self._stamping.stamp(cluster_uid, review.object, review.old_object, deadline)
        if review.object is None or stamp is None:
            return _Response(uid=review.uid, allowed=True)
        patch = [_annotate(review.object, stamp)]
        return _Response(
            uid=review.uid, allowed=True, patch_type="JSONPatch", patch=base64.b64encode(_encode(patch)).decode()
        )

    async def _decide(self, cluster_uid: str, review: _AdmissionRequest, deadline: float) -> Verdict:
        machine, old = review.object, review.old_object
        if machine is None or review.operation not in {"CREATE", "UPDATE"}:
            return Verdict(decision="")
        cluster = self._catalog.user_cluster_by_uid(cluster_uid)
        if cluster is None:
            decision = verdict.decision_id()
            why = "its user cluster is not known to this seed any more"
            return Verdict(decision=decision, refusal=verdict.unavailable("of the project", why, decision))
        if self._sizing.tampered(cluster_uid, machine, old):
            decision = verdict.decision_id()
            return Verdict(decision=decision, refusal=verdict.forged(decision))
        if review.operation == "UPDATE" and old is not None and old.spec.provider_spec == machine.spec.provider_spec:
            return Verdict(decision="")  # costs nothing; a Machine that cannot be sized must still lose its finalizer
        quotas = self._catalog.quotas_of_project(cluster.spec.project)
        enforced = [quota for quota in quotas if quota.enforced]
        try:
            size = await self._sizing.admitted(cluster, machine, deadline - RESERVING)
            for quota in enforced:
                size.require(quota.limits)
        except NotSized as error:
            decision = verdict.decision_id()
            return Verdict(decision=decision, refusal=verdict.not_sized(str(error), decision))
        except ProviderUnavailable as error:
            if enforced:
                decision = verdict.decision_id()
                return Verdict(decision=decision, refusal=verdict.not_sized_now(str(error), decision))
            size = Footprint(error.provider, {"machines": UNIT})  # nothing is to be kept: counted when it is known
        need = size.resources
        generation = 0
        if old is not None:
            more = resources.subtract(need, self._known_size(cluster_uid, old))
            need = {resource: amount for resource, amount in more.items() if amount > 0}
            generation = machine.metadata.generation
            if not need:
                return Verdict(decision="")
        return await self._admission.decide(
            Claim(
                uid=machine.metadata.uid,
                project=cluster.spec.project,
                need=need,
                reservation=Reservation(
                    source=cluster.metadata.key,
                    object=machine.metadata.key,
                    amount=need,
                    generation=generation,
                ),
                dry_run=review.dry_run,
                deadline=deadline,
            )
        )

    def _known_size(self, cluster_uid: str, machine: Machine) -> resources.ResourceList:
        try:
            return self._sizing.counted(cluster_uid, machine).resources
        except (NotSized, ProviderUnavailable):
            return {"machines": UNIT}  # as it is counted, at the least

    def _tell(self, review: _AdmissionRequest, found: Verdict, seconds: float) -> None:
        refusal = found.refusal
        if refusal is None:
            self._on_decision("allowed", "", "recall" if found.waited else "local", seconds)
            return
        reason = refusal.causes[0].reason if refusal.causes else refusal.reason
        path = "unavailable" if refusal.code == 503 else "recall" if found.waited else "local"
        self._on_decision("denied", reason, path, seconds)
        log.info(
            "machine refused",
            extra={
                "decision": found.decision,
                "machine": review.object.metadata.key if review.object is not None else review.name,
                "user": review.user_info.username,
                "reason": reason,
                "text": refusal.message,
                "duration_ms": round(seconds * 1000, 1),
            },
        )


def _named(review: _AdmissionRequest) -> bool:
    """As every API server names what it sends. A tenant knows his own URL, and others' accounts hold what he sends."""
    if review.object is None:
        return True
    metadata = review.object.metadata
    return bool(_UID.fullmatch(metadata.uid) and _KEY.fullmatch(metadata.key))


@lru_cache(maxsize=64)
def _patience(query: str) -> float:
    """Seconds until the answer must be on its way; the API server puts its own timeout into the query."""
    text = parse_qs(query).get("timeout", [""])[0]
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = DEFAULT_TIMEOUT
    if not 0 < seconds <= LONGEST_TIMEOUT:
        seconds = DEFAULT_TIMEOUT
    return max(seconds - MARGIN, seconds / 2)


def _annotate(machine: Machine, stamp: str) -> dict[str, object]:
    """An operation of RFC 6902."""
    if machine.metadata.annotations:
        return {"op": "add", "path": f"/metadata/annotations/{FOOTPRINT_ANNOTATION.replace('/', '~1')}", "value": stamp}
    return {"op": "add", "path": "/metadata/annotations", "value": {FOOTPRINT_ANNOTATION: stamp}}


def _respond(uid: str, found: Verdict) -> _Response:
    refusal = found.refusal
    if refusal is None:
        return _Response(uid=uid, allowed=True, warnings=list(found.warnings))
    return _Response(uid=uid, allowed=False, status=_status(refusal))


def _status(refusal: Refusal) -> _Status:
    causes = [_Cause(cause.reason, cause.message, cause.field) for cause in refusal.causes]
    return _Status(
        code=refusal.code,
        reason=refusal.reason,
        message=refusal.message,
        details=_Details(causes=causes, retry_after_seconds=refusal.retry_seconds),
    )
