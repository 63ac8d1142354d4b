"""Whether an object in a namespace may be created or changed: each quota that selects the namespace counts its part."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from common.api.types import UserCluster
from common.kube.client.errors import ApiError
from common.kube.client.meta import Object
from common.quota import resources
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.admission import denial, fits
from seed.admission.admitter import Admission
from seed.admission.objects import RESERVING
from seed.admission.types import Request, Verdict
from seed.cache.consumer import Consumer
from seed.cache.namespaces import Selection
from seed.cache.quota import Quota
from seed.cache.source_keys import OWN_API_SERVER, generation_after, namespaces_key, object_in_namespace
from seed.evaluators import namespaced
from seed.evaluators.namespaced import NamespacedEvaluator, Refused, Terms, Write

ObjectT = TypeVar("ObjectT", bound=Object)

_OF = "of the namespace"


class Unknown(Exception):
    """Which quotas select a namespace cannot be known now. `str()` says why."""


class Selecting(Protocol):
    """See seed/cache/namespaces.py."""

    def select(self, cluster: str, namespace: str) -> Selection: ...

    async def read(self, cluster: str, namespace: str) -> list[Quota]: ...


class NamespacedAdmission:
    def __init__(self, admission: Admission, namespaces: Selecting) -> None:
        self._admission = admission
        self._namespaces = namespaces

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
        if not namespaced.is_asked(evaluator, write):
            return Verdict(decision="")  # costs nothing
        if (stale := self._admission.undecided(of=_OF)) is not None:
            return stale
        key = cluster.metadata.key if cluster is not None else OWN_API_SERVER
        try:
            quotas = await self._quotas_of(key, write.new.metadata.namespace, deadline)
        except Unknown as error:
            return self.undecided(str(error))
        metadata, old = write.new.metadata, write.old
        generation = generation_after(old.metadata) if old is not None and old.metadata.resource_version else 0
        what = object_in_namespace(evaluator.resource, metadata.namespace, metadata.name)
        shares: dict[str, Reservation] = {}
        limiting: list[Quota] = []
        warnings: list[str] = []
        most: ResourceList = {}
        for quota in sorted(quotas, key=lambda quota: quota.name):
            terms = Terms(limited=frozenset(quota.limits), scopes=quota.scopes)
            try:
                need = namespaced.added(evaluator, terms, write)
            except Refused as error:
                if quota.enforced:
                    decision = denial.decision_id()
                    return Verdict(decision=decision, refusal=denial.not_specified(quota.name, str(error), decision))
                warnings.append(denial.not_specified_allowed(quota.name, str(error)))
                continue
            if need:
                need = fits.together(need, metadata, dry_run=dry_run)
                source = namespaces_key(quota.key.uid, key)
                shares[quota.name] = Reservation(source=source, object=what, amount=need, generation=generation)
                limiting.append(quota)
                most = resources.maximum(most, need)
        if not shares:
            return Verdict(decision="", warnings=warnings)
        request = Request(
            uid=metadata.uid,
            consumer=Consumer("", key),
            need=most,
            reservation=Reservation(source=key, object=what, amount=most, generation=generation),
            dry_run=dry_run,
            deadline=deadline,
            shares=shares,
            asks_fits=fits.asked(metadata, dry_run=dry_run) > 0,
        )
        verdict = await self._admission.decide(request, quotas=limiting)
        if warnings and verdict.refusal is None:
            return msgspec.structs.replace(verdict, warnings=[*warnings, *verdict.warnings])
        return verdict

    async def _quotas_of(self, cluster: str, namespace: str, deadline: float) -> Sequence[Quota]:
        """Raises Unknown."""
        found = self._namespaces.select(cluster, namespace)
        if found.known and found.quotas:
            return found.quotas
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
        decision = denial.decision_id()
        return Verdict(decision=decision, refusal=denial.unavailable(_OF, why, decision))
