"""Default quotas: which to make, to change and to delete for one project or organization. Pure.

- A subject without a quota of its own gets one that follows the default. It is known by its label, belongs to its
  subject by an owner reference, and carries the fingerprint of what was written: so an edit by somebody else
  is distinguished from an edit of the default.
- Whoever edits what it says, or removes the label, makes it a quota of its own: as when a manifest is applied over it.
  Whoever adds the label has the quota follow the default from then on.
- It gives way to a quota of the subject's own, but not before that is in force on every seed that can be reached. A
  quota of a part of the subject, by its clusters or by scopes, leaves the rest without a limit: it stays beside that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from common.api.labels import API_VERSION, DEFAULT_LABEL
from common.api.types import DefaultQuota, ResourceQuotaSpec
from common.kube.client.meta import Object, OwnerReference
from common.quota import resources
from master.cache.objects import MasterQuota
from master.cache.organization_limits import is_of_a_part
from master.quotas.conditions import CLUSTERS_NOT_COUNTED, NO_CLUSTERS, NO_SEEDS
from master.quotas.countable import NOT_SUPPORTED

WRITTEN_ANNOTATION = "seedquota.io/default-written"  # the fingerprint of the default as it was written

Kind = Literal["project", "organization"]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """To be done in this order. Replace and delete by resource version: nobody's edit is lost."""

    replace: list[MasterQuota] = []
    create: Mapping[str, object] | None = None
    delete: list[MasterQuota] = []


def usual_name(kind: Kind, name: str) -> str:
    return f"project-{name}" if kind == "project" else f"org-{name}"


def decide(
    kind: Kind,
    subject: Object | None,
    default: DefaultQuota | None,
    quotas: Sequence[MasterQuota],
    namesake: MasterQuota | None,
) -> Decision:
    """`quotas` are all of this subject, which is None when it does not exist. `namesake`: whichever quota bears the
    usual name. Raises QuantityError for limits that the API server should have refused.
    """
    following = [quota for quota in quotas if follows(quota)]
    changed_by_hand = _living([quota for quota in quotas if not follows(quota)])
    own = [quota for quota in changed_by_hand if not is_of_a_part(quota.spec)]
    released = [_released(quota) for quota in changed_by_hand if WRITTEN_ANNOTATION in quota.metadata.annotations]
    if subject is None or default is None:
        return Decision(replace=released, delete=_living(following))
    if not own and not following:
        return Decision(create=_missing(kind, subject, default, namesake))
    if own:
        kept = [] if any(in_force(quota) for quota in own) else following
    else:
        usual = usual_name(kind, subject.metadata.name)
        first = min(following, key=lambda quota: _rank(quota, usual))
        kept = [first] if in_force(first) else following
    changed = [after for quota in _living(kept) if (after := _following(quota, kind, subject, default)) != quota]
    superfluous = [quota for quota in following if quota not in kept]
    return Decision(replace=[*released, *changed], delete=_living(superfluous))


def follows(quota: MasterQuota) -> bool:
    """It is labelled, and nobody else has edited what it says."""
    if quota.metadata.labels.get(DEFAULT_LABEL) != "true":
        return False
    written = quota.metadata.annotations.get(WRITTEN_ANNOTATION)
    return written is None or written == _fingerprint(msgspec.convert(quota.spec, ResourceQuotaSpec))


LIMITS_ON_ALL_SEEDS = (NOT_SUPPORTED, NO_SEEDS, NO_CLUSTERS, CLUSTERS_NOT_COUNTED)
"""Reasons of Enforced=False where every seed has the quota, and nothing counts some of it."""


def in_force(quota: MasterQuota) -> bool:
    """Every seed that can be reached has it as it is now. Others drop nothing before they have it, see
    master/seeds/replicator.py."""
    enforced = next((each for each in quota.status.conditions if each.type == "Enforced"), None)
    return (
        enforced is not None
        and (enforced.status != "False" or enforced.reason in LIMITS_ON_ALL_SEEDS)
        and enforced.observed_generation == quota.metadata.generation
    )


def _missing(
    kind: Kind, subject: Object, default: DefaultQuota, namesake: MasterQuota | None
) -> Mapping[str, object] | None:
    metadata = subject.metadata
    if metadata.deletion_timestamp is not None:
        return None
    about = {"kind": kind, "name": metadata.name}
    name = usual_name(kind, metadata.name)
    if namesake is not None:
        if namesake.spec.get("subject") == about:
            return None  # it is being deleted and limits until it is gone
        name = f"{name}-{metadata.uid[:8]}"
    return {
        "metadata": {
            "name": name,
            "labels": {DEFAULT_LABEL: "true"},
            "annotations": {WRITTEN_ANNOTATION: _fingerprint(default)},
            "ownerReferences": [_owner(kind, subject)],
        },
        "spec": {"subject": about, **_says(default)},
    }


def _following(quota: MasterQuota, kind: Kind, subject: Object, default: DefaultQuota) -> MasterQuota:
    """As the quota should be; equal to what it is if there is nothing to write."""
    before, fingerprint = quota.metadata, _fingerprint(default)
    metadata = msgspec.structs.replace(
        before,
        annotations={**before.annotations, WRITTEN_ANNOTATION: fingerprint},
        owner_references=(*_other_owners(quota), _owner(kind, subject)),
    )
    same = _fingerprint(msgspec.convert(quota.spec, ResourceQuotaSpec)) == fingerprint
    return msgspec.structs.replace(
        quota, metadata=metadata, spec=quota.spec if same else {**quota.spec, **_says(default)}
    )


def _released(quota: MasterQuota) -> MasterQuota:
    """A quota of the subject's own, which does not go with it."""
    before = quota.metadata
    metadata = msgspec.structs.replace(
        before,
        labels={name: value for name, value in before.labels.items() if name != DEFAULT_LABEL},
        annotations={name: value for name, value in before.annotations.items() if name != WRITTEN_ANNOTATION},
        owner_references=_other_owners(quota),
    )
    return msgspec.structs.replace(quota, metadata=metadata)


def _owner(kind: Kind, subject: Object) -> OwnerReference:
    metadata = subject.metadata
    return OwnerReference(api_version=API_VERSION, kind=kind.capitalize(), name=metadata.name, uid=metadata.uid)


def _other_owners(quota: MasterQuota) -> tuple[OwnerReference, ...]:
    ours = {(API_VERSION, "Project"), (API_VERSION, "Organization")}
    owners = quota.metadata.owner_references
    return tuple(owner for owner in owners if (owner.api_version, owner.kind) not in ours)


def _says(default: DefaultQuota) -> dict[str, object]:
    return {
        "quota": default.quota,
        "enforcement": default.enforcement,
        "warnAtPercent": default.warn_at_percent,
    }


def _fingerprint(said: DefaultQuota | ResourceQuotaSpec) -> str:
    """Equal for all ways to write the same: 1 and "1000m"."""
    limits = ",".join(f"{name}={amount}" for name, amount in sorted(resources.parse(said.quota).items()))
    text = f"{limits} {said.enforcement} {said.warn_at_percent}"
    if isinstance(said, ResourceQuotaSpec) and said.guaranteed:  # of one project alone: no default has it
        text += f" {sorted(resources.parse(said.guaranteed).items())}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rank(quota: MasterQuota, usual: str) -> tuple[bool, bool, str, str]:
    """The first is kept where several follow the default for one subject."""
    metadata = quota.metadata
    deleting = metadata.deletion_timestamp is not None
    return deleting, metadata.name != usual, metadata.creation_timestamp or "", metadata.name


def _living(quotas: Sequence[MasterQuota]) -> list[MasterQuota]:
    return [quota for quota in quotas if quota.metadata.deletion_timestamp is None]
