"""Whether an object in a namespace may be created or changed: each quota that selects the namespace counts its part."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from common.api.types import UserCluster
from common.kube.client.errors import ApiError
from common.kube.client.meta import Object
from common.quota import resources
from common.quota.account import Reservation
from common.quota.object_names import RESOURCE_QUOTAS, GroupResource
from common.quota.resources import ResourceList
from common.quota.scopes import ScopeRequirement
from seed.admission import denial, fits
from seed.admission.admitter import Admission
from seed.admission.objects import RESERVING
from seed.admission.types import Confirm, Request, Verdict, refused
from seed.kinds.namespaces.cache import Selection
from seed.kinds.namespaces.evaluators import fields, namespaced, resource_quotas
from seed.kinds.namespaces.evaluators.fields import Replicas
from seed.kinds.namespaces.evaluators.namespaced import NamespacedEvaluator, Refused, Write
from seed.kinds.namespaces.evaluators.resource_quotas import Promise
from seed.kinds.namespaces.promises import Connected, Exists, NotReadable, confirming, others, promise
from seed.kinds.namespaces.same_write import SameWrites
from seed.kinds.namespaces.scaled_fields import scaled_fields
from seed.kinds.namespaces.terms import terms_of
from seed.model.consumer import Consumer
from seed.model.quota import NAMESPACES, Quota
from seed.model.reserved_object import generation_after, object_in_namespace
from seed.model.source_key import OWN_API_SERVER, SourceKey

ObjectT = TypeVar("ObjectT", bound=Object)

NOTHING: Final[ResourceList] = {}

_OF = "of the namespace"


class Unknown(Exception):
    """Which quotas select a namespace cannot be known now. `str()` says why."""


class Selecting(Connected, Protocol):
    """See seed/kinds/namespaces/cache.py."""

    def select(self, cluster: str, namespace: str) -> Selection: ...

    async def read(self, cluster: str, namespace: str) -> Selection: ...


class _Parts(Generic[ObjectT]):
    """What one write asks of each quota."""

    def __init__(
        self, cluster: str, project: str, evaluator: NamespacedEvaluator[ObjectT], write: Write[ObjectT]
    ) -> None:
        """`project`: see `Selection`."""
        metadata, old = write.new.metadata, write.old
        self.shares: dict[str, Reservation] = {}
        self.limiting: list[Quota] = []
        self.warnings: list[str] = []
        self.bases: dict[Sequence[ScopeRequirement], ResourceList] = {}  # by scopes of quotas
        self._most: ResourceList = {}
        self._cluster = cluster
        self._project = project
        self._namespace = metadata.namespace
        self._uid = metadata.uid
        self._generation = generation_after(old.metadata) if old is not None and old.metadata.resource_version else 0
        self._object = object_in_namespace(evaluator.resource, metadata.namespace, metadata.name)

    def add(self, quota: Quota, need: ResourceList, base: ResourceList = NOTHING) -> None:
        source = SourceKey.of_namespaces(quota.key.uid, self._cluster).text
        self.shares[quota.name] = self._reservation(source, need, base, self._tenant(quota))
        self.limiting.append(quota)
        self._most = resources.maximum(self._most, need)
        if base:
            self.bases[quota.scopes] = resources.maximum(self.bases.get(quota.scopes, {}), base)

    def request(self, *, asks_fits: bool, dry_run: bool, deadline: float) -> Request:
        return Request(
            uid=self._uid,
            consumer=Consumer("", self._cluster),
            need=self._most,
            reservation=self._reservation(self._cluster, self._most, NOTHING, ""),
            dry_run=dry_run,
            deadline=deadline,
            shares=self.shares,
            objects="objects",
            asks_fits=asks_fits,
        )

    def _reservation(self, source: str, amount: ResourceList, base: ResourceList, tenant: str) -> Reservation:
        return Reservation(
            source=source,
            object=self._object,
            amount=amount,
            generation=self._generation,
            base=base,
            tenant=tenant,
        )

    def _tenant(self, quota: Quota) -> str:
        """Whose the object is, where the quota counts what several have in one cluster (rules 4.10 and 4.13). A project
        cannot have more than one part by having many namespaces."""
        if quota.kind == "project":
            return ""
        if self._project:
            return f"project/{self._project}"
        return f"namespace/{self._namespace}" if quota.kind == NAMESPACES else ""


class NamespacedAdmission:
    def __init__(self, admission: Admission, namespaces: Selecting) -> None:
        self._admission = admission
        self._namespaces = namespaces
        self._same_writes = SameWrites()

    async def decide(
        self,
        cluster: UserCluster | None,
        evaluator: NamespacedEvaluator[ObjectT],
        write: Write[ObjectT],
        *,
        dry_run: bool,
        deadline: float,
    ) -> Verdict:
        """`cluster`: None for the seed's own API server."""
        if not namespaced.is_asked(evaluator, write) and not fields.may_be_asked(write):
            return Verdict()  # costs nothing
        if (stale := self._admission.undecided(of=_OF)) is not None:
            return stale
        key = cluster.metadata.key if cluster is not None else OWN_API_SERVER
        try:
            selected = await self._select(key, write.new.metadata.namespace, deadline)
        except Unknown as error:
            return self.undecided(str(error))
        quotas, parts = selected.quotas, _Parts(key, selected.project, evaluator, write)
        try:
            promises = await self._promises(key, evaluator, quotas, write, deadline)
            replicas = await self._scaled(key, evaluator.resource, quotas, write, deadline)
        except (NotReadable, Exists) as error:
            return self._unpromised(error, write.new.metadata.name)
        for quota in sorted(quotas, key=lambda quota: quota.name):
            if quota.promises:
                if (added := promises.get(quota.name)) is not None:
                    parts.add(quota, added.amount, added.base)
                continue
            try:
                need = need_of(evaluator, quota, write, replicas)
            except Refused as error:
                if quota.enforced:
                    return refused(denial.not_specified(quota.name, str(error)))
                parts.warnings.append(denial.not_specified_allowed(quota.name, str(error)))
                continue
            if need:
                parts.add(quota, fits.together(need, write.new.metadata, dry_run=dry_run))
        if not parts.shares:
            return Verdict(warnings=parts.warnings)
        asks_fits = fits.asked(write.new.metadata, dry_run=dry_run) > 0
        request = parts.request(asks_fits=asks_fits, dry_run=dry_run, deadline=deadline)
        confirm = confirming(self._namespaces, key, write.new.metadata, parts.bases, deadline) if parts.bases else None
        verdict = await self._of_all(key, write, request, parts.limiting, confirm)
        if parts.warnings and verdict.refusal is None:
            return msgspec.structs.replace(verdict, warnings=[*parts.warnings, *verdict.warnings])
        return verdict

    async def _of_all(
        self, cluster: str, write: Write[Any], request: Request, quotas: Sequence[Quota], confirm: Confirm | None
    ) -> Verdict:
        async def decided() -> Verdict:
            return await self._admission.decide(request, quotas=quotas, confirm=confirm)

        created = write.operation == namespaced.CREATE and not write.subresource
        if len(quotas) > 1 and created and not request.dry_run:
            asked = request.shares, [quota.spec for quota in quotas]
            return await self._same_writes.decide((cluster, request.uid), asked, decided)
        return await decided()

    async def _promises(
        self,
        cluster: str,
        evaluator: NamespacedEvaluator[ObjectT],
        quotas: Sequence[Quota],
        write: Write[Any],
        deadline: float,
    ) -> dict[str, Promise]:
        """By quota of promises, where the write adds to them. Raises NotReadable, Exists."""
        if evaluator.resource != RESOURCE_QUOTAS:
            return {}
        seen = [(quota, resource_quotas.seen_within(write, quota.scopes)) for quota in quotas if quota.promises]
        raising = [(quota, each) for quota, each in seen if each and resource_quotas.raised(each, quota.limits)]
        if not raising:
            return {}
        found = await others(self._namespaces, cluster, write.new.metadata, deadline - RESERVING)
        return {
            quota.name: resource_quotas.added(each, quota.limits, promise(found, quota.limits, quota.scopes))
            for quota, each in raising
        }

    async def _scaled(
        self, cluster: str, kind: GroupResource, quotas: Sequence[Quota], write: Write[Any], deadline: float
    ) -> Replicas:
        """What a Scale sets, where quotas count fields of the kind: by version. Raises NotReadable."""
        if write.subresource != fields.SCALE:
            return {}
        counting = (fields.evaluator_of(kind, quota.of_objects) for quota in quotas)
        versions = {evaluator.version for evaluator in counting if evaluator is not None}
        if not versions or write.sent is None:
            return {}
        until = deadline - RESERVING
        return await scaled_fields(self._namespaces, cluster, kind, versions, write.sent.version, until)

    def _unpromised(self, error: NotReadable | Exists, name: str) -> Verdict:
        if isinstance(error, Exists):
            return Verdict(refusal=denial.already_exists(RESOURCE_QUOTAS.resource, name))
        return self.undecided(str(error))

    async def _select(self, cluster: str, namespace: str, deadline: float) -> Selection:
        """Raises Unknown."""
        found = self._namespaces.select(cluster, namespace)
        if not found.known or not found.quotas:
            found = await self._read(cluster, namespace, deadline)
        if found.awaited:
            raise Unknown(denial.limits_missing(found.awaited))
        return found

    async def _read(self, cluster: str, namespace: str, deadline: float) -> Selection:
        """Raises Unknown."""
        # An API server asks only about namespaces that some quota selects: this one was labelled a moment ago.
        try:
            async with asyncio.timeout_at(deadline - RESERVING):
                return await self._namespaces.read(cluster, namespace)
        except TimeoutError:
            raise Unknown(f"the labels of namespace {namespace} could not be read in time") from None
        except ApiError as error:
            raise Unknown(f"the labels of namespace {namespace} cannot be read: {error.reason}") from None

    def undecided(self, why: str) -> Verdict:
        """Of a request that has not come as far as its quotas."""
        return refused(denial.unavailable(_OF, why))


def need_of(
    evaluator: NamespacedEvaluator[ObjectT], quota: Quota, write: Write[ObjectT], replicas: Replicas
) -> ResourceList:
    """What a write adds to the use of a quota. Raises Refused."""
    terms = terms_of(quota)
    of_fields = fields.evaluator_of(evaluator.resource, terms.limited)
    if of_fields is None:
        return namespaced.added(evaluator, terms, write)
    return namespaced.added(of_fields, terms, of_fields.read(write, replicas))
