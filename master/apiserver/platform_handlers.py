"""What limits, default quotas and seeds would become, and their change. Reads are answered from the watch caches,
writes are compare-and-set on the API server, with the rights that kubectl needs for the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec

from common.api.labels import SETTINGS
from common.api.types import SEEDS, DefaultQuota, QuotaSettingsSpec, Seed
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, Conflict, Invalid, NotFound
from common.quota import resources
from master.apiserver import guarantee_checks, override_types, serializers
from master.apiserver import platform_types as types
from master.apiserver.auth import LIST_QUOTAS, Right, Rights
from master.apiserver.call import Call, RouteResponse
from master.apiserver.handlers import TRIES, contended
from master.apiserver.platform_types import DefaultKind, DefaultUpdate, LimitsAsked, SeedStateUpdate
from master.apiserver.problem import ProblemError
from master.apiserver.refused_fields import refused_limits
from master.cache.informers import Caches, subject_of
from master.cache.objects import QUOTA_SETTINGS, Named, spec_guaranteed


class PlatformHandlers:
    """Each raises ProblemError and ApiError."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        rights: Rights,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._caches = caches
        self._rights = rights

    async def preview_quota(self, call: Call) -> RouteResponse:
        name, body = call.parameters["name"], call.body
        assert isinstance(body, LimitsAsked)
        await self._rights.require(call.user, Right(verb="get", resource="resourcequotas", name=name))
        quota = self._caches.quotas.store.get(name)
        if quota is None:
            raise ProblemError(404, f"there is no quota {name}", code="not_found")
        limits = serializers.quantities(body.quota, "/quota")
        asked = body.overrides
        raises = override_types.overrides(asked) if isinstance(asked, list) else override_types.not_ended(quota)
        raises = override_types.to_come(raises, self._clock().timestamp())
        guaranteed = None
        if isinstance(body.guaranteed, dict):
            guaranteed = serializers.quantities(body.guaranteed, guarantee_checks.WHERE)
            before = resources.parse(spec_guaranteed(quota))
            guarantee_checks.check(self._caches, subject_of(quota), guaranteed, before)
        return RouteResponse(types.preview(quota, limits, raises, guaranteed))

    async def get_default(self, call: Call) -> RouteResponse:
        await self._may(call, "get", "quotasettings", SETTINGS)
        return self._default(_kind(call), self._caches.settings.store.get(SETTINGS))

    async def preview_default(self, call: Call) -> RouteResponse:
        await self._may(call, "get", "quotasettings", SETTINGS)
        await self._rights.require(call.user, LIST_QUOTAS)
        kind, body = _kind(call), call.body
        assert isinstance(body, DefaultUpdate)
        before = _default_of(self._caches.settings.store.get(SETTINGS), kind)
        subjects = self._caches.projects if kind == "project" else self._caches.organizations
        found = types.default_preview(
            kind,
            before,
            serializers.quantities(body.quota, "/quota"),
            self._caches.quotas.store.values(),
            subjects.store.values(),
        )
        return RouteResponse(found)

    async def put_default(self, call: Call) -> RouteResponse:
        body: DefaultUpdate = call.body
        wanted: dict[str, object] = {"quota": serializers.quantities(body.quota, "/quota")}
        if body.enforcement is not msgspec.UNSET:
            wanted["enforcement"] = body.enforcement
        if body.warn_at_percent is not msgspec.UNSET:
            wanted["warnAtPercent"] = body.warn_at_percent
        return self._default(_kind(call), await self._set_default(call, wanted))

    async def delete_default(self, call: Call) -> RouteResponse:
        await self._set_default(call, None)
        return RouteResponse(None)

    async def list_seeds(self, call: Call) -> RouteResponse:
        await self._rights.require(call.user, Right(verb="list", resource="seeds"))
        seeds = sorted(self._caches.seeds.store.values(), key=lambda seed: seed.metadata.name)
        return RouteResponse([types.seed_state(seed) for seed in seeds])

    async def get_seed(self, call: Call) -> RouteResponse:
        name = call.parameters["name"]
        await self._may(call, "get", "seeds", name)
        await self._rights.require(call.user, LIST_QUOTAS)
        seed = self._caches.seeds.store.get(name)
        if seed is None:
            raise _no_seed(name)
        return self._seed(seed)

    async def put_seed_state(self, call: Call) -> RouteResponse:
        name, body = call.parameters["name"], call.body
        assert isinstance(body, SeedStateUpdate)
        await self._may(call, "update", "seeds", name)
        await self._rights.require(call.user, LIST_QUOTAS)
        for _ in range(TRIES):
            try:
                seed = await self._cluster.get(SEEDS, name)
            except NotFound:
                raise _no_seed(name) from None
            _check(call, seed)
            if seed.spec.state == "Lost":
                raise ProblemError(409, f"seed {name} is Lost, which has no way back", code="lost")
            if seed.spec.state == body.state:
                return self._seed(seed)
            call.changes = {"seed": name, "before": seed.spec.state, "state": body.state}
            metadata = {"resourceVersion": seed.metadata.resource_version}
            try:
                return self._seed(
                    await self._cluster.merge_patch(SEEDS, name, {"metadata": metadata, "spec": {"state": body.state}})
                )
            except Conflict:
                continue
            except NotFound:
                raise _no_seed(name) from None
        raise contended()

    async def _set_default(self, call: Call, wanted: Mapping[str, object] | None) -> Named | None:
        """The settings as they are then. Of limits that are not wanted any more null is written."""
        kind = _kind(call)
        await self._may(call, "update", "quotasettings", SETTINGS)
        for _ in range(TRIES):
            found = await self._cluster.find(QUOTA_SETTINGS, SETTINGS)
            before = _default_of(found, kind)
            _check(call, found if before is not None else None)
            if wanted is None and before is None:
                raise _no_default(kind)
            after: object = wanted
            if wanted is not None and before is not None:
                limits = wanted["quota"]
                assert isinstance(limits, dict)
                after = {**wanted, "quota": {**dict.fromkeys(before.quota), **limits}}
            call.changes = {
                "default": kind,
                "before": msgspec.to_builtins(before) if before is not None else None,
                "after": wanted,
            }
            spec = {"defaults": {kind: after}}
            try:
                if found is None:
                    return await self._cluster.create(QUOTA_SETTINGS, {"metadata": {"name": SETTINGS}, "spec": spec})
                metadata = {"resourceVersion": found.metadata.resource_version}
                return await self._cluster.merge_patch(QUOTA_SETTINGS, SETTINGS, {"metadata": metadata, "spec": spec})
            except (AlreadyExists, Conflict, NotFound):
                continue
            except Invalid as error:
                limits = wanted.get("quota", {}) if wanted is not None else {}
                raise refused_limits(error, limits if isinstance(limits, dict) else {}) from None
        raise contended()

    def _default(self, kind: DefaultKind, settings: Named | None) -> RouteResponse:
        default = _default_of(settings, kind)
        if default is None:
            raise _no_default(kind)
        shown = types.default_limits(kind, default, self._caches.quotas.store.values())
        return RouteResponse(shown, version=types.version(settings))

    def _seed(self, seed: Seed) -> RouteResponse:
        return RouteResponse(types.seed_holdings(seed, self._caches.quotas.store.values()), version=types.version(seed))

    async def _may(self, call: Call, verb: str, resource: str, name: str) -> None:
        await self._rights.require(call.user, Right(verb=verb, resource=resource, name=name))


def _kind(call: Call) -> DefaultKind:
    return "project" if call.parameters["kind"] == "project" else "organization"


def _default_of(settings: Named | None, kind: DefaultKind) -> DefaultQuota | None:
    """Raises ProblemError where the settings cannot be read."""
    try:
        defaults = msgspec.convert(settings.spec if settings is not None else {}, QuotaSettingsSpec).defaults
    except msgspec.ValidationError as error:
        raise ProblemError(503, f"quotasettings/{SETTINGS} cannot be read: {error}") from None
    return defaults.project if kind == "project" else defaults.organization


def _check(call: Call, found: Seed | Named | None) -> None:
    if not call.preconditions.allow_write(types.version(found) if found is not None else None):
        raise ProblemError(412, "it is not as If-Match or If-None-Match wants it: read it again")


def _no_default(kind: str) -> ProblemError:
    return ProblemError(404, f"there is no default quota for {kind}s", code="no_default")


def _no_seed(name: str) -> ProblemError:
    return ProblemError(404, f"there is no seed {name}")
