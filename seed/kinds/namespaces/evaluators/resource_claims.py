"""What ResourceClaims use: k8s.io/kubernetes/pkg/quota/v1/evaluator/core/resource_claims.go."""

from __future__ import annotations

from typing import Final

import msgspec

from common.kube.client.meta import Object
from common.quota import object_names
from common.quota.object_names import BY_DEVICE_CLASS, REQUESTS_OF_CLASS, RESOURCE_CLAIMS
from common.quota.quantity import UNIT
from seed.kinds.namespaces.evaluators.amounts import MOST
from seed.kinds.namespaces.evaluators.namespaced import Counting

VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
MOST_DEVICES: Final = 32
"""That one request can be given (k8s.io/api/resource/v1, AllocationResultsMaxSize)."""


class Devices(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """Devices of one class."""

    device_class_name: str = ""
    allocation_mode: str = ""
    count: int = 0

    @property
    def most(self) -> int:
        """Modes that are not known count nothing, as in core."""
        if self.allocation_mode == "All":
            return MOST_DEVICES
        return max(self.count, 0) if self.allocation_mode == "ExactCount" else 0


class DeviceRequest(Devices, frozen=True, kw_only=True):
    """In v1beta1 the fields of `exactly` are its own."""

    exactly: Devices | None = None
    first_available: tuple[Devices, ...] = ()


class _DeviceClaim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    requests: tuple[DeviceRequest, ...] = ()


class ClaimSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    devices: _DeviceClaim = _DeviceClaim()


class ResourceClaim(Object, frozen=True, kw_only=True):
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimEvaluator(Counting[ResourceClaim]):
    resource = RESOURCE_CLAIMS
    type = ResourceClaim
    versions = VERSIONS

    def usage(self, subject: ResourceClaim, now: float) -> dict[str, int]:
        found = {object_names.count_of(RESOURCE_CLAIMS): UNIT}
        for request in subject.spec.devices.requests:
            for device_class, devices in _most(request).items():
                for name in (device_class + BY_DEVICE_CLASS, REQUESTS_OF_CLASS + device_class):
                    found[name] = min(found.get(name, 0) + devices * UNIT, MOST)
        return found


def _most(request: DeviceRequest) -> dict[str, int]:
    """The most devices of each class that the request can be given: of `firstAvailable`, one is chosen."""
    if not request.first_available:
        wanted = request.exactly or request
        return {wanted.device_class_name: wanted.most} if wanted.device_class_name else {}
    most: dict[str, int] = {}
    for wanted in request.first_available:
        most[wanted.device_class_name] = max(most.get(wanted.device_class_name, 0), wanted.most)
    return most


EVALUATOR: Final = ResourceClaimEvaluator()
