"""Events of events.k8s.io/v1: what `kubectl describe` shows below an object. No I/O."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

import msgspec

from common.kube.client.meta import Object
from common.kube.client.resource import Resource

MAX_NOTE = 1024  # bytes
MAX_INSTANCE = 128


class Event(Object, frozen=True, kw_only=True):
    pass


EVENTS = Resource("events.k8s.io", "v1", "events", "Event", True, Event)


class Regarding(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The object that an Event is about."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""


def microtime() -> str:
    """The wall clock, as Events show it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def event_name(regarding: Regarding) -> str:
    return f"{regarding.name[:200]}.{secrets.token_hex(8)}"


def event(
    name: str,
    regarding: Regarding,
    *,
    reason: str,
    note: str,
    warning: bool,
    action: str,
    controller: str,
    instance: str,
    time: str,
) -> dict[str, object]:
    """The Event's body. One about an object without a namespace is in `default`."""
    return {
        "metadata": {"name": name, "namespace": regarding.namespace or "default"},
        "eventTime": time,
        "reportingController": controller,
        "reportingInstance": instance[:MAX_INSTANCE],
        "action": action,
        "reason": reason,
        "type": "Warning" if warning else "Normal",
        "note": note.encode()[:MAX_NOTE].decode(errors="ignore"),
        "regarding": msgspec.to_builtins(regarding),
    }
