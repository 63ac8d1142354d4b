"""The objects as the master reads them: specs whole, for a copy must not lose what this version does not know."""

from __future__ import annotations

from typing import Literal

import msgspec

from common.api.labels import GROUP, VERSION
from common.api.types import (
    AccountWait,
    Condition,
    NamespaceUse,
    Quantities,
    ResourceQuotaStatus,
    Wire,
    WireGuarantee,
)
from common.kube.client.meta import Object
from common.kube.client.resource import Resource


class Named(Object, frozen=True):
    """A Project, Organization, QuotaSettings or a Seed's copy, on the master or a seed."""

    spec: dict[str, object] = {}
    status: dict[str, object] = {}


class OrganizationNamespace(msgspec.Struct, frozen=True):
    """What the status of an Organization says of its namespace. `name` is empty while there is none to use."""

    name: str = ""
    ready: Condition | None = None


class AllocatedTypes(msgspec.Struct, frozen=True):
    """`names`: what the catalogue counts from Allocations. `seed`: a Seed with inCluster is there to count them.
    `in_use`: what some seed has counted of a quota, whatever the catalogue says now."""

    names: frozenset[str] = frozenset()
    seed: bool = False
    in_use: frozenset[str] = frozenset()


class SeedUsage(Wire):
    """One seed's line in a quota's status. `granted` is what it holds now, and `kept_for`, by project, the part of it
    that is guaranteed to the project and not used."""

    name: str
    state: str = ""
    local_usage: Quantities = {}
    granted: Quantities = {}
    kept_for: dict[str, Quantities] = {}
    last_report_time: str = ""
    waits_for: AccountWait | None = None  # of one that is Fenced


class Override(Wire):
    """An entry of `spec.overrides`. A seed's copy has none, and the limits in force in `spec.quota`."""

    until: str
    quota: Quantities
    reason: str = ""


class OverrideStatus(Override):
    """What became of it."""

    state: Literal["InForce", "EndsSoon", "Ended"] = "InForce"


class Summary(Wire):
    subject: str = ""
    usage: str = ""
    peak: str = ""
    seeds: str = ""
    raised_until: str = ""
    guaranteed: str = ""


class SurgeStatus(Wire):
    hard: Quantities = {}
    used: Quantities = {}


class FittingLimits(Wire):
    """Of a project the largest limits that fit into those of its organization, of an organization the smallest into
    which those of its projects fit."""

    most: Quantities = {}
    least: Quantities = {}
    guaranteed: Quantities = {}  # of a project, the most that can be guaranteed to it


class QuotaStatus(Wire):
    """The status of a quota on the master."""

    observed_generation: int = 0
    hard: Quantities = {}
    global_usage: Quantities = {}
    reserved: Quantities = {}
    surge: SurgeStatus = msgspec.field(default_factory=SurgeStatus)
    overrides: list[OverrideStatus] = []
    summary: Summary = msgspec.field(default_factory=Summary)
    seeds: list[SeedUsage] = []
    seeds_omitted: int = 0
    namespaces: list[NamespaceUse] = []
    namespaces_omitted: int = 0
    fits: FittingLimits = msgspec.field(default_factory=FittingLimits)
    guarantees: list[WireGuarantee] = []  # of an organization's projects
    conditions: list[Condition] = []


class MasterQuota(Object, frozen=True):
    """A quota on the master. `spec` is a `common.api.types.ResourceQuotaSpec`, whole."""

    spec: dict[str, object] = {}
    status: QuotaStatus = msgspec.field(default_factory=QuotaStatus)


class Allocated(Wire):
    hard: Quantities = {}
    used: Quantities = {}


class AllocationSummary(Wire):
    allocated: str = ""
    namespaces: int = 0


class AllocationStatus(Wire):
    """The status of a ResourceQuotaAllocation."""

    observed_generation: int = 0
    allocated: Allocated = msgspec.field(default_factory=Allocated)
    used_by_project: list[NamespaceUse] = []
    used_by_project_omitted: int = 0
    summary: AllocationSummary = msgspec.field(default_factory=AllocationSummary)
    conditions: list[Condition] = []


class QuotaAllocation(Object, frozen=True):
    """A ResourceQuotaAllocation on the master."""

    spec: dict[str, object] = {}
    status: AllocationStatus = msgspec.field(default_factory=AllocationStatus)


class QuotaCopy(Object, frozen=True):
    """A quota's copy on a seed."""

    spec: dict[str, object] = {}
    status: ResourceQuotaStatus = msgspec.field(default_factory=ResourceQuotaStatus)


MASTER_QUOTAS = Resource(GROUP, VERSION, "resourcequotas", "ResourceQuota", False, MasterQuota)
QUOTA_COPIES = Resource(GROUP, VERSION, "resourcequotas", "ResourceQuota", False, QuotaCopy)
PROJECTS = Resource(GROUP, VERSION, "projects", "Project", False, Named)
ORGANIZATIONS = Resource(GROUP, VERSION, "organizations", "Organization", False, Named)
QUOTA_SETTINGS = Resource(GROUP, VERSION, "quotasettings", "QuotaSettings", False, Named)
SEED_COPIES = Resource(GROUP, VERSION, "seeds", "Seed", False, Named)
QUOTA_ALLOCATIONS = Resource(
    GROUP, VERSION, "resourcequotaallocations", "ResourceQuotaAllocation", False, QuotaAllocation
)


def spec_guaranteed(quota: MasterQuota) -> Quantities:
    """As `spec_quota`, of what its project is guaranteed."""
    return msgspec.convert(quota.spec.get("guaranteed", {}), Quantities)


def spec_quota(quota: MasterQuota) -> Quantities:
    """Raises msgspec.ValidationError for what the API server should have refused."""
    return msgspec.convert(quota.spec.get("quota", {}), Quantities)
