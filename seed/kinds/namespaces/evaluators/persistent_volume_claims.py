"""What PersistentVolumeClaims use: k8s.io/kubernetes/pkg/quota/v1/evaluator/core/persistent_volume_claims.go."""

from __future__ import annotations

from typing import Final

import msgspec

from common.api.types import Quantities
from common.kube.client.meta import Object
from common.quota import scopes
from common.quota.object_names import BY_STORAGE_CLASS, PERSISTENT_VOLUME_CLAIMS
from common.quota.quantity import UNIT
from common.quota.scopes import ScopeRequirement
from seed.kinds.namespaces.evaluators.amounts import amount, whole
from seed.kinds.namespaces.evaluators.namespaced import Counting

CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    pass


class _Resources(_Part, frozen=True):
    requests: Quantities = {}


class ClaimSpec(_Part, frozen=True):
    storage_class_name: str | None = None
    volume_attributes_class_name: str | None = None
    resources: _Resources = _Resources()


class _ModifyVolumeStatus(_Part, frozen=True):
    target_volume_attributes_class_name: str = ""


class ClaimStatus(_Part, frozen=True):
    allocated_resources: Quantities = {}
    current_volume_attributes_class_name: str | None = None
    modify_volume_status: _ModifyVolumeStatus = _ModifyVolumeStatus()


class PersistentVolumeClaim(Object, frozen=True, kw_only=True):
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class PersistentVolumeClaimEvaluator(Counting[PersistentVolumeClaim]):
    """Updates count, too: claims are expanded, and change their VolumeAttributesClass."""

    resource = PERSISTENT_VOLUME_CLAIMS
    type = PersistentVolumeClaim

    def usage(self, subject: PersistentVolumeClaim, now: float) -> dict[str, int]:
        found = {"count/persistentvolumeclaims": UNIT, "persistentvolumeclaims": UNIT}
        storage_class = subject.metadata.annotations.get(CLASS_ANNOTATION, subject.spec.storage_class_name)
        prefix = f"{storage_class}{BY_STORAGE_CLASS}" if storage_class else ""
        if prefix:
            found[f"{prefix}persistentvolumeclaims"] = UNIT
        storage = _storage(subject)
        if storage is not None:
            found["requests.storage"] = storage
            if prefix:
                found[f"{prefix}requests.storage"] = storage
        return found

    def meets(self, requirement: ScopeRequirement, subject: PersistentVolumeClaim) -> bool:
        if requirement.scope_name != scopes.VOLUME_ATTRIBUTES_CLASS:
            return False
        return scopes.meets(requirement, _classes(subject))


def _storage(claim: PersistentVolumeClaim) -> int | None:
    """An expansion that failed and was lowered counts as long as its storage is allocated (getStorageUsage)."""
    wanted = claim.spec.resources.requests.get("storage")
    if wanted is None:
        return None
    allocated = claim.status.allocated_resources.get("storage")
    return whole(max(amount(wanted), 0 if allocated is None else amount(allocated)))


def _classes(claim: PersistentVolumeClaim) -> set[str]:
    """All that the claim has, is given or wants (getReferencedVolumeAttributesClassNames)."""
    found = (
        claim.spec.volume_attributes_class_name,
        claim.status.current_volume_attributes_class_name,
        claim.status.modify_volume_status.target_volume_attributes_class_name,
    )
    return {name for name in found if name}


EVALUATOR: Final = PersistentVolumeClaimEvaluator()
