"""One webhook request, from its bytes to its answer: the same steps for every kind of object.

1. The caller must not have asked too often. 2. The review is decoded. 3. The probe of this seed's own leader is
refused, but not by a webhook that only advises. 4. The object must be named as API servers name what they send. 5. The
webhook decides, before the API server gives up. 6. The decision is recorded, once, and answered.

Who asks was proven before (seed/webhooks/router.py).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec

from common.api.types import UserCluster
from common.kube.client.meta import Object, ObjectMeta
from common.server.http_parser import Request, Response
from seed.admission import denial
from seed.admission import fits as fits_asked
from seed.admission.decision_log import Call, Decisions
from seed.admission.types import Verdict
from seed.registration.probe import is_canary
from seed.webhooks import fits
from seed.webhooks.fits import Fits
from seed.webhooks.refusal_log import log_refusal
from seed.webhooks.review import Head, check, decided, is_named, patched, patience, uid_of
from seed.webhooks.turns import LARGE, Turn, Turns

ANY_KIND = "Any"  # in metrics, where it was not looked at

SubjectT = TypeVar("SubjectT")


class Question(msgspec.Struct, Generic[SubjectT], frozen=True):
    """What is asked. `new` is None where nothing that counts is created or changed; `old` is what an update changes."""

    head: Head
    new: SubjectT | None
    old: SubjectT | None = None


class WebhookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`cluster` and `subject`: whose the object is and what it is, as far as that was found.

    `kind` is one of few, for metrics. `reason`: why it was allowed although it could not be decided.
    `recorded`: whether it stands among the last decisions also where nothing was refused.
    """

    verdict: Verdict
    kind: str
    cluster: UserCluster | None = None
    subject: ObjectMeta | None = None
    reason: str = ""
    recorded: bool = True
    fits: Fits | None = None
    """To a dry run that asks it; None: it follows from `verdict`."""


class Patch(msgspec.Struct, frozen=True):
    """Allowed, with these operations of RFC 6902."""

    operations: Sequence[object]


class Webhook(ABC, Generic[SubjectT]):
    """What is of its own in each webhook.

    `about`: what its reviews are about, in errors. `caller`: who alone may ask, as its token names it; None: the path
    names the caller. `advises`: it refuses nothing by itself, so what it is not asked is allowed.
    """

    about: ClassVar[str]
    caller: ClassVar[str | None] = None
    advises: ClassVar[bool] = False

    def check(self, body: bytes) -> None:
        """Before it is decoded. Raises TooManyNames."""
        check(body)

    @abstractmethod
    def decode(self, body: bytes) -> Question[SubjectT]:
        """Raises msgspec.MsgspecError, UnicodeDecodeError, RecursionError."""

    def object_of(self, question: Question[SubjectT]) -> Object | None:
        """What a canary would be."""
        return question.new if isinstance(question.new, Object) else None

    def is_named(self, question: Question[SubjectT]) -> bool:
        return not isinstance(question.new, Object) or is_named(question.new)

    @abstractmethod
    async def decide(self, caller: str, question: Question[SubjectT], deadline: float) -> WebhookAnswer | Patch:
        """`deadline` is on the event loop's clock."""


OnDecision = Callable[[str, str, str, str, float], None]
"""kind, decision, reason, path, seconds"""


class Endpoint(Generic[SubjectT]):
    def __init__(
        self,
        webhook: Webhook[SubjectT],
        on_decision: OnDecision | None = None,
        decisions: Decisions | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`turns`: of all webhooks together; None where nobody is kept from asking."""
        self._webhook = webhook
        self._on_decision = on_decision
        self._decisions = decisions
        self._turns = turns

    @property
    def caller(self) -> str | None:
        return self._webhook.caller

    async def handle(self, caller: str, request: Request) -> Response:
        deadline = asyncio.get_running_loop().time() + patience(request.query)
        if self._turns is None or caller in self._turns.unlimited:
            return await self._answer(caller, None, request, deadline)
        turn = self._turns.take(caller)
        if turn is None:
            return self._too_often(request, self._turns.per_second)
        if turn.places.locked():
            try:
                async with asyncio.timeout_at(deadline):
                    await turn.places.acquire()
            except TimeoutError:
                return self._too_often(request, self._turns.per_second)
        else:
            await turn.places.acquire()
        try:
            return await self._answer(caller, turn, request, deadline)
        finally:
            turn.places.release()

    def _too_often(self, request: Request, per_second: int) -> Response:
        try:
            uid = uid_of(request.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return Response(400, b"not an AdmissionReview\n")
        if self._webhook.advises:
            return decided(uid, Verdict())
        refusal = denial.too_often(per_second)
        if self._on_decision is not None:
            self._on_decision(ANY_KIND, "denied", refusal.cause, "unavailable", 0.0)
        return decided(uid, Verdict(refusal=refusal))

    async def _answer(self, caller: str, turn: Turn | None, request: Request, deadline: float) -> Response:
        started = time.monotonic()
        webhook = self._webhook
        try:
            if turn is not None and len(request.body) > LARGE:
                async with turn.reading:
                    await asyncio.sleep(0)  # others first
                    question = self._read(request.body)
            else:
                question = self._read(request.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Response(400, f"not an AdmissionReview of {webhook.about}: {error}\n".encode(errors="replace"))
        head, subject = question.head, webhook.object_of(question)
        if not webhook.advises and subject is not None and is_canary(subject.metadata, dry_run=head.dry_run):
            return decided(head.uid, Verdict(refusal=denial.canary()))
        if not webhook.is_named(question):
            return Response(400, b"the object has no proper name, namespace and uid\n")
        answer = await webhook.decide(caller, question, deadline)
        if isinstance(answer, Patch):
            return patched(head.uid, answer.operations)
        if not answer.verdict.repeated:
            self._record(head, answer, time.monotonic() - started)
        if (found := _fits(head, answer)) is not None:
            return decided(head.uid, Verdict(decision=found.decision, refusal=fits.refused(found)))
        return decided(head.uid, answer.verdict)

    def _read(self, body: bytes) -> Question[SubjectT]:
        """Raises msgspec.MsgspecError, UnicodeDecodeError, RecursionError."""
        self._webhook.check(body)
        return self._webhook.decode(body)

    def _record(self, head: Head, answer: WebhookAnswer, seconds: float) -> None:
        """In the metrics, among the last decisions, and of a refusal in the log."""
        verdict = answer.verdict
        refusal = verdict.refusal
        path = "recall" if verdict.waited else "local"
        if self._on_decision is not None:
            if refusal is None:
                self._on_decision(answer.kind, "allowed", answer.reason, path, seconds)
            else:
                path = "unavailable" if refusal.code == 503 else path
                self._on_decision(answer.kind, "denied", refusal.cause, path, seconds)
        if refusal is not None:
            log_refusal(head, answer.kind.lower(), answer.subject, verdict, refusal, seconds)
        if self._decisions is not None and (answer.recorded or refusal is not None):
            call = Call(
                operation=head.operation,
                user=head.user_info.username,
                dry_run=head.dry_run,
                seconds=seconds,
                consumer=answer.kind.lower(),
            )
            self._decisions.made(verdict, answer.cluster, answer.subject, call)


def _fits(head: Head, answer: WebhookAnswer) -> Fits | None:
    if answer.fits is not None or answer.subject is None:
        return answer.fits
    count = fits_asked.asked(answer.subject, dry_run=head.dry_run)
    return fits.of_verdict(answer.verdict, count) if count else None
