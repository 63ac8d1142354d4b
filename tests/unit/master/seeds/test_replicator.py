"""In which order copies on a seed come and go. The test plays its API server, and what the master has seen of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.labels import (
    MANAGED_BY_LABEL,
    MASTER_ANNOTATION,
    MASTER_MANAGER,
    MASTER_SEEN_ANNOTATION,
    RELEASED_ANNOTATION,
    UID_LABEL,
)
from common.api.types import GENERATION_ANNOTATION, ResourceQuotaStatus
from common.api.types import Seed as MasterSeed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, Conflict, NotFound
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from common.kube.controller.store import Store
from common.runtime.burst import PAUSE, BurstDetector
from master.cache.informers import BY_SUBJECT, Caches, subject_of
from master.cache.objects import MASTER_QUOTAS, MasterQuota, Named, QuotaCopy
from master.seeds import other_master, replicator
from master.seeds.remote_cache import SeedCaches
from master.seeds.replicator import (
    BLOCKED,
    LONGEST_TURN,
    REMOVALS_AT_ONCE,
    REMOVALS_PER_SECOND,
    SUCCEEDED,
    CopySync,
)
from tests.running import running
from tests.unit.fake_api_server import eventually, within

QUOTA = "resourcequotas"
LABELS = {UID_LABEL: "same-uid", MANAGED_BY_LABEL: MASTER_MANAGER}
Written = tuple[str, str, bool]  # what was done, to which quota, and whether that says that the master lets it go


def stores() -> SimpleNamespace:
    by_subject: Any = {BY_SUBJECT: lambda quota: ["/".join(subject_of(quota))]}
    names = ("projects", "organizations", "settings")
    found = {name: SimpleNamespace(store=Store[Named]({})) for name in names}
    found |= {name: SimpleNamespace(store=Store[Any]({}), proven_at=0.0) for name in ("seed", "seeds")}
    return SimpleNamespace(**found, quotas=SimpleNamespace(store=Store[MasterQuota](by_subject)))


class Seed:
    """`there` is what the master has seen of the seed, `done` what it did there.

    `truth` is what the master's API server has where its cache is behind: an object, or None for one that is gone.
    """

    def __init__(self, *, in_cluster: bool = False) -> None:
        self.truth: dict[tuple[str, str], Object | None] = {}
        self.master: Any = Caches(cast(Cluster, SimpleNamespace(name="master", get=self._get)), "seedquota")
        self.there = stores()
        self.done: list[Written] = []
        self.deleted_as_of: str | None = None
        self.bodies: list[dict[str, Any]] = []
        self.rush = False
        cluster = SimpleNamespace(create=self._create, replace=self._replace, delete=self._delete)
        self.master.gets_default = lambda kind, name: False
        self.sync = CopySync(
            "eu-1",
            self.master,
            cast(Cluster, cluster),
            cast(SeedCaches, self.there),
            BurstDetector(lambda: self.rush),
            master="own-lease",
            in_cluster=in_cluster,
            on_settled=lambda _plural, _name: None,
        )

    async def look(self, name: str) -> float | None:
        return await self.sync._reconcile((QUOTA, name))

    async def is_behind(self, key: tuple[str, str]) -> None:
        """The master's cache is found to be behind: it is listed anew, and nothing is written."""
        with pytest.raises(Conflict, match="is behind"):
            await self.sync._reconcile(key)
        assert self.done == []
        assert self.master._all[key[0]]._relist_asked

    async def _get(self, resource: Resource[Any], name: str) -> Object:
        cached = self.master._all[resource.plural].store.get(name)
        found = self.truth.get((resource.plural, name), cached)
        if found is None:
            raise NotFound(404, "NotFound", name)
        return found

    async def _create(self, _resource: object, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        self.done.append(("create", body["metadata"]["name"], False))

    async def _replace(self, _resource: object, body: Object | dict[str, Any]) -> None:
        given = msgspec.to_builtins(body)
        self.bodies.append(given)
        metadata = given["metadata"]
        self.done.append(("replace", metadata["name"], RELEASED_ANNOTATION in metadata.get("annotations", {})))

    async def _delete(self, _resource: object, name: str, uid: str, resource_version: str | None) -> None:
        self.deleted_as_of = resource_version
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


def seen(where: Any, found: MasterQuota | QuotaCopy) -> None:
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


async def test_what_the_master_has_not_makes_nothing_be_looked_at() -> None:
    """A quota that somebody made on the seed by hand, and copies that wait: each would call for itself for ever."""
    seed = Seed()
    by_hand = msgspec.structs.replace(copy(quota("by-hand")), metadata=ObjectMeta(name="by-hand", uid="theirs"))
    seen(seed.there, by_hand)
    assert await seed.look("by-hand") is None
    assert len(seed.sync._quotas.queue) == 0
    seen(seed.there, copy(quota("old")))
    seen(seed.there, copy(quota("older")))
    assert await seed.look("old") is None
    assert len(seed.sync._quotas.queue) == 0
    seen(seed.master, quota("new"))
    seen(seed.there, copy(quota("new")))
    await seed.look("new")
    queue = seed.sync._quotas.queue
    assert {await queue.get() for _ in range(len(queue))} == {(QUOTA, "old"), (QUOTA, "older")}, "not what is not ours"


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


async def test_a_seed_with_very_many_copies_that_the_master_has_not_is_cleared_bit_by_bit() -> None:
    """Each costs the master's API server a read, and the other seeds wait for the same one."""
    seed = Seed()
    many = int(REMOVALS_AT_ONCE) + 200
    for number in range(many):
        seen(seed.there, copy(quota(f"q{number}", project=f"p{number}")))
        seed.sync.add((QUOTA, f"q{number}"))
    began = time.monotonic()
    again = [await seed.look(f"q{number}") for number in range(many)]
    most = REMOVALS_AT_ONCE + 1 + (time.monotonic() - began) * REMOVALS_PER_SECOND
    assert REMOVALS_AT_ONCE <= again.count(None) <= most
    assert len(seed.done) == 2 * again.count(None)
    assert all(pause is None or 1 < pause < LONGEST_TURN for pause in again)
    seen(seed.master, quota("new"))
    assert await seed.look("new") is None
    assert seed.done[-1] == ("create", "new", False), "what the master has does not wait for them"


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


@pytest.mark.parametrize(
    ("spec", "done"),
    [
        ({"organization": "acme"}, [("replace", "alpha", False)]),
        ({"organization": "other"}, [("delete", "alpha", False), ("create", "alpha", False)]),
    ],
    ids=["it says the same", "it says something else"],
)
async def test_the_copy_of_a_project_that_is_made_again_goes_only_if_it_says_something_else(
    spec: dict[str, str], done: list[Written]
) -> None:
    """As in another cluster, to which the master was moved: while it is away, nothing is admitted in the project."""
    seed = Seed()
    labels = {UID_LABEL: "former", MANAGED_BY_LABEL: MASTER_MANAGER}
    former = Named(metadata=ObjectMeta(name="alpha", uid="copy", labels=labels), spec=spec)
    project = Named(metadata=ObjectMeta(name="alpha", uid="same-uid"), spec={"organization": "acme"})
    seed.there.projects.store._set("alpha", former)
    seed.master.projects.store._set("alpha", project)
    await seed.sync._reconcile(("projects", "alpha"))
    assert seed.done == done
    assert msgspec.to_builtins(seed.bodies[-1])["metadata"]["labels"] == LABELS


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
    lowered = edited("2", 0)
    there = msgspec.structs.replace(copy(quota("same")), status=ResourceQuotaStatus(hard={"cpu": "1"}))
    metadata = msgspec.structs.replace(there.metadata, resource_version="7", annotations={"theirs": "kept"})
    seen(seed.there, msgspec.structs.replace(there, metadata=metadata))
    seen(seed.master, lowered)
    assert await seed.look("same") is None
    assert seed.bodies == [
        {
            "metadata": {
                **msgspec.to_builtins(metadata),
                "labels": LABELS,
                "annotations": {"theirs": "kept", GENERATION_ANNOTATION: "0"},
                "managedFields": [{}],
            },
            "spec": lowered.spec,
        }
    ]


@pytest.mark.parametrize("plural", ["projects", "organizations", "settings"])
async def test_a_copy_stays_where_only_the_cache_lacks_its_object(plural: str) -> None:
    seed = Seed()
    of = Named(metadata=ObjectMeta(name="same", uid="same-uid", generation=1))
    there = Named(metadata=ObjectMeta(name="same", uid="copy", labels=LABELS))
    getattr(seed.there, plural).store._set("same", there)
    key = ("quotasettings" if plural == "settings" else plural, "same")
    seed.truth[key] = of
    await seed.is_behind(key)
    seed.truth.clear()
    assert await seed.sync._reconcile(key) is None
    assert seed.done == [("delete", "same", False)]


async def test_a_quota_that_only_the_cache_lacks_is_not_let_go() -> None:
    seed = Seed()
    seen(seed.there, copy(quota("old")))
    seed.truth[QUOTA, "old"] = quota("old")
    await seed.is_behind((QUOTA, "old"))
    seed.truth[QUOTA, "old"] = quota("old", uid="made again")
    await seed.is_behind((QUOTA, "old"))


async def test_a_copy_of_the_quota_that_is_there_does_not_give_way_to_a_former_one() -> None:
    seed = Seed()
    seen(seed.there, copy(quota("same")))
    seen(seed.master, quota("same", uid="former"))
    for truth in (quota("same"), None):
        seed.truth[QUOTA, "same"] = truth
        await seed.is_behind((QUOTA, "same"))


def edited(cpu: str, generation: int) -> MasterQuota:
    before = quota("same")
    metadata = msgspec.structs.replace(before.metadata, generation=generation)
    return msgspec.structs.replace(before, metadata=metadata, spec={**before.spec, "quota": {"cpu": cpu}})


def copied(of: MasterQuota) -> QuotaCopy:
    annotations = {GENERATION_ANNOTATION: str(of.metadata.generation)}
    metadata = ObjectMeta(name=of.metadata.name, uid="copy", labels=LABELS, annotations=annotations)
    return QuotaCopy(metadata=metadata, spec=of.spec)


async def test_a_limit_that_was_lowered_is_not_raised_again_by_a_cache_that_is_behind() -> None:
    seed = Seed()
    seen(seed.there, copied(edited("8", 2)))
    seen(seed.master, edited("64", 1))
    seed.truth[QUOTA, "same"] = edited("8", 2)
    await seed.is_behind((QUOTA, "same"))
    seen(seed.master, edited("8", 2))
    assert await seed.look("same") is None
    assert seed.done == []


async def test_a_master_restored_from_a_backup_gives_its_older_limit_to_seeds() -> None:
    seed = Seed()
    seen(seed.there, copied(edited("8", 2)))
    seen(seed.master, edited("64", 1))
    assert await seed.look("same") is None
    (body,) = seed.bodies
    assert body["spec"]["quota"] == {"cpu": "64"}
    assert body["metadata"]["annotations"] == {GENERATION_ANNOTATION: "1"}


async def test_a_copy_says_of_which_generation_it_is_also_where_an_edit_was_undone() -> None:
    seed = Seed()
    seen(seed.master, edited("64", 1))
    await seed.look("same")
    seen(seed.there, copied(edited("64", 1)))
    assert await seed.look("same") is None
    seen(seed.master, edited("64", 3))
    await seed.look("same")
    assert [body["metadata"]["annotations"][GENERATION_ANNOTATION] for body in seed.bodies] == ["1", "3"]


async def test_a_cache_that_is_behind_is_not_listed_for_each_object(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = Seed()
    lists: list[str] = []
    monkeypatch.setattr(seed.master.quotas, "relist", lambda: lists.append(QUOTA))
    for name in ("a", "b"):
        seen(seed.there, copy(quota(name)))
        seed.truth[QUOTA, name] = quota(name)
        with pytest.raises(Conflict, match="is behind"):
            await seed.look(name)
    assert lists == [QUOTA]


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
    await seed.sync._add_all()
    assert {key for key in seed.sync._unsynced if key[0] == "seeds"} == {SEED}
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


async def test_a_seed_is_shown_that_it_is_lost_also_while_the_cache_lacks_the_copy_or_has_an_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicator, "SEED_AGAIN", 0.0)
    seed = Seed()
    seed.master.seeds.store._set("eu-1", of_master("Lost"))
    metadata = ObjectMeta(name="eu-1", uid="copy", labels={UID_LABEL: "seed-uid"})
    active = Named(metadata=metadata, spec={"copyOf": "seed-uid", "state": "Active"})
    written: list[str] = []

    async def create(_resource: object, _body: dict[str, Any]) -> None:
        seed.there.seed.store._set("eu-1", active)  # the watch brings it only now
        raise AlreadyExists(409, "AlreadyExists", "eu-1")

    async def replace(_resource: object, body: Named) -> None:
        written.append(body.spec["state"])
        if len(written) == 1:
            raise Conflict(409, "Conflict", "the object has been modified")

    seed.sync._cluster = cast(Any, SimpleNamespace(create=create, replace=replace))
    async with within(1):
        await seed.sync.put_seed()
    assert written == ["Lost", "Lost"]


async def test_the_seeds_of_a_seed_that_is_a_master_too_stay_as_they_are() -> None:
    seed = Seed()
    seed.master.seeds.store._set("eu-1", of_master())
    theirs = Named(metadata=ObjectMeta(name="eu-1", uid="theirs"), spec={"kubeconfigSecretRef": {"name": "other"}})
    seed.there.seed.store._set("eu-1", theirs)
    with pytest.raises(Conflict, match="is a master, too"):
        await seed.sync._reconcile(SEED)
    assert seed.done == []
    assert "is a master, too" in seed.sync.failing[SEED]


async def test_in_the_masters_own_cluster_nothing_is_written_and_an_object_is_in_sync_once_it_is_shown() -> None:
    seed = Seed(in_cluster=True)
    original = quota("one")
    seen(seed.master, original)
    assert await seed.look("one") == SUCCEEDED, "its watch has not shown it"
    seen(seed.there, QuotaCopy(metadata=ObjectMeta(name="one", uid="an-earlier-one"), spec=original.spec))
    assert await seed.look("one") == SUCCEEDED
    seen(seed.there, QuotaCopy(metadata=original.metadata, spec=original.spec))
    assert await seed.look("one") is None
    seed.master.quotas.store._remove("one")
    assert await seed.look("one") is None, "a watch that is behind still shows an original: it is nobody's to delete"
    assert len(seed.sync._quotas.queue) == 0, "and looking again would find the same, for as long as nothing else runs"
    assert seed.done == []


async def test_a_kubeconfig_that_leads_to_the_master_itself_is_refused_with_what_to_do() -> None:
    seed = Seed()
    original = quota("one")
    seen(seed.master, original)
    seen(seed.there, QuotaCopy(metadata=original.metadata, spec=original.spec))
    with pytest.raises(Conflict, match="replace kubeconfigSecretRef with inCluster: true"):
        await seed.look("one")
    assert seed.done == []


async def signs(seed: Seed, copy: Named | None, number: int = 0) -> list[dict[str, Any]]:
    """What is written when the sign of the master is shown: at least so many; for a moment, if it is to be none."""
    if copy is not None:
        seed.there.seed.store._set("eu-1", copy)
    seed.master.seeds.store._set("eu-1", of_master())
    async with running(seed.sync.show_signs(lambda: True)) as (showing,):
        if number:
            await eventually(lambda: len(seed.bodies) >= number or showing.done())
        else:
            await asyncio.wait([showing], timeout=0.2)
    return seed.bodies


def of_seed(**labels: str) -> Named:
    metadata = ObjectMeta(name="eu-1", uid="copy", labels=labels, annotations={"mine": "kept"})
    return Named(metadata=metadata, spec={"copyOf": "seed-uid", "state": "Active"})


async def test_a_seed_is_shown_now_and_then_that_its_master_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicator, "SIGN_EVERY", 0.01)
    monkeypatch.setattr(replicator, "now", map(str, itertools.count(1)).__next__)
    uid = of_master().metadata.uid
    written = (await signs(Seed(), of_seed(**{UID_LABEL: uid}), 2))[:2]
    assert [body["metadata"]["annotations"] for body in written] == [
        {"mine": "kept", MASTER_SEEN_ANNOTATION: "1"},
        {"mine": "kept", MASTER_SEEN_ANNOTATION: "2"},
    ]
    assert {str(body["spec"]) for body in written} == {str(of_seed().spec)}


async def test_no_sign_is_written_to_what_is_no_copy_of_the_seed() -> None:
    assert await signs(Seed(), None) == []
    assert await signs(Seed(), of_seed(**{UID_LABEL: "another-masters"})) == []
    assert await signs(Seed(in_cluster=True), of_seed(**{UID_LABEL: of_master().metadata.uid})) == []


async def test_nothing_is_written_to_a_seed_that_another_master_serves() -> None:
    seed = Seed()
    seen(seed.master, quota("new"))
    seen(seed.there, copy(quota("old")))
    metadata = ObjectMeta(name="eu-1", uid="copy", annotations={MASTER_ANNOTATION: "other-lease"})
    seed.there.seed.store._set("eu-1", Named(metadata=metadata))
    assert [await seed.look(name) for name in ("new", "old")] == [BLOCKED, BLOCKED]
    assert seed.done == []
    assert "other-lease" in seed.sync.blocked
    seed.there.seed.store._set("eu-1", Named(metadata=ObjectMeta(name="eu-1", uid="copy")))
    assert await seed.look("new") is None
    assert seed.done == [("create", "new", False)]


async def test_of_a_silent_master_the_copy_of_the_seed_is_taken_over_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_master, "SILENT", 0.0)
    seed = Seed()
    seen(seed.master, quota("new"))
    body = {"metadata": {"name": "eu-1", "uid": "seed-uid"}, "spec": {"kubeconfigSecretRef": {"name": "eu-1"}}}
    seed.master.seeds.store._set("eu-1", msgspec.convert(body, MasterSeed))
    said = {"labels": {UID_LABEL: "b"}, "annotations": {MASTER_ANNOTATION: "other-lease"}}
    metadata = ObjectMeta(name="eu-1", uid="copy", resource_version="7", **said)
    seed.there.seed.store._set("eu-1", Named(metadata=metadata, spec={"copyOf": "b"}))
    assert await seed.look("new") == BLOCKED
    seed.there.seed.proven_at = time.monotonic() + 1.0
    assert await seed.look("new") == BLOCKED
    assert seed.done == [], "of two that find it silent one takes the copy over"
    seed.there.seed.proven_at = time.monotonic() + 2.0
    await seed.sync._reconcile(("seeds", "eu-1"))
    assert [(what, name) for what, name, _ in seed.done] == [("delete", "eu-1"), ("create", "eu-1")]
    assert seed.deleted_as_of == "7", "not after another sign"


async def test_a_copy_of_a_seed_names_its_master() -> None:
    seed = Seed()
    body = {"metadata": {"name": "eu-1", "uid": "seed-uid"}, "spec": {"kubeconfigSecretRef": {"name": "eu-1"}}}
    seed.master.seeds.store._set("eu-1", msgspec.convert(body, MasterSeed))
    await seed.sync._reconcile(("seeds", "eu-1"))
    assert seed.bodies[0]["metadata"]["annotations"][MASTER_ANNOTATION] == "own-lease"


async def test_a_seed_gets_the_limits_in_force_and_no_clock_to_read() -> None:
    seed = Seed()
    raised = edited("8", 1)
    for until, limit in (("2999-01-01T00:00:00Z", "16"), ("2001-01-01T00:00:00Z", "8")):
        spec = {**raised.spec, "overrides": [{"until": until, "quota": {"cpu": "16"}}]}
        seen(seed.there, copied(edited("12", 1)))
        seen(seed.master, msgspec.structs.replace(raised, spec=spec))
        assert await seed.look("same") is None
        assert seed.bodies.pop()["spec"] == {**raised.spec, "quota": {"cpu": limit}}


def of_seeds(name: str = "eu", **labels: str) -> MasterQuota:
    found = quota(name)
    subject = {"kind": "project", "name": "alpha", "seeds": {"matchLabels": labels or {"region": "eu"}}}
    return msgspec.structs.replace(found, spec={**found.spec, "subject": subject})


def label(seed: Seed, region: str, *, cached: bool = True) -> None:
    body = {"metadata": {"name": "eu-1", "uid": "eu-1-uid", "labels": {"region": region}}, "spec": {}}
    seed.truth["seeds", "eu-1"] = labelled = msgspec.convert(body, MasterSeed)
    if cached:
        seed.master.seeds.store._set("eu-1", labelled)


async def test_a_quota_of_some_seeds_is_copied_to_these_and_stays_until_what_is_held_is_given_back() -> None:
    seed = Seed()
    label(seed, "asia")
    seen(seed.master, of_seeds())
    assert await seed.look("eu") is None and seed.done == []
    label(seed, "eu")
    seed.sync.seed_relabelled()
    assert seed.sync.outstanding == 1
    assert await seed.look("eu") is None and seed.done == [("create", "eu", False)]
    seen(seed.there, copy(of_seeds()))
    label(seed, "asia")
    assert await seed.look("eu") is None
    seed.sync.withdraw("eu", "another-uid", over=True)
    assert await seed.look("eu") is None
    assert [what for what, *_ in seed.done].count("delete") == 0
    seed.sync.withdraw("eu", "eu-uid", over=True)
    label(seed, "eu", cached=False)
    with pytest.raises(Conflict, match="is behind"):
        await seed.look("eu")
    label(seed, "asia")
    assert await seed.look("eu") is None
    assert seed.done[-2:] == [("replace", "eu", True), ("delete", "eu", False)]


async def test_a_copy_that_may_not_go_any_more_stays() -> None:
    seed = Seed()
    label(seed, "asia")
    for where in (seed.master, seed.there):
        seen(where, of_seeds() if where is seed.master else copy(of_seeds()))
    seed.sync.withdraw("eu", "eu-uid", over=True)
    seed.sync.withdraw("eu", "eu-uid", over=False)
    await seed.look("eu")
    seed.sync.withdraw("eu", "", over=False)
    await seed.look("eu")
    assert "delete" not in [what for what, *_ in seed.done]


async def test_a_copy_by_which_a_seed_gives_back_what_it_holds_is_made_again() -> None:
    """Without it, what the seed holds is nobody's for ever."""
    seed = Seed()
    label(seed, "asia")
    seen(seed.master, of_seeds())
    for uid, over in (("", False), ("another-uid", False), ("eu-uid", True)):
        seed.sync.withdraw("eu", uid, over=over)
        assert await seed.look("eu") is None and seed.done == []
    seed.sync.withdraw("eu", "eu-uid", over=False)
    assert (QUOTA, "eu") in seed.sync._unsynced
    assert await seed.look("eu") is None and seed.done == [("create", "eu", False)]


async def test_a_copy_does_not_wait_for_a_quota_of_its_subject_that_is_of_other_seeds() -> None:
    seed = Seed()
    label(seed, "eu")
    seen(seed.there, copy(quota("old")))
    seen(seed.master, of_seeds("elsewhere", region="asia"))
    assert await seed.look("old") is None
    assert seed.done == GOES


async def test_others_run_while_all_that_a_seed_has_is_looked_at() -> None:
    """A seed decides how much that is: 100,000 objects took 0.1 s in one step."""
    seed, many = Seed(), 30_000
    for number in range(many):
        named = Named(metadata=ObjectMeta(name=f"o{number}"), spec={})
        seed.there.projects.store._set(named.metadata.name, named)
    seed.there.synced = True
    adding, turns = asyncio.ensure_future(seed.sync._add_all()), 0
    while not adding.done():
        assert not seed.sync.in_sync("projects", "o1") and not seed.sync.all_in_sync, "it was not looked at yet"
        turns += 1
        await asyncio.sleep(0)
    await adding
    assert turns > 10
    assert seed.sync.outstanding == 1 + many
