"""A decision as it is shown to one who may see a part of it: what agents answer, and what of it is said. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from master.apiserver.serializers import AnswerBody

Amounts = Annotated[dict[str, Annotated[str, Meta(max_length=64)]], Meta(max_length=128)]
Text = Annotated[str, Meta(max_length=4096)]
MAX_QUOTAS = 64
MAX_REFUSALS = 50


class DecidedQuota(AnswerBody, kw_only=True, omit_defaults=True):
    """What one quota said. `need`: what it counts of the object. `limits`, `used`: by which it decided; of `used`,
    `beingCreated` was reserved and not yet counted. `code`, `reason`, `message`: of its refusal."""

    name: Annotated[str, Meta(max_length=253)]
    enforcement: Literal["deny", "warn"]
    admits: bool
    need: Amounts = {}
    limits: Amounts = {}
    used: Amounts = {}
    being_created: Amounts = {}
    code: int = 0
    reason: Text = ""
    message: Text = ""
    warnings: Annotated[list[Text], Meta(max_length=32)] = []


class DecisionRecord(AnswerBody, kw_only=True, omit_defaults=True):
    """The facts of a decision. `quotas` has those that the caller may see. `user`, `cluster`, `object`, `project`:
    empty where they are others'."""

    time: Annotated[str, Meta(max_length=64)]
    result: Literal["admitted", "refused"]
    operation: Annotated[str, Meta(max_length=64)]
    dry_run: bool = False
    consumer: Annotated[str, Meta(max_length=64)] = ""
    user: Text = ""
    cluster: Text = ""
    object: Text = ""
    project: Annotated[str, Meta(max_length=253)] = ""
    need: Amounts = {}
    code: int = 0
    reason: Text = ""
    message: Text = ""
    warnings: Annotated[list[Text], Meta(max_length=32)] = []
    quotas: Annotated[list[DecidedQuota], Meta(max_length=MAX_QUOTAS)] = []


class Decision(AnswerBody, kw_only=True):
    """`record` is there where a seed's agents have it, and `seed` says which. `command` shows more, to somebody with
    rights on the seed. `notAsked`: why no seed, or not each one, was asked."""

    decision: str
    kept_on: Literal["seed"]
    command: str
    seed: str | UnsetType = UNSET
    record: DecisionRecord | UnsetType = UNSET
    not_asked: str = ""


class Refusal(AnswerBody, kw_only=True):
    """One decision that refused. `seed`: whose agent has it."""

    decision: str
    seed: str
    record: DecisionRecord


class Refusals(AnswerBody, kw_only=True):
    """Those of the last hour that agents keep, the last first. `more`: there are others. `notAsked`: why no seed, or
    not each one, was asked; then there may be others, too."""

    items: list[Refusal]
    more: bool
    not_asked: str


class _Kept(DecisionRecord, kw_only=True):
    decision: Annotated[str, Meta(max_length=64)]


class _KeptRefusals(msgspec.Struct):
    items: Annotated[list[_Kept], Meta(max_length=MAX_REFUSALS)]
    more: bool = False


_kept = msgspec.json.Decoder(_Kept)
_kept_refusals = msgspec.json.Decoder(_KeptRefusals)


def read(decision: str, content: bytes) -> DecisionRecord | None:
    """None: it is not this decision, or cannot be read."""
    try:
        found = _kept.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.decision == decision else None


def read_refusals(content: bytes) -> tuple[list[tuple[str, DecisionRecord]], bool] | None:
    """Each with its id, and whether there are more. None: it cannot be read."""
    try:
        found = _kept_refusals.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return [(each.decision, each) for each in found.items if each.result == "refused"], found.more


def visible(
    record: DecisionRecord, quotas: Collection[str], *, everything: bool, of_project: bool, username: str
) -> DecisionRecord | None:
    """None: the caller may see nothing of it. `quotas`: those that it may see. `everything`: it may list all quotas.
    `of_project`: it may see the project in which this was decided."""
    seen = [each for each in record.quotas if each.name in quotas]
    if not (seen or everything or of_project):
        return None
    others = not (everything or of_project)
    hidden = not everything and len(seen) < len(record.quotas)  # whose amounts the message may name
    own = next((each.message for each in seen if each.message), "")
    return DecisionRecord(
        time=record.time,
        result=record.result,
        operation=record.operation,
        dry_run=record.dry_run,
        consumer=record.consumer,
        user=record.user if everything or record.user == username else "",
        cluster="" if others else record.cluster,
        object="" if others else record.object,
        project="" if others else record.project,
        need=record.need,
        code=record.code,
        reason=record.reason,
        message=own if hidden else record.message,
        warnings=[] if hidden else record.warnings,
        quotas=seen,
    )


def answer(decision: str, *, seed: str = "", record: DecisionRecord | None = None, not_asked: str = "") -> Decision:
    command = f"seedquota explain {decision} --context {seed or 'SEED'}"
    found = Decision(decision=decision, kept_on="seed", command=command, not_asked=not_asked)
    if record is not None:
        found.seed, found.record = seed, record
    return found
