"""Whether what is asked to be guaranteed to a project fits into its organization.

The schema says what can be guaranteed at all, and a policy what fits, of quotas that are there
(charts/rbac/master-policy.yaml). Here it is known of new ones, too, and of the first guarantee in an organization:
the caches have all quotas. If they are a moment behind, the condition LimitsFit says what does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping

from common.quota import guarantees, resources
from common.quota.resources import ResourceList
from master.apiserver.problem import FieldError, ProblemError, escape
from master.apiserver.serializers import amounts
from master.cache.informers import Caches, organization_of
from master.cache.organization_limits import OrganizationLimits

WHERE = "/guaranteed"
_CODE = "guarantees_exceed_organization"


def check(caches: Caches, subject: tuple[str, str], wanted: Mapping[str, str | int], before: ResourceList) -> None:
    """Raises ProblemError. `subject`: kind and name. `before`: what is guaranteed now."""
    kind, name = subject
    project = caches.projects.store.get(name) if kind == "project" else None
    if wanted and project is not None and (organization := organization_of(project)):
        fits(amounts(wanted, WHERE), before, name, organization, caches.limits_of(organization))


def fits(
    wanted: ResourceList, before: ResourceList, project: str, organization: str, limits: OrganizationLimits
) -> None:
    """What stays, or is lowered, is not refused, and nothing is said of what the organization does not limit: the
    condition LimitsFit says it. Raises ProblemError."""
    more = {name: amount for name, amount in wanted.items() if amount > before.get(name, 0)}
    number = sum(len(given) for name, given in limits.guaranteed.items() if name != project)
    number += sum(amount > 0 for amount in resources.only(wanted, limits.own).values())
    if more and number > guarantees.MOST:
        detail = (
            f"organization {organization} would have {number} guaranteed amounts, and can have {guarantees.MOST}: "
            "guarantee fewer resources, or to fewer projects"
        )
        raise ProblemError(422, detail, code=_CODE, errors=[FieldError(WHERE, detail)])
    most = limits.most_guaranteed(project)
    errors = []
    for name, amount in more.items():
        if amount > most.get(name, amount):
            if name in limits.surging:
                detail = (
                    f"{name}: nothing can be guaranteed of what the quota of organization {organization} has surge of"
                )
                errors.append(FieldError(f"{WHERE}/{escape(name)}", f"{detail}: leave it out, or remove that surge"))
                continue
            given, can, limit = resources.shown(name, amount, most[name], limits.own[name])
            detail = (
                f"{name}: {given} is more than organization {organization} can guarantee ({can} of its limit of "
                f"{limit} is left): guarantee less, here or to other projects, or raise the limit of the organization"
            )
            errors.append(FieldError(f"{WHERE}/{escape(name)}", detail))
    if errors:
        raise ProblemError(422, "; ".join(each.detail for each in errors), code=_CODE, errors=errors)
