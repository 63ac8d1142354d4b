"""Every cell of matrix.py on real control planes: it works, or it is refused with words that say why.

Each kind of subject has one quota, which limits all that such a quota may limit, to two of each. The rows of one
resource and operation are tried at the same time, of all kinds of subjects. Each begins and ends with nothing used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pytest
import pytest_asyncio

from tests.integration.installed.site import Answer, Json, Site, named, quota_manifest, until
from tests.integration.tenancy.conftest import USER_CLUSTERS, leave_namespace, make_namespace
from tests.integration.tenancy.matrix import (
    ALLOCATIONS,
    CHANGE,
    CLUSTERS,
    CREATE,
    DEFAULT,
    DELETE,
    LOWER,
    MACHINES,
    MOVE,
    NAMESPACES,
    OBJECTS,
    ORGANIZATION,
    PROJECT,
    PROMISES,
    RESOURCES,
    TABLE,
    Row,
)
from tests.integration.tenancy.things import Allocations, Clusters, Machines, Pods, Promises, Things

pytestmark = pytest.mark.integration

LIMIT = 2
SECONDS = 120.0
ELSEWHERE = {PROJECT: "gamma", ORGANIZATION: "elsewhere"}  # a project and an organization without quotas


@dataclass(frozen=True)
class Subject:
    """Who is limited. `path` and `name` are those of the object that a user writes."""

    kind: str
    path: str
    name: str
    has: Mapping[str, Things]
    label: str = ""  # of its namespaces
    elsewhere: str | None = None  # its value on a namespace that has left

    @property
    def quota(self) -> str:
        """That counts."""
        return f"allocation.{self.name}" if self.kind == PROMISES else self.name

    @property
    def said(self) -> str:
        """In refusals."""
        return f"resourcequotaallocation/{self.name}" if self.kind == PROMISES else self.name

    def limited(self, hard: Json) -> Json:
        return {"spec": {"allocation": {"hard": hard}} if self.kind == PROMISES else {"quota": hard}}


class NotRefused(Exception):
    """What must not be admitted was."""


class Cell:
    """One row for one kind of subject."""

    def __init__(self, site: Site, subject: Subject, row: Row) -> None:
        self.site = site
        self.subject = subject
        self.row = row
        self.things = subject.has[row.resource]
        self.quota = subject.said
        self.limit = LIMIT

    def _filled(self, text: str) -> str:
        limit = self.things.already + self.limit
        numbers = {"used": limit, "limit": limit, "lowered": limit - 1}
        namespace = self.things.places[0][1].split("/")[4] if "/namespaces/" in self.things.places[0][1] else ""
        return text.format(quota=self.quota, namespace=namespace, **numbers)

    async def admitted(self, count: int = 1) -> None:
        """What was freed a moment ago may still be refused."""

        async def created() -> None:
            answer = await self.things.create()
            assert answer.status == 201, answer

        for _ in range(count):
            await until(created, SECONDS)

    async def full(self) -> None:
        """To the limit, and no further."""
        await self.admitted(self.limit)
        await self.refused()

    async def refused(self, ask: Callable[[], Awaitable[Answer]] | None = None) -> None:
        """In the words of the row, as soon as it can be decided. It is never admitted."""
        said = self._filled(self.row.says)

        async def told() -> None:
            answer = await (ask or self.things.create)()
            if answer.status < 300:
                raise NotRefused(f"{self.subject.kind}: {answer}, not {said}")
            assert answer.status in (400, 403, 422) and said in answer.message, f"{answer}, not {said}"

        await until(told, SECONDS)

    async def uses(self, count: int) -> None:
        amounts = self.things.amounts(count)
        await self.site.uses(amounts, self.subject.quota, seconds=SECONDS)
        if self.subject.kind == PROMISES:

            async def shown() -> None:
                status = (await self.site.get("master", self.subject.path))["status"]
                assert status["allocated"]["used"] == amounts, status

            await until(shown, SECONDS)

    async def shows(self, kind: str, status: str) -> None:
        reason, *texts = map(self._filled, self.row.shows)
        await self.site.comes("master", self.subject.path, kind, status, reason, *texts, seconds=SECONDS)

    async def empty(self) -> None:
        if self.things.made:
            for thing in list(self.things.made):
                await self.things.remove(thing)
            await self.uses(0)


# One function for each operation ----------------------------------------------------------------------------------


async def create(cell: Cell) -> None:
    await cell.full()
    await cell.uses(LIMIT)


async def change(cell: Cell) -> None:
    await cell.admitted(LIMIT)
    grows, goes = cell.things.made

    async def enlarged() -> None:
        answer = await cell.things.enlarge(grows)
        assert answer.status == 200, answer

    if not cell.things.more:
        await until(enlarged, SECONDS)
        await cell.uses(LIMIT)
        return
    await cell.refused(partial(cell.things.enlarge, grows))
    await cell.things.remove(goes)
    await until(enlarged, SECONDS)
    await cell.site.uses(
        {name: cell.things.amounts(LIMIT)[name] for name in cell.things.more}, cell.subject.quota, seconds=SECONDS
    )


async def delete(cell: Cell) -> None:
    await cell.full()
    await cell.things.remove(cell.things.made[0])
    await cell.admitted()
    await cell.refused()
    await cell.uses(LIMIT)


async def move(cell: Cell) -> None:
    """A namespace leaves with all that it has, and comes back when others use its share."""
    await cell.admitted(LIMIT)
    away = cell.things.places[0]
    namespace = away[1].rpartition("/")[0]
    here = (await cell.site.get(away[0], namespace))["metadata"]["labels"][cell.subject.label]

    async def label(value: str | None) -> None:
        await cell.site.patch(away[0], namespace, {"metadata": {"labels": {cell.subject.label: value}}})

    await label(cell.subject.elsewhere)
    cell.things.away = [away]
    try:
        await cell.uses(LIMIT - 1)
        await cell.admitted()
    finally:
        await label(here)
        cell.things.away = []
    await cell.uses(LIMIT + 1)
    await cell.shows("Exceeded", "True")
    await cell.refused()


async def stays(cell: Cell) -> None:
    """It cannot move: of a project the cluster cannot, of an organization the project cannot."""
    kind, site = cell.subject.kind, cell.site
    if cell.row.resource == ALLOCATIONS:
        await cell.admitted()
        cluster, path = cell.things.made[0]
    elif kind == PROJECT:
        cluster, path = USER_CLUSTERS["user-1"]
    else:
        cluster, path = "master", "projects/beta"
    await cell.refused(partial(site.call, cluster, "PATCH", path, {"spec": {kind: ELSEWHERE[kind]}}))


async def lower(cell: Cell) -> None:
    await cell.admitted(LIMIT)
    await cell.uses(LIMIT)
    answer = await cell.site.call(
        "master", "PATCH", cell.subject.path, cell.subject.limited(cell.things.amounts(LIMIT - 1))
    )
    assert answer.status == 200, answer
    try:
        for text in map(cell._filled, cell.row.warns):
            assert text in "; ".join(answer.warnings), f"{answer.warnings}, not {text}"
        await cell.refused()
        await cell.shows("Exceeded", "True")
        await cell.uses(LIMIT)
    finally:
        await cell.site.patch("master", cell.subject.path, cell.subject.limited(cell.things.amounts(LIMIT)))
    await cell.things.remove(cell.things.made[0])
    await cell.admitted()


async def default_quota(cell: Cell) -> None:
    """The project of the organization's rows has no quota of its own, nor has the organization of the project's."""
    site, kind = cell.site, cell.subject.kind

    async def set_default(value: object) -> None:
        await site.patch("master", "quotasettings/default", {"spec": {"defaults": {kind: value}}})

    await set_default({"quota": cell.things.amounts(1)})
    try:
        await site.comes("master", cell.subject.path, "Enforced", "True", seconds=SECONDS)
        cell.limit = 1
        await cell.full()
        await cell.uses(1)
        await cell.empty()
    finally:
        await set_default(None)

    async def gone() -> None:
        for cluster in ("master", *site.installed.seeds):
            assert (await site.call(cluster, "GET", cell.subject.path)).status == 404, cluster

    await until(gone, SECONDS)


async def no_default_quota(cell: Cell) -> None:
    defaults = {cell.subject.kind: {"quota": cell.things.amounts(1)}}
    body, path = {"spec": {"defaults": defaults}}, "quotasettings/default"
    await cell.refused(partial(cell.site.call, "master", "PATCH", path, body, fieldValidation="Strict"))


async def limit_range(cell: Cell) -> None:
    pods, (cluster, path) = cell.things, cell.things.places[0]
    assert isinstance(pods, Pods)
    body = pods.with_container({}) | {"metadata": {"name": "without-requests"}}
    ask = partial(cell.site.call, cluster, "POST", path, body)
    await cell.refused(ask)
    ranges = f"{path.rpartition('/')[0]}/limitranges"
    limits = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]}
    made = await cell.site.call(cluster, "POST", ranges, {"metadata": {"name": "default"}, "spec": limits})
    assert made.status == 201, made
    try:

        async def named_by_it() -> None:
            answer = await ask()
            assert answer.status == 201, answer

        await until(named_by_it, SECONDS)
        pods.made.append((cluster, f"{path}/without-requests"))
        await cell.uses(1)
    finally:
        await cell.site.delete(cluster, f"{ranges}/default")


async def names_who_has_none(cell: Cell) -> None:
    await cell.shows("NamespacesLimited", "False")


async def no_such_quota(cell: Cell) -> None:
    site, subject, says = cell.site, cell.subject, cell.row.says
    for name in cell.row.names:
        body = await site.get("master", subject.path)
        made = {**body, "metadata": {"name": "new"}, **subject.limited({name: "1"})}
        made["spec"] = {**body["spec"], **made["spec"]}
        said = says.format(name=name)
        for method, path, sent in (
            ("POST", subject.path.partition("/")[0], made),
            ("PATCH", subject.path, subject.limited({name: "1"})),
        ):
            answer = await site.call("master", method, path, sent, dryRun="All")
            assert answer.status == 422 and said in answer.message, f"{method} {name}: {answer}, not {said}"


# Who is limited ---------------------------------------------------------------------------------------------------

PLACES = {
    "alpha": ({"seedquota.io/project": "alpha"}, ("user-1", "user-2")),
    "beta": ({"seedquota.io/project": "beta"}, ("user-1", "user-3")),
    "team": ({"team": "red"}, ("user-1", "user-2")),
    "shares": ({"shares": "yes"}, ("user-1", "user-2", "user-1", "user-2")),
}


@dataclass(frozen=True)
class World:
    """`limited`: of each kind of subject one, whose quota is in force. `without`: a project and an organization that
    have none of their own."""

    site: Site
    limited: Mapping[str, Subject]
    without: Mapping[str, Subject]


def namespaces(name: str) -> list[tuple[str, str]]:
    return [(cluster, f"matrix-{name}-{number}") for number, cluster in enumerate(PLACES[name][1])]


def world_of(site: Site) -> World:
    alpha: dict[str, Things] = {
        MACHINES: Machines(site, "user-1", "user-2"),
        OBJECTS: Pods(site, *namespaces("alpha")),
        CLUSTERS: Clusters(site, "alpha", already=2),
        ALLOCATIONS: Allocations(site, "solo", "alpha"),
    }
    beta: dict[str, Things] = {
        MACHINES: Machines(site, "user-3"),
        OBJECTS: Pods(site, *namespaces("beta")),
        CLUSTERS: Clusters(site, "beta", already=1),
        ALLOCATIONS: Allocations(site, "acme", "beta"),
    }
    team, shares = Pods(site, *namespaces("team")), Promises(site, *namespaces("shares"))

    def subject(kind: str, path: str, has: Mapping[str, Things], label: str = "", away: str | None = None) -> Subject:
        return Subject(kind, path, path.rpartition("/")[2], has, label, away)

    project = "seedquota.io/project"
    found = [
        subject(PROJECT, "resourcequotas/project-alpha", alpha, project, "gamma"),
        subject(ORGANIZATION, "resourcequotas/org-acme", beta, project, "gamma"),
        subject(NAMESPACES, "resourcequotas/team-red", dict.fromkeys(RESOURCES, team), "team", "blue"),
        subject(PROMISES, "resourcequotaallocations/shares", dict.fromkeys(RESOURCES, shares), "shares", None),
    ]
    without = [
        subject(PROJECT, "resourcequotas/project-beta", beta),
        subject(ORGANIZATION, "resourcequotas/org-solo", alpha),
    ]
    return World(site, {each.kind: each for each in found}, {each.kind: each for each in without})


def quotas(limited: Mapping[str, Subject]) -> list[Json]:
    def hard(kind: str) -> Json:
        return {name: amount for each in limited[kind].has.values() for name, amount in each.amounts(LIMIT).items()}

    selectors = {kind: {"matchLabels": PLACES[name][0]} for kind, name in ((NAMESPACES, "team"), (PROMISES, "shares"))}
    of_tenants = [
        quota_manifest(hard(kind), limited[kind].quota, kind=kind, subject=name)
        for kind, name in ((PROJECT, "alpha"), (ORGANIZATION, "acme"))
    ]
    subject = {"kind": NAMESPACES, "selector": selectors[NAMESPACES]}
    return [
        *map(dict, of_tenants),
        dict(named("ResourceQuota", "team-red", subject=subject, quota=hard(NAMESPACES))),
        dict(named(PROMISES, "shares", selector=selectors[PROMISES], allocation={"hard": hard(PROMISES)})),
    ]


@pytest_asyncio.fixture(scope="module")
async def world(installation: Site) -> AsyncIterator[World]:
    site, before, found = installation, installation.positions(), world_of(installation)
    catalogue = named("QuotaSettings", "default", resources=[{"name": "servers", "countFrom": "Allocations"}])
    made = await site.call("master", "POST", "quotasettings", catalogue)
    assert made.status == 201, made
    try:
        for name, (labels, _) in PLACES.items():
            await asyncio.gather(*(make_namespace(site, *place, labels) for place in namespaces(name)))
        await site.apply("master", *quotas(found.limited))
        for each in found.limited.values():
            await site.comes("master", each.path, "Enforced", "True", seconds=120)
        await until(partial(allocations_are_asked_about, site), SECONDS)
        yield found
    finally:  # others share the installation
        for each in found.limited.values():
            await site.delete("master", each.path)
        await site.delete("master", "quotasettings/default")
        for name, (labels, _) in PLACES.items():
            await asyncio.gather(*(leave_namespace(site, *place, labels) for place in namespaces(name)))
    assert [line for line in site.said(before) if line["level"] not in ("debug", "info", "warning")] == []


async def allocations_are_asked_about(site: Site) -> None:
    wrong = Allocations(site, "solo", "alpha").body("wrong")
    wrong["spec"]["resources"][0]["type"] = "server"
    answer = await site.call("master", "POST", "namespaces/org-solo/allocations", wrong, dryRun="All")
    assert answer.status == 422 and "known are servers" in answer.message, answer


STEPS = {
    CREATE: create,
    CHANGE: change,
    DELETE: delete,
    MOVE: move,
    LOWER: lower,
    DEFAULT: default_quota,
    "stays": stays,
    "no_such_quota": no_such_quota,
    "limit_range": limit_range,
    "no_default_quota": no_default_quota,
    "names_who_has_none": names_who_has_none,
}


def name_of(row: Row) -> str:
    return "-".join((row.resource.partition(" ")[0], row.steps or row.operations[0], *row.tried)).replace(" ", "_")


@pytest.mark.parametrize("row", [row for row in TABLE if row.tried], ids=name_of)
async def test_a_cell_works_or_is_refused_with_words_that_say_why(world: World, row: Row) -> None:
    steps = STEPS[row.steps or row.operations[0]]
    who = world.without if steps is default_quota else world.limited
    cells = [Cell(world.site, who[kind], row) for kind in row.tried]
    async with asyncio.TaskGroup() as group:
        for cell in cells:
            group.create_task(tried(steps, cell), name=f"{cell.subject.kind}: {name_of(row)}")


async def tried(steps: Callable[[Cell], Awaitable[None]], cell: Cell) -> None:
    try:
        await steps(cell)
    finally:
        await cell.empty()
