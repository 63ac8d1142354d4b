"""Answers what each namespace uses of a quota. The agents of the seeds are asked: the status has the largest only."""

from __future__ import annotations

from urllib.parse import urlencode

from common.api import namespaces_page
from common.api.namespaces_page import Place
from master.apiserver import namespace_lists
from master.apiserver.auth import LIST_QUOTAS, Right, Rights
from master.apiserver.call import Call, RouteResponse
from master.apiserver.problem import ProblemError
from master.cache.informers import Caches
from master.seeds.agent_pages import AgentPages

LIMIT = 100


class NamespaceHandlers:
    """Each raises ProblemError."""

    def __init__(self, caches: Caches, rights: Rights, agents: AgentPages) -> None:
        self._caches = caches
        self._rights = rights
        self._agents = agents

    async def list_quota_namespaces(self, call: Call) -> RouteResponse:
        name, user = call.parameters["name"], call.user
        await self._rights.require(user, Right(verb="get", resource="resourcequotas", name=name))
        quota = self._caches.quotas.store.get(name)
        if quota is None:
            raise ProblemError(404, f"there is no quota {name}")
        limit = int(call.query.get("limit", LIMIT))
        begin = namespace_lists.position(call.query.get("continue", ""))
        alive = {seed.metadata.name: seed for seed in self._caches.seeds.store.values() if seed.spec.state != "Lost"}
        seeds = sorted(seed for seed in alive if seed >= begin.seed)
        asked = [
            (alive[seed], namespaces_page.path(name, begin.after if seed == begin.seed else Place(), limit))
            for seed in seeds[: namespace_lists.SEEDS]
        ]
        found = await self._agents.find(asked, user.username)
        answers: dict[str, list[bytes]] = {}
        for seed, content in found.answers:
            answers.setdefault(seed, []).append(content)
        if found.not_asked and not await self._rights.has(user, LIST_QUOTAS):  # it may name addresses
            found.not_asked = dict.fromkeys(found.not_asked, "it could not be asked")
        page, rest = namespace_lists.together(quota.metadata.uid, begin, limit, seeds, answers, found.not_asked)
        answer = RouteResponse(page)
        if rest is not None:
            query = urlencode({**call.query, "continue": rest.text})
            answer.headers.append(("Link", f'</api/v2/quotas/{name}/namespaces?{query}>; rel="next"'))
        return answer
