"""Allocations over HTTP. They are objects on the API server, whose webhook decides; here they are made, changed and
deleted by compare-and-set, and the webhook's answers become problems."""

from __future__ import annotations

import asyncio
from itertools import islice
from urllib.parse import urlencode

import msgspec

from common.api.types import Allocation
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, NotFound
from master.apiserver import allocation_types as types
from master.apiserver.allocation_types import AllocationCreate, AllocationUpdate, NewAllocation
from master.apiserver.allocation_writes import AT_ONCE, TRIES, AllocationWrites, contended
from master.apiserver.auth import Right, Rights
from master.apiserver.call import Call, RouteResponse
from master.apiserver.problem import ProblemError, invalid
from master.apiserver.route import MAX_LIMIT
from master.apiserver.visibility import Visibility, namespace_of
from master.cache.allocations import AllocationCache
from master.cache.informers import BY_ORGANIZATION, Caches, organization_of, subject_of
from master.cache.objects import PROJECTS


class AllocationHandlers:
    """Each raises ProblemError and ApiError."""

    def __init__(self, cluster: Cluster, caches: Caches, allocations: AllocationCache, rights: Rights) -> None:
        self._cluster = cluster
        self._caches = caches
        self._allocations = allocations
        self._rights = rights
        self._visibility = Visibility(caches, rights)
        self._writes = AllocationWrites(cluster, allocations, self._subject_of)

    async def list_allocations(self, call: Call) -> RouteResponse:
        organization = call.parameters["organization"]
        namespace, query = namespace_of(organization), call.query
        if "projectID" not in query:  # else what one may see of this project decides
            await self._visibility.organization(call.user, organization)
        seen = await self._listed_projects(call, self._allocations.projects(namespace), query.get("projectID"))
        limit = min(int(query.get("limit", MAX_LIMIT)), MAX_LIMIT)
        listed = self._allocations.listed(
            namespace, seen, kind=query.get("kind"), id=query.get("id"), after=query.get("continue", "")
        )
        some = list(islice(listed, limit + 1))
        rest = some[limit - 1].metadata.name if len(some) > limit else ""
        content = [types.answer(each) for each in some[:limit]]
        answer = RouteResponse(content)
        if rest:
            path = f"/api/v1/organizations/{organization}/allocations"
            answer.headers.append(("Link", f'<{path}?{urlencode({**query, "continue": rest})}>; rel="next"'))
        return answer

    async def create_allocations(self, call: Call) -> RouteResponse:
        return await self._create(call, "")

    async def create_project_allocations(self, call: Call) -> RouteResponse:
        return await self._create(call, call.parameters["project"])

    async def get_allocation(self, call: Call) -> RouteResponse:
        await self._require(call, "get", call.parameters["project"])
        return _versioned(await self._read(call))

    async def put_allocation(self, call: Call) -> RouteResponse:
        await self._require(call, "update", call.parameters["project"])
        body: AllocationUpdate = call.body
        wanted = types.resources(body.spec.resources, "/spec/resources")
        for _ in range(TRIES):
            found = await self._read(call)
            _check(call, found)
            types.check_same(body, found)
            name = body.metadata.name if isinstance(body.metadata.name, str) else types.display_name(found)
            if types.amounts(wanted) == types.amounts(found.spec.resources) and name == types.display_name(found):
                return _versioned(found)
            await self._writes.prove(call.parameters["organization"])
            before = msgspec.to_builtins(found.spec.resources)
            after = msgspec.to_builtins(wanted)
            call.changes = {"allocation": found.metadata.name, "before": before, "resources": after}
            try:
                return _versioned(await self._writes.change(found, wanted, name))
            except (Conflict, NotFound):
                continue
        raise contended()

    async def delete_allocation(self, call: Call) -> RouteResponse:
        await self._require(call, "delete", call.parameters["project"])
        for _ in range(TRIES):
            found = await self._read(call)
            _check(call, found)
            call.changes = {"allocation": found.metadata.name, "deleted": types.spec_of(found.spec)}
            try:
                await self._writes.delete(found)
            except Conflict:
                continue
            except NotFound:
                raise _none(call) from None
            return RouteResponse(None)
        raise contended()

    async def _create(self, call: Call, project: str) -> RouteResponse:
        organization = call.parameters["organization"]
        given: AllocationCreate | list[AllocationCreate] = call.body
        bodies = given if isinstance(given, list) else [given]
        wanted = [
            types.new_allocation(each, organization, project, f"/{number}" if given is bodies else "")
            for number, each in enumerate(bodies)
        ]
        types.check_distinct(wanted)
        for name in sorted({each.spec.project for each in wanted}):
            await self._require(call, "create", name)
        for each in wanted:
            await self._check_project(each, in_path=bool(project))
        await self._writes.prove(organization)
        call.changes = {"allocations": [{"name": each.name, **types.spec_of(each.spec)} for each in wanted]}
        try:
            there, made = await self._writes.create(wanted, call.user.username)
        except ProblemError as problem:
            if problem.existing and not await self._sees(call, problem.existing):
                problem.existing = ""
            raise
        call.changes = {"created": [{"name": each.name, **types.spec_of(each.spec)} for each in made]}
        content = [types.answer(there[each.name]) for each in wanted]
        shown: object = content if given is bodies else content[0]
        answer = RouteResponse(shown, status=201 if made else 200, version=types.version(shown))
        if given is not bodies:
            answer.headers.append(("Location", _path(wanted[0])))
        return answer

    async def _sees(self, call: Call, name: str) -> bool:
        """Whether the user may read this allocation: it may be another project's."""
        organization = call.parameters["organization"]
        found = await self._writes.read(organization, name)
        return found is not None and await self._rights.has(call.user, _right("get", organization, found.spec.project))

    async def _read(self, call: Call) -> Allocation:
        """As the API server has it."""
        found = await self._writes.read(call.parameters["organization"], call.parameters["id"])
        if found is None or found.spec.project != call.parameters["project"]:
            raise _none(call)
        return found

    async def _check_project(self, wanted: NewAllocation, *, in_path: bool) -> None:
        organization, name = wanted.spec.organization, wanted.spec.project
        known = self._caches.projects.store.get(name)
        if known is None or organization_of(known) != organization:
            known = await self._cluster.find(PROJECTS, name)  # the cache may be behind
        if known is not None and organization_of(known) == organization:
            return
        detail = f"organization {organization} has no project {name}"
        if in_path:
            raise ProblemError(404, detail)
        raise invalid(f"{wanted.at}/metadata/projectID", detail)

    async def _require(self, call: Call, verb: str, project: str) -> None:
        """Who has the right on the project need not see its organization. Raises ProblemError: 404 for one that is not
        there, and for who sees neither."""
        organization = call.parameters["organization"]
        right = _right(verb, organization, project)
        there = self._caches.organizations.store.get(organization) is not None
        if not there or not await self._rights.has(call.user, right):
            await self._visibility.organization(call.user, organization)
            await self._rights.require(call.user, right)

    async def _listed_projects(self, call: Call, projects: set[str], wanted: str | None) -> set[str]:
        """Those of which the user may list the allocations. `wanted`: the only one. Raises ProblemError for none at
        all."""
        organization = call.parameters["organization"]
        everywhere = _right("list", organization)
        if self._caches.organizations.store.get(organization) is None:
            await self._visibility.organization(call.user, organization)
        if await self._rights.has(call.user, everywhere):
            return projects if wanted is None else projects & {wanted}
        known = self._caches.projects.store.by_index(BY_ORGANIZATION, organization)
        names = sorted({project.metadata.name for project in known} | projects)
        if wanted is not None:
            names = [name for name in names if name == wanted]  # of no other the API server is asked
        seen = set()
        for begin in range(0, len(names), AT_ONCE):
            some = names[begin : begin + AT_ONCE]
            rights = [self._rights.has(call.user, _right("list", organization, name)) for name in some]
            seen |= {name for name, has in zip(some, await asyncio.gather(*rights), strict=True) if has}
        if not seen:
            await self._visibility.organization(call.user, organization)
            raise ProblemError(403, f"you need the right: {everywhere}")
        return seen

    def _subject_of(self, quota: str) -> str:
        found = self._caches.quotas.store.get(quota)
        return (subject_of(found)[1] if found is not None else "") or quota


def _right(verb: str, organization: str, project: str = "") -> Right:
    namespace = namespace_of(organization)
    return Right(verb=verb, resource="projects", subresource="allocations", name=project, namespace=namespace)


def _path(wanted: NewAllocation) -> str:
    spec = wanted.spec
    return f"/api/v1/organizations/{spec.organization}/projects/{spec.project}/allocations/{wanted.name}"


def _versioned(found: Allocation) -> RouteResponse:
    content = types.answer(found)
    return RouteResponse(content, version=types.version(content))


def _check(call: Call, found: Allocation) -> None:
    if not call.preconditions.allow_write(types.version(types.answer(found))):
        raise ProblemError(412, "the allocation is not as If-Match or If-None-Match wants it: read it again")


def _none(call: Call) -> ProblemError:
    return ProblemError(404, f"project {call.parameters['project']} has no allocation {call.parameters['id']}")
