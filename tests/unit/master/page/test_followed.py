"""Which changes a page follows: it names no object that whoever looks cannot get."""

from __future__ import annotations

import pytest

from common.kube.client.meta import ObjectMeta
from common.server.access_reviews import User
from master.apiserver.auth import Right, Rights
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches
from master.cache.objects import Named
from master.page.handlers import Asked, Pages
from tests.unit.master.apiserver.test_auth import reviewer
from tests.unit.master.page.builders import quota


class Getting(Rights):
    """Whoever asks may get these quotas alone."""

    names: tuple[str, ...] = ()

    async def has(self, _user: User, right: Right) -> bool:
        return right.name in self.names


def nobody(*_: object, **__: object) -> None:
    raise AssertionError("a page of a quota asks nobody")


@pytest.mark.parametrize(
    ("guaranteed", "may_get", "followed"),
    [
        ({"cpu": "16"}, ("project-alpha", "org-acme"), "resourcequotas/project-alpha resourcequotas/org-acme"),
        ({"cpu": "16"}, ("project-alpha",), "resourcequotas/project-alpha"),
        ({}, ("project-alpha", "org-acme"), "resourcequotas/project-alpha"),
    ],
    ids=["both", "its own alone", "no guarantee"],
)
async def test_the_page_of_a_quota_follows_what_is_guaranteed_to_its_project(
    guaranteed: dict[str, str], may_get: tuple[str, ...], followed: str
) -> None:
    async with reviewer() as cluster:
        rights = Getting(cluster)
        rights.names = may_get
        caches = Caches(cluster, "seedquota")
        caches.projects._put(Named(metadata=ObjectMeta(name="alpha"), spec={"organization": "acme"}))
        caches.quotas._put(quota("org-acme", subject=("organization", "acme")))
        caches.quotas._put(quota("project-alpha", guaranteed=guaranteed))
        pages = Pages(caches, AllocationCache(cluster), rights)
        shown = await pages.quota(Asked(User(username="ann"), nobody, {"name": "project-alpha"}))
        assert shown.about == followed
