"""What the conditions of a UserCluster say. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from common.api import conditions
from common.api.conditions import condition
from common.api.types import Condition, UserCluster
from seed.admission import local_copies, projects
from seed.kinds.machines.machine_api import TAKEN_OVER
from seed.kinds.machines.source import Source
from seed.kinds.machines.totals import Unsized
from seed.projections.cluster_copies import ClusterCopies
from seed.projections.namespace_copies import NamespaceCopies
from seed.registration import withdrawal
from seed.registration.health import IN_NAMESPACES, Proof
from seed.registration.keeper import ConfigurationKeeper
from seed.usage.unadmitted import Unadmitted

READY_BY = ("UsageCurrent", "Enforced", projects.CONDITION)
KNOWN = condition(projects.CONDITION, True, projects.FOUND, "")

_CONTESTED = (
    "somebody in the user cluster deletes or changes the webhook configuration again and again; it is restored each "
    "time, and machines that were created in between are counted"
)


def _followed(source: Source) -> Condition:
    if source.problem is not None:
        return condition("UsageCurrent", False, source.problem.reason, source.problem.message)
    if source.current:
        return condition("UsageCurrent", True, "Counted", "")
    return condition("UsageCurrent", None, "Connecting", "its Machines are being listed")


def _enforced(source: Source, keeper: ConfigurationKeeper | None, proof: Proof | None) -> Condition:
    unadmitted = source.totals.unadmitted
    unseen = source.problem if not source.current else None
    if unseen is not None and unseen.reason == TAKEN_OVER:
        return condition("Enforced", False, TAKEN_OVER, unseen.message)
    if unseen is not None:
        return condition("Enforced", None, unseen.reason, "whether the webhook is in place cannot be seen")
    if keeper is not None and not keeper.wanted():
        said = withdrawal.PROOF
        return condition("Enforced", False, said.reason, said.message)
    if keeper is not None and keeper.contested:
        return condition("Enforced", False, "WebhookContested", "; ".join(filter(None, (_CONTESTED, unadmitted.text))))
    if keeper is None or not keeper.in_place:
        if keeper is not None and keeper.error is not None:
            return condition("Enforced", False, "WebhookMissing", keeper.error)
        return condition("Enforced", None, "Connecting", "the webhook is being configured")
    return _in_place(proof, unadmitted)


def _in_place(proof: Proof | None, unadmitted: Unadmitted) -> Condition:
    """With the webhook in place."""
    if unadmitted.alarming and (proof is None or proof.enforced is not False):
        return condition("Enforced", False, "UsageNotAdmitted", unadmitted.text)
    if proof is None:
        return condition("Enforced", True, "WebhookConfigured", unadmitted.text)
    if proof.enforced is None:
        return condition("Enforced", True, "WebhookConfigured", f"not proven: {proof.message}")
    if proof.enforced:
        return condition("Enforced", True, proof.reason, unadmitted.text or proof.message)
    return condition("Enforced", False, proof.reason, proof.message)


def _sized(unsized: Unsized) -> Condition:
    if not unsized.count:
        return condition("MachinesSized", True, "AllSized", "")
    named = f"{conditions.count(unsized.count, 'machine')}: {'; '.join(unsized.named)}"
    return condition("MachinesSized", False, unsized.condition, named)


def _stamps(source: Source) -> Condition:
    drift = source.drift
    if not drift.count:
        return condition("StampsCurrent", True, "AsStamped", "")
    named = f"{conditions.count(drift.count, 'machine')}: {'; '.join(drift.named)}"
    return condition("StampsCurrent", False, "FlavorsChanged", named)


def enforced_in_namespaces(source: Source, proof: Proof | None) -> Condition:
    """Where quotas limit objects in namespaces. `proof`: None while there is no connection."""
    if proof is not None:
        return condition(IN_NAMESPACES, proof.enforced, proof.reason, proof.message)
    why = _followed(source)
    reason = why.reason if why.status != "True" else "Connecting"
    return condition(IN_NAMESPACES, None, reason, "whether the webhook for namespaces is in place cannot be seen")


def own_conditions(proof: Proof | None, copies: NamespaceCopies | None) -> list[Condition]:
    """Of a Seed. `proof`: None where quotas limit nothing in the namespaces of its own API server. `copies`: None
    where none are to be."""
    if proof is None:
        return []
    found = [condition(IN_NAMESPACES, proof.enforced, proof.reason, proof.message)]
    if copies is not None and copies.written is not None:
        reason = "Written" if copies.written else "NotWritten"
        found.append(condition(local_copies.CONDITION, copies.written, reason, copies.problem))
    return found


def copied(
    source: Source, copies: ClusterCopies | None, in_namespaces: NamespaceCopies | None = None
) -> Condition | None:
    """None where the Machines are the seed's own: there is no user cluster to write to."""
    if source.on_seed:
        return None
    if in_namespaces is not None and in_namespaces.written is False:
        return condition(local_copies.CONDITION, False, "NotWritten", f"in namespaces: {in_namespaces.problem}")
    if copies is not None and copies.written:
        return condition(local_copies.CONDITION, True, "Written", "")
    if copies is not None and copies.written is False:
        return condition(local_copies.CONDITION, False, "NotWritten", copies.problem)
    why = _followed(source)
    reason = why.reason if why.status != "True" else "Connecting"
    return condition(local_copies.CONDITION, None, reason, "nothing was written through the present connection yet")


def believed_proof(wanted: list[Condition], proof: Proof | None, source: Source) -> Proof | None:
    """What the condition Enforced says, as a proof; None while it is only a matter of a moment what it will say."""
    said = next(condition for condition in wanted if condition.type == "Enforced")
    if said.status == "False":
        return Proof(False, said.reason)
    if said.status == "True" and proof is not None:
        return proof
    return Proof(None, said.reason) if source.problem is not None else None


def _failing(parts: Iterable[Condition]) -> Condition | None:
    """What keeps the cluster from being Ready. An unknown project that QuotaSettings allow does not."""
    for each in parts:
        if (each.type, each.status) == (IN_NAMESPACES, "False"):
            return each
        if each.type in READY_BY and each.status != "True" and each.reason != projects.ALLOWED_BY_SETTINGS:
            return each
    return None


def _ready(parts: Iterable[Condition]) -> Condition:
    failing = _failing(parts)
    if failing is None:
        return condition("Ready", True, "Enforced", "")
    message = f"{failing.type}: {failing.message}" if failing.message else failing.type
    return structs.replace(failing, type="Ready", message=message)


def judge(
    cluster: UserCluster,
    source: Source,
    keeper: ConfigurationKeeper | None,
    proof: Proof | None,
    unsized: Unsized,
    project: Condition = KNOWN,
    in_namespaces: Condition | None = None,
    copies: Condition | None = None,
) -> list[Condition]:
    """The UserCluster's conditions, Ready first. `project`: its condition ProjectKnown. `in_namespaces`:
    NamespacesEnforced, where it takes part. `copies`: LocalQuotasWritten, where there are any."""
    followed = _followed(source)
    if source.current or source.counted:
        sized, stamps = _sized(unsized), _stamps(source)
    else:
        sized, stamps = (
            condition(kind, None, followed.reason, "its Machines have not been listed yet")
            for kind in ("MachinesSized", "StampsCurrent")
        )
    parts = [followed, _enforced(source, keeper, proof), sized, stamps, project]
    parts.extend(each for each in (in_namespaces, copies) if each is not None)
    generation = cluster.metadata.generation
    return [
        structs.replace(each, message=conditions.short(each.message), observed_generation=generation)
        for each in (_ready(parts), *parts)
    ]
