"""Limits, default quotas and seeds that are changed: shown first with what that does, then written. Both is done by the
routes of the HTTP API, and never over what somebody else wrote meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar

from msgspec import UNSET, UnsetType

from master.apiserver.call import RouteResponse
from master.apiserver.conditions import Preconditions
from master.apiserver.override_types import OverrideGiven, OverridesUpdate
from master.apiserver.platform_types import (
    DefaultLimits,
    DefaultPreview,
    DefaultUpdate,
    LimitPreview,
    LimitsAsked,
    SeedHoldings,
    SeedStateUpdate,
)
from master.apiserver.problem import ProblemError
from master.apiserver.serializers import Quota, QuotaOverride, QuotaUpdate
from master.page.handlers import Asked, Shown, ask_of_quota, content_of
from master.page.views import edit

_CHANGED = "Somebody else has made a change meanwhile. Below is theirs; make yours again."
_ENFORCEMENTS: Mapping[str, Literal["deny", "warn"]] = {"deny": "deny", "warn": "warn"}

T = TypeVar("T")


async def limits(asked: Asked) -> Shown | str:
    """The form, with what its content would do; after it was saved, where to go. Raises ProblemError and ApiError."""
    name = asked.names["name"]
    parameters = {"name": name}
    present, version = await _own_quota(asked)
    wanted, problem_text, preview = dict[str, str | int](present.quota), "", None
    guaranteed, names = dict[str, str | int](present.guaranteed), edit.guaranteeable(present)
    if asked.form is not None:
        wanted, given = edit.wanted(asked.form), edit.guaranteed(asked.form)
        guaranteed = given if given is not None else guaranteed
        try:
            if asked.form.get("action") == "save":
                body = QuotaUpdate(quota=dict(wanted), guaranteed=_or_unset(given))
                await asked.ask(
                    "put_quota", asked.user, parameters=parameters, body=body, preconditions=_unchanged(asked.form)
                )
                return f"/quotas/{name}"
            version = asked.form.get("version", "")
            body_asked = LimitsAsked(quota=dict(wanted), guaranteed=_or_unset(given))
            answer = await asked.ask("preview_quota", asked.user, parameters=parameters, body=body_asked)
            preview, _ = _of(LimitPreview, answer)
        except ProblemError as problem:
            problem_text, wanted = _told(problem, wanted, present.quota)
            _, guaranteed = _told(problem, guaranteed, present.guaranteed)
    values = {"present": present.quota, "limits": wanted, "preview": preview, "version": version}
    values |= {"guaranteed": guaranteed, "guaranteeable": names}
    values |= {"problem": problem_text, "form": f"/quotas/{name}/edit", "back": f"/quotas/{name}", "back_title": name}
    command = f"kubectl seedquota set {present.subject_kind}/{present.subject_name} RESOURCE=LIMIT --dry-run=server"
    call, yaml = f"PUT /api/v2/quotas/{name}", f"/quotas/{name}/yaml"
    return Shown("edit.html", f"Limits of {name}", values, command, call, yaml, events="")


async def raises(asked: Asked) -> Shown | str:
    """As `limits`, of what is raised until a time: which overrides stay, and a new one."""
    name = asked.names["name"]
    parameters = {"name": name}
    present, version = await _own_quota(asked)
    kept, new, problem_text, preview = set(range(len(present.overrides))), edit.new_raise({}), "", None
    if (form := asked.form) is not None:
        kept, new = {number for number in kept if f"keep.{number}" in form}, edit.new_raise(form)
        overrides = [_given(each) for number, each in enumerate(present.overrides) if number in kept]
        try:
            if any(new):
                if not new.amounts:
                    raise ProblemError(422, "Give an amount of at least one resource.")
                overrides.append(OverrideGiven(until=new.time, quota=dict(new.amounts), reason=new.reason))
            if form.get("action") == "save":
                body = OverridesUpdate(overrides=overrides)
                await asked.ask(
                    "put_overrides", asked.user, parameters=parameters, body=body, preconditions=_unchanged(form)
                )
                return f"/quotas/{name}"
            if version != form.get("version"):
                raise ProblemError(412, _CHANGED)
            body_asked = LimitsAsked(quota=dict(present.quota), overrides=overrides)
            answer = await asked.ask("preview_quota", asked.user, parameters=parameters, body=body_asked)
            preview, _ = _of(LimitPreview, answer)
        except ProblemError as problem:
            problem_text, _ = _told(problem, {}, {})
            if problem.status == 412:
                kept = set(range(len(present.overrides)))
    values = {"present": present, "kept": kept, "new": new, "preview": preview}
    values |= {"version": version, "problem": problem_text}
    values |= {"form": f"/quotas/{name}/raise", "back": f"/quotas/{name}", "back_title": name}
    command = f"kubectl seedquota set {present.subject_kind}/{present.subject_name} RESOURCE=AMOUNT --until 7d"
    call, yaml = f"PUT /api/v2/quotas/{name}/overrides", f"/quotas/{name}/yaml"
    return Shown("raise.html", f"Raise limits of {name} for a time", values, command, call, yaml, events="")


async def default(asked: Asked) -> Shown | str:
    """As `limits`, of the default quota of a kind of subject."""
    kind = asked.names["kind"]
    parameters = {"kind": kind}
    present: DefaultLimits | None = None
    version, problem_text, preview = "", "", None
    try:
        present, version = _of(DefaultLimits, await asked.ask("get_default", asked.user, parameters=parameters))
    except ProblemError as problem:
        if problem.code != "no_default":
            raise
    before: Mapping[str, str] = present.quota if present is not None else {}
    wanted, enforcement = dict[str, str | int](before), present.enforcement if present is not None else "deny"
    if asked.form is not None:
        wanted = edit.wanted(asked.form)
        enforcement = _ENFORCEMENTS.get(asked.form.get("enforcement", ""), enforcement)
        body = DefaultUpdate(quota=dict(wanted), enforcement=enforcement)
        try:
            if (action := asked.form.get("action")) in ("save", "remove"):
                await asked.ask(
                    "put_default" if action == "save" else "delete_default",
                    asked.user,
                    parameters=parameters,
                    body=body if action == "save" else None,
                    preconditions=_unchanged(asked.form),
                )
                return "/settings"
            version = asked.form.get("version", "")
            answer = await asked.ask("preview_default", asked.user, parameters=parameters, body=body)
            preview, _ = _of(DefaultPreview, answer)
        except ProblemError as problem:
            problem_text, wanted = _told(problem, wanted, before)
    values = {"kind": kind, "present": before, "limits": wanted, "preview": preview, "exists": present is not None}
    values |= {"version": version, "problem": problem_text, "enforcement": enforcement}
    values |= {"form": f"/settings/{kind}/edit", "back": "/settings", "back_title": "Settings"}
    command, call = f"kubectl seedquota default set {kind} RESOURCE=LIMIT", f"PUT /api/v1/defaults/{kind}"
    yaml = "/settings/default/yaml"
    return Shown("edit_default.html", f"Default quota of {kind}s", values, command, call, yaml, events="")


async def seed_state(asked: Asked) -> Shown | str:
    """What draining the seed would free; after it was changed, where to go. Raises ProblemError and ApiError."""
    name = asked.names["name"]
    parameters, problem_text = {"name": name}, ""
    if asked.form is not None:
        state: Literal["Active", "Draining"] = "Draining" if asked.form.get("action") == "drain" else "Active"
        try:
            await asked.ask(
                "put_seed_state",
                asked.user,
                parameters=parameters,
                body=SeedStateUpdate(state=state),
                preconditions=_unchanged(asked.form),
            )
        except ProblemError as problem:
            problem_text, _ = _told(problem, {}, {})
        else:
            return f"/seeds/{name}"
    found, version = _of(SeedHoldings, await asked.ask("get_seed", asked.user, parameters=parameters))
    values = {"found": found, "version": version, "problem": problem_text}
    command, call = f"kubectl seedquota seed drain {name}", f"PUT /api/v1/seeds/{name}/state"
    return Shown("edit_seed.html", f"Drain {name}", values, command, call, f"/seeds/{name}/yaml", events="")


async def _own_quota(asked: Asked) -> tuple[Quota, str]:
    """And its version. Raises ProblemError, also where the quota follows something else."""
    found, version = _of(Quota, await ask_of_quota(asked, "get_quota"))
    if isinstance(found.made_from, str):
        raise ProblemError(409, f"quota {asked.names['name']} is made from the {found.made_from}: change that instead")
    return found, version


def _given(override: QuotaOverride) -> OverrideGiven:
    return OverrideGiven(until=override.until, quota=dict(override.quota), reason=override.reason)


def _or_unset(given: Mapping[str, str | int] | None) -> dict[str, str | int | float] | UnsetType:
    return UNSET if given is None else dict(given)


def _of(kind: type[T], answer: RouteResponse) -> tuple[T, str]:
    """And the version that a write is compared with."""
    return content_of(kind, answer), answer.version


def _unchanged(form: Mapping[str, str]) -> Preconditions:
    """What the form was made of must still be so; without a version there was nothing."""
    version = form.get("version", "")
    return Preconditions(if_match=f'"{version}"') if version else Preconditions(if_none_match="*")


def _told(
    problem: ProblemError, wanted: dict[str, str | int], present: Mapping[str, str]
) -> tuple[str, dict[str, str | int]]:
    """What is said above the form, and which limits it has then. Raises what is no matter of its content."""
    if problem.status == 412:
        return _CHANGED, dict(present)
    if problem.status not in (409, 422):
        raise problem
    return str(problem), wanted
