"""Whether an object may be created or changed, of whatever kind: its evaluator tells what it uses."""

from __future__ import annotations

from typing import Generic, TypeVar

from common.api.types import UserCluster
from common.kube.client.meta import Object
from common.quota import resources
from common.quota.account import Reservation
from common.quota.resources import ResourceList
from seed.admission import denial, fits
from seed.admission.admitter import Admission
from seed.admission.evaluator import Evaluator
from seed.admission.types import Replaceable, Request, Verdict, refused
from seed.cache.quotas import QuotaCache
from seed.model.consumer import consumer_of
from seed.providers.size import Footprint, NotSized, ProviderUnavailable

ObjectT = TypeVar("ObjectT", bound=Object)

RESERVING = 0.3  # seconds that are left for the ledger when a cloud had to be asked


class ObjectAdmission(Generic[ObjectT]):
    def __init__(self, quota_cache: QuotaCache, admission: Admission, evaluator: Evaluator[ObjectT]) -> None:
        self._quota_cache = quota_cache
        self._admission = admission
        self._evaluator = evaluator

    async def decide(
        self, cluster: UserCluster, subject: ObjectT, old: ObjectT | None, *, dry_run: bool, deadline: float
    ) -> Verdict:
        """`old`: what an update changes."""
        if old is not None and self._evaluator.is_same(old, subject):
            return Verdict()  # costs nothing; one that cannot be sized must still lose its finalizer
        consumer = consumer_of(cluster)
        enforced = [quota for quota in self._quota_cache.quotas_of(consumer) if quota.enforced]
        try:
            size = await self._evaluator.admitted(cluster, subject, deadline - RESERVING)
            for quota in enforced:
                size.require(self._quota_cache.catalogue.from_objects(quota.limits))
        except NotSized as error:
            return refused(denial.not_sized(str(error)))
        except ProviderUnavailable as error:
            if enforced:
                return refused(denial.not_sized_now(str(error)))
            size = Footprint(error.provider, self._evaluator.least(subject))  # nothing limits it: counted once known
        counted = self._quota_cache.catalogue.from_objects
        need, generation = counted(size.resources), 0
        if old is not None:
            more = resources.subtract(need, counted(self._counted(cluster, old)))
            need = {resource: amount for resource, amount in more.items() if amount > 0}
            generation = subject.metadata.generation
            if not need:
                return Verdict()
        need = fits.together(need, subject.metadata, dry_run=dry_run)
        reservation = Reservation(
            source=cluster.metadata.key, object=subject.metadata.key, amount=need, generation=generation
        )
        request = Request(
            uid=subject.metadata.uid,
            consumer=consumer,
            need=need,
            reservation=reservation,
            dry_run=dry_run,
            deadline=deadline,
            asks_fits=fits.asked(subject.metadata, dry_run=dry_run) > 0,
        )
        replaceable = self._replaceable(cluster, subject, need, deadline) if old is None else None
        return await self._admission.decide(request, replaceable)

    def _replaceable(
        self, cluster: UserCluster, subject: ObjectT, need: ResourceList, deadline: float
    ) -> Replaceable | None:
        """How to find what a new object replaces. Only Machines are rolled out."""
        return None

    def _counted(self, cluster: UserCluster, old: ObjectT) -> ResourceList:
        try:
            return self._evaluator.counted(cluster, old).resources
        except (NotSized, ProviderUnavailable):
            return self._evaluator.least(old)


def undecided(why: str) -> Verdict:
    """Of a request that has not come as far as its quotas."""
    return refused(denial.unavailable("of the project", why))
