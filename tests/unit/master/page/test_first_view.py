"""What is made before anybody looks, so that the first view of a large installation is as quick as later ones."""

from __future__ import annotations

import jinja2
import pytest

from common.server.access_reviews import User
from master.apiserver.auth import Rights
from master.cache.allocations import AllocationCache
from master.cache.informers import Caches
from master.page.handlers import Asked, Pages
from master.page.rendering import Renderer
from master.page.views import quotas
from tests.unit.master.apiserver.test_auth import reviewer
from tests.unit.master.page.builders import quota


class _All(Rights):
    async def has(self, *_: object) -> bool:
        return True


def never(*_: object, **__: object) -> None:
    raise AssertionError("it was made before")


async def test_rows_are_made_as_quotas_change_and_go_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reviewer() as cluster:
        caches = Caches(cluster, "seedquota")
        pages = Pages(caches, AllocationCache(cluster), _All(cluster))
        for name, used in (("one", "1"), ("two", "1"), ("one", "60")):
            caches.quotas._put(quota(name, used={"cpu": used}))
        caches.quotas._drop("two")
        monkeypatch.setattr(quotas, "row", never)
        shown = (await pages.quotas(Asked(User(username="ann"), never))).values["view"]
        assert isinstance(shown, quotas.Listed)
        assert [(row.name, row.level) for row in shown.rows] == [("one", "near")]
        caches.quotas._drop("one")
        assert not pages._rows._rows, "of a quota that is gone nothing is kept"


def test_templates_are_compiled_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Renderer("/quota")._environment
    monkeypatch.setattr(jinja2.Environment, "compile", never)
    names = environment.list_templates()
    assert "overview.html" in names
    for name in names:
        environment.get_template(name)
