"""Whether the limits of projects fit into that of their organization. Pure.

Each quota refuses what exceeds its own limit, whether they fit or not. Where they do not, a project may use less than
its quota says.
"""

from __future__ import annotations

from msgspec import to_builtins

from common.api.conditions import condition
from common.api.convert import wire_quantities
from common.api.types import Condition
from common.quota import guarantees, resources
from common.quota.resources import ResourceList
from master.cache.objects import FittingLimits
from master.cache.organization_limits import is_of_a_part
from master.quotas.quota_view import QuotaView

LIMITS_FIT = "LimitsFit"


def fitting(view: QuotaView) -> FittingLimits:
    """From which `kubectl apply` warns, before there is a condition."""
    limits = view.organization_limits
    if limits is None or view.spec.enforcement != "deny" or is_of_a_part(to_builtins(view.spec)):
        return FittingLimits()
    if view.spec.subject.kind == "project":
        most = limits.most(view.lasting_limits, view.overcommit)
        guaranteed = limits.guaranteeable(view.spec.subject.name or "")
        return FittingLimits(most=wire_quantities(most), guaranteed=wire_quantities(guaranteed))
    return FittingLimits(least=wire_quantities(limits.least(view.overcommit)))


def limits_fit(view: QuotaView) -> list[Condition]:
    """Only there where limits of both are compared: those that are set, not what is raised for a time."""
    if view.organization_limits is None:
        return _not_guaranteed(view, {}, {})
    if view.spec.subject.kind == "project":
        found = _of_project(view, view.organization_limits.own)
        if not any(each.status == "False" for each in found):
            given = view.organization_limits.in_force(view.spec.subject.name or "")
            found = _not_guaranteed(view, given, view.organization_limits.own) or found
        return found
    return _of_organization(view, view.organization_limits.total)


def _of_project(view: QuotaView, parent: ResourceList) -> list[Condition]:
    compared = resources.only(parent, view.lasting_limits)
    if not compared:
        return []
    above = [name for name, limit in compared.items() if view.lasting_limits[name] > limit]
    if not above:
        return [condition(LIMITS_FIT, True, "Fits", "")]
    mine, theirs = resources.texts(resources.only(view.lasting_limits, above), resources.only(compared, above))
    text = f"{mine} is more than organization {view.organization} may use ({theirs}), so it cannot all be used"
    return [condition(LIMITS_FIT, False, "AboveParent", text)]


def _not_guaranteed(view: QuotaView, given: ResourceList, parent: ResourceList) -> list[Condition]:
    """Of a project whose guarantee does not fit."""
    wanted = resources.parse(view.spec.guaranteed)
    lacking = {name: amount for name, amount in wanted.items() if amount > given.get(name, 0)}
    if not lacking:
        return []
    surging = view.organization_limits.surging if view.organization_limits is not None else ()
    without, why = lacking, ""
    if not view.organization:
        why = "the project has no organization"
    elif view.spec.enforcement == "warn":
        why = "the enforcement of this quota is warn"
    elif found := [name for name in lacking if name in surging]:
        without, why = resources.only(lacking, found), f"the quota of organization {view.organization} has surge of it"
    if why:
        text = f"{resources.text(without)} is not guaranteed: {why}"
        return [condition(LIMITS_FIT, False, "NotGuaranteed", text)]
    limits = resources.text(resources.only(parent, lacking)) or "it limits none of these"
    text = (
        f"{resources.text(lacking)} is not guaranteed: with it, the guarantees of organization {view.organization} "
        f"would be more than its limit ({limits}), or more than {guarantees.MOST} amounts"
    )
    return [condition(LIMITS_FIT, False, "GuaranteesExceedParent", text)]


def guarantees_in_force(view: QuotaView, use: ResourceList) -> list[Condition]:
    """Of an organization whose projects have guarantees. They are taken from nobody who uses them."""
    if not view.guarantees:
        return []
    kind = "GuaranteesInForce"
    if view.learning:
        return [condition(kind, None, "Learning", "what is used on each seed is being learned")]
    used = guarantees.used_by_others(view.guarantees, use, view.limits)
    if not used:
        return [condition(kind, True, "InForce", "")]
    text = (
        f"{resources.text(used)} of what is guaranteed is used by other projects; it is kept when they delete something"
    )
    return [condition(kind, False, "UsedByOthers", text)]


def _of_organization(view: QuotaView, children: ResourceList) -> list[Condition]:
    compared = resources.only(children, view.lasting_limits)
    if view.overcommit is None or not compared or is_of_a_part(to_builtins(view.spec)):
        return []
    above = [name for name, total in compared.items() if total > view.lasting_limits[name] * view.overcommit]
    if not above:
        return [condition(LIMITS_FIT, True, "Fits", "")]
    total, mine = resources.texts(resources.only(compared, above), resources.only(view.lasting_limits, above))
    text = (
        f"the limits of its projects are {total} together, more than {float(view.overcommit):g} times {mine} "
        "(QuotaSettings, spec.overcommit)"
    )
    return [condition(LIMITS_FIT, False, "OvercommitExceeded", text)]
