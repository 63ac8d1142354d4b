"""Limits that are edited: shown first with what they would mean, then written through the HTTP API, never over what
somebody else wrote meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from common.quota.quantity import QuantityError
from master.apiserver import serializers
from master.apiserver.auth import Right, Rights
from master.apiserver.conditions import Preconditions
from master.apiserver.problem import ProblemError
from master.apiserver.serializers import QuotaUpdate
from master.cache.informers import Caches
from master.cache.objects import MasterQuota, spec_quota
from master.page.handlers import Asked, Shown
from master.page.views import edit


class Editing:
    """Each raises ProblemError and ApiError."""

    def __init__(self, caches: Caches, rights: Rights) -> None:
        self._caches = caches
        self._rights = rights

    async def limits(self, asked: Asked) -> Shown | str:
        """The form, with what its content would mean; after it was saved, where to go."""
        quota = await self._quota(asked)
        name, present = quota.metadata.name, spec_quota(quota)
        if asked.form is None:
            return _form(quota, present, present, serializers.version([quota]))
        limits, version = edit.wanted(asked.form), asked.form.get("version", "")
        if asked.form.get("action") != "save":
            return _form(quota, present, limits, version)
        try:
            await asked.ask(
                "put_quota",
                asked.user,
                parameters={"name": name},
                body=QuotaUpdate(quota=dict(limits)),
                preconditions=Preconditions(if_match=f'"{version}"'),
            )
        except ProblemError as problem:
            if problem.status == 412:
                changed = "Somebody else has changed the limits meanwhile. Below are theirs; make your change again."
                return _form(quota, present, present, serializers.version([quota]), changed)
            if problem.status not in (409, 422):
                raise
            return _form(quota, present, limits, version, str(problem))
        return f"/quotas/{name}"

    async def _quota(self, asked: Asked) -> MasterQuota:
        name = asked.names["name"]
        found = self._caches.quotas.store.get(name)
        may_get = await self._rights.has(asked.user, Right(verb="get", resource="resourcequotas", name=name))
        if not may_get or found is None:
            raise ProblemError(404, f"there is no quota {name}, or you cannot see it")
        await self._rights.require(asked.user, Right(verb="update", resource="resourcequotas", name=name))
        if made_from := serializers.made_of(found):
            raise ProblemError(409, f"quota {name} is made from the {made_from}: change that instead")
        return found


def _form(
    quota: MasterQuota,
    present: Mapping[str, str | int],
    limits: Mapping[str, str | int],
    version: str,
    problem: str = "",
) -> Shown:
    changes: object = ()
    try:
        changes = edit.changes(present, limits, serializers.used_of([quota]))
    except QuantityError as error:
        problem = problem or str(error)
    name = quota.metadata.name
    values = {"name": name, "present": present, "limits": limits, "changes": changes}
    values |= {"version": version, "problem": problem, "hasty": not quota.status.observed_generation}
    command = f"kubectl edit seedquota {name}"
    return Shown("edit.html", f"Limits of {name}", values, command, f"PUT /api/v2/quotas/{name}", events="")
