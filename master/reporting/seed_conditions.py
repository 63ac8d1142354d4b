"""What the conditions of a Seed say. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from common.api.conditions import condition, count, transition
from common.api.types import Condition
from master.quotas.conditions import listed
from master.quotas.stale_sources import age
from master.seeds.phase import AGENT_SILENT_AFTER

IN_NAMESPACES = "NamespacesEnforced"
LOCAL_QUOTAS_WRITTEN = "LocalQuotasWritten"


class SeedHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A seed apart from any quota. `connected` is False with a reason and a message."""

    generation: int
    connected: bool
    reason: str = "Connected"
    message: str = ""
    synced: bool | None = None
    outstanding: int = 0
    failing: str = ""  # why one of them fails
    fenced: Sequence[str] = ()  # quotas whose account is fenced
    learning: Sequence[str] = ()  # quotas that wait for this seed's answer
    own_version: str = ""
    version: str = ""  # of the seed's agent
    said: Sequence[Condition] = ()  # ... and its conditions
    silent: float = 0.0  # seconds since it said anything


def skewed(own: str, other: str) -> bool:
    """Whether master and seed are more than one minor version apart. Of what is no version nothing is known."""
    found = [re.match(r"v?(\d+)\.(\d+)", text) for text in (own, other)]
    (major, minor), (other_major, other_minor) = [map(int, each.groups()) if each else (0, 0) for each in found]
    return all(found) and (major != other_major or abs(minor - other_minor) > 1)


def seed_conditions(view: SeedHealth, before: list[Condition], now: str) -> list[Condition]:
    skew = view.connected and skewed(view.own_version, view.version)
    if skew:
        versions = f"the seed runs version {view.version}, the master {view.own_version}"
        connected = condition("Connected", True, "VersionSkew", f"{versions}: one minor version apart is supported")
    else:
        connected = condition("Connected", view.connected, view.reason, view.message)
    if view.synced is None:
        synced = condition("Synced", None, "NotConnected", "the seed cannot be asked what it has")
    elif view.synced:
        synced = condition("Synced", True, "AllCopies", "the seed has all projects and quotas")
    else:
        why = f"{count(view.outstanding, 'object')} not yet in sync"
        synced = condition("Synced", False, "CopiesOutstanding", f"{why}: {view.failing}" if view.failing else why)
    if not view.connected:
        accounts = condition("AccountsOpen", None, "NotConnected", "the seed cannot be asked")
    elif view.learning:
        accounts = condition("AccountsOpen", False, "Learning", f"waiting for its answer about {listed(view.learning)}")
    elif view.fenced:
        why = f"nothing is admitted until everything is recounted, under {listed(view.fenced)}"
        accounts = condition("AccountsOpen", False, "Fenced", why)
    else:
        accounts = condition("AccountsOpen", True, "AllOpen", "every account admits")
    parts, said = (connected, synced, accounts), (_webhook_serving(view), *_of_namespaces(view))
    found = (_ready(parts, said), *parts, *said)
    conditions = [msgspec.structs.replace(each, observed_generation=view.generation) for each in found]
    return transition(before, conditions, now)


def _ready(parts: Sequence[Condition], said: Sequence[Condition]) -> Condition:
    """`said`: by the agent, that the webhook serves first."""
    failed = next((part for part in parts if part.status != "True" or part.reason == "VersionSkew"), None)
    if failed is not None:
        return condition("Ready", False, failed.reason, failed.message)
    if said[0].status != "True":
        return msgspec.structs.replace(said[0], type="Ready")
    unchecked = next((each for each in said if (each.type, each.status) == (IN_NAMESPACES, "False")), None)
    if unchecked is not None:
        return msgspec.structs.replace(unchecked, type="Ready")
    return condition("Ready", True, "Ready", "connected, in sync, all accounts open, the webhook serves")


def _of_namespaces(view: SeedHealth) -> list[Condition]:
    """Of the seed's own API server. There are none where its namespaces are not counted."""
    said = [each for each in view.said if each.type in (IN_NAMESPACES, LOCAL_QUOTAS_WRITTEN)]
    if not view.connected:
        return [condition(each.type, None, "NotConnected", "the seed cannot be asked") for each in said]
    if view.silent >= AGENT_SILENT_AFTER:
        why = f"no agent on the seed has led for {age(view.silent)}"
        return [
            condition(each.type, None, "AgentSilent", f"{why}; the last one reported {each.reason}") for each in said
        ]
    return [msgspec.structs.replace(each, last_transition_time="") for each in said]


def _webhook_serving(view: SeedHealth) -> Condition:
    kind = "WebhookServing"
    said = next((each for each in view.said if each.type == kind), None)
    if not view.connected:
        return condition(kind, None, "NotConnected", "the seed cannot be asked")
    if said is None:
        return condition(kind, None, "NotReported", "no agent on the seed has reported yet whether API servers ask it")
    if view.silent >= AGENT_SILENT_AFTER:
        why = f"no agent on the seed has led for {age(view.silent)}; the last one reported {said.reason}"
        return condition(kind, None, "AgentSilent", why)
    return msgspec.structs.replace(said, last_transition_time="")
