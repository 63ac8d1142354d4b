"""The stamp on a Machine: what it costs and how that was found, sealed so that nobody but us can write one. Pure.

The seal is a keyed hash over the stamp, which names the user cluster and a hash of the provider spec it was made for: a
stamp that is carried to another Machine or outlives its spec is true to its seal and still not valid. It also names the
place that the cloud was asked at, which is not in the spec where that has references.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import lru_cache

import msgspec

from common.api.convert import wire_quantities
from common.api.types import Quantities
from common.quota import names, resources
from common.quota.quantity import QuantityError
from seed.machines.machine_controller import (
    FOOTPRINT_ANNOTATION,
    SHARED_BYTES,
    SHARED_SPECS,
    Machine,
)
from seed.providers.flavour import type_name
from seed.providers.size import Footprint

MAX_LENGTH = 8192  # with as many names as a Machine may have, each as long as it may be, it is shorter

Seal = Callable[[bytes], str]
"""Hex of a hash under the seed's key."""

CheckSeal = Callable[[bytes, str], bool]


class Stamp(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`footprint`: without the count by machine type, which `flavour` tells. `as_of`: when the cloud said so (RFC
    3339), and `place`: where, see Place.digest; both are empty, as is `flavour`, where the spec itself tells the
    size."""

    footprint: Quantities
    unknown: dict[str, str] = {}
    provider: str
    flavour: str = ""
    as_of: str = ""
    place: str = ""
    cluster: str
    spec: str
    seal: str = ""

    def cost(self) -> Footprint:
        """Raises QuantityError, which a stamp with a true seal never does."""
        cost = Footprint(self.provider, resources.parse(self.footprint), self.unknown).bounded()
        return cost.of_type(type_name(self.flavour)) if self.flavour else cost


class State(Enum):
    ABSENT = "absent"
    VALID = "valid"
    OTHER = "other"  # ours, but of another spec or cluster
    FORGED = "forged"


def text_of(machine: Machine) -> str | None:
    return machine.metadata.annotations.get(FOOTPRINT_ANNOTATION)


def make(
    machine: Machine, cluster_uid: str, cost: Footprint, flavour: str, as_of: str, seal: Seal, place: str = ""
) -> str:
    """The annotation's text."""
    counts_type = names.of_instances(type_name(flavour)) if flavour else ""
    stamp = Stamp(
        footprint=wire_quantities({name: cost.resources[name] for name in cost.resources if name != counts_type}),
        unknown=dict(cost.unknown),
        provider=cost.provider,
        flavour=flavour,
        as_of=as_of,
        place=place,
        cluster=cluster_uid,
        spec=spec_hash(machine),
    )
    return _encode(msgspec.structs.replace(stamp, seal=seal(_sealed(stamp)))).decode()


def read(machine: Machine, cluster_uid: str, check: CheckSeal) -> tuple[State, Stamp | None]:
    """The stamp only where it is valid."""
    text = text_of(machine)
    if text is None:
        return State.ABSENT, None
    stamp = _parse(text) if len(text) <= MAX_LENGTH else None
    if stamp is None or not check(_sealed(stamp), stamp.seal):
        return State.FORGED, None
    if stamp.cluster != cluster_uid or stamp.spec != spec_hash(machine):
        return State.OTHER, None
    return State.VALID, stamp


def tampered(machine: Machine, old: Machine | None, cluster_uid: str, check: CheckSeal) -> bool:
    """True if the stamp is not ours, or is one of ours that makes a Machine which did not change cost something else.

    A stamp that the Machine had before harms nobody: the key may be a new one since, or the cluster another. Taking
    the stamp away is no tampering: the Machine is sized anew.
    """
    if old is not None and old.metadata.annotations.get(FOOTPRINT_ANNOTATION) == machine.metadata.annotations.get(
        FOOTPRINT_ANNOTATION
    ):
        return False
    state, now = read(machine, cluster_uid, check)
    if state is State.FORGED:
        return True
    if now is None or old is None or spec_hash(old) != spec_hash(machine):
        return False
    before = read(old, cluster_uid, check)[1]
    return before is not None and before.footprint != now.footprint


@lru_cache(maxsize=SHARED_SPECS)
def _parse(text: str) -> Stamp | None:
    try:
        stamp = _decode(text)
        stamp.cost()
    except (msgspec.MsgspecError, UnicodeError, RecursionError, QuantityError):
        return None
    return stamp


def _sealed(stamp: Stamp) -> bytes:
    return _encode(msgspec.structs.replace(stamp, seal=""))


def spec_hash(machine: Machine) -> str:
    """Of the provider spec; the same for every way in which an API server may write the same JSON."""
    raw = bytes(machine.spec.provider_spec)
    return _shared_hash(raw) if len(raw) <= SHARED_BYTES else _hash(raw)


@lru_cache(maxsize=SHARED_SPECS)
def _shared_hash(raw: bytes) -> str:
    return _hash(raw)


def _hash(raw: bytes) -> str:
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):  # then it is hashed as it is
        raw = _encode(msgspec.json.decode(raw or b"null"))
    return hashlib.sha256(raw).hexdigest()[:32]


_decode = msgspec.json.Decoder(Stamp).decode
_encode = msgspec.json.Encoder(order="sorted").encode
