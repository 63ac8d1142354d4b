"""What the conditions of a UserCluster say. Pure."""

from __future__ import annotations

import msgspec

from common.api import conditions
from common.api.types import Condition, UserCluster
from seed.admission import projects
from seed.registration.health import Proof
from seed.registration.keeper import ConfigurationKeeper
from seed.usage.machine_api import TAKEN_OVER
from seed.usage.machine_totals import Unsized
from seed.usage.unadmitted import Unadmitted
from seed.usage.user_cluster import Source

_CONTESTED = (
    "somebody in the user cluster deletes or changes the webhook configuration again and again; it is restored each "
    "time, and machines that were created in between are counted"
)


def _sized(unsized: Unsized) -> tuple[str, str, str]:
    if not unsized.count:
        return "True", "AllSized", ""
    return "False", unsized.condition, f"{conditions.count(unsized.count, 'machine')}: {'; '.join(unsized.named)}"


def _stamps(source: Source) -> tuple[str, str, str]:
    if not source.drift.count:
        return "True", "AsStamped", ""
    drift = source.drift
    return "False", "FlavorsChanged", f"{conditions.count(drift.count, 'machine')}: {'; '.join(drift.named)}"


def _enforced(proof: Proof | None, unadmitted: Unadmitted) -> tuple[str, str, str]:
    """With the webhook in place."""
    if unadmitted.alarming and (proof is None or proof.enforced is not False):
        return "False", "UsageNotAdmitted", unadmitted.text
    if proof is None:
        return "True", "WebhookConfigured", unadmitted.text
    if proof.enforced is None:
        return "True", "WebhookConfigured", f"not proven: {proof.message}"
    if proof.enforced:
        return "True", proof.reason, unadmitted.text or proof.message
    return "False", proof.reason, proof.message


def believed_proof(wanted: list[Condition], proof: Proof | None, source: Source) -> Proof | None:
    """What the condition Enforced says, as a proof; None while it is only a matter of a moment what it will say."""
    said = next(condition for condition in wanted if condition.type == "Enforced")
    if said.status == "False":
        return Proof(False, said.reason)
    if said.status == "True" and proof is not None:
        return proof
    return Proof(None, said.reason) if source.problem is not None else None


def _failing(parts: dict[str, tuple[str, str, str]]) -> tuple[str, tuple[str, str, str]] | None:
    """What keeps the cluster from being Ready. An unknown project that QuotaSettings allow does not."""
    for name in ("UsageCurrent", "Enforced", projects.CONDITION):
        if parts[name][0] != "True" and parts[name][1] != projects.ALLOWED_BY_SETTINGS:
            return name, parts[name]
    return None


def judge(
    cluster: UserCluster,
    source: Source,
    keeper: ConfigurationKeeper | None,
    proof: Proof | None,
    unsized: Unsized,
    project: tuple[str, str, str] = ("True", projects.FOUND, ""),
) -> list[Condition]:
    """The UserCluster's conditions, Ready first. `project`: what ProjectKnown says."""
    unadmitted = source.totals.unadmitted
    if source.problem is not None:
        followed = ("False", source.problem.reason, source.problem.message)
    elif source.current:
        followed = ("True", "Counted", "")
    else:
        followed = ("Unknown", "Connecting", "its Machines are being listed")
    unseen = source.problem if not source.current else None
    if unseen is not None and unseen.reason == TAKEN_OVER:
        enforced = ("False", TAKEN_OVER, unseen.message)
    elif unseen is not None:
        enforced = ("Unknown", unseen.reason, "whether the webhook is in place cannot be seen")
    elif keeper is not None and keeper.contested:
        enforced = ("False", "WebhookContested", "; ".join(filter(None, (_CONTESTED, unadmitted.text))))
    elif keeper is not None and keeper.in_place:
        enforced = _enforced(proof, unadmitted)
    elif keeper is not None and keeper.error is not None:
        enforced = ("False", "WebhookMissing", keeper.error)
    else:
        enforced = ("Unknown", "Connecting", "the webhook is being configured")
    listed = source.current or source.counted
    unlisted = ("Unknown", followed[1], "its Machines have not been listed yet")
    parts = {
        "UsageCurrent": followed,
        "Enforced": enforced,
        "MachinesSized": _sized(unsized) if listed else unlisted,
        "StampsCurrent": _stamps(source) if listed else unlisted,
        projects.CONDITION: project,
    }
    failing = _failing(parts)
    if failing is not None:
        name, (status, reason, message) = failing
        ready = (status, reason, f"{name}: {message}" if message else name)
    else:
        ready = ("True", "Enforced", "")
    return [
        msgspec.convert(
            {
                "type": name,
                "status": status,
                "reason": reason,
                "message": conditions.short(message),
                "observedGeneration": cluster.metadata.generation,
            },
            Condition,
        )
        for name, (status, reason, message) in {"Ready": ready, **parts}.items()
    ]
