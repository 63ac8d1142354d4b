"""Many clients in the namespaces of many projects of two organizations, in two clusters of two seeds: no limit of a
project or an organization is exceeded at any time, and what can be full is full in the end.

CLIENTS and NAMESPACES (of each project, half of them in each cluster) make it larger or smaller.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import aiohttp
import pytest
import pytest_asyncio

from tests.integration.installed.site import Answer, Json, Site, named, quota_manifest, until
from tests.integration.tenancy.conftest import leave_namespace, make_namespace

pytestmark = pytest.mark.integration

CLIENTS = int(os.environ.get("CLIENTS", "48"))
NAMESPACES = int(os.environ.get("NAMESPACES", "10"))
PROJECTS = 5  # of each organization
OF_PROJECT = 12  # pods
OF_ORGANIZATION = {"tight": 50, "wide": 80}  # the projects of each may have 60 together
FULL = {"tight": 50, "wide": PROJECTS * OF_PROJECT}
STEPS = 300  # of all clients together; more than there is room for
DELETES = 0.25  # of the steps of who has a pod
SECONDS = 300.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 4.0  # seconds between a client's tries; the first is what it is told to wait
CLUSTERS = ("user-1", "user-2")
LABEL = "seedquota.io/project"
LATE = "the server was unable to return a response in the time allotted"  # with 403, of core's LimitRanger
USED = re.compile(r"exceeded quota: (\S+), requested: pods=1, used: pods=(\d+), limited: pods=(\d+);")


@dataclass(frozen=True)
class Place:
    """A namespace."""

    organization: str
    project: str
    cluster: str
    name: str

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.name}/pods"

    @property
    def quotas(self) -> tuple[str, str]:
        return f"project-{self.project}", f"org-{self.organization}"


PLACES = [
    Place(organization, f"{organization}-{project}", CLUSTERS[number % 2], f"{organization}-{project}-{number}")
    for organization in OF_ORGANIZATION
    for project in range(PROJECTS)
    for number in range(NAMESPACES)
]
PROJECT_OF = {place.project: place.organization for place in PLACES}
LIMITS = {f"project-{project}": OF_PROJECT for project in PROJECT_OF} | {
    f"org-{organization}": limit for organization, limit in OF_ORGANIZATION.items()
}
LAST = {cluster: Place("", "", cluster, f"last-{cluster}") for cluster in CLUSTERS}  # of nobody


async def for_each(places: list[Place], work: Callable[[Place], Awaitable[None]]) -> None:
    at_once = asyncio.Semaphore(8)

    async def one(place: Place) -> None:
        async with at_once:
            await work(place)

    await asyncio.gather(*map(one, places))


@pytest_asyncio.fixture
async def site(installation: Site) -> AsyncIterator[Site]:
    """With all quotas in force."""
    site, before, subjects = installation, installation.positions(), {"org": "organization", "project": "project"}
    try:
        await site.apply("master", *(named("Organization", name) for name in OF_ORGANIZATION))
        await site.apply("master", *(named("Project", name, organization=whose) for name, whose in PROJECT_OF.items()))
        await for_each(PLACES, lambda place: make_namespace(site, place.cluster, place.name, {LABEL: place.project}))
        await for_each([*LAST.values()], lambda place: make_namespace(site, place.cluster, place.name, {}))
        for quota, limit in LIMITS.items():
            kind, _, subject = quota.partition("-")
            await site.apply(
                "master", quota_manifest({"pods": str(limit)}, quota, kind=subjects[kind], subject=subject)
            )
        for quota in LIMITS:
            await site.comes("master", f"resourcequotas/{quota}", "Enforced", "True", seconds=SECONDS)
        yield site
    finally:  # others share the installation
        for quota in LIMITS:
            await site.delete("master", f"resourcequotas/{quota}")
        await for_each(
            [*PLACES, *LAST.values()], lambda place: leave_namespace(site, place.cluster, place.name, {LABEL: ""})
        )
        for path in (
            *(f"projects/{name}" for name in PROJECT_OF),
            *(f"organizations/{name}" for name in OF_ORGANIZATION),
        ):
            await site.delete("master", path)
    assert [line for line in site.said(before) if line["level"] not in ("debug", "info", "warning")] == []


_numbers = itertools.count()


async def create(site: Site, place: Place) -> tuple[str, Answer]:
    """One pod, tried again while nobody can decide: its name if it is there. Otherwise a quota of the place is full."""
    name = f"p{next(_numbers)}"
    body: Json = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}

    async def decided() -> Answer:
        answer = await site.call(place.cluster, "POST", place.pods, body)
        assert answer.status in (201, 403, 409), answer  # 409: a try whose answer was lost has made it
        assert LATE not in answer.message, answer
        return answer

    answer = await until(decided, SECONDS, first_pause=FIRST_PAUSE, longest_pause=LONGEST_PAUSE)
    if answer.status != 403:
        return name, answer
    refusal = USED.search(answer.message)
    assert refusal is not None and refusal[1] in place.quotas, f"{place}: {answer}"
    assert int(refusal[2]) >= int(refusal[3]) == LIMITS[refusal[1]], answer
    return "", answer


class Client:
    """Makes pods wherever it likes, and deletes some of them again."""

    def __init__(self, site: Site, number: int) -> None:
        self.site = site
        self.chance = random.Random(number)
        self.has: list[tuple[str, str]] = []
        self.refused = 0

    async def work(self, steps: Iterator[int]) -> None:
        for _ in steps:
            if self.has and self.chance.random() < DELETES:
                cluster, path = self.has.pop(self.chance.randrange(len(self.has)))
                await self.site.delete(cluster, f"{path}?gracePeriodSeconds=0")
                continue
            place = self.chance.choice(PLACES)
            name, _ = await create(self.site, place)
            if name:
                self.has.append((place.cluster, f"{place.pods}/{name}"))
            else:
                self.refused += 1


@dataclass
class History:
    """What happened to the pods of a cluster: revision, whether it was added or deleted, and its namespace.

    All clusters are in one etcd, so that the revisions of several say what was before what.
    """

    events: list[tuple[int, int, str]] = field(default_factory=list)
    ended: bool = False

    async def follow(self, session: aiohttp.ClientSession, version: str) -> None:
        parameters = {"watch": "1", "resourceVersion": version}
        forever = aiohttp.ClientTimeout(total=None)
        try:
            async with session.get("/api/v1/pods", params=parameters, timeout=forever) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    metadata = event["object"]["metadata"]
                    change = {"ADDED": 1, "DELETED": -1, "MODIFIED": 0}[event["type"]]
                    self.events.append((int(metadata["resourceVersion"]), change, metadata["namespace"]))
        finally:
            self.ended = True

    def has_seen(self, namespace: str) -> bool:
        assert not self.ended, "the watch has ended too early"
        return any(each[2] == namespace for each in self.events)


def most(histories: list[History]) -> Counter[str]:
    """The most pods that each quota had at any time."""
    of = {place.name: place.quotas for place in PLACES}
    now: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for _, change, namespace in sorted(event for history in histories for event in history.events):
        for quota in of.get(namespace, ()):
            now[quota] += change
            found[quota] = max(found[quota], now[quota])
    return found


async def there(site: Site) -> Counter[str]:
    """How many pods there are, by quota."""
    listed = [found for cluster in CLUSTERS for found in await site.items(cluster, "/api/v1/pods")]
    of = {place.name: place.quotas for place in PLACES}
    return Counter(quota for found in listed for quota in of.get(found["metadata"]["namespace"], ()))


async def test_projects_and_their_organizations_are_filled_exactly_and_never_exceeded(site: Site) -> None:
    histories = {cluster: History() for cluster in CLUSTERS}
    watching = []
    for cluster, history in histories.items():
        version = (await site.get(cluster, "/api/v1/pods"))["metadata"]["resourceVersion"]
        watching.append(asyncio.create_task(history.follow(site.session(cluster), version)))
    clients, steps = [Client(site, number) for number in range(CLIENTS)], iter(range(STEPS))
    try:
        await asyncio.gather(*(client.work(steps) for client in clients))
        assert sum(client.refused for client in clients), "the limits were reached"

        async def filled() -> None:
            """What was refused in one project's quota was reserved in the organization's for a moment."""
            found = await there(site)
            room = [project for project in PROJECT_OF if found[f"project-{project}"] < OF_PROJECT]
            asked = [
                next(place for place in PLACES if place.project == project)
                for project in room
                if found[f"org-{PROJECT_OF[project]}"] < FULL[PROJECT_OF[project]]
            ]
            await asyncio.gather(*(create(site, place) for place in asked))
            assert not asked

        await until(filled, SECONDS)
        for place in LAST.values():
            assert (await create(site, place))[0]

        async def followed() -> None:
            assert all(histories[place.cluster].has_seen(place.name) for place in LAST.values())

        await until(followed, SECONDS)
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)

    peaks, found = most([*histories.values()]), await there(site)
    assert {quota: peak for quota, peak in peaks.items() if peak > LIMITS[quota]} == {}
    assert {organization: found[f"org-{organization}"] for organization in OF_ORGANIZATION} == FULL
    assert {found[f"project-{project}"] for project, whose in PROJECT_OF.items() if whose == "wide"} == {OF_PROJECT}
    for project, whose in PROJECT_OF.items():
        for cluster in CLUSTERS:
            place = next(place for place in PLACES if (place.project, place.cluster) == (project, cluster))
            await until(
                partial(is_full, site, place, {"tight": place.quotas, "wide": place.quotas[:1]}[whose]), SECONDS
            )
    for quota in LIMITS:
        await site.uses({"pods": str(found[quota])}, quota, seconds=SECONDS)


async def is_full(site: Site, place: Place, quotas: tuple[str, ...]) -> None:
    """One of these refuses, and has exactly its limit. What was refused a moment ago may be reserved still."""
    _, answer = await create(site, place)
    refusal = USED.search(answer.message)
    assert refusal is not None and refusal[1] in quotas and refusal[2] == refusal[3], answer
