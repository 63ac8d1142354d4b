"""What a Lease object says of its holder and of its own history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from common.kube.client.meta import Object
from common.kube.client.resource import Resource

MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
WRITES_ANNOTATION = "seedquota.io/writes"  # grows with every write of the record: a restored backup shows an older one
SINCE_ANNOTATION = "seedquota.io/unbroken-since"  # the first term of the run that the record's belongs to
SETTLED_ANNOTATION = "seedquota.io/settled-since"  # the first term of the last run whose doubts were settled


class LeaseSpec(Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class LeaseObject(Object, frozen=True):
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True, type=LeaseObject)


def writes_of(record: LeaseObject) -> int:
    return count_of(record, WRITES_ANNOTATION)


def count_of(record: LeaseObject, annotation: str) -> int:
    """0 where another program wrote the record: then it proves nothing."""
    text = record.metadata.annotations.get(annotation, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def timestamp(after: str | None) -> str:
    """The wall clock as a MicroTime, only for people to read; never the same as `after`, so that a record changes."""
    now = datetime.now(UTC)
    text = now.strftime(MICRO_TIME)
    return text if text != after else (now + timedelta(microseconds=1)).strftime(MICRO_TIME)
