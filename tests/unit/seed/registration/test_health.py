"""What a seed says of itself, and when: whether it is asked about Machines, how many user clusters it has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from common.api.labels import SEED_MANAGER, UID_LABEL
from common.api.types import SeedCopy, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.runtime.metrics import build_version
from seed.controllers import seed_status
from seed.controllers.seed_status import EVERY, RETRY, SeedStatus
from seed.model.asked_of_seed import ALLOCATIONS, CLUSTER_API
from seed.model.cluster_key import KUBERMATIC, hosted_key
from seed.registration.health import Proof, webhook_serving
from tests.unit.seed_world import PROJECT, SeedWorld, seed_world

C1 = f"{PROJECT}/c1"
PROVEN = Proof(True, "CanaryDenied")
UNSEEN = Proof(None, "Unreachable")
MISSING = Proof(False, "WebhookMissing")


def test_one_proof_is_enough_and_what_is_not_proven_is_named() -> None:
    assert webhook_serving({"a/1": PROVEN, "a/2": PROVEN}) == Proof(
        True, "CanaryDenied", "dry runs are refused everywhere"
    )
    found = webhook_serving({"a/1": PROVEN, **{f"b/{n}": UNSEEN for n in range(4)}, "c/1": None})
    assert found == Proof(True, "CanaryDenied", "not proven in b/0, b/1, b/2 and 2 more")


def test_nothing_is_served_for_sure_before_a_dry_run_was_refused() -> None:
    found = webhook_serving({"a/1": UNSEEN, "a/2": None, "a/3": Proof(None, "NotProven")})
    assert (found.enforced, found.reason) == (None, "NotProven")
    assert found.message.endswith("a/1, a/2, a/3")


def test_a_seed_without_user_clusters_misses_nothing() -> None:
    found = webhook_serving({})
    assert (found.enforced, found.reason) == (True, "NoUserClusters")


def test_the_worst_is_named_first_and_gives_the_reason() -> None:
    found = webhook_serving(
        {
            "a/1": PROVEN,
            "a/2": Proof(False, "CertificateInvalid"),
            "a/3": Proof(False, "NotServing"),
            "a/4": MISSING,
            "a/5": Proof(False, "CanaryAdmitted"),
            "a/6": Proof(False, "OfALaterVersion"),
        }
    )
    assert (found.enforced, found.reason) == (False, "CanaryAdmitted")
    assert found.message.startswith("a/5, a/4, a/3 and 2 more: ")


def test_what_the_seed_itself_is_asked_about_fails_with_its_own_words() -> None:
    wrong = Proof(False, "CanaryAdmitted", "a dry-run Allocation was admitted")
    unknown = Proof(None, "NotProven", "a dry run was refused before")
    found = webhook_serving({}, {"Allocations": wrong, "clusters": unknown})
    assert found == wrong
    found = webhook_serving({"a/1": Proof(False, "NotServing"), "a/2": PROVEN}, {"Allocations": wrong})
    assert (found.enforced, found.reason) == (False, "CanaryAdmitted"), "the worst"
    assert found.message.startswith("a/1: Machines are not") and found.message.endswith(f"; {wrong.message}")
    assert webhook_serving({"a/1": PROVEN}, {"clusters": unknown, "Allocations": PROVEN}).enforced


class Published:
    """The seed's API server as far as it has a copy of the Seed: what is written there is seen there."""

    name = "eu-1"

    def __init__(self, world: SeedWorld) -> None:
        self.written: list[dict[str, Any]] = []
        self.fails = False
        self.cluster_cache = world.cluster_cache
        self.status = self.lead()

    def lead(self) -> SeedStatus:
        known = self.status._copies.store.get(self.name) if self.written else None
        self.status = SeedStatus(cast(Cluster, self), self.cluster_cache)
        if known is not None:
            self.status._copies.store._set(self.name, known)
        return self.status

    def copy(self, **labels: str) -> None:
        body = {"metadata": {"name": self.name, "uid": "copy", "labels": labels}}
        self.status._copies.store._set(self.name, msgspec.convert(body, SeedCopy))

    async def apply(self, _resource: object, body: dict[str, Any], *, manager: str, subresource: str) -> None:
        if self.fails:
            raise Unavailable(0, "Unavailable", "nobody answers")
        assert (manager, subresource) == (SEED_MANAGER, "status")
        self.written.append(body["status"])
        known = self.status._copies.store.get(self.name)
        assert known is not None
        status = msgspec.convert(msgspec.to_builtins(body["status"]), type(known.status))
        self.status._copies.store._set(self.name, msgspec.structs.replace(known, status=status))

    @property
    def serving(self) -> tuple[str, str]:
        (condition,) = self.written[-1]["conditions"]
        assert condition.type == "WebhookServing"
        return condition.status, condition.reason


@asynccontextmanager
async def published() -> AsyncIterator[Published]:
    async with seed_world() as world:
        yield Published(world)


async def test_what_changed_is_said_and_else_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(seed_status, "time", SimpleNamespace(monotonic=lambda: now))
    async with published() as seed:
        seed.copy(**{UID_LABEL: "of-the-master"})
        seed.status.proven(C1, PROVEN)
        assert await seed.status._say() == EVERY
        assert seed.serving == ("True", "CanaryDenied")
        assert seed.written[0] | {"version": build_version(), "clusters": 1} == seed.written[0]

        now += 10
        assert await seed.status._say() == EVERY - 10
        assert len(seed.written) == 1
        seed.status.proven(C1, MISSING)
        await seed.status._say()
        assert seed.serving == ("False", "WebhookMissing")

        now += EVERY
        await seed.status._say()
        assert len(seed.written) == 3, "an agent that lives says so"


async def test_nothing_is_written_into_what_the_master_did_not_make() -> None:
    async with published() as seed:
        assert await seed.status._say() == EVERY
        seed.copy()
        assert await seed.status._say() == EVERY
        assert seed.written == []


async def test_a_write_that_failed_is_tried_again_soon() -> None:
    async with published() as seed:
        seed.copy(**{UID_LABEL: "of-the-master"})
        seed.fails = True
        assert await seed.status._say() == RETRY
        seed.fails = False
        assert await seed.status._say() == EVERY
        assert len(seed.written) == 1


async def test_a_new_leader_lets_stand_what_the_last_one_said_until_it_has_looked_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(seed_status, "time", SimpleNamespace(monotonic=lambda: now))
    async with published() as seed:
        seed.copy(**{UID_LABEL: "of-the-master"})
        seed.status.proven(C1, PROVEN)
        await seed.status._say()

        await seed.lead()._say()
        assert len(seed.written) == 2, "it lives"
        assert seed.serving == ("True", "CanaryDenied")
        now += EVERY
        await seed.status._say()
        assert seed.serving == ("Unknown", "NotProven"), "long enough"
        seed.status.proven(C1, MISSING)
        await seed.status._say()
        assert seed.serving == ("False", "WebhookMissing")

        seed.lead().proven(f"{PROJECT}/gone", MISSING)
        await seed.status._say()
        assert seed.serving == ("False", "WebhookMissing"), "as the last one said; nobody has looked at c1"
        seed.status.proven(C1, PROVEN)
        await seed.status._say()
        assert seed.serving == ("True", "CanaryDenied"), "what is gone does not count"


async def test_clusters_of_all_apis_count_once_and_those_of_cluster_api_share_one_proof() -> None:
    def hosted(name: str, project: str = PROJECT, **spec: object) -> UserCluster:
        body = {"metadata": {"name": name, "namespace": PROJECT, "uid": name}, "spec": {"project": project, **spec}}
        return msgspec.convert(body, UserCluster)

    async with published() as seed:
        seed.copy(**{UID_LABEL: "of-the-master"})
        cluster_cache = seed.cluster_cache
        twin, second, theirs = hosted_key(PROJECT, "c1"), hosted_key(PROJECT, "c2"), f"{PROJECT}/{KUBERMATIC}k1"
        for key in (twin, second):
            cluster_cache.host(key, hosted(key.partition("/")[2]))
        cluster_cache.host(theirs, hosted(theirs.partition("/")[2], kubeconfigSecretRef={"name": "admin"}))
        for key in (C1, theirs):
            seed.status.proven(key, PROVEN)
        seed.status.proven(CLUSTER_API, Proof(False, "NotServing"))
        await seed.status._say()
        assert seed.written[-1]["clusters"] == 3
        assert seed.serving == ("False", "NotServing")
        assert seed.written[-1]["conditions"][0].message.startswith(f"{twin}, {second}: ")

        cluster_cache.host(twin, hosted("c1", project="beta"))
        assert cluster_cache.count_clusters() == 4, "of another project it is another cluster"
        for key in (twin, second, theirs):
            cluster_cache.host(key, None)
        await seed.status._say()
        assert seed.written[-1]["clusters"] == 1
        assert seed.serving == ("True", "CanaryDenied")


async def test_whoever_counts_clusters_hears_of_those_of_cluster_api(world: SeedWorld) -> None:
    heard: list[str] = []
    ends = world.cluster_cache.on_hosted(heard.append)
    key = hosted_key(PROJECT, "c2")
    world.cluster_cache.host(key, None)
    ends()
    world.cluster_cache.host(key, None)
    assert heard == [key]


async def test_what_the_seed_itself_is_asked_about_is_said_of_it() -> None:
    async with published() as seed:
        seed.copy(**{UID_LABEL: "of-the-master"})
        seed.status.proven(C1, PROVEN)
        seed.status.proven(ALLOCATIONS, Proof(False, "NotServing", "no Allocation can be created"))
        await seed.status._say()
        assert seed.serving == ("False", "NotServing")
        seed.status.proven(ALLOCATIONS, PROVEN)
        await seed.status._say()
        assert seed.serving == ("True", "CanaryDenied")
