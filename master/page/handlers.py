"""What each page is made of: the viewer's rights first, then a view of what the caches have. Nothing is written."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from common.api.labels import SETTINGS
from common.api.types import SEEDS
from common.kube.client.resource import Resource
from common.kube.controller.reflector import Reflector
from common.server.access_reviews import User
from master.apiserver import capacity, serializers
from master.apiserver.auth import LIST_QUOTAS, Right, Rights
from master.apiserver.call import RouteResponse
from master.apiserver.conditions import Preconditions
from master.apiserver.problem import ProblemError
from master.apiserver.route import NAME
from master.apiserver.visibility import Visibility, namespace_of
from master.cache.allocations import AllocationCache, Use
from master.cache.informers import Caches, subject_of
from master.cache.objects import MASTER_QUOTAS, ORGANIZATIONS, PROJECTS, QUOTA_SETTINGS, MasterQuota
from master.grants.overrides import shown_overrides
from master.history.forecast import Point
from master.history.refusals import Lately, Refusals
from master.page.views import (
    amounts,
    organization,
    overrides,
    overview,
    plots,
    project,
    quota,
    quotas,
    refusals,
    seeds,
    settings,
)
from master.page.views.yaml_text import yaml_text
from master.quotas import kept_shares, staleness

_LIST_SEEDS = Right(verb="list", resource="seeds")
_GET_SETTINGS = Right(verb="get", resource="quotasettings", name=SETTINGS)
_UPDATE_SETTINGS = Right(verb="update", resource="quotasettings", name=SETTINGS)
EVENTS = "/api/v1/events"
_ALL_QUOTAS = "kubectl get seedquota -o yaml"
AT_ONCE = 16  # rights that are asked for at a time

_KINDS: Mapping[str, Resource[Any]] = {
    "quotas": MASTER_QUOTAS,
    "projects": PROJECTS,
    "organizations": ORGANIZATIONS,
    "seeds": SEEDS,
    "settings": QUOTA_SETTINGS,
}
"""Whose YAML is shown, by the first part of its address."""


@dataclass(frozen=True)
class Shown:
    """A template and its values. The same is shown by `command`, one of kubectl, by `call` of the HTTP API, and by
    `yaml`: the address of one object's, or of many the command that prints them; empty: it is made of no object.
    `events`: what is followed so that the page stays up to date; empty: nothing. `about`: the only objects whose
    changes matter to it, as `resourcequotas/NAME`, with spaces between them."""

    template: str
    title: str
    values: Mapping[str, object]
    command: str = ""
    call: str = ""
    yaml: str = ""
    events: str = EVENTS
    about: str = ""


_T = TypeVar("_T")

_ANY = Preconditions()


class PastUse(Protocol):
    """What quotas used in the last thirty days, and how often they refused."""

    async def points(self, quota: MasterQuota) -> dict[str, list[Point]]:
        """By resource, the oldest first; nothing where nothing is known."""
        ...

    async def refusals(self, quota: MasterQuota) -> Refusals: ...

    async def lately(self) -> Lately | None:
        """How often all of them refused in the last hours. None: that is not known."""
        ...


class Ask(Protocol):
    """What a route of the HTTP API answers, by the name of its handler. Raises ProblemError and ApiError."""

    async def __call__(
        self,
        handler: str,
        user: User,
        *,
        parameters: Mapping[str, str] = {},
        query: Mapping[str, str] = {},
        body: object = None,
        preconditions: Preconditions = _ANY,
    ) -> RouteResponse: ...


@dataclass(frozen=True)
class Asked:
    """`names`: of the address. `query`: what follows it. `form`: what was sent; None: nothing was."""

    user: User
    ask: Ask
    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] | None = None


Handler = Callable[[Asked], Awaitable[Shown]]


def content_of(kind: type[_T], answer: RouteResponse) -> _T:
    assert isinstance(answer.content, kind), f"it is a {kind.__name__}"
    return answer.content


async def ask_of_quota(asked: Asked, handler: str) -> RouteResponse:
    """What that handler answers of the quota in the address. Raises ProblemError: 404 also where that would be 403."""
    name = asked.names["name"]
    try:
        return await asked.ask(handler, asked.user, parameters={"name": name})
    except ProblemError as problem:
        if problem.status != 403:
            raise
        raise ProblemError(404, f"there is no quota {name}, or you cannot see it") from None


class Pages:
    """Each raises ProblemError: 404 also for what the viewer may not see."""

    def __init__(
        self,
        caches: Caches,
        allocations: AllocationCache,
        rights: Rights,
        history: PastUse | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`history`: None: none is kept."""
        self._history = history
        self._caches = caches
        self._allocations = allocations
        self._rights = rights
        self._visibility = Visibility(caches, rights)
        self._clock = clock
        self._rows = quotas.Rows()
        caches.listen(self._rows.changed)

    async def overview(self, asked: Asked) -> Shown:
        may_quotas, may_seeds = [await self._rights.has(asked.user, each) for each in (LIST_QUOTAS, _LIST_SEEDS)]
        if not may_quotas or not may_seeds:
            return await self.start(asked)
        found = self._caches.quotas.store.values()
        known = self._caches.seeds.store.values()
        lately = await self._history.lately() if self._history is not None else None
        view = overview.overview(found, await self._rows.of(found), known, self._clock())
        values = {"view": view, "refused": refusals.lately(lately, found)}
        return Shown("overview.html", "Overview", values, "kubectl seedquota top", "GET /api/v2/quotas", _ALL_QUOTAS)

    async def start(self, asked: Asked) -> Shown:
        """For whoever sees projects and organizations only: of these not even a list of names is told."""
        may_quotas, may_seeds = [await self._rights.has(asked.user, each) for each in (LIST_QUOTAS, _LIST_SEEDS)]
        values, call = {"may_quotas": may_quotas, "may_seeds": may_seeds}, "GET /api/v2/projects/{project}/quota"
        return Shown("start.html", "Your quotas", values, "kubectl get lsq -A", call, events="")

    async def quotas(self, asked: Asked) -> Shown:
        await self._rights.require(asked.user, LIST_QUOTAS)
        wanted = quotas.read_filter(asked.query)
        view = quotas.listed(await self._rows.of(self._caches.quotas.store.values()), wanted)
        silent = staleness.silence_of_master(self._caches.seeds.store.values(), self._clock())
        values = {"view": view, "states": quotas.STATES, "kinds": quotas.KINDS, "silent": silent}
        return Shown("quotas.html", "Quotas", values, "kubectl seedquota top", "GET /api/v2/quotas", _ALL_QUOTAS)

    async def quota(self, asked: Asked) -> Shown:
        found = await self._quota(asked)
        name, parents = found.metadata.name, self._caches.parents_of(*subject_of(found))
        view = quota.page(
            found,
            self._caches.seeds.store.values(),
            self._clock(),
            made_from=serializers.made_of(found),
            version=serializers.version([found]),
            in_force=kept_shares.in_force(parents, subject_of(found)[1]),
        )
        may_edit = await self._rights.has(asked.user, Right(verb="update", resource="resourcequotas", name=name))
        # Their names are told to nobody who cannot get them.
        shown = (found, *parents) if view.guaranteed and await self._may_get_quotas(asked.user, parents) else (found,)
        return Shown(
            "quota.html",
            name,
            {"view": view, "may_edit": may_edit and not view.made_from, "past": await self._past([found])},
            f"kubectl seedquota describe {name}",
            f"GET /api/v2/quotas/{name}",
            f"/quotas/{name}/yaml",
            about=" ".join(f"resourcequotas/{each.metadata.name}" for each in shown),
        )

    async def project(self, asked: Asked) -> Shown:
        name = asked.names["name"]
        of = await self._visibility.project(asked.user, name)
        if of and not await self._sees_organization(asked.user, of):
            of = ""
        found = self._caches.quotas_of("project", name)
        shown = self._combined(found) if found else None
        view = project.page(name, self._display_name("project", name), of, shown, self._clock())
        may_quota = await self._may_get_quotas(asked.user, found)
        values = {"view": view, "past": await self._past(found), "may_quota": may_quota}
        return Shown(
            "project.html",
            name,
            values,
            f"kubectl seedquota describe {view.quota}" if may_quota and view.quota else "",
            f"GET /api/v2/projects/{name}/quota",
            f"/projects/{name}/yaml",
            f"{EVENTS}?project={name}",
        )

    async def organization(self, asked: Asked) -> Shown:
        name = asked.names["name"]
        await self._visibility.organization(asked.user, name)
        found = self._caches.quotas_of("organization", name)
        use = self._allocations.use(namespace_of(name))
        types = {type: use.get(type, Use()) for type in sorted(self._caches.allocated_types().names)}
        visible = await self._allocating_projects(asked.user, name)
        view = organization.page(
            name,
            self._display_name("organization", name),
            [each.metadata.name for each in found] if await self._may_get_quotas(asked.user, found) else [],
            capacity.organization_quotas(found, types),
            {each: self._allocations.use_of(namespace_of(name), each) for each in visible},
            {each: self._display_name("project", each) for each in visible},
            serializers.version(found),
            overrides.lines(raised for each in found for raised in shown_overrides(each)),
        )
        return Shown(
            "organization.html",
            name,
            {"view": view, "whole": amounts.whole},
            f"kubectl get allocations -n {namespace_of(name)}",
            f"GET /api/v1/organizations/{name}/quotas",
            f"/organizations/{name}/yaml",
            f"{EVENTS}?organization={name}",
        )

    async def seeds(self, asked: Asked) -> Shown:
        await self._rights.require(asked.user, _LIST_SEEDS)
        page = asked.query.get("page", "")
        found = seeds.rows(self._caches.seeds.store.values(), self._clock())
        view = seeds.listed(found, int(page) if re.fullmatch("[0-9]{1,6}", page) else 1)
        yaml = "kubectl get sqseed -o yaml"
        return Shown("seeds.html", "Seeds", {"view": view}, "kubectl get sqseed", "GET /api/v1/seeds", yaml)

    async def seed(self, asked: Asked) -> Shown:
        name = asked.names["name"]
        found = self._caches.seeds.store.get(name)
        if not await self._may_get(asked.user, "seeds", name) or found is None:
            raise ProblemError(404, f"there is no seed {name}, or you cannot see it")
        may_quotas = await self._rights.has(asked.user, LIST_QUOTAS)
        known = self._caches.quotas.store.values() if may_quotas else []
        may_edit = await self._rights.has(asked.user, Right(verb="update", resource="seeds", name=name))
        values = {"view": seeds.page(found, known, self._clock()), "may_quotas": may_quotas}
        values["may_edit"] = may_edit and may_quotas and found.spec.state != "Lost"
        call = f"GET /api/v1/seeds/{name}" if may_quotas else ""
        return Shown("seed.html", name, values, f"kubectl describe sqseed {name}", call, f"/seeds/{name}/yaml")

    async def settings(self, asked: Asked) -> Shown:
        await self._rights.require(asked.user, _GET_SETTINGS)
        await self._rights.require(asked.user, LIST_QUOTAS)
        view = settings.page(
            self._caches.settings.store.get(SETTINGS),
            self._caches.quotas.store.values(),
            self._caches.projects.store.keys(),
            self._caches.organizations.store.keys(),
        )
        command = "kubectl get sqset default -o yaml"
        may_edit = await self._rights.has(asked.user, _UPDATE_SETTINGS)
        values = {"view": view, "may_edit": may_edit}
        call = "GET /api/v1/defaults/{project|organization}"
        return Shown("settings.html", "Settings", values, command, call, "/settings/default/yaml")

    async def yaml(self, asked: Asked) -> str:
        """Whoever may get the object with kubectl reads it here."""
        kind, name = asked.names["kind"], asked.names["name"]
        resource = _KINDS[kind]
        stores: Mapping[str, Reflector[Any]] = {
            "quotas": self._caches.quotas,
            "projects": self._caches.projects,
            "organizations": self._caches.organizations,
            "seeds": self._caches.seeds,
            "settings": self._caches.settings,
        }
        found = stores[kind].store.get(name)
        if not await self._may_get(asked.user, resource.plural, name) or found is None:
            raise ProblemError(404, f"there is no {resource.kind} {name}, or you cannot see it")
        return yaml_text(resource, found)

    async def open(self, asked: Asked) -> str:
        """The address of what somebody named."""
        kind, name = asked.query.get("kind", ""), asked.query.get("name", "").strip()
        if kind not in ("projects", "organizations") or not NAME.fullmatch(name):
            raise ProblemError(
                404, "give the name of a project or of an organization: small letters, digits and dashes"
            )
        return f"/{kind}/{name}"

    async def _quota(self, asked: Asked) -> MasterQuota:
        name = asked.names["name"]
        found = self._caches.quotas.store.get(name)
        if not await self._may_get(asked.user, "resourcequotas", name) or found is None:
            raise ProblemError(404, f"there is no quota {name}, or you cannot see it")
        return found

    async def _may_get(self, user: User, resource: str, name: str) -> bool:
        return await self._rights.has(user, Right(verb="get", resource=resource, name=name))

    async def _may_get_quotas(self, user: User, found: Sequence[MasterQuota]) -> bool:
        return bool(found) and all([await self._may_get(user, "resourcequotas", each.metadata.name) for each in found])

    async def _sees_organization(self, user: User, name: str) -> bool:
        try:
            await self._visibility.organization(user, name)
        except ProblemError as problem:
            if problem.status == 404:
                return False
            raise
        return True

    async def _allocating_projects(self, user: User, organization: str) -> list[str]:
        """Those whose allocations the viewer may list, as the HTTP API lists them."""
        namespace = namespace_of(organization)

        def right(project: str = "") -> Right:
            return Right(verb="list", resource="projects", subresource="allocations", name=project, namespace=namespace)

        names = sorted(self._allocations.projects(namespace))
        if await self._rights.has(user, right()):
            return names
        seen = []
        for begin in range(0, len(names), AT_ONCE):
            some = names[begin : begin + AT_ONCE]
            having = await asyncio.gather(*(self._rights.has(user, right(name)) for name in some))
            seen += [name for name, has in zip(some, having, strict=True) if has]
        return seen

    async def _past(self, found: Sequence[MasterQuota]) -> plots.Past:
        """Of the one quota; of several that limit one subject there is none."""
        if self._history is None or len(found) != 1:
            return plots.NOTHING
        points, refused = await self._history.points(found[0]), await self._history.refusals(found[0])
        return plots.past(points, refused, self._clock())

    def _combined(self, found: Sequence[MasterQuota]) -> serializers.Quota:
        silence = staleness.silence_of_master(self._caches.seeds.store.values(), self._clock())
        return serializers.combined(found, silence, parents=self._caches.parents_of(*subject_of(found[0])))

    def _display_name(self, kind: str, name: str) -> str:
        known = self._caches.projects if kind == "project" else self._caches.organizations
        found = known.store.get(name)
        return str(found.spec.get("displayName", "")) if found is not None else ""
