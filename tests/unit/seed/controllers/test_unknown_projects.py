"""Events on clusters whose project is unknown."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from seed.controllers.unknown_projects import LOOK_EVERY, RETRY, TELL_AGAIN, UnknownProjects
from seed.model.cluster_key import HOSTED
from tests.unit.seed.admission.test_projects import TYPO, allow, declare
from tests.unit.seed_world import SeedWorld


class Seed:
    """Its API server."""

    name = "seed-1"

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.answers = True

    async def create(self, _resource: object, body: dict[str, Any]) -> None:
        if not self.answers:
            raise Unavailable(0, "Unavailable", "no answer")
        self.events.append(body)

    def about(self) -> list[tuple[str, str, str]]:
        return [(event["regarding"]["kind"], event["regarding"]["name"], event["reason"]) for event in self.events]


def made(world: SeedWorld) -> tuple[Seed, UnknownProjects]:
    seed = Seed()
    return seed, UnknownProjects(cast(Cluster, seed), world.quota_cache, world.cluster_cache)


async def test_each_cluster_of_an_unknown_project_gets_a_warning_at_the_second_look_and_every_hour(
    world: SeedWorld,
) -> None:
    seed, unknown = made(world)
    declare(world.cluster_cache)
    body = {"metadata": {"name": f"{HOSTED}c", "namespace": "ns", "uid": "u"}, "spec": {"project": TYPO}}
    world.cluster_cache.host(f"ns/{HOSTED}c", msgspec.convert(body, UserCluster))
    await unknown.look(0.0)
    assert seed.events == [], "its Project may be on its way"
    await unknown.look(LOOK_EVERY)
    assert seed.about() == [("UserCluster", "typo", "UnknownProject"), ("Cluster", "c", "UnknownProject")]
    first, second = seed.events
    assert (first["type"], first["regarding"]["apiVersion"]) == ("Warning", "seedquota.io/v1alpha1")
    assert "so no Machine can be created" in first["note"]
    assert "Machines are not limited by it, and not refused" in second["note"]
    await unknown.look(2 * LOOK_EVERY)
    assert len(seed.events) == 2
    await unknown.look(LOOK_EVERY + TELL_AGAIN)
    assert len(seed.events) == 4


async def test_what_is_not_written_is_tried_again(world: SeedWorld) -> None:
    seed, unknown = made(world)
    declare(world.cluster_cache)
    await unknown.look(0.0)
    seed.answers = False
    await unknown.look(LOOK_EVERY)
    seed.answers = True
    await unknown.look(LOOK_EVERY + RETRY)
    assert len(seed.events) == 1


async def test_where_settings_allow_unknown_projects_nobody_is_warned(world: SeedWorld) -> None:
    seed, unknown = made(world)
    declare(world.cluster_cache)
    allow(world.quota_cache)
    for now in (0.0, LOOK_EVERY):
        await unknown.look(now)
    assert seed.events == []


async def test_where_nothing_was_copied_nobody_is_warned(world: SeedWorld) -> None:
    world.forget_project()
    seed, unknown = made(world)
    declare(world.cluster_cache)
    for now in (0.0, LOOK_EVERY):
        await unknown.look(now)
    assert seed.events == []
