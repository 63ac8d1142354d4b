"""machine-controller's Machine, `machines.cluster.k8s.io/v1alpha1`: the few fields that are read here."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec

from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Broken, Resource

GROUP = "cluster.k8s.io"
VERSION = "v1alpha1"
PLURAL = "machines"
KIND = "Machine"

LONGEST_SPEC = 64 * 1024
"""Bytes of a provider spec that is read."""

SHARED_BYTES = 4 * 1024
"""Provider specs up to this size are shared and their footprints cached. Real ones take 1 to 3 KiB."""

SHARED_SPECS = 4096
"""So many in each cache: whoever writes other specs again and again must not fill the memory."""

MAX_NAMES = 256
"""Labels of a Machine that are kept, and owners and finalizers likewise: with more, none of them."""

MAX_ANNOTATIONS = 16 * 1024
"""Characters of its annotations that are kept: with more, only the footprint is."""

MOST = 96 * 2**20
"""Bytes of all Machines of one user cluster. A usual one takes 6 KiB if it shares nothing: of 16,000."""

EMPTY, OF_TEXT = 1024, 60
"""Bytes that a Machine takes without its texts, and each of those beside its characters."""

TOO_LARGE = b'{"largerThanIsRead":"'
"""How a provider spec begins that stands for a larger one: by its hash, so that a change of it is seen."""

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
        if len(raw) > LONGEST_SPEC:
            raw = b'%b%b"}' % (TOO_LARGE, hashlib.sha256(raw).hexdigest().encode())
        kept = _shared(raw) if len(raw) <= SHARED_BYTES else msgspec.Raw(raw)
        msgspec.structs.force_setattr(self, "provider_spec", kept)


class UnreadSpec(MachineSpec, frozen=True):
    """Of a Machine that cannot be read."""

    error: str = ""


@lru_cache(maxsize=SHARED_SPECS)
def _shared_text(text: str) -> str:
    return text


def _trim(metadata: ObjectMeta) -> None:
    """Machines are kept by the thousand, and an API server bounds each of them by a megabyte only."""
    if max(len(metadata.labels), len(metadata.owner_references), len(metadata.finalizers)) > MAX_NAMES:
        metadata.labels.clear()
        for name in ("owner_references", "finalizers"):
            msgspec.structs.force_setattr(metadata, name, ())
    annotations = metadata.annotations
    if sum(map(len, annotations)) + sum(map(len, annotations.values())) > MAX_ANNOTATIONS:
        stamp = annotations.get(FOOTPRINT_ANNOTATION)
        first = next(iter(annotations))
        annotations.clear()
        if stamp is not None:
            annotations[FOOTPRINT_ANNOTATION] = stamp[:MAX_ANNOTATIONS]
        else:
            annotations[first[:MAX_NAMES]] = ""  # it has some


class Machine(Object, kw_only=True, frozen=True):
    spec: MachineSpec = MachineSpec()

    def __post_init__(self) -> None:
        _trim(self.metadata)
        # Machines that are alike have the same stamp, too.
        stamp = self.metadata.annotations.get(FOOTPRINT_ANNOTATION)
        if stamp is not None and len(stamp) <= SHARED_BYTES:
            self.metadata.annotations[FOOTPRINT_ANNOTATION] = _shared_text(stamp)


def unread(broken: Broken) -> Machine:
    """Stands for one that cannot be read: it is there, and what it takes is not known."""
    return Machine(metadata=broken.metadata, spec=UnreadSpec(error=broken.error))


def weigh(machine: Machine) -> int:
    """About the bytes that it takes here if it shares nothing with others."""
    metadata = machine.metadata
    texts = [
        *(metadata.name, metadata.namespace, *metadata.finalizers),
        *(text for named in (metadata.labels, metadata.annotations) for entry in named.items() for text in entry),
        *(text for by in metadata.owner_references for text in (by.name, by.uid, by.kind, by.api_version)),
    ]
    return EMPTY + len(bytes(machine.spec.provider_spec)) + sum(map(len, texts)) + OF_TEXT * len(texts)


MACHINES = Resource(GROUP, VERSION, PLURAL, KIND, True, Machine, most=MOST, weigh=weigh)
