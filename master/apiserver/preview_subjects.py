"""Of which quotas a preview is, and whether whoever asks may see them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from common.server.access_reviews import User
from master.apiserver import previews
from master.apiserver.auth import LIST_QUOTAS, Right, Rights
from master.apiserver.previews import PreviewInput, Subjected
from master.apiserver.problem import ProblemError
from master.apiserver.visibility import Visibility
from master.cache.informers import Caches, subject_of
from master.cache.objects import MasterQuota
from master.quotas import kept_shares


class PreviewSubjects:
    """Each raises ProblemError, also while nothing is counted."""

    def __init__(self, caches: Caches, rights: Rights, clock: Callable[[], datetime]) -> None:
        self._caches = caches
        self._rights = rights
        self._visibility = Visibility(caches, rights)
        self._clock = clock

    async def of(self, user: User, asked: Subjected) -> PreviewInput:
        kind, name = previews.subject(asked)
        if kind == "project":
            return await self.of_project(user, name)
        if kind == "organization":
            await self._visibility.organization(user, name)
            return await self._of_subjects(user, kept_shares.ANY, ("organization", name))
        found = self._caches.quotas.store.get(name)
        right = Right(verb="get", resource="resourcequotas", name=name)
        if not await self._rights.has(user, right) or found is None:
            raise ProblemError(404, f"there is no quota {name}, or you cannot see it")
        kind, subject = subject_of(found)
        return await self._known(user, [found], subject if kind == "project" else kept_shares.ANY)

    async def of_project(self, user: User, name: str) -> PreviewInput:
        """Whoever asks must see both: what is short is said in amounts of either."""
        organization = await self._visibility.project(user, name)
        if not organization:
            return await self._of_subjects(user, name, ("project", name))
        await self._visibility.organization(user, organization)
        return await self._of_subjects(user, name, ("project", name), ("organization", organization))

    async def _of_subjects(self, user: User, project: str, *subjects: tuple[str, str]) -> PreviewInput:
        quotas = [quota for kind, name in subjects for quota in self._caches.whole_quotas_of(kind, name)]
        return await self._known(user, quotas, project)

    async def _known(self, user: User, quotas: list[MasterQuota], project: str) -> PreviewInput:
        if uncounted := [quota.metadata.name for quota in quotas if not quota.status.observed_generation]:
            raise ProblemError(503, f"nothing is counted yet for {', '.join(uncounted)}")
        seeds, allocated = list(self._caches.seeds.store.values()), self._caches.allocated_types().names
        sees_seeds = await self._rights.has(user, LIST_QUOTAS)
        return PreviewInput(quotas, seeds, self._clock(), allocated, sees_seeds, project)
