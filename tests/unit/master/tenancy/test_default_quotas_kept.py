"""Default quotas go only for what the API server itself says. The test plays it, and what the caches have seen."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.labels import DEFAULT_LABEL, SETTINGS
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, NotFound
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from master.cache.informers import Caches
from master.cache.objects import MasterQuota, Named
from master.tenancy.default_quotas import DefaultQuotas

ALPHA = Named(metadata=ObjectMeta(name="alpha", uid="alpha-uid", generation=1))
DEFAULT = {"defaults": {"project": {"quota": {"cpu": "4"}}}}


def settings(generation: int, spec: dict[str, object] = DEFAULT) -> Named:
    return Named(metadata=ObjectMeta(name=SETTINGS, uid="settings-uid", generation=generation), spec=spec)


def quota(name: str, **metadata: Any) -> MasterQuota:
    body = {
        "metadata": {"name": name, "uid": f"{name}-uid", "generation": 1, **metadata},
        "spec": {"subject": {"kind": "project", "name": "alpha"}, "quota": {"cpu": "4"}},
        "status": {"conditions": [{"type": "Enforced", "status": "True", "observedGeneration": 1}]},
    }
    return msgspec.convert(body, MasterQuota)


class Master:
    """Alpha has a default quota, which all is in favour of. `truth` is what the API server has."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        cluster: Any = SimpleNamespace(name="master", get=self._get, delete=self._delete, replace=self._replace)
        self.caches = Caches(cast(Cluster, cluster), "seedquota")
        self.defaults = DefaultQuotas(cluster, self.caches)
        self.truth: dict[tuple[str, str], Object] = {}
        for found in (("projects", ALPHA), ("quotasettings", settings(1))):
            self.put(*found)
        self.put("resourcequotas", quota("project-alpha", labels={DEFAULT_LABEL: "true"}))

    def put(self, plural: str, found: Object) -> None:
        self.truth[plural, found.metadata.name] = found
        self.see(plural, found)

    def see(self, plural: str, found: Object) -> None:
        self.caches._all[plural].store._set(found.metadata.name, found)

    def lose(self, plural: str, name: str) -> None:
        """From the cache only."""
        self.caches._all[plural].store._remove(name)

    async def look(self) -> None:
        await self.defaults._reconcile(("project", "alpha"))

    async def _get(self, resource: Resource[Any], name: str) -> Object:
        if (resource.plural, name) not in self.truth:
            raise NotFound(404, "NotFound", name)
        return self.truth[resource.plural, name]

    async def _delete(self, _resource: object, name: str, **_preconditions: str) -> None:
        self.deleted.append(name)

    async def _replace(self, _resource: object, _body: object) -> None: ...


def without_project(master: Master) -> None:
    master.lose("projects", "alpha")


def without_default(master: Master) -> None:
    master.see("quotasettings", settings(0, {}))


def with_another_in_force(master: Master) -> None:
    master.see("resourcequotas", quota("ours"))


@pytest.mark.parametrize("behind", [without_project, without_default, with_another_in_force])
async def test_a_default_quota_stays_where_only_a_cache_has_a_reason_to_delete_it(
    behind: Callable[[Master], None],
) -> None:
    master = Master()
    await master.look()
    assert master.deleted == []
    behind(master)
    with pytest.raises(Conflict, match="is behind"):
        await master.look()
    assert master.deleted == []


async def test_a_default_quota_goes_where_the_api_server_says_so_too() -> None:
    master = Master()
    without_project(master)
    del master.truth["projects", "alpha"]
    await master.look()
    assert master.deleted == ["project-alpha"]

    master = Master()
    master.put("quotasettings", settings(2, {}))
    await master.look()
    assert master.deleted == ["project-alpha"]

    master = Master()
    master.put("resourcequotas", quota("ours"))
    await master.look()
    assert master.deleted == ["project-alpha"]
