"""A quota's copy on this seed, parsed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.api import cluster_selector
from common.api.cluster_selector import ClusterSelector
from common.api.convert import grant_from_wire, guarantee_from_wire, report_from_wire
from common.api.copies import original_uid
from common.api.label_selector import LabelSelector
from common.api.labels import IN_NAMESPACES_OF
from common.api.types import (
    OF_ALLOCATION,
    RESOURCE_QUOTAS_ALONE,
    AccountWait,
    ResourceQuota,
    StaleSource,
    UserCluster,
)
from common.quota import guarantees, object_names, resources, scopes, surge
from common.quota.account import AccountKey, Grant, Terms
from common.quota.escrow import Report
from common.quota.guarantees import Guarantee
from common.quota.resources import ResourceList
from common.quota.scopes import ScopeRequirement
from seed.model.cluster_key import plain_name
from seed.model.source_key import SourceKey

NAMESPACES = "namespaces"


class OutOfReach(msgspec.Struct, frozen=True):
    """Capacity that is free but held by a seed that the master cannot reach."""

    seed: str
    idle: ResourceList
    seconds: int


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A quota's copy on this seed, parsed once per change. `ceilings`: its limits, its surge and its guarantees, see
    common/quota/surge.py and guarantees.py. `of_objects`: those of its names that count objects in namespaces. `scopes`
    are for these. `clusters`: those of the part of its subject that it limits; None: all. `of_seeds`: it limits what
    its subject has on some seeds. `raised`: what overrides have raised of its limits, where the master's own object is
    the copy. `withdrawn`: it limits nothing on this seed, as the master says by this token. `selector` and `promises`
    are those of a quota of kind namespaces; `promises`: it limits what core ResourceQuotas promise."""

    key: AccountKey
    copy_uid: str  # of the object on this seed: what we publish must not land on its successor
    generation: int = 0  # of the copy: what its spec says
    version: str = ""  # the copy's resourceVersion
    kind: str
    subject: str
    selector: LabelSelector | None = None
    clusters: ClusterSelector | None = None
    of_seeds: bool = False
    withdrawn: str = ""
    scopes: tuple[ScopeRequirement, ...] = ()
    promises: bool = False
    limits: ResourceList
    raised: ResourceList = {}
    of_objects: frozenset[str] = frozenset()
    surge: ResourceList = {}
    guarantees: tuple[Guarantee, ...] = ()  # of projects of the organization whose quota it is
    ceilings: ResourceList
    enforced: bool
    warn_at_percent: int
    grant: Grant
    global_usage: ResourceList
    global_reserved: ResourceList
    out_of_reach: Sequence[OutOfReach]
    learning: bool
    draining: bool
    usage_stale: bool = False  # some of `global_usage` is an old count
    published: Report | None
    published_stale: Sequence[StaleSource] = ()
    published_unenforced: Sequence[str] = ()
    published_clusters: int = 0
    published_not_counted: Sequence[str] = ()
    published_wait: AccountWait | None = None  # what the account here waits for, as the leader says
    published_generation: int | None = None  # that every replica has, as a leader said; None: none has said anything
    published_raised: ResourceList = {}  # by which a replica may admit, as a leader said

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def allocation(self) -> str:
        """The name of the ResourceQuotaAllocation that it was made of; empty for all others."""
        return self.name.removeprefix(OF_ALLOCATION) if self.promises and self.name.startswith(OF_ALLOCATION) else ""

    @property
    def is_of_a_part(self) -> bool:
        """Whether it limits a part of what its subject has: a default quota then stays beside it."""
        return self.clusters is not None or self.of_seeds or bool(self.scopes)

    @property
    def shown_as(self) -> str:
        """What its administrator made, where that is another object. People know no quota of this name; empty for all
        others."""
        return f"resourcequotaallocation/{self.allocation}" if self.allocation else ""

    @property
    def spec(self) -> tuple[str, int]:
        """Which spec of which copy it is."""
        return self.copy_uid, self.generation

    @property
    def terms(self) -> Terms:
        return Terms(limits=self.ceilings, grant=self.grant)

    @property
    def counts_objects(self) -> bool:
        """In namespaces: also what it limited once. That is held still, and may be limited again at any moment."""
        if self.of_objects or self.published is None:
            return bool(self.of_objects)
        once = self.published.granted
        return bool(once if self.kind == NAMESPACES else object_names.of_objects(once))

    @property
    def has_blocks(self) -> bool:
        """Whether replicas may reserve ahead (rule 4.15): not where the largest of several objects counts."""
        return self.enforced and not (self.promises or self.withdrawn or self.guarantees)

    def shown(self, source: SourceKey) -> str:
        """The source, for people who read of it beside the quota's name. What is in a cluster's namespaces is another
        source than its Machines."""
        in_namespaces = source.quota and self.kind != NAMESPACES
        return f"{IN_NAMESPACES_OF}{source.cluster}" if in_namespaces else source.shown

    def picks(self, cluster: UserCluster) -> bool:
        """Whether its `clusters` are all, or this is one of them."""
        found = cluster.metadata
        return self.clusters is None or cluster_selector.picks(
            self.clusters, found.namespace, plain_name(found.name), found.labels
        )


def takes_part(cluster: UserCluster) -> bool:
    """Whether quotas count namespaces there. The seed's own API server takes part by its Seed."""
    return cluster.spec.namespace_quotas == "Enabled" and cluster.spec.kubeconfig_secret_ref is not None


def is_shared(cluster: UserCluster) -> bool:
    """Whether its namespaces are of the projects that their labels name, as those of the seed's own API server are."""
    return cluster.spec.namespace_projects == "FromLabel"


def parse_quota(copy: ResourceQuota, *, in_cluster: bool) -> Quota | None:
    """None for an object that the master did not send, or has not sent to this seed: of one that is of some seeds, the
    master's own object is there in any case. Raises QuantityError."""
    uid = original_uid(copy, in_cluster=in_cluster)
    grant, of_seeds = copy.status.grant, copy.spec.subject.seeds is not None
    if not uid or (in_cluster and of_seeds and not grant.incarnation):
        return None
    decided_with = grant if in_cluster else copy.status
    raised = resources.parse(grant.raised) if in_cluster else {}
    limits, extra = _limits(copy, raised), resources.parse(copy.spec.surge)
    kind, guaranteed = copy.spec.subject.kind, tuple(guarantee_from_wire(each) for each in grant.guarantees)
    return Quota(
        key=AccountKey(uid=uid, name=copy.metadata.name),
        copy_uid=copy.metadata.uid,
        generation=copy.metadata.generation,
        version=copy.metadata.resource_version,
        kind=kind,
        subject=copy.spec.subject.name,
        selector=copy.spec.subject.selector,
        clusters=copy.spec.subject.clusters,
        of_seeds=of_seeds,
        withdrawn=grant.withdrawn,
        scopes=scopes.requirements(copy.spec.scopes, copy.spec.scope_selector.match_expressions),
        promises=copy.spec.subject.counts == RESOURCE_QUOTAS_ALONE,
        limits=limits,
        raised=resources.only(raised, limits),
        of_objects=frozenset(limits) if kind == NAMESPACES else object_names.of_objects(limits),
        surge=extra,
        guarantees=guaranteed,
        ceilings=guarantees.ceilings(surge.ceilings(limits, extra), guaranteed),
        enforced=copy.spec.enforcement == "deny",
        warn_at_percent=copy.spec.warn_at_percent,
        grant=grant_from_wire(grant),
        global_usage=resources.parse(decided_with.global_usage),
        global_reserved=resources.parse(decided_with.reserved),
        out_of_reach=[OutOfReach(idle.seed, resources.parse(idle.idle), idle.seconds) for idle in grant.unavailable],
        learning=grant.learning,
        draining=grant.draining,
        usage_stale=grant.usage_stale,
        published=report_from_wire(copy.status.account),
        published_stale=copy.status.account.stale,
        published_unenforced=copy.status.account.unenforced,
        published_clusters=copy.status.account.clusters,
        published_not_counted=copy.status.account.not_counted,
        published_wait=copy.status.account.waits_for,
        published_generation=copy.status.account.enforced_generation,
        published_raised=resources.parse(copy.status.account.enforced_raised),
    )


def _limits(copy: ResourceQuota, raised: ResourceList) -> dict[str, int]:
    """Those in force. A copy has them as its spec. Of the master's own object, the master's grant says which of them an
    override has raised: it does not depend on a clock here. Raises QuantityError."""
    return {name: max(limit, raised.get(name, 0)) for name, limit in resources.parse(copy.spec.quota).items()}
