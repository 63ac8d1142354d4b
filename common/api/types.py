"""The objects of group `seedquota.io/v1alpha1` as both programs read them, and the protocol's messages on the wire.

Narrow on purpose: only the fields that some code reads; all others pass by undecoded. The schemas are in charts/crds.
Quantities stay text here; `common.quota.resources` makes exact integers of them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.quota import resources
from common.quota.account import Ask, Grant
from common.quota.escrow import Holding, MasterLedger, Report

GROUP = "seedquota.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

UID_LABEL = "seedquota.io/uid"  # on a seed's copy: the uid of the master's object
GENERATION_ANNOTATION = "seedquota.io/generation"  # on a seed's copy: that of the master's object it was made from
RELEASED_ANNOTATION = "seedquota.io/released"  # on a seed's copy that the master itself removes
LEDGER_ANNOTATION = "seedquota.io/ledger"  # on the master's quota: the incarnation of its ledger
# On a Seed or a UserCluster: the uid of the cluster that takes the place of the one before.
ACCEPT_CLUSTER_ANNOTATION = "seedquota.io/accept-cluster"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MASTER_MANAGER = "seedquota-master"  # field managers: each side owns its own fields
SEED_MANAGER = "seedquota-seed"
DEFAULT_LABEL = "seedquota.io/default"  # "true" on a quota that follows QuotaSettings.spec.defaults
SETTINGS = "default"  # the name of the one QuotaSettings
BACKUP_LABEL = "velero.io/exclude-from-backup"

Quantities = dict[str, str | int]


class Wire(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A part of an object; absent fields are empty, and empty fields are not written."""


class SecretRef(Wire):
    name: str = ""
    key: str = "kubeconfig"


class Condition(msgspec.Struct, kw_only=True, rename="camel"):
    """Every field is written, also an empty message: the API server wants them all."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class Subject(Wire):
    kind: str
    name: str = ""
    selector: dict[str, object] | None = None


class ResourceQuotaSpec(Wire):
    subject: Subject
    quota: Quantities
    surge: Quantities = {}
    enforcement: Literal["deny", "warn"] = "deny"
    warn_at_percent: int = 90


class WireAsk(Wire):
    number: int = 0
    first: Quantities = {}
    wanted: Quantities = {}


class WireReport(Wire):
    incarnation: str = ""
    sequence: int = 0
    master: str = ""
    state: str = ""
    nonce: str = ""
    granted: Quantities = {}
    returned: Quantities = {}
    used: Quantities = {}
    reserved: Quantities = {}
    ask: WireAsk = msgspec.field(default_factory=WireAsk)
    stale: list[StaleSource] = []
    unenforced: list[str] = []
    enforced_generation: int | None = None  # of the copy, which every replica has; None: the agent does not know of it


class StaleSource(Wire):
    """A source whose last count is kept because it cannot be reached; `seconds` since it last could."""

    source: str
    seconds: int = 0


class WireIdle(Wire):
    seed: str
    idle: Quantities = {}
    seconds: int = 0


class WireGrant(Wire):
    incarnation: str = ""
    account: str = ""
    nonce: str = ""
    granted: Quantities = {}
    returned: Quantities = {}
    recall: Quantities = {}
    answered: int = 0
    seen: int = 0
    unbroken: bool = False
    learning: bool = False
    draining: bool = False
    unavailable: list[WireIdle] = []


class ResourceQuotaStatus(Wire):
    observed_generation: int = 0
    hard: Quantities = {}
    global_usage: Quantities = {}
    local_usage: Quantities = {}
    reserved: Quantities = {}
    grant: WireGrant = msgspec.field(default_factory=WireGrant)
    account: WireReport = msgspec.field(default_factory=WireReport)
    conditions: list[Condition] = []


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


class Organization(Object, frozen=True, kw_only=True):
    spec: OrganizationSpec = msgspec.field(default_factory=OrganizationSpec)


class DefaultQuota(Wire):
    quota: Quantities
    enforcement: Literal["deny", "warn"] = "deny"
    warn_at_percent: int = 90


class Defaults(Wire):
    project: DefaultQuota | None = None
    organization: DefaultQuota | None = None


class QuotaSettingsSpec(Wire):
    defaults: Defaults = msgspec.field(default_factory=Defaults)
    scale_check: Literal["warn", "deny", "off"] = "warn"


class QuotaSettings(Object, frozen=True, kw_only=True):
    """The one of them is called SETTINGS."""

    spec: QuotaSettingsSpec = msgspec.field(default_factory=QuotaSettingsSpec)


class SeedSpec(Wire):
    kubeconfig_secret_ref: SecretRef
    state: Literal["Active", "Draining", "Lost"] = "Active"


class SeedStatus(Wire):
    last_seen_time: str = ""
    version: str = ""
    clusters: int | None = None
    cluster_uid: str = msgspec.field(default="", name="clusterUID")
    conditions: list[Condition] = []


class Seed(Object, frozen=True, kw_only=True):
    spec: SeedSpec
    status: SeedStatus = msgspec.field(default_factory=SeedStatus)


class SeedCopy(Object, frozen=True, kw_only=True):
    """The copy of its Seed that a seed has, as the seed reads it: there its leader says how the seed is."""

    status: SeedStatus = msgspec.field(default_factory=SeedStatus)


class CredentialsRef(Wire):
    name: str


class ProviderRef(Wire):
    name: str
    region: str = ""
    credentials_secret_ref: CredentialsRef | None = None


class UserClusterSpec(Wire):
    project: str
    kubeconfig_secret_ref: SecretRef | None = None
    provider: ProviderRef | None = None


class UserClusterStatus(Wire):
    machines: int = 0
    resource_usage: Quantities = {}
    last_count_time: str = ""
    cluster_uid: str = msgspec.field(name="clusterUID", default="")
    conditions: list[Condition] = []


class UserCluster(Object, frozen=True, kw_only=True):
    spec: UserClusterSpec
    status: UserClusterStatus = msgspec.field(default_factory=UserClusterStatus)


class WireHolding(Wire):
    account: str = ""
    granted: Quantities = {}
    returned: Quantities = {}
    learned: bool = True
    nonce: str = ""


class WireMasterLedger(Wire):
    incarnation: str
    learning: bool = False
    seeds: dict[str, WireHolding] = {}


class QuotaRef(Wire):
    name: str
    uid: str


class MasterQuotaLedger(Object, frozen=True, kw_only=True):
    """The master's QuotaLedger: G and R for every seed. The seed's own is in seed/ledger."""

    quota: QuotaRef
    grants: WireMasterLedger | None = None


RESOURCE_QUOTAS = Resource(GROUP, VERSION, "resourcequotas", "ResourceQuota", False, ResourceQuota)
PROJECTS = Resource(GROUP, VERSION, "projects", "Project", False, Project)
ORGANIZATIONS = Resource(GROUP, VERSION, "organizations", "Organization", False, Organization)
QUOTA_SETTINGS = Resource(GROUP, VERSION, "quotasettings", "QuotaSettings", False, QuotaSettings)
SEEDS = Resource(GROUP, VERSION, "seeds", "Seed", False, Seed)
SEED_COPIES = Resource(GROUP, VERSION, "seeds", "Seed", False, SeedCopy)
USER_CLUSTERS = Resource(GROUP, VERSION, "userclusters", "UserCluster", True, UserCluster)
MASTER_LEDGERS = Resource(GROUP, VERSION, "quotaledgers", "QuotaLedger", True, MasterQuotaLedger)


def wire_quantities(amounts: resources.ResourceList) -> Quantities:
    return {**resources.render(amounts)}


def ask_to_wire(ask: Ask) -> WireAsk:
    return WireAsk(number=ask.number, first=wire_quantities(ask.first), wanted=wire_quantities(ask.wanted))


def ask_from_wire(wire: WireAsk) -> Ask:
    return Ask(number=wire.number, first=resources.parse(wire.first), wanted=resources.parse(wire.wanted))


def report_to_wire(report: Report) -> WireReport:
    return WireReport(
        incarnation=report.incarnation,
        sequence=report.sequence,
        master=report.master,
        state="Fenced" if report.nonce else "Open",
        nonce=report.nonce,
        granted=wire_quantities(report.granted),
        returned=wire_quantities(report.returned),
        used=wire_quantities(report.used),
        reserved=wire_quantities(report.reserved),
        ask=ask_to_wire(report.ask),
    )


def report_from_wire(wire: WireReport) -> Report | None:
    """None while the seed has published no account yet."""
    if not wire.incarnation:
        return None
    return Report(
        incarnation=wire.incarnation,
        sequence=wire.sequence,
        master=wire.master,
        nonce=wire.nonce,
        granted=resources.parse(wire.granted),
        returned=resources.parse(wire.returned),
        used=resources.parse(wire.used),
        reserved=resources.parse(wire.reserved),
        ask=ask_from_wire(wire.ask),
    )


def grant_to_wire(
    grant: Grant, *, learning: bool = False, draining: bool = False, unavailable: list[WireIdle] | None = None
) -> WireGrant:
    return WireGrant(
        incarnation=grant.incarnation,
        account=grant.account,
        nonce=grant.nonce,
        granted=wire_quantities(grant.granted),
        returned=wire_quantities(grant.returned),
        recall=wire_quantities(grant.recall),
        answered=grant.answered,
        seen=grant.seen,
        unbroken=grant.unbroken,
        learning=learning,
        draining=draining,
        unavailable=unavailable or [],
    )


def grant_from_wire(wire: WireGrant) -> Grant:
    return Grant(
        incarnation=wire.incarnation,
        account=wire.account,
        nonce=wire.nonce,
        granted=resources.parse(wire.granted),
        returned=resources.parse(wire.returned),
        recall=resources.parse(wire.recall),
        answered=wire.answered,
        seen=wire.seen,
        unbroken=wire.unbroken,
    )


def ledger_to_wire(ledger: MasterLedger) -> WireMasterLedger:
    return WireMasterLedger(
        incarnation=ledger.incarnation,
        learning=ledger.learning,
        seeds={
            seed: WireHolding(
                account=holding.account,
                granted=wire_quantities(holding.granted),
                returned=wire_quantities(holding.returned),
                learned=holding.learned,
                nonce=holding.nonce,
            )
            for seed, holding in ledger.seeds.items()
        },
    )


def ledger_from_wire(wire: WireMasterLedger) -> MasterLedger:
    return MasterLedger(
        incarnation=wire.incarnation,
        learning=wire.learning,
        seeds={
            seed: Holding(
                account=holding.account,
                granted=resources.parse(holding.granted),
                returned=resources.parse(holding.returned),
                learned=holding.learned,
                nonce=holding.nonce,
            )
            for seed, holding in wire.seeds.items()
        },
    )
