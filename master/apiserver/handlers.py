"""What each route does. Reads are answered from the watch caches, writes by compare-and-set on the API server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET

from common.kube.client.api_client import Cluster
from common.kube.client.errors import (
    AlreadyExists,
    Conflict,
    Invalid,
    NotFound,
)
from common.quota import resources
from master.apiserver import capacity, guarantee_checks, openapi, page, serializers
from master.apiserver.auth import LIST_QUOTAS, Right, Rights
from master.apiserver.call import Call, RouteResponse
from master.apiserver.capacity import OrganizationQuotasUpdate
from master.apiserver.override_types import OverridesUpdate, overrides
from master.apiserver.problem import ProblemError, invalid
from master.apiserver.refused_fields import refused, refused_limits
from master.apiserver.route import MAX_LIMIT
from master.apiserver.serializers import (
    QuotaCreate,
    QuotaUpdate,
)
from master.apiserver.visibility import Visibility, namespace_of
from master.cache.allocations import AllocationCache, Use
from master.cache.informers import Caches, limits_all_of, subject_of
from master.cache.objects import MASTER_QUOTAS, MasterQuota, spec_guaranteed, spec_quota
from master.quotas import staleness
from master.tenancy.default_policy import Kind, usual_name

TRIES = 8  # writes by compare-and-set: the status is written all the time
PAGE = 100


class Handlers:
    """Each raises ProblemError and ApiError. `cluster` is for writes."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        allocations: AllocationCache,
        rights: Rights,
        prefix: str = "",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`prefix`: the path below which clients reach the routes."""
        self._prefix = prefix
        self._cluster = cluster
        self._clock = clock
        self._caches = caches
        self._allocations = allocations
        self._rights = rights
        self._visibility = Visibility(caches, rights)

    async def openapi(self, _call: Call) -> RouteResponse:
        return RouteResponse(openapi.encoded(self._prefix))

    async def docs(self, _call: Call) -> RouteResponse:
        return RouteResponse(page.html(), headers=[("Content-Security-Policy", page.POLICY)])

    async def get_organization_quotas(self, call: Call) -> RouteResponse:
        name = call.parameters["organization"]
        await self._visibility.organization(call.user, name)
        quotas = self._caches.whole_quotas_of("organization", name)
        return _versioned(capacity.organization_quotas(quotas, self._allocated(name)), quotas)

    async def put_organization_quotas(self, call: Call) -> RouteResponse:
        name = call.parameters["organization"]
        await self._visibility.organization(call.user, name)
        body: OrganizationQuotasUpdate = call.body
        pointers = {each.type: f"/capacity/{number}" for number, each in enumerate(body.capacity)}
        for _ in range(TRIES):
            present = await self._present("organization", name)
            await self._rights.require(call.user, _write_right(present))
            _check(call, present)
            if len(present) > 1:
                names = ", ".join(quota.metadata.name for quota in present)
                raise ProblemError(409, f"several quotas limit {name}: {names}; set each", code="several_quotas")
            quota = present[0] if present else None
            allocated = self._allocated(name)
            changes = capacity.capacity_changes(quota, body.capacity, allocated)
            try:
                if quota is None:
                    written = await self._make(
                        call, usual_name("organization", name), _subject("organization", name), changes
                    )
                else:
                    written = await self._change(call, quota, {"quota": changes})
            except AlreadyExists:
                await self._check_name(usual_name("organization", name), ("organization", name))
                continue
            except (Conflict, NotFound):
                continue
            except Invalid as error:
                raise refused(error, "/capacity", pointers) from None
            return _versioned(capacity.organization_quotas([written], allocated), [written])
        raise contended()

    async def list_resource_types(self, _call: Call) -> RouteResponse:
        return RouteResponse(serializers.resource_types(self._caches.catalogue()))

    async def get_project_quota(self, call: Call) -> RouteResponse:
        name = call.parameters["project"]
        await self._visibility.project(call.user, name)
        quotas = self._caches.whole_quotas_of("project", name)
        if not quotas:
            raise ProblemError(404, f"project {name} has no quota", code="no_quota")
        return _versioned(self._shown(quotas), quotas)

    async def list_quotas(self, call: Call) -> RouteResponse:
        await self._rights.require(call.user, LIST_QUOTAS)
        wanted = call.query.get("subjectKind"), call.query.get("subjectName")
        store = self._caches.quotas.store
        names = sorted(
            quota.metadata.name
            for quota in store.values()
            if all(want in (None, has) for want, has in zip(wanted, subject_of(quota), strict=True))
        )
        limit = int(call.query.get("limit", PAGE))
        found, rest = serializers.page(names, min(limit, MAX_LIMIT), call.query.get("continue", ""))
        answer = RouteResponse([self._shown([quota]) for name in found if (quota := store.get(name)) is not None])
        if rest:
            query = urlencode({**call.query, "continue": rest})
            answer.headers.append(("Link", f'</api/v2/quotas?{query}>; rel="next"'))
        return answer

    async def create_quota(self, call: Call) -> RouteResponse:
        body: QuotaCreate = call.body
        await self._rights.require(call.user, Right(verb="create", resource="resourcequotas"))
        name, subject = _named(body)
        limits = serializers.quantities(body.quota, "/quota")
        given = _guaranteed(body)
        guarantee_checks.check(self._caches, (body.subject_kind, str(body.subject_name)), given or {}, {})
        try:
            made = await self._make(call, name, subject, limits, given)
        except AlreadyExists:
            raise ProblemError(409, f"quota {name} exists", code="already_exists") from None
        except Invalid as error:
            raise refused_limits(error, body.quota) from None
        answer = _versioned(self._shown([made]), [made])
        answer.headers.append(("Location", f"/api/v2/quotas/{name}"))
        return answer

    async def get_quota(self, call: Call) -> RouteResponse:
        name = call.parameters["name"]
        await self._rights.require(call.user, Right(verb="get", resource="resourcequotas", name=name))
        quota = self._caches.quotas.store.get(name)
        if quota is None:
            raise _no_quota(name)
        return _versioned(self._shown([quota]), [quota])

    async def put_quota(self, call: Call) -> RouteResponse:
        name = call.parameters["name"]
        body: QuotaUpdate = call.body
        await self._rights.require(call.user, Right(verb="update", resource="resourcequotas", name=name))
        limits, given = serializers.quantities(body.quota, "/quota"), _guaranteed(body)

        async def change(quota: MasterQuota) -> MasterQuota:
            _check_immutable(body, quota)
            changes: dict[str, Mapping[str, object] | None] = {
                "quota": serializers.amount_changes(spec_quota(quota), limits)
            }
            if given is not None:
                before = spec_guaranteed(quota)
                guarantee_checks.check(self._caches, subject_of(quota), given, resources.parse(before))
                changes["guaranteed"] = serializers.guarantee_changes(before, given)
            return await self._change(call, quota, changes)

        try:
            return await self._written(call, name, change)
        except Invalid as error:
            raise refused_limits(error, body.quota) from None

    async def put_overrides(self, call: Call) -> RouteResponse:
        name = call.parameters["name"]
        body: OverridesUpdate = call.body
        await self._rights.require(call.user, Right(verb="update", resource="resourcequotas", name=name))
        wanted = msgspec.to_builtins(overrides(body.overrides))

        async def change(quota: MasterQuota) -> MasterQuota:
            call.changes = {"quota": name, "before": quota.spec.get("overrides", []), "overrides": wanted}
            metadata = {"resourceVersion": quota.metadata.resource_version}
            patch = {"metadata": metadata, "spec": {"overrides": wanted or None}}
            return await self._cluster.merge_patch(MASTER_QUOTAS, name, patch)

        try:
            return await self._written(call, name, change)
        except Invalid as error:
            raise refused(error, "/overrides", {}) from None

    async def delete_quota(self, call: Call) -> RouteResponse:
        name = call.parameters["name"]
        await self._rights.require(call.user, Right(verb="delete", resource="resourcequotas", name=name))
        for _ in range(TRIES):
            quota = await self._get(name)
            _check(call, [quota])
            _check_own(quota)
            metadata = quota.metadata
            call.changes = {"quota": name, "deleted": spec_quota(quota)}
            try:
                await self._cluster.delete(
                    MASTER_QUOTAS, name, uid=metadata.uid, resource_version=metadata.resource_version
                )
            except Conflict:
                continue
            except NotFound:
                raise _no_quota(name) from None
            return RouteResponse(None)
        raise contended()

    async def _written(
        self, call: Call, name: str, change: Callable[[MasterQuota], Awaitable[MasterQuota]]
    ) -> RouteResponse:
        """A quota after a change by whoever has the right. Raises Invalid, too."""
        for _ in range(TRIES):
            quota = await self._get(name)
            _check(call, [quota])
            _check_own(quota)
            try:
                written = await change(quota)
            except Conflict:
                continue
            except NotFound:
                raise _no_quota(name) from None
            return _versioned(self._shown([written]), [written])
        raise contended()

    def _allocated(self, organization: str) -> dict[str, Use]:
        """Of what is counted from Allocations."""
        use = self._allocations.use(namespace_of(organization))
        return {name: use.get(name, Use()) for name in sorted(self._caches.allocated_types().names)}

    async def _present(self, kind: Kind, name: str) -> list[MasterQuota]:
        """As the API server has them: a cache may be behind."""
        names = {quota.metadata.name for quota in self._caches.whole_quotas_of(kind, name)}
        names.add(usual_name(kind, name))
        present = []
        for each in sorted(names):
            try:
                quota = await self._cluster.get(MASTER_QUOTAS, each)
            except NotFound:
                continue
            if limits_all_of(quota, (kind, name)) and quota.metadata.deletion_timestamp is None:
                present.append(quota)
        return present

    async def _check_name(self, name: str, subject: tuple[str, str]) -> None:
        """Raises ProblemError where the quota of this name limits something else."""
        with suppress(NotFound):
            namesake = await self._cluster.get(MASTER_QUOTAS, name)
            if not limits_all_of(namesake, subject):
                detail = f"quota {name} limits something else: make one of another name with POST /api/v2/quotas"
                raise ProblemError(409, detail, code="already_exists")

    async def _get(self, name: str) -> MasterQuota:
        try:
            return await self._cluster.get(MASTER_QUOTAS, name)
        except NotFound:
            raise _no_quota(name) from None

    async def _make(
        self,
        call: Call,
        name: str,
        subject: Mapping[str, object],
        limits: Mapping[str, object],
        guaranteed: Mapping[str, object] | None = None,
    ) -> MasterQuota:
        call.changes = {"quota": name, "limits": limits}
        spec = {"subject": subject, "quota": limits}
        if guaranteed:
            call.changes["guaranteed"] = spec["guaranteed"] = guaranteed
        return await self._cluster.create(MASTER_QUOTAS, {"metadata": {"name": name}, "spec": spec})

    async def _change(
        self, call: Call, quota: MasterQuota, changes: Mapping[str, Mapping[str, object] | None]
    ) -> MasterQuota:
        """Of its limits and guarantees those that are named; None removes one, or all."""
        name = quota.metadata.name
        call.changes = {"quota": name, "before": spec_quota(quota), "limits": changes["quota"]}
        spec = {field: change for field, change in changes.items() if change != {}}
        if "guaranteed" in spec:
            call.changes |= {"guaranteedBefore": spec_guaranteed(quota), "guaranteed": spec["guaranteed"]}
        if not spec:
            return quota
        patch = {"metadata": {"resourceVersion": quota.metadata.resource_version}, "spec": spec}
        return await self._cluster.merge_patch(MASTER_QUOTAS, name, patch)

    def _shown(self, quotas: Sequence[MasterQuota]) -> serializers.Quota:
        silence = staleness.silence_of_master(list(self._caches.seeds.store.values()), self._clock())
        kind, name = subject_of(quotas[0])
        return serializers.combined(
            quotas, silence, self._display_name(kind, name), self._caches.parents_of(kind, name)
        )

    def _display_name(self, kind: str, name: str) -> str:
        reflectors = {"project": self._caches.projects, "organization": self._caches.organizations}
        found = reflectors[kind].store.get(name) if kind in reflectors else None
        return str(found.spec.get("displayName", "")) if found is not None else ""


def _versioned(content: object, quotas: Sequence[MasterQuota]) -> RouteResponse:
    return RouteResponse(content, version=serializers.version(quotas))


def _write_right(present: Sequence[MasterQuota]) -> Right:
    """That which the same write with kubectl needs."""
    if not present:
        return Right(verb="create", resource="resourcequotas")
    return Right(verb="update", resource="resourcequotas", name=present[0].metadata.name)


def _check(call: Call, present: Sequence[MasterQuota]) -> None:
    if not call.preconditions.allow_write(serializers.version(present) if present else None):
        raise ProblemError(412, "the limits are not as If-Match or If-None-Match wants them: read them again")


def _subject(kind: Kind, name: str) -> dict[str, object]:
    return {"kind": kind, "name": name}


def _guaranteed(body: QuotaCreate | QuotaUpdate) -> dict[str, str | int] | None:
    """None where nothing is said. Raises ProblemError."""
    given = body.guaranteed
    return serializers.quantities(given, guarantee_checks.WHERE) if isinstance(given, dict) else None


def _named(body: QuotaCreate) -> tuple[str, dict[str, object]]:
    """The name of the quota, and whom it limits."""
    given = {"clusters": body.subject_clusters, "seeds": body.subject_seeds}
    part = {field: msgspec.to_builtins(selector) for field, selector in given.items() if selector is not UNSET}
    if part and not isinstance(body.name, str):
        raise invalid("/name", f"a quota of some {' and '.join(part)} needs a name")
    if body.subject_kind == "namespaces":
        if not isinstance(body.name, str):
            raise invalid("/name", "a quota of kind namespaces needs a name")
        if body.subject_selector is UNSET or body.subject_name is not UNSET:
            raise invalid("/subjectSelector", "kind namespaces has a subjectSelector, and no subjectName")
        return body.name, {"kind": "namespaces", "selector": msgspec.to_builtins(body.subject_selector), **part}
    if not isinstance(body.subject_name, str) or body.subject_selector is not UNSET:
        raise invalid("/subjectName", f"kind {body.subject_kind} has a subjectName, and no subjectSelector")
    name = body.name if isinstance(body.name, str) else usual_name(body.subject_kind, body.subject_name)
    return name, {**_subject(body.subject_kind, body.subject_name), **part}


def _check_own(quota: MasterQuota) -> None:
    """Of what follows another object a write would be undone in a second."""
    if made_from := serializers.made_of(quota):
        detail = f"quota {quota.metadata.name} is made from the {made_from}: change that instead"
        raise ProblemError(409, detail, code="made_from_other")


def _check_immutable(body: QuotaUpdate, quota: MasterQuota) -> None:
    kind, name = subject_of(quota)
    for pointer, given, has in (
        ("/name", body.name, quota.metadata.name),
        ("/subjectKind", body.subject_kind, kind),
        ("/subjectName", body.subject_name, name),
    ):
        if isinstance(given, str) and given != has:
            problem = invalid(pointer, f"it is {has} and cannot be changed")
            problem.code = "immutable"
            raise problem


def _no_quota(name: str) -> ProblemError:
    return ProblemError(404, f"there is no quota {name}")


def contended() -> ProblemError:
    return ProblemError(409, "others write the same quota all the time", code="contended", retryable=True)
