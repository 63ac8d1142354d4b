"""Answers which machine types seeds know, and whether a manifest would fit. The agents of the seeds are asked: they
have the catalogues of the clouds, and the evaluators of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from common.api import preview_pages
from common.runtime.pieces import in_pieces
from master.apiserver import machine_types, manifests, previews
from master.apiserver.asked_seeds import asked_seeds, not_asked, too_many
from master.apiserver.auth import LIST_QUOTAS, Rights
from master.apiserver.call import Call, RouteResponse
from master.apiserver.machine_types import MachineTypes
from master.apiserver.manifests import ManifestFits, ManifestFitsRequest
from master.apiserver.preview_subjects import PreviewSubjects
from master.apiserver.visibility import Visibility
from master.cache.informers import Caches
from master.seeds.agent_pages import AgentPages, Found

_Page = TypeVar("_Page")

_EARLIER = "an agent of an earlier version cannot tell"
_NOT_READ = "its answer cannot be read"


class ManifestHandlers:
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

    async def list_machine_types(self, call: Call) -> RouteResponse:
        project = call.parameters["project"]
        await self._visibility.project(call.user, project)
        seeds = asked_seeds(self._caches.seeds.store.values(), call.query.get("seed"))
        if why := too_many(seeds):
            return RouteResponse(MachineTypes(items=[], more=False, not_asked=why))
        path = preview_pages.machine_types_path(project, call.query.get("name", ""))
        found = await self._agents.find([(seed, path) for seed in seeds], call.user.username)
        pages = await _pages(found, preview_pages.read_machine_types)
        items, more = machine_types.together(pages)
        why = await self._not_asked(call, found, len(seeds))
        return RouteResponse(MachineTypes(items=items, more=more, not_asked=why))

    async def manifest_fits(self, call: Call) -> RouteResponse:
        body: ManifestFitsRequest = call.body
        known = await self._subjects.of(call.user, body)
        project = body.project if isinstance(body.project, str) else ""
        question = await asyncio.to_thread(manifests.question, body, known, project)
        seeds = asked_seeds(previews.limited_seeds(known), body.seed if isinstance(body.seed, str) else None)
        if why := too_many(seeds):
            return RouteResponse(ManifestFits(answers=[], more=False, not_asked=why))
        asked = [(seed, preview_pages.NEEDS) for seed in seeds]
        found = await self._agents.find(asked, call.user.username, question)
        pages = await _pages(found, preview_pages.read_needs)
        answers, more = manifests.answers(known, pages)
        why = await self._not_asked(call, found, len(seeds))
        return RouteResponse(ManifestFits(answers=answers, more=more, not_asked=why))

    async def _not_asked(self, call: Call, found: Found, seeds: int) -> str:
        for seed in found.nothing:
            found.not_asked.setdefault(seed, _EARLIER)
        return not_asked(found, seeds, everything=await self._rights.has(call.user, LIST_QUOTAS))


async def _pages(found: Found, read: Callable[[bytes], _Page | None]) -> dict[str, list[_Page]]:
    """By seed. One that answered what cannot be read was not asked."""
    pages: dict[str, list[_Page]] = {}
    async for seed, content in in_pieces(found.answers):
        if (page := read(content)) is None:
            found.not_asked.setdefault(seed, _NOT_READ)
        else:
            pages.setdefault(seed, []).append(page)
    return pages
