"""The objects of group `seedquota.io/v1alpha1` as both programs read them, and the protocol's messages on the wire.

Narrow on purpose: only the fields that some code reads; all others pass by undecoded. The schemas are in charts/crds.
Quantities stay text here; `common.quota.resources` makes exact integers of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from common.api import bounded
from common.api.cluster_selector import ClusterSelector
from common.api.label_selector import LabelSelector
from common.api.labels import GROUP, VERSION
from common.api.seed_selector import SeedSelector
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.quota.scopes import ScopeRequirement

GENERATION_ANNOTATION = "seedquota.io/generation"  # on a seed's copy: that of the master's object it was made from
# On a Seed or a UserCluster: the uid of the cluster that takes the place of the one before.
ACCEPT_CLUSTER_ANNOTATION = "seedquota.io/accept-cluster"

RESOURCE_QUOTAS_ALONE = "ResourceQuotas"
OF_ALLOCATION = "allocation."  # begins the name of the quota that is made of a ResourceQuotaAllocation

Quantities = dict[str, str | int]

_MOST_LINES = msgspec.Meta(max_length=32)  # of one list in a report


class Wire(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A part of an object; absent fields are empty, and empty fields are not written."""


class SecretRef(Wire):
    name: str = ""
    key: str = "kubeconfig"


class Condition(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Every field is written, also an empty message: the API server wants them all."""

    type: bounded.ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: bounded.Reason = ""
    message: bounded.Message = ""
    observed_generation: bounded.Number = 0
    last_transition_time: str = ""


class Subject(Wire):
    """`selector` picks namespaces. `clusters` narrows any subject to what it has in some user clusters, `seeds` to what
    it has on some seeds. `counts`: what in the namespaces; empty for objects, RESOURCE_QUOTAS_ALONE for what core
    ResourceQuotas promise."""

    kind: str
    name: str = ""
    counts: str = ""
    selector: LabelSelector | None = None
    clusters: ClusterSelector | None = None
    seeds: SeedSelector | None = None


class ScopeSelector(Wire):
    match_expressions: tuple[ScopeRequirement, ...] = ()


class ResourceQuotaSpec(Wire):
    subject: Subject
    quota: Quantities
    surge: Quantities = {}
    guaranteed: Quantities = {}
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector = msgspec.field(default_factory=ScopeSelector)
    enforcement: Literal["deny", "warn"] = "deny"
    warn_at_percent: int = 90


class WireAsk(Wire):
    number: bounded.Number = 0
    first: bounded.Amounts = {}
    wanted: bounded.Amounts = {}


class AccountWait(Wire):
    """What an account that admits nothing waits for, see common/api/account_waits.py. `sources`: the first few of those
    that were not listed yet, of reason Sources. `kinds`: the first few that lack a list in any of them. `until`: when
    the in-flight window ends, by the seed's clock. It is for people only."""

    reason: bounded.Token = ""
    sources: bounded.FewNames = ()
    sources_omitted: bounded.Count = 0
    kinds: bounded.FewNames = ()
    kinds_omitted: bounded.Count = 0
    until: bounded.Token = ""


class WireReport(Wire):
    incarnation: bounded.Token = ""
    sequence: bounded.Number = 0
    master: bounded.Token = ""
    state: bounded.Token = ""
    nonce: bounded.Token = ""
    granted: bounded.Counters = {}
    returned: bounded.Counters = {}
    used: bounded.Amounts = {}
    reserved: bounded.Counters = {}
    projects: bounded.Counters = {}  # of both, what projects with a guarantee have, by its counter
    ask: WireAsk = msgspec.field(default_factory=WireAsk)
    stale: Annotated[tuple[StaleSource, ...], _MOST_LINES] = ()
    unenforced: bounded.SourceNames = ()
    clusters: bounded.Count = 0  # in which it may count namespaces
    picked: bounded.Count = 0  # that `subject.clusters` picks; 0 without it
    not_counted: bounded.ClusterNames = ()  # clusters of its projects whose namespaces are not counted
    namespaces: Annotated[tuple[NamespaceUse, ...], _MOST_LINES] = ()
    namespaces_omitted: bounded.Count = 0
    without_quota: Annotated[tuple[NamespaceLack, ...], _MOST_LINES] = ()
    without_quota_omitted: bounded.Count = 0
    enforced_generation: bounded.Number | None = None  # of the copy that every replica has; None: it is not known
    enforced_raised: bounded.Amounts = {}  # by overrides, above the limits of the spec: a replica may admit by that
    waits_for: AccountWait | None = None  # None: for nothing, or the agent does not say it
    not_served: bounded.ResourceNames = ()  # what is limited, and served by no cluster of the seed that takes part
    withdrawn: bounded.Token = ""  # that of the grant, once all that was held is given back and the account is closed


class NamespaceUse(Wire):
    """What one namespace has of a quota. `project`: that it is of; empty if it is of none, or its seed does not say."""

    cluster: bounded.ClusterName
    namespace: bounded.NamespaceName
    project: bounded.ProjectName = ""
    used: bounded.FewAmounts = {}


class NamespaceLack(Wire):
    """What no core ResourceQuota of the namespace limits, of what a quota of promises does."""

    cluster: bounded.ClusterName
    namespace: bounded.NamespaceName
    resources: bounded.ResourceNames = ()


class StaleSource(Wire):
    """A source whose last count is kept because it cannot be reached; `seconds` since it last could. `never_counted`:
    there is no last count. `not_listed`: it can be reached, and this is what of it cannot be listed, and why."""

    source: bounded.SourceName
    seconds: bounded.Number = 0
    never_counted: bool = False
    not_listed: bounded.Text = ""


class WireIdle(Wire):
    seed: str
    idle: Quantities = {}
    seconds: int = 0


class WireGuarantee(Wire):
    """What a project is guaranteed of its organization's quota, and what of that it uses everywhere."""

    project: str
    hard: Quantities = {}
    used: Quantities = {}


class WireGrant(Wire):
    incarnation: bounded.Token = ""
    account: bounded.Token = ""
    nonce: bounded.Token = ""
    granted: bounded.Counters = {}
    returned: bounded.Counters = {}
    recall: bounded.Counters = {}
    # To projects of an organization. An earlier release would give back what is in use: its recall is another field.
    guarantees: tuple[WireGuarantee, ...] = ()
    recall_guaranteed: bounded.Counters = {}
    answered: bounded.Number = 0
    seen: bounded.Number = 0
    unbroken: bool = False
    learning: bool = False
    draining: bool = False
    usage_stale: bool = False
    withdrawn: bounded.Token = ""  # the quota limits nothing on this seed, which is to give back all that it holds
    unavailable: tuple[WireIdle, ...] = ()
    # What it was decided with, on the master's own object. On a copy it is in the status itself, and in the spec.
    raised: Quantities = {}  # the limits in force that overrides have raised
    global_usage: Quantities = {}
    reserved: Quantities = {}


class ResourceQuotaStatus(Wire):
    observed_generation: int = 0
    hard: Quantities = {}
    global_usage: Quantities = {}
    local_usage: Quantities = {}
    reserved: Quantities = {}
    grant: WireGrant = msgspec.field(default_factory=WireGrant)
    account: WireReport = msgspec.field(default_factory=WireReport)
    conditions: tuple[Condition, ...] = ()


class ResourceQuota(Object, frozen=True, kw_only=True):
    spec: ResourceQuotaSpec
    status: ResourceQuotaStatus = msgspec.field(default_factory=ResourceQuotaStatus)


class ProjectSpec(Wire):
    display_name: str = ""
    organization: str = ""


class Project(Object, frozen=True, kw_only=True):
    spec: ProjectSpec = msgspec.field(default_factory=ProjectSpec)


class OrganizationSpec(Wire):
    display_name: str = ""


class OrganizationStatus(Wire):
    namespace: str = ""


class Organization(Object, frozen=True, kw_only=True):
    spec: OrganizationSpec = msgspec.field(default_factory=OrganizationSpec)
    status: OrganizationStatus = msgspec.field(default_factory=OrganizationStatus)


MAX_AMOUNT = 2**53 - 1  # what every reader of JSON has exactly
Amount = Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)]


class AllocatedResource(Wire):
    """`committed` is always there, `reserved` may come in addition. Their sum counts."""

    type: str
    committed: Amount = 0
    reserved: Amount = 0


class AllocationSpec(Wire):
    organization: str
    project: str
    kind: str
    id: str
    resources: list[AllocatedResource] = []


class Allocation(Object, frozen=True, kw_only=True):
    """What a service has allocated for one thing of a project. It is in the namespace of the organization."""

    spec: AllocationSpec


class DefaultQuota(Wire):
    quota: Quantities
    enforcement: Literal["deny", "warn"] = "deny"
    warn_at_percent: int = 90


class Defaults(Wire):
    project: DefaultQuota | None = None
    organization: DefaultQuota | None = None


class CatalogueEntry(Wire):
    """A resource that quotas may limit, and from which side its use is counted."""

    name: str
    display_name: str = ""
    description: str = ""
    unit: str = ""
    count_from: Literal["Allocations", "Objects"] = "Objects"


class QuotaSettingsSpec(Wire):
    defaults: Defaults = msgspec.field(default_factory=Defaults)
    resources: list[CatalogueEntry] = []
    scale_check: Literal["warn", "deny", "off"] = "warn"
    unknown_projects: Literal["Deny", "Allow"] = "Deny"
    overcommit: str | int | None = None  # None: the limits of projects may be any times their organization's


class QuotaSettings(Object, frozen=True, kw_only=True):
    """The one of them is called SETTINGS."""

    spec: QuotaSettingsSpec = msgspec.field(default_factory=QuotaSettingsSpec)


NamespaceQuotas = Literal["Enabled", "Disabled"]  # whether quotas count the namespaces of a cluster


class SeedSpec(Wire):
    """Exactly one is set: `kubeconfig_secret_ref`, or `in_cluster`, which says that the master's own API server is the
    seed. `namespace_quotas` is for the seed's own API server."""

    kubeconfig_secret_ref: SecretRef | None = None
    in_cluster: bool = False
    state: Literal["Active", "Draining", "Lost"] = "Active"
    namespace_quotas: NamespaceQuotas = "Disabled"


class AgentStatus(Wire):
    """What a seed's agent says of the seed."""

    last_seen_time: str = ""
    version: bounded.Token = ""
    clusters: bounded.Count | None = None
    exempt_namespaces: bounded.NamespaceNames = ()
    conditions: Annotated[list[Condition], msgspec.Meta(max_length=16)] = []


class SeedStatus(AgentStatus):
    """`agent` is set only on the original: on a copy, all of the status is the agent's. `master_namespace`: where the
    master runs, if the seed is the master's own API server."""

    cluster_uid: str = msgspec.field(default="", name="clusterUID")
    master_namespace: str = ""
    agent: AgentStatus = msgspec.field(default_factory=AgentStatus)


class Seed(Object, frozen=True, kw_only=True):
    spec: SeedSpec
    status: SeedStatus = msgspec.field(default_factory=SeedStatus)


class SeedCopySpec(Wire):
    copy_of: str = ""
    in_cluster: bool = False
    state: Literal["Active", "Draining", "Lost"] = "Active"
    namespace_quotas: NamespaceQuotas = "Disabled"


class SeedCopy(Object, frozen=True, kw_only=True):
    """The Seed as the seed itself reads it, a copy or, in the master's cluster, the original: there its leader says how
    the seed is."""

    spec: SeedCopySpec = msgspec.field(default_factory=SeedCopySpec)
    status: SeedStatus = msgspec.field(default_factory=SeedStatus)


class CredentialsRef(Wire):
    name: str


class ProviderRef(Wire):
    name: str
    region: str = ""
    credentials_secret_ref: CredentialsRef | None = None


class UserClusterSpec(Wire):
    project: str
    namespace_projects: Literal["FromCluster", "FromLabel"] = "FromCluster"  # whose its namespaces are
    kubeconfig_secret_ref: SecretRef | None = None
    provider: ProviderRef | None = None
    namespace_quotas: NamespaceQuotas = "Disabled"


class UnadmittedMachines(Wire):
    machines: int = 0
    uids: list[str] = []


class CloudQuota(Wire):
    """Of a cloud account. Without `as_of` it was never told; `problem` says why it could not be asked last."""

    place: str = ""
    limits: Quantities = {}
    used: Quantities = {}
    as_of: str = ""
    problem: str = ""


class UserClusterStatus(Wire):
    machines: int = 0
    unadmitted: UnadmittedMachines = msgspec.field(default_factory=UnadmittedMachines)
    resource_usage: Quantities = {}
    last_count_time: str = ""
    cloud_quota: CloudQuota | None = None
    cluster_uid: str = msgspec.field(name="clusterUID", default="")
    conditions: list[Condition] = []


class UserCluster(Object, frozen=True, kw_only=True):
    spec: UserClusterSpec
    status: UserClusterStatus = msgspec.field(default_factory=UserClusterStatus)


RESOURCE_QUOTAS = Resource(GROUP, VERSION, "resourcequotas", "ResourceQuota", False, ResourceQuota)
PROJECTS = Resource(GROUP, VERSION, "projects", "Project", False, Project)
ORGANIZATIONS = Resource(GROUP, VERSION, "organizations", "Organization", False, Organization)
ALLOCATIONS = Resource(GROUP, VERSION, "allocations", "Allocation", True, Allocation)
QUOTA_SETTINGS = Resource(GROUP, VERSION, "quotasettings", "QuotaSettings", False, QuotaSettings)
SEEDS = Resource(GROUP, VERSION, "seeds", "Seed", False, Seed)
SEED_COPIES = Resource(GROUP, VERSION, "seeds", "Seed", False, SeedCopy)
USER_CLUSTERS = Resource(GROUP, VERSION, "userclusters", "UserCluster", True, UserCluster)
