"""The messages: refusals and warnings, as the code writes them for one example."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from common.api.account_waits import WaitReason
from common.api.types import AccountWait
from common.quota import resources
from devcluster.reference.markdown import code, table
from master.quotas.condition_events import LIMITS_CHANGED, UNREACHABLE
from master.quotas.override_conditions import ENDED, ENDS
from seed.admission import denial
from seed.admission.refusal import ALREADY_EXISTS, Refusal
from seed.notifications.refusals import EVENT_REASONS
from seed.webhooks import scale_advice
from seed.webhooks.scale_advice import Asked, Room
from seed.webhooks.turns import PER_SECOND

ROOT = Path(__file__).parents[2]

_HEAD = """\
# Messages

## Refusals

kubectl prints them after `admission webhook "machines.seedquota.io" denied the request:`. Programs read
`status.details.causes`; its `reason` is
the first column. The meaning of the parts is in [the protocol](protocol.md#6-messages).
"""
_WHY = """\
## Why a quota cannot decide

The text of a 503 after `cannot decide:`, or in place of it. A part in braces is filled in. Errors of an API server or
of Redis are passed on.
"""
_WARNINGS = """\
## Warnings

The reason of a warning about replicas is in the metric `seedquota_admission_requests_total`.
"""
_EVENTS = """\
## Events

| on | reason |
|---|---|
| MachineSet, MachineDeployment, UserCluster, Cluster of Cluster API | {refusals} |
| MachineSet that is woken | `CapacityFreed` |
| ResourceQuota on the master cluster | {quota} |

[When a Machine is refused](../concepts/refusals.md) says when each is written.
"""
_DECISION = "01JD3Y6K"
_NOT_DECIDED = {"TooManyRequests", ALREADY_EXISTS, "CanaryDenied"}  # by a quota: such a message names no decision
_QUOTA_EVENTS = (
    *("NearLimit", "Exceeded", "ResourceNotCounted", UNREACHABLE, LIMITS_CHANGED),
    *("AboveParent", "GuaranteesExceedParent", "NotGuaranteed", "OvercommitExceeded", ENDS, ENDED),
)
_QUOTA = "project-alpha"
_WHY_FILES = (
    "seed/admission/limits.py",
    "seed/admission/quota_claim.py",
    "seed/kinds/*/admission.py",
    "seed/kinds/*/*webhook.py",
    "seed/webhooks/*.py",
    "seed/ledger/writer.py",
    "seed/cache/replicas.py",
)
_PLACES = {"why"}
_FUNCTION = "stale"  # returns such a text
_CALLS = {
    "undecided": 0,
    "BusyError": 0,
    "unavailable": 1,
    "cannot_decide": 1,
    "not_open": 1,
    "_unavailable": 1,
    "Unknown": 0,
}  # which argument is the text


def page() -> str:
    refusals = [(code(found.cause), str(found.code), code(_message(found))) for found in _refusals()]
    return "\n".join(
        [
            _HEAD,
            table(("reason", "HTTP", "text"), refusals) + "\n",
            _WHY,
            "\n".join(f"- `{text}`" for text in sorted(set(_reasons()))) + "\n",
            _WARNINGS,
            table(("reason", "text"), [(code(reason), code(text)) for reason, text in _warnings()]) + "\n",
            _EVENTS.format(
                refusals=", ".join(map(code, sorted(EVENT_REASONS))),
                quota=", ".join(
                    map(
                        code,
                        _QUOTA_EVENTS,
                    )
                ),
            ),
        ]
    )


def _message(refusal: Refusal) -> str:
    return refusal.message("" if refusal.cause in _NOT_DECIDED else _DECISION)


def _refusals() -> Iterator[Refusal]:
    limits, used, being_created = (resources.parse({"cpu": amount}) for amount in ("64", "60", "2"))
    need = resources.parse({"cpu": "8"})
    full = denial.exceeded(_QUOTA, need, used, limits, being_created)
    yield full
    yield denial.with_copies(full)
    yield denial.exceeded(_QUOTA, need, used, limits, resources.parse({"cpu": "4"}))
    yield denial.exceeded(_QUOTA, resources.parse({"cpu": "80"}), used, limits, {})
    lent, surge = resources.parse({"surge.cpu": "8"}), resources.parse({"surge.cpu": "16"})
    yield denial.beyond_surge(full, denial.exceeded(_QUOTA, lent, surge, surge, {}))
    yield denial.beyond_surge(full, denial.occupied(_QUOTA, lent))
    yield denial.unavailable(_QUOTA, "cpu=12 is free but held by seed us-1, unreachable for 7m")
    yield denial.too_often(PER_SECOND)
    yield denial.taken(_QUOTA)
    yield denial.not_sized("cannot size machine: vsphere memoryMB is missing")
    yield denial.not_sized_now("cannot size machine now: aws eu-central-1 answers too many requests (429)")
    yield denial.not_specified("owner-ann", "must specify requests.cpu for: web")
    yield denial.not_specified("owner-ann", "must specify spec.replicas for: db")
    yield denial.not_specified("owner-ann", "must be written as example.com/v1, of which it counts fields, for: db")
    no_scale = "must be edited, not scaled: example.com/v1, of which it counts fields, has no scale, for: db"
    yield denial.not_specified("owner-ann", no_scale)
    yield denial.forged()
    yield denial.project_label()
    yield denial.unknown_project("alhpa", "Machine")
    yield denial.unknown_types([(0, "server")], ["gpus", "servers"])
    yield denial.misplaced("Allocations of Organization acme belong in namespace org-acme", "metadata.namespace")
    yield denial.already_exists("resourcequotas", "default")
    yield denial.lost()
    yield denial.canary()


def _warnings() -> Iterator[tuple[str, str]]:
    limits, used = resources.parse({"cpu": "64"}), resources.parse({"cpu": "62"})
    near = denial.near_limit(_QUOTA, used, limits, 90)
    assert near is not None
    yield "", near
    over = resources.parse({"cpu": "4"})
    yield "", denial.over_allowed(_QUOTA, over, resources.parse({"cpu": "68"}), limits)
    yield "", denial.not_specified_allowed("owner-ann", "must specify requests.cpu for: web")
    size = resources.parse({"cpu": "8"})
    for room, asked in (
        ("24", Asked(10, 10, True)),
        ("24", Asked(10, 4, True)),
        ("2", Asked(3, 0, False, surge=1)),
        ("8", Asked(3, 0, False, surge=2)),
    ):
        quota = Room(quota=_QUOTA, limits=limits, used=resources.subtract(limits, resources.parse({"cpu": room})))
        advice = scale_advice.advise(asked, size, [quota], deny=False)
        yield advice.reason, advice.warning
    used, kept = resources.parse({"cpu": "32"}), resources.parse({"cpu": "8"})
    organization = Room(quota="org-acme", limits=limits, used=used, kept=kept)
    advice = scale_advice.advise(Asked(5, 5, True), size, [organization], deny=False)
    yield advice.reason, advice.warning
    undecided = scale_advice.undecided("what one Machine costs is not known yet")
    yield undecided.reason, undecided.warning


def _reasons() -> Iterator[str]:
    """Each text that the code gives as the reason of a 503."""
    yield denial.limits_missing("{project}")
    for reason in WaitReason:
        yield denial.not_open_yet(AccountWait(reason=reason, sources_omitted=2, until="{until}"))
    yield denial.not_open_yet(AccountWait(reason=WaitReason.SOURCES, sources_omitted=2, kinds=("{kind}",)))
    for path in _WHY_FILES:
        for file in sorted(ROOT.glob(path)):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Assign) and _names(node.targets) & _PLACES:
                    yield from _text(node.value)
                elif isinstance(node, ast.FunctionDef) and node.name == _FUNCTION:
                    yield from (
                        text for part in ast.walk(node) if isinstance(part, ast.Return) for text in _text(part.value)
                    )
                elif isinstance(node, ast.Call) and (called := _called(node.func)) in _CALLS:
                    at_place = node.args[_CALLS[called] : _CALLS[called] + 1]
                    yield from (text for argument in at_place for text in _text(argument))


def _called(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _names(targets: list[ast.expr]) -> set[str]:
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _text(node: ast.expr | None) -> Iterator[str]:
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.GeneratorExp):
        yield from _text(node.args[0].elt)  # of ", ".join
    elif isinstance(node, ast.IfExp):
        yield from _text(node.body)
        yield from _text(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value)
            if isinstance(part, ast.Constant)
            else f"{{{ast.unparse(cast(ast.FormattedValue, part).value)}}}"
            for part in node.values
        )
