from __future__ import annotations

import pytest

from common.kube.client.meta import ObjectMeta
from common.server.access_reviews import User
from master.apiserver.auth import Right, Rights
from master.apiserver.call import Call
from master.apiserver.conditions import Preconditions
from master.apiserver.decisions import DecidedQuota, DecisionRecord
from master.apiserver.preview_handlers import PreviewHandlers
from master.apiserver.previews import Calculation, FitsRequest, WhereRequest
from master.apiserver.problem import ProblemError
from master.cache.informers import Caches
from master.cache.objects import Named
from master.seeds.agent_pages import AgentPages
from tests.stores import fill
from tests.unit.master.apiserver.test_auth import reviewer


class Some(Rights):
    """Rights on resources alone."""

    resources: tuple[str, ...]

    async def has(self, user: User, right: Right) -> bool:
        return right.resource in self.resources


@pytest.mark.parametrize("resources", [("projects",), ("organizations",), ()])
async def test_who_does_not_see_the_project_and_its_organization_gets_404(resources: tuple[str, ...]) -> None:
    """What is short is said in amounts of either."""
    async with reviewer() as cluster:
        caches, rights = Caches(cluster, "seedquota"), Some(cluster)
        fill(caches.projects.store, {"alpha": Named(metadata=ObjectMeta(name="alpha"), spec={"organization": "acme"})})
        fill(caches.organizations.store, {"acme": Named(metadata=ObjectMeta(name="acme"))})
        limits: dict[str, str | int] = {"cpu": 1}
        handlers = PreviewHandlers(caches, rights, AgentPages(caches, "seedquota"))

        def call(body: object) -> Call:
            return Call(User(username="ann"), {"project": "alpha"}, {}, body, Preconditions())

        for allowed in (False, True):
            rights.resources = ("projects", "organizations") if allowed else resources
            for asked, body in (
                (handlers.fits, FitsRequest(project="alpha", resources=limits)),
                (handlers.where, WhereRequest(project="alpha", resources=limits)),
                (handlers.calculate, Calculation(resources=limits)),
            ):
                if allowed:
                    assert (await asked(call(body))).content
                    continue
                with pytest.raises(ProblemError) as refused:
                    await asked(call(body))
                assert refused.value.status == 404


@pytest.mark.parametrize("names", [("no-such-quota",), ("no-such-quota", "another")])
async def test_of_names_that_a_seed_made_up_nobody_is_asked(names: tuple[str, ...]) -> None:
    """An answer has thousands of names, and each would be a review by the API server."""
    async with reviewer() as cluster:
        caches = Caches(cluster, "seedquota")
        handlers = PreviewHandlers(caches, Rights(cluster), AgentPages(caches, "seedquota"))
        quotas = [DecidedQuota(name=name, enforcement="deny", admits=False) for name in names]
        record = DecisionRecord(time="t", result="refused", operation="CREATE", project="made-up", quotas=quotas)
        assert await handlers._seen(User(username="ann"), record, everything=False) is None
        assert cluster.asked == []
