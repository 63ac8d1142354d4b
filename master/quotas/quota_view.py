"""What a quota's status and its conditions are made from. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec

from common.api.types import AccountWait, NamespaceLack, NamespaceUse, ResourceQuotaSpec, StaleSource
from common.quota.guarantees import Guarantee
from common.quota.resources import ResourceList
from master.cache.objects import AllocatedTypes, OverrideStatus
from master.cache.organization_limits import OrganizationLimits

STALE_AFTER = 10.0  # seconds without contact from which a seed's count is called stale


class SeedView(msgspec.Struct, frozen=True, kw_only=True):
    """One seed as one quota sees it. `silent` is in seconds since the last contact, None: never since this start.

    `synced`: whether the seed has the quota as it is now; None: it cannot be asked. `behind`: a replica of its agent
    may admit by what the quota was before. `never_connected`: by this master or one before.
    """

    name: str
    connected: bool = True
    never_connected: bool = False
    lost: bool = False
    withdrawing: bool = False  # the quota limits nothing there any more, and what the seed holds is not given back yet
    gone: bool = False  # its Seed object was deleted, what it holds was not freed
    silent: float | None = 0.0
    agent_silent: bool = False  # it is connected, and nothing counts there
    last_report_time: str = ""
    synced: bool | None = True
    behind: bool = False
    reported: bool = True
    fenced: bool = False
    learned: bool = True
    held: ResourceList = {}
    kept_for: Mapping[str, ResourceList] = {}  # by project, what of that is guaranteed to it and not used
    use: ResourceList = {}
    reserved: ResourceList = {}
    stale_sources: Sequence[StaleSource] = ()
    unenforced: Sequence[str] = ()
    waits_for: AccountWait | None = None  # before its account admits anything
    clusters: int = 0
    picked: int = 0  # by `subject.clusters`
    not_counted: Sequence[str] = ()  # clusters of its projects whose namespaces are not
    not_served: Sequence[str] = ()  # by none of these clusters
    namespaces: Sequence[NamespaceUse] = ()
    namespaces_omitted: int = 0
    without_quota: Sequence[NamespaceLack] = ()
    without_quota_omitted: int = 0

    @property
    def limited(self) -> bool:
        """The quota limits what is there, and counts it."""
        return not (self.lost or self.withdrawing)

    @property
    def stale(self) -> bool:
        return not self.connected and (self.silent is None or self.silent >= STALE_AFTER)

    @property
    def absent(self) -> bool:
        """No quota was ever there, and it holds nothing of this one: it limits no readiness but its own."""
        return self.never_connected and not any(self.held.values()) and not any(self.use.values())

    @property
    def state(self) -> str:
        if self.lost:
            return "Lost"
        if self.withdrawing:
            return "Withdrawing"
        if self.absent:
            return "NeverConnected"
        if self.stale or self.agent_silent:
            return "Stale"
        if not self.learned:
            return "Learning"
        return "Fenced" if self.fenced or not self.reported else "Current"


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """One quota. `never_counted`: devices that it limits and no Machine was seen to have; None: not known yet.
    `organization`: whose limits and those of whose projects are compared."""

    generation: int
    spec: ResourceQuotaSpec
    limits: ResourceList
    surge: ResourceList = {}
    overrides: Sequence[OverrideStatus] = ()
    raised: ResourceList = {}  # the limits that overrides have raised
    unraised: ResourceList = {}  # ... and what they are without
    subject_exists: bool
    learning: bool
    beyond_counters: Sequence[str] = ()  # resources of which nothing can be granted any more
    never_counted: Sequence[str] | None = ()
    allocated: AllocatedTypes = AllocatedTypes()
    organization: str = ""
    organization_limits: OrganizationLimits | None = None
    overcommit: Fraction | None = None
    guarantees: Sequence[Guarantee] = ()  # of the organization's projects
    seeds: Sequence[SeedView]

    @property
    def lasting_limits(self) -> ResourceList:
        """Without what is raised for a time."""
        return {**self.limits, **self.unraised}

    @property
    def not_served(self) -> frozenset[str]:
        """What is limited, and no cluster that takes part serves objects of. What is used was served before, in another
        version for example: its last count is kept, and limited."""
        present = [seed for seed in self.seeds if seed.limited]
        said = [frozenset(seed.not_served) for seed in present if seed.clusters]
        used = {name for seed in present for name, amount in seed.use.items() if amount}
        return frozenset.intersection(*said) & self.limits.keys() - used if said else frozenset()
