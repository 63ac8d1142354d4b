"""Answers what would fit, and where a decision can be read. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from common.server.access_reviews import User
from master.apiserver import previews
from master.apiserver.auth import Rights
from master.apiserver.call import Call, RouteResponse
from master.apiserver.previews import Calculation, FitsRequest, PreviewInput, WhereRequest
from master.apiserver.problem import ProblemError
from master.apiserver.visibility import Visibility
from master.cache.informers import Caches


class PreviewHandlers:
    """Each raises ProblemError."""

    def __init__(
        self, caches: Caches, rights: Rights, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._caches = caches
        self._visibility = Visibility(caches, rights)
        self._clock = clock

    async def calculate(self, call: Call) -> RouteResponse:
        body: Calculation = call.body
        return RouteResponse(previews.calculate(await self._of_project(call.user, call.parameters["project"]), body))

    async def fits(self, call: Call) -> RouteResponse:
        body: FitsRequest = call.body
        return RouteResponse(previews.fits(await self._of_subject(call.user, body), body))

    async def where(self, call: Call) -> RouteResponse:
        body: WhereRequest = call.body
        return RouteResponse(previews.where(await self._of_subject(call.user, body), body))

    async def get_decision(self, call: Call) -> RouteResponse:
        """The agents have them, and the master may not ask these (docs/decisions/0024-previews-over-http.md)."""
        decision = call.parameters["decision"].upper()
        command = f"seedquota explain {decision} --context SEED"
        return RouteResponse(previews.DecisionPlace(decision=decision, kept_on="seed", command=command))

    async def _of_subject(self, user: User, asked: FitsRequest | WhereRequest) -> PreviewInput:
        project, organization = previews.subject(asked)
        if project:
            return await self._of_project(user, project)
        await self._visibility.organization(user, organization)
        return self._known(("organization", organization))

    async def _of_project(self, user: User, name: str) -> PreviewInput:
        """Whoever asks must see both: what is short is said in amounts of either."""
        organization = await self._visibility.project(user, name)
        if not organization:
            return self._known(("project", name))
        await self._visibility.organization(user, organization)
        return self._known(("project", name), ("organization", organization))

    def _known(self, *subjects: tuple[str, str]) -> PreviewInput:
        quotas = [quota for kind, name in subjects for quota in self._caches.quotas_of(kind, name)]
        if uncounted := [quota.metadata.name for quota in quotas if not quota.status.observed_generation]:
            raise ProblemError(503, f"nothing is counted yet for {', '.join(uncounted)}")
        seeds, allocated = list(self._caches.seeds.store.values()), self._caches.allocated_types().names
        return PreviewInput(quotas, seeds, self._clock(), allocated)
