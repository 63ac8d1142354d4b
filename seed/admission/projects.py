"""Whether a cluster's project is known, and what is refused where it is not (protocol.md, rule 4.12). Pure.

A project is known on a seed that has a copy of its Project, or of a quota for it. The name of one that is not is a
mistake in most cases, and nothing would limit the cluster. But what went on before must go on: copies may be away for
a while, and so may Projects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from common.api.types import Condition, Project, UserCluster
from seed.admission import denial
from seed.admission.types import Verdict, decision_id, refused
from seed.cache.quotas import QuotaCache
from seed.model.cluster_key import is_hosted, is_of_kubermatic
from seed.model.consumer import consumer_of

CONDITION = "ProjectKnown"
FOUND, UNKNOWN, NOTHING = "ProjectFound", "UnknownProject", "NothingCopied"
ALLOWED_BEFORE, ALLOWED_BY_SETTINGS = "AllowedBefore", "AllowedBySettings"
MISSING = "ProjectMissing"  # its quota is there, the Project is not, and an organization's quota may limit it
QUOTA_MISSING = "QuotaMissing"  # the Project is there, and a default quota that limits it is not

_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789-."


class Standing(msgspec.Struct, frozen=True):
    """What the condition ProjectKnown says."""

    status: Literal["True", "False", "Unknown"]
    reason: str


def judge(before: Sequence[Condition], *, known: bool, has_copies: bool, allowed: bool) -> Standing:
    """`before`: the conditions of the UserCluster, which record whether it was allowed before.

    `has_copies`: something came from the master; `allowed`: by QuotaSettings.
    """
    if known:
        return Standing("True", FOUND)
    if allowed:
        return Standing("False", ALLOWED_BY_SETTINGS)
    said = next((condition.reason for condition in before if condition.type == CONDITION), None)
    # A cluster with other conditions only is from before this one was checked.
    if said in {FOUND, MISSING, QUOTA_MISSING, ALLOWED_BEFORE, ALLOWED_BY_SETTINGS} or (said is None and before):
        return Standing("False", ALLOWED_BEFORE)
    return Standing("False", UNKNOWN) if has_copies else Standing("Unknown", NOTHING)


def standing(quota_cache: QuotaCache, cluster: UserCluster) -> Standing:
    """By what this replica knows. A Cluster of another API has no status of ours: it is refused when it is created, see
    `new_cluster`, and one that is there was allowed before."""
    found = _judge(quota_cache, cluster.spec.project, cluster.status.conditions)
    hosted = is_hosted(cluster.metadata.key) or is_of_kubermatic(cluster.metadata.key)
    return Standing("False", ALLOWED_BEFORE) if hosted and found.reason == UNKNOWN else found


def _judge(quota_cache: QuotaCache, project: str, before: Sequence[Condition]) -> Standing:
    return judge(
        before,
        known=quota_cache.knows(project),
        has_copies=quota_cache.has_copies,
        allowed=quota_cache.unknown_projects_allowed,
    )


def shown(quota_cache: QuotaCache, cluster: UserCluster) -> Condition:
    found, project = standing(quota_cache, cluster), cluster.spec.project
    if found.reason == FOUND and quota_cache.may_belong(consumer_of(cluster)):
        known = quota_cache.projects.store.get(project)
        reason, message = (
            (MISSING, _without_project(project)) if known is None else (QUOTA_MISSING, _without_quota(known))
        )
        return Condition(type=CONDITION, status="Unknown", reason=reason, message=message)
    if found.reason in (ALLOWED_BEFORE, ALLOWED_BY_SETTINGS) and quota_cache.may_belong(consumer_of(cluster)):
        message = (
            f"{_absent(project)}; no Machine can be created while a default quota or an organization's may limit it"
        )
    else:
        message = _message(quota_cache, project, found.reason)
    return Condition(type=CONDITION, status=found.status, reason=found.reason, message=message)


def _without_project(project: str) -> str:
    return (
        f"there is no Project {project} on this seed, and the quota of its organization may limit it;"
        " no Machine can be created until the Project is there: create it on the master"
    )


def _without_quota(project: Project) -> str:
    organization = project.spec.organization
    whose = f"project {project.metadata.name}" + (f" or of organization {organization}" if organization else "")
    exists = f"; see whether there is an Organization {organization} on the master" if organization else ""
    return (
        f"the default quota of {whose} has not come from the master to this seed; no Machine can be created until it"
        f" is there{exists}"
    )


def _absent(project: str) -> str:
    return f"there is no Project {project} and no quota for it on this seed"


def _message(quota_cache: QuotaCache, project: str, reason: str) -> str:
    absent = _absent(project)
    match reason:
        case "UnknownProject":
            return (
                f"{absent}, so no Machine can be created; create the Project on the master"
                f"{_or_nearest(quota_cache, project)}, or set unknownProjects: Allow in QuotaSettings"
            )
        case "AllowedBefore":
            return (
                f"{absent}; Machines are not limited by it, and not refused, since the cluster was there before;"
                " create the Project on the master"
            )
        case "AllowedBySettings":
            return f"{absent}; Machines are not limited by it: QuotaSettings say unknownProjects: Allow"
        case "NothingCopied":
            return "no Project and no quota has come from the master to this seed, so it cannot be told"
    return ""


def refuse_machine(quota_cache: QuotaCache, cluster: UserCluster) -> Verdict | None:
    """For a Machine that is to be created."""
    project = cluster.spec.project
    if standing(quota_cache, cluster).reason != UNKNOWN:
        return None
    if quota_cache.may_belong(consumer_of(cluster)):
        return None  # 503 for everything: what limits it may come in a moment
    return refused(denial.unknown_project(project, "Machine"))


def new_cluster(quota_cache: QuotaCache, project: str, *, declared: bool) -> Verdict:
    """For a cluster that is to be created and that no quota limits. `declared`: it is a UserCluster. That may come
    before its Project: its Machines are refused until then."""
    if not project or _judge(quota_cache, project, ()).reason != UNKNOWN:
        return Verdict()
    if not declared:
        return refused(denial.unknown_project(project, "Cluster"))
    nearest_known = _or_nearest(quota_cache, project)
    warning = f"project {project} is unknown: no Machine can be created; create the Project{nearest_known}"
    return Verdict(decision=decision_id(), warnings=[warning])


def _or_nearest(quota_cache: QuotaCache, project: str) -> str:
    """Only for those who register clusters: it is the name of another project."""
    near = nearest(project, quota_cache.knows)
    return f"; did you mean {near}?" if near else ""


def nearest(name: str, known: Callable[[str], bool]) -> str:
    """A known name that is one typing error away; empty if there is none. As much work for any number of names."""
    return next((other for other in _one_error_away(name) if other != name and known(other)), "")


def _one_error_away(name: str) -> Iterator[str]:
    for at in range(len(name)):
        yield name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :]
        yield name[:at] + name[at + 1 :]
    for at in range(len(name) + 1):
        for character in _CHARACTERS:
            yield name[:at] + character + name[at:]
            yield name[:at] + character + name[at + 1 :]
