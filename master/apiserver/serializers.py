"""What requests and answers are, and how quotas become them. The OpenAPI document is made of these types. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from common.api.cluster_selector import ClusterSelector
from common.api.label_selector import LabelSelector
from common.api.labels import DEFAULT_LABEL
from common.api.seed_selector import SeedSelector
from common.api.types import CatalogueEntry, WireGuarantee
from common.quota import guarantees, resources
from common.quota.quantity import UNIT, QuantityError
from common.quota.resources import ResourceList
from master.apiserver.problem import escape, invalid
from master.cache.informers import subject_of
from master.cache.objects import MasterQuota, Override, spec_guaranteed, spec_quota
from master.grants.overrides import shown_limits, shown_overrides
from master.quotas import kept_shares, staleness
from master.tenancy import quota_allocations

MAX_TYPES = 64  # as the CRD has it
GIGA = 10**9

Type = Annotated[str, Meta(min_length=1, max_length=317, description="A type of resource, such as clusters.")]
Name = Annotated[str, Meta(min_length=1, max_length=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
SubjectName = Annotated[str, Meta(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Quantity = Annotated[str, Meta(max_length=64)] | Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)] | Annotated[float, Meta(ge=0, le=2**63 - 1)]
Limits = Annotated[
    dict[str, Quantity],
    Meta(
        min_length=1,
        max_length=MAX_TYPES,
        description='Kubernetes quantities by resource, such as {"cpu": "64", "memory": "256Gi"}.',
        examples=[{"cpu": "64", "memory": "256Gi"}],
    ),
]
GivenLimits = Annotated[
    dict[str, Annotated[str, Meta(max_length=64)] | Number],
    Meta(
        min_length=1,
        max_length=MAX_TYPES,
        description='Kubernetes quantities by resource, such as {"cpu": "64", "memory": "256Gi"}. A number, and not a '
        'string, means GB (10^9 bytes) for memory and storage, as in Kubermatic\'s API: {"memory": 1.5} is "1500M".',
        examples=[{"cpu": "64", "memory": "256Gi"}, {"cpu": 64, "memory": 256}],
    ),
]
GivenGuarantees = Annotated[
    dict[str, Annotated[str, Meta(max_length=64)] | Number],
    Meta(
        max_length=guarantees.MOST,
        description="What of its organization's limit is kept for a project, by resource, as in `quota`. It is at most "
        "the limit in `quota`. Left out, a guarantee that there is stays; {} removes it.",
        examples=[{"cpu": "16", "memory": "64Gi"}],
    ),
]
ReadOnly = Annotated[msgspec.Raw | UnsetType, Meta(description="Ignored, so that what was read can be sent back.")]
SubjectKind = Literal["project", "organization", "namespaces"]

SelectorT = TypeVar("SelectorT", bound=LabelSelector)


class Body(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class AnswerBody(msgspec.Struct, kw_only=True, rename="camel"):
    pass


class ResourceType(AnswerBody, kw_only=True):
    """What the catalogue says of a type, for people. `displayName` is the type's name where it has no other. `unit`:
    what one of it is called; empty for pieces. `countFrom`: Allocations, or Objects."""

    type: Type
    display_name: str
    description: str
    unit: str
    count_from: str


class ProjectGuarantee(AnswerBody, kw_only=True):
    """What a project is guaranteed of its organization's quota, and what of these resources it uses."""

    project: str
    hard: dict[str, str]
    used: dict[str, str]


class QuotaStatus(AnswerBody, kw_only=True):
    """`hard`: the limits in force. `globalUsage`: counted and reserved, over all seeds; of it `reserved` is admitted
    and not yet counted. `guaranteed`: of a project, what is kept for it by the quotas of its organization.
    `guarantees`: of an organization, what this quota keeps for its projects. `kept`: of what is free, what these do not
    use, and nobody else gets."""

    hard: dict[str, str]
    global_usage: dict[str, str]
    reserved: dict[str, str]
    guaranteed: dict[str, str]
    guarantees: list[ProjectGuarantee]
    kept: dict[str, str]


class QuotaOverride(AnswerBody, kw_only=True):
    """Raises limits until a time. `state`: InForce, EndsSoon (within a day), Ended, or Pending: the master that leads
    has not said yet."""

    until: str
    quota: dict[str, str]
    reason: str
    state: str


class Quota(AnswerBody, kw_only=True):
    """One quota. `name` is empty where several quotas limit one subject: `quota` has the lowest limits of all.
    `subjectSelector`: which namespaces one of kind namespaces limits. `subjectClusters`: in which user clusters its
    subject is limited, `subjectSeeds`: on which seeds; without them, everywhere. `madeFrom`: kind and name of what the
    quota follows; change that instead. `guaranteed`: what of its organization's limit is to be kept for the project;
    `status.guaranteed` is what fits. `overrides`: what was raised for a time; `status.hard` has it. `asOf`: no seed's
    last report is older; empty where there is none. `stale`: some use is a last known one."""

    name: str
    subject_kind: str
    subject_name: str
    subject_human_readable_name: str
    subject_selector: LabelSelector | UnsetType = UNSET
    subject_clusters: ClusterSelector | UnsetType = UNSET
    subject_seeds: SeedSelector | UnsetType = UNSET
    made_from: str | UnsetType = UNSET
    is_default: bool
    quota: dict[str, str]
    guaranteed: dict[str, str]
    overrides: list[QuotaOverride]
    status: QuotaStatus
    as_of: str
    stale: bool


class QuotaCreate(Body, kw_only=True):
    """`name`: by default made of the subject's. Kind namespaces has a `subjectSelector`, the others a `subjectName`.
    Kind namespaces needs a `name`, and so does a quota with `subjectClusters` or `subjectSeeds`."""

    subject_kind: SubjectKind = "project"
    subject_name: SubjectName | UnsetType = UNSET
    subject_selector: LabelSelector | UnsetType = UNSET
    subject_clusters: ClusterSelector | UnsetType = UNSET
    subject_seeds: SeedSelector | UnsetType = UNSET
    quota: GivenLimits
    guaranteed: GivenGuarantees | UnsetType = UNSET
    name: Name | UnsetType = UNSET


class QuotaUpdate(Body, kw_only=True):
    """Replaces the limits, and `guaranteed` if it is there: without it, what is guaranteed stays. What the quota is
    called and whom it limits cannot be changed."""

    quota: GivenLimits
    guaranteed: GivenGuarantees | UnsetType = UNSET
    name: str | UnsetType = UNSET
    subject_kind: str | UnsetType = UNSET
    subject_name: str | UnsetType = UNSET
    subject_selector: ReadOnly = UNSET
    subject_clusters: ReadOnly = UNSET
    subject_seeds: ReadOnly = UNSET
    subject_human_readable_name: ReadOnly = UNSET
    made_from: ReadOnly = UNSET
    is_default: ReadOnly = UNSET
    overrides: ReadOnly = UNSET
    status: ReadOnly = UNSET
    as_of: ReadOnly = UNSET
    stale: ReadOnly = UNSET


def resource_types(catalogue: Iterable[CatalogueEntry]) -> list[ResourceType]:
    """By name."""
    return [
        ResourceType(
            type=each.name,
            display_name=each.display_name or each.name,
            description=each.description,
            unit=each.unit,
            count_from=each.count_from,
        )
        for each in sorted(catalogue, key=lambda each: each.name)
    ]


def limits_of(
    quotas: Iterable[MasterQuota], read: Callable[[MasterQuota], Mapping[str, str | int]] = shown_limits
) -> dict[str, int]:
    """Those in force. Of several quotas of one subject the most restrictive one decides."""
    limits: dict[str, int] = {}
    for quota in quotas:
        for name, limit in resources.parse(read(quota)).items():
            limits[name] = min(limit, limits.get(name, limit))
    return limits


def used_of(quotas: Iterable[MasterQuota]) -> dict[str, int]:
    """What is known; a name that is missing is not counted yet, or never."""
    used: ResourceList = {}
    for quota in quotas:
        used = resources.maximum(used, resources.parse(quota.status.global_usage))
    return dict(used)


def amount_changes(before: Mapping[str, str | int], wanted: Mapping[str, str | int]) -> dict[str, str | int | None]:
    """A merge patch of `spec.quota`, and of others of its kind."""
    gone: dict[str, str | int | None] = dict.fromkeys(name for name in before if name not in wanted)
    return gone | {name: limit for name, limit in wanted.items() if before.get(name) != limit}


def guarantee_changes(
    before: Mapping[str, str | int], wanted: Mapping[str, str | int]
) -> dict[str, str | int | None] | None:
    """A merge patch of `spec.guaranteed`. None: it goes, since there is no empty one."""
    return None if before and not wanted else amount_changes(before, wanted)


def combined(
    quotas: Sequence[MasterQuota], silence: str, display_name: str = "", parents: Sequence[MasterQuota] = ()
) -> Quota:
    """All of one subject; there is at least one. `silence`: see staleness.silence_of_master. `parents`: of a project,
    the quotas of its organization."""
    first = quotas[0]
    kind, name = subject_of(first)
    made_from = made_of(first) if len(quotas) == 1 else ""
    return Quota(
        name=first.metadata.name if len(quotas) == 1 else "",
        subject_kind=kind,
        subject_name=name,
        subject_human_readable_name=display_name,
        subject_selector=_picked(first, "selector", LabelSelector),
        subject_clusters=_picked(first, "clusters", ClusterSelector),
        subject_seeds=_picked(first, "seeds", SeedSelector),
        made_from=made_from or UNSET,
        is_default=all(quota.metadata.labels.get(DEFAULT_LABEL) == "true" for quota in quotas),
        quota=resources.render(limits_of(quotas, spec_quota)),
        guaranteed=resources.render(largest(resources.parse(spec_guaranteed(quota)) for quota in quotas)),
        overrides=[_override(*each) for quota in quotas for each in shown_overrides(quota)],
        status=QuotaStatus(
            hard=resources.render(limits_of(quotas)),
            global_usage=resources.render(used_of(quotas)),
            reserved=resources.render(largest(resources.parse(quota.status.reserved) for quota in quotas)),
            guaranteed=resources.render(kept_shares.in_force(parents, name) if kind == "project" else {}),
            guarantees=[_guarantee(each) for each in (first.status.guarantees if len(quotas) == 1 else ())],
            kept=resources.render(largest(map(kept_shares.kept_of_free, quotas))),
        ),
        as_of=as_of(quotas),
        stale=any(staleness.stale_of(quota, silence) for quota in quotas),
    )


def largest(amounts: Iterable[ResourceList]) -> ResourceList:
    found: ResourceList = {}
    for each in amounts:
        found = resources.maximum(found, each)
    return found


def _guarantee(given: WireGuarantee) -> ProjectGuarantee:
    hard, used = (resources.render(resources.parse(amounts)) for amounts in (given.hard, given.used))
    return ProjectGuarantee(project=given.project, hard=hard, used=used)


def _override(given: Override, state: str) -> QuotaOverride:
    return QuotaOverride(
        until=given.until, quota=resources.render(resources.parse(given.quota)), reason=given.reason, state=state
    )


def as_of(quotas: Iterable[MasterQuota]) -> str:
    """No seed's last report is older. Empty where there is none."""
    seeds = [seed for quota in quotas for seed in quota.status.seeds if seed.state != "Lost"]
    return min((seed.last_report_time for seed in seeds if seed.last_report_time), default="")


def _picked(quota: MasterQuota, field: str, selector: type[SelectorT]) -> SelectorT | UnsetType:
    subject = quota.spec.get("subject")
    found = subject.get(field) if isinstance(subject, dict) else None
    return msgspec.convert(found, selector) if found is not None else UNSET


def made_of(quota: MasterQuota) -> str:
    """Kind and name of the object that the quota follows: what is written to the quota itself is undone."""
    name = quota_allocations.made_from(quota)
    return f"{quota_allocations.KIND} {name}" if name else ""


def quantities(given: Mapping[str, str | int | float], where: str) -> dict[str, str | int]:
    """As quotas have them. A number means GB for what is counted in bytes, as in Kubermatic's API.

    Raises ProblemError, which points below `where`.
    """
    found: dict[str, str | int] = {}
    for name, amount in given.items():
        if isinstance(amount, str):
            found[name] = amount
            continue
        unit = resources.unit(name)
        units = Decimal(str(amount)) * (GIGA if unit == "bytes" else 1) * UNIT
        least = UNIT // 1000 if unit == "cores" else UNIT
        if units % least and unit != "bytes":
            raise invalid(f"{where}/{escape(name)}", f"{name}: {amount} is too fine; it is counted in whole pieces")
        found[name] = resources.render({name: int(units // least * least)})[name]
    amounts(found, where)
    return found


def amounts(raw: Mapping[str, str | int], where: str) -> dict[str, int]:
    """Raises ProblemError, which points below `where`."""
    found: dict[str, int] = {}
    for name, amount in raw.items():
        try:
            found |= resources.parse({name: amount})
        except QuantityError as error:
            raise invalid(f"{where}/{escape(name)}", str(error)) from None
        if found[name] < 0:
            raise invalid(f"{where}/{escape(name)}", f"{name}: an amount cannot be negative")
    return found


def version(quotas: Iterable[MasterQuota]) -> str:
    """Of the limits, not of the use: it is for If-Match, and use changes all the time. Limits change without an edit
    when an override ends."""
    versions = sorted(
        "/".join((quota.metadata.uid, str(quota.metadata.generation), *(each.state for each in quota.status.overrides)))
        for quota in quotas
    )
    return hashlib.sha256(" ".join(versions).encode()).hexdigest()[:24]


def page(names: Sequence[str], limit: int, after: str) -> tuple[Sequence[str], str]:
    """Those of one page after a name, and what continues it; empty at the end. `names` are sorted."""
    rest = [name for name in names if name > after]
    return rest[:limit], (rest[limit - 1] if len(rest) > limit else "")
