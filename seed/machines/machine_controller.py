"""machine-controller's Machine, `machines.cluster.k8s.io/v1alpha1`: the few fields that are read here."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from common.kube.client.meta import Object
from common.kube.client.resource import Resource

GROUP = "cluster.k8s.io"
VERSION = "v1alpha1"
PLURAL = "machines"
KIND = "Machine"

SHARED_BYTES = 16 * 1024
"""Provider specs up to this size are shared and their footprints cached. Real ones take 1 to 3 KiB."""

SHARED_SPECS = 16_384

FOOTPRINT_ANNOTATION = "seedquota.io/footprint"
"""What the Machine costs, see seed/sizing/stamp.py."""


@lru_cache(maxsize=SHARED_SPECS)
def _shared(raw: bytes) -> msgspec.Raw:
    return msgspec.Raw(raw)


class MachineSpec(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """`provider_spec` is JSON as it came, `{"value": {"cloudProvider", "cloudProviderSpec", ...}}`, or empty."""

    provider_spec: msgspec.Raw = msgspec.Raw(b"")

    def __post_init__(self) -> None:
        # A decoded Raw keeps the whole answer it came from alive, and all Machines of a MachineDeployment have the
        # same spec: a copy is shared instead, so that a Machine in a store costs a pointer.
        raw = bytes(self.provider_spec)
        kept = _shared(raw) if len(raw) <= SHARED_BYTES else msgspec.Raw(raw)
        msgspec.structs.force_setattr(self, "provider_spec", kept)


@lru_cache(maxsize=SHARED_SPECS)
def _shared_text(text: str) -> str:
    return text


class Machine(Object, kw_only=True, frozen=True):
    spec: MachineSpec = MachineSpec()

    def __post_init__(self) -> None:
        # Machines that are alike have the same stamp, too.
        stamp = self.metadata.annotations.get(FOOTPRINT_ANNOTATION)
        if stamp is not None and len(stamp) <= SHARED_BYTES:
            self.metadata.annotations[FOOTPRINT_ANNOTATION] = _shared_text(stamp)


MACHINES = Resource(GROUP, VERSION, PLURAL, KIND, True, Machine)
