"""In which order copies on a seed come and go. The test plays its API server, and what the master has seen of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api import MANAGED_BY_LABEL, MASTER_MANAGER, RELEASED_ANNOTATION, UID_LABEL, ResourceQuotaStatus
from common.api import Seed as MasterSeed
from common.kube.client import Cluster
from common.kube.errors import Conflict
from common.kube.meta import Object, ObjectMeta
from common.kube.reflector import Store
from common.rush import PAUSE, Rush
from master.caches import BY_SUBJECT, Caches, subject_of
from master.objects import MASTER_QUOTAS, MasterQuota, Named, QuotaCopy
from master.sync import SUCCEEDED, CopySync, SeedCaches

QUOTA = "resourcequotas"
LABELS = {UID_LABEL: "same-uid", MANAGED_BY_LABEL: MASTER_MANAGER}
Written = tuple[str, str, bool]  # what was done, to which quota, and whether that says that the master lets it go


def stores() -> SimpleNamespace:
    by_subject: Any = {BY_SUBJECT: lambda quota: ["/".join(subject_of(quota))]}
    names = ("projects", "organizations", "settings")
    found = {name: SimpleNamespace(store=Store[Named]({})) for name in names}
    found |= {name: SimpleNamespace(store=Store[Any]({})) for name in ("seed", "seeds")}
    return SimpleNamespace(**found, quotas=SimpleNamespace(store=Store[MasterQuota](by_subject)))


class Seed:
    """`there` is what the master has seen of the seed, `done` what it did there."""

    def __init__(self) -> None:
        self.master = stores()
        self.there = stores()
        self.done: list[Written] = []
        self.bodies: list[dict[str, Any]] = []
        self.rush = False
        cluster = SimpleNamespace(create=self._create, replace=self._replace, delete=self._delete)
        self.master.gets_default = lambda kind, name: False
        self.sync = CopySync(
            "eu-1",
            cast(Caches, self.master),
            cast(Cluster, cluster),
            cast(SeedCaches, self.there),
            Rush(lambda: self.rush),
            on_settled=lambda _plural, _name: None,
        )

    async def look(self, name: str) -> float | None:
        return await self.sync._reconcile((QUOTA, name))

    async def _create(self, _resource: object, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        self.done.append(("create", body["metadata"]["name"], False))

    async def _replace(self, _resource: object, body: Object | dict[str, Any]) -> None:
        given = msgspec.to_builtins(body)
        self.bodies.append(given)
        metadata = given["metadata"]
        self.done.append(("replace", metadata["name"], RELEASED_ANNOTATION in metadata.get("annotations", {})))

    async def _delete(self, _resource: object, name: str, uid: str) -> None:
        self.done.append(("delete", name, False))


def quota(name: str, uid: str = "", project: str = "alpha") -> MasterQuota:
    body = {
        "metadata": {"name": name, "uid": uid or f"{name}-uid"},
        "spec": {"subject": {"kind": "project", "name": project}},
    }
    return msgspec.convert(body, MASTER_QUOTAS.type)


def copy(of: MasterQuota) -> QuotaCopy:
    metadata = ObjectMeta(name=of.metadata.name, uid="copy", labels={UID_LABEL: of.metadata.uid})
    return QuotaCopy(metadata=metadata, spec=of.spec)


def seen(where: SimpleNamespace, found: MasterQuota | QuotaCopy) -> None:
    where.quotas.store._set(found.metadata.name, found)


GOES: list[Written] = [("replace", "old", True), ("delete", "old", False)]


async def test_a_copy_stays_until_another_quota_of_its_subject_is_seen_on_the_seed() -> None:
    seed = Seed()
    seen(seed.there, copy(quota("old")))
    seen(seed.master, quota("new"))
    assert await seed.look("old") == SUCCEEDED
    assert await seed.look("new") is None
    assert await seed.look("old") == SUCCEEDED
    assert seed.done == [("create", "new", False)]
    seen(seed.there, copy(quota("new")))
    assert await seed.look("old") is None
    assert seed.done[1:] == GOES


async def test_the_one_that_waits_is_looked_at_when_the_other_has_come() -> None:
    seed = Seed()
    seen(seed.there, copy(quota("old")))
    seen(seed.there, copy(quota("new")))
    seen(seed.master, quota("new"))
    await seed.look("new")
    assert await seed.sync._quotas.queue.get() == (QUOTA, "old")


async def test_a_copy_stays_while_a_default_quota_is_to_come() -> None:
    seed = Seed()
    seen(seed.there, copy(quota("old")))
    seed.master.gets_default = lambda kind, name: (kind, name) == ("project", "alpha")
    assert await seed.look("old") == SUCCEEDED
    assert seed.done == []


async def test_a_copy_that_nothing_follows_goes_at_once() -> None:
    seed = Seed()
    seen(seed.there, copy(quota("old")))
    seen(seed.master, quota("of-another", project="beta"))
    assert await seed.look("old") is None
    assert seed.done == GOES


async def test_a_former_one_of_the_same_name_does_not_count_as_the_one_to_come() -> None:
    seed = Seed()
    seen(seed.there, copy(quota("old")))
    seen(seed.there, copy(quota("new", uid="former")))
    seen(seed.master, quota("new"))
    assert await seed.look("old") == SUCCEEDED


async def test_a_quota_made_again_under_its_name_is_not_let_go_in_between() -> None:
    """Without the annotation the seed goes on to enforce what it had until the new copy comes."""
    seed = Seed()
    seen(seed.there, copy(quota("same", uid="former")))
    seen(seed.master, quota("same"))
    await seed.look("same")
    assert seed.done == [("delete", "same", False), ("create", "same", False)]


async def test_quotas_for_namespaces_do_not_wait_for_each_other() -> None:
    seed = Seed()
    picked = {"subject": {"kind": "namespaces", "selector": {"matchLabels": {"a": "b"}}}}
    seen(seed.there, msgspec.structs.replace(copy(quota("old")), spec=picked))
    seen(seed.master, msgspec.structs.replace(quota("other"), spec=picked))
    assert await seed.look("old") is None
    assert seed.done == GOES


async def test_in_a_rush_quotas_come_before_projects() -> None:
    seed = Seed()
    seen(seed.master, quota("project-alpha"))
    alpha = Named(metadata=ObjectMeta(name="alpha", uid="1"))
    seed.master.projects.store._set("alpha", alpha)
    seed.rush = True
    assert await seed.sync._reconcile(("projects", "alpha")) == PAUSE
    await seed.look("project-alpha")
    assert [name for _, name, _ in seed.done] == ["project-alpha"]
    seed.rush = False
    assert await seed.sync._reconcile(("projects", "alpha")) is None
    assert [name for _, name, _ in seed.done] == ["project-alpha", "alpha"]


async def test_an_edit_reaches_a_copy_without_its_status_and_without_owners_of_its_fields() -> None:
    """Both are compared at every write. What else the copy's metadata has, it keeps."""
    seed = Seed()
    edited = msgspec.structs.replace(quota("same"), spec={**quota("same").spec, "quota": {"cpu": "2"}})
    there = msgspec.structs.replace(copy(quota("same")), status=ResourceQuotaStatus(hard={"cpu": "1"}))
    metadata = msgspec.structs.replace(there.metadata, resource_version="7", annotations={"theirs": "kept"})
    seen(seed.there, msgspec.structs.replace(there, metadata=metadata))
    seen(seed.master, edited)
    assert await seed.look("same") is None
    assert seed.bodies == [
        {
            "metadata": {**msgspec.to_builtins(metadata), "labels": LABELS, "managedFields": [{}]},
            "spec": edited.spec,
        }
    ]


SEED = ("seeds", "eu-1")


def of_master(state: str = "Active") -> MasterSeed:
    body = {
        "metadata": {"name": "eu-1", "uid": "seed-uid"},
        "spec": {"kubeconfigSecretRef": {"name": "secret-name"}, "state": state},
    }
    return msgspec.convert(body, MasterSeed)


async def test_a_seed_gets_a_copy_of_its_seed_that_names_no_secret() -> None:
    seed = Seed()
    seed.master.seeds.store._set("eu-1", of_master())
    seed.master.seeds.store._set("us-1", of_master())
    assert {key for key in seed.sync._keys() if key[0] == "seeds"} == {SEED}
    assert await seed.sync._reconcile(SEED) is None
    (body,) = seed.bodies
    assert body["spec"] == {"copyOf": "seed-uid", "state": "Active"}
    assert body["metadata"]["labels"][UID_LABEL] == "seed-uid"

    copied = Named(metadata=ObjectMeta(uid="copy", **body["metadata"]), spec=body["spec"], status={"version": "0.1.0"})
    seed.there.seed.store._set("eu-1", copied)
    assert await seed.sync._reconcile(SEED) is None
    assert [what for what, _, _ in seed.done] == ["create"]
    seed.master.seeds.store._set("eu-1", of_master("Draining"))
    assert await seed.sync._reconcile(SEED) is None
    assert [what for what, _, _ in seed.done] == ["create", "replace"]


async def test_the_seeds_of_a_seed_that_is_a_master_too_stay_as_they_are() -> None:
    seed = Seed()
    seed.master.seeds.store._set("eu-1", of_master())
    theirs = Named(metadata=ObjectMeta(name="eu-1", uid="theirs"), spec={"kubeconfigSecretRef": {"name": "other"}})
    seed.there.seed.store._set("eu-1", theirs)
    with pytest.raises(Conflict, match="is a master, too"):
        await seed.sync._reconcile(SEED)
    assert seed.done == []
    assert "is a master, too" in seed.sync.failing[SEED]
