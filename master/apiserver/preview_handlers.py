"""Answers what would fit, and what was decided. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlencode

from common.api.types import Seed
from common.server.access_reviews import User
from master.apiserver import decisions, previews
from master.apiserver.asked_seeds import asked_seeds, not_asked, too_many
from master.apiserver.auth import LIST_QUOTAS, Right, Rights
from master.apiserver.call import Call, RouteResponse
from master.apiserver.decisions import MAX_REFUSALS, DecisionRecord, Refusal, Refusals
from master.apiserver.preview_subjects import PreviewSubjects
from master.apiserver.previews import Calculation, FitsRequest, WhereRequest
from master.apiserver.problem import ProblemError
from master.apiserver.visibility import Visibility
from master.cache.informers import Caches, subject_of
from master.seeds.agent_pages import AgentPages


class PreviewHandlers:
    """Each raises ProblemError."""

    def __init__(
        self,
        caches: Caches,
        rights: Rights,
        agents: AgentPages,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._caches = caches
        self._rights = rights
        self._agents = agents
        self._visibility = Visibility(caches, rights)
        self._subjects = PreviewSubjects(caches, rights, clock)

    async def calculate(self, call: Call) -> RouteResponse:
        body: Calculation = call.body
        known = await self._subjects.of_project(call.user, call.parameters["project"])
        return RouteResponse(previews.calculate(known, body))

    async def fits(self, call: Call) -> RouteResponse:
        body: FitsRequest = call.body
        return RouteResponse(previews.fits(await self._subjects.of(call.user, body), body))

    async def where(self, call: Call) -> RouteResponse:
        body: WhereRequest = call.body
        return RouteResponse(previews.where(await self._subjects.of(call.user, body), body))

    async def get_decision(self, call: Call) -> RouteResponse:
        """Of a decision that one may not see is said as much as of none (0024-previews-over-http.md)."""
        decision, seeds = call.parameters["decision"].upper(), self._seeds(call)
        if why := too_many(seeds):
            return RouteResponse(decisions.answer(decision, not_asked=why))
        everything = await self._rights.has(call.user, LIST_QUOTAS)
        found = await self._agents.find([(seed, f"decisions/{decision}") for seed in seeds], call.user.username)
        shown: list[tuple[str, DecisionRecord]] = []
        for seed, content in found.answers:
            record = decisions.read(decision, content)
            seen = await self._seen(call.user, record, everything=everything) if record is not None else None
            if seen is not None:
                shown.append((seed, seen))
        missing = not_asked(found, len(seeds), everything=everything)
        if shown:
            seed, record = max(shown, key=lambda one: one[1].time)
            return RouteResponse(decisions.answer(decision, seed=seed, record=record, not_asked=missing))
        if not missing:
            raise ProblemError(404, f"no agent keeps a decision {decision}, or you cannot see it")
        return RouteResponse(decisions.answer(decision, not_asked=missing))

    async def list_refusals(self, call: Call) -> RouteResponse:
        """Of each decision, what `get_decision` says of it."""
        quota, project, seeds = call.query.get("quota", ""), call.query.get("project", ""), self._seeds(call)
        if bool(quota) == bool(project):
            raise ProblemError(422, "name a project or a quota, and not both")
        if project:
            await self._visibility.project(call.user, project)
        elif not await self._sees_quota(call.user, quota):
            raise ProblemError(404, f"there is no quota {quota}, or you cannot see it")
        if why := too_many(seeds):
            return RouteResponse(Refusals(items=[], more=False, not_asked=why))
        everything = await self._rights.has(call.user, LIST_QUOTAS)
        asked = urlencode({"quota": quota} if quota else {"project": project})
        found = await self._agents.find([(seed, f"decisions/refused?{asked}") for seed in seeds], call.user.username)
        for seed in found.nothing:
            found.not_asked.setdefault(seed, "an agent of an earlier version has no list of refusals")
        items, more = list[Refusal](), False
        for seed, content in found.answers:
            if (answer := decisions.read_refusals(content)) is None:
                found.not_asked.setdefault(seed, "its answer cannot be read")
                continue
            more = more or answer[1]
            for id, record in answer[0]:
                seen = await self._seen(call.user, record, everything=everything)
                if seen is not None:
                    items.append(Refusal(decision=id, seed=seed, record=seen))
        items.sort(key=lambda each: each.record.time, reverse=True)
        missing = not_asked(found, len(seeds), everything=everything)
        more = more or len(items) > MAX_REFUSALS
        return RouteResponse(Refusals(items=items[:MAX_REFUSALS], more=more, not_asked=missing))

    def _seeds(self, call: Call) -> list[Seed]:
        return asked_seeds(self._caches.seeds.store.values(), call.query.get("seed"))

    async def _seen(self, user: User, record: DecisionRecord, *, everything: bool) -> DecisionRecord | None:
        """Names are those that a seed answers: of what is not there, no right is asked."""
        known = self._caches.projects.store.get(record.project) is not None
        of_project = known and await self._sees(user, "project", record.project)
        quotas = {each.name for each in record.quotas if everything or await self._sees_quota(user, each.name)}
        return decisions.visible(record, quotas, everything=everything, of_project=of_project, username=user.username)

    async def _sees_quota(self, user: User, name: str) -> bool:
        quota = self._caches.quotas.store.get(name)
        if quota is None:
            return False
        kind, subject = subject_of(quota)
        if subject:
            return await self._sees(user, kind, subject)
        return await self._rights.has(user, Right(verb="get", resource="resourcequotas", name=name))

    async def _sees(self, user: User, kind: str, name: str) -> bool:
        see = self._visibility.project if kind == "project" else self._visibility.organization
        try:
            await see(user, name)
        except ProblemError as problem:
            if problem.status != 404:
                raise
            return False
        return True
