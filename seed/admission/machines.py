"""Whether a Machine may be created or changed, whichever API it is of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence

from common.api.types import UserCluster
from common.kube.client.errors import Unavailable
from common.quota import resources
from common.quota.account import Reservation
from seed.admission import denial
from seed.admission.admitter import Admission
from seed.admission.rollouts import Rolling
from seed.admission.types import Replaceable, Request, Verdict
from seed.cache.quotas import Catalog
from seed.machines.footprint import least
from seed.machines.machine_controller import Machine
from seed.providers.size import Footprint, NotSized, ProviderUnavailable
from seed.sizing.sizer import Sizing

log = logging.getLogger(__name__)

RESERVING = 0.3  # seconds that are left for the ledger when a cloud had to be asked


class MachineAdmission:
    def __init__(self, catalog: Catalog, admission: Admission, sizing: Sizing, rolling: Rolling | None = None) -> None:
        """`rolling`: None where no Machines are rolled out."""
        self._rolling = rolling
        self._catalog = catalog
        self._admission = admission
        self._sizing = sizing

    async def decide(
        self, cluster: UserCluster, machine: Machine, old: Machine | None, *, dry_run: bool, deadline: float
    ) -> Verdict:
        """`old`: what an update changes."""
        cluster_uid = cluster.metadata.uid
        if self._sizing.tampered(cluster_uid, machine, old):
            decision = denial.decision_id()
            return Verdict(decision=decision, refusal=denial.forged(decision))
        if old is not None and old.spec.provider_spec == machine.spec.provider_spec:
            return Verdict(decision="")  # costs nothing; a Machine that cannot be sized must still lose its finalizer
        quotas = self._catalog.quotas_of_project(cluster.spec.project)
        enforced = [quota for quota in quotas if quota.enforced]
        try:
            size = await self._sizing.admitted(cluster, machine, deadline - RESERVING)
            for quota in enforced:
                size.require(quota.limits)
        except NotSized as error:
            decision = denial.decision_id()
            return Verdict(decision=decision, refusal=denial.not_sized(str(error), decision))
        except ProviderUnavailable as error:
            if enforced:
                decision = denial.decision_id()
                return Verdict(decision=decision, refusal=denial.not_sized_now(str(error), decision))
            size = Footprint(error.provider, least(machine))  # nothing is to be kept: counted when it is known
        need = size.resources
        generation = 0
        if old is not None:
            more = resources.subtract(need, self._known_size(cluster_uid, old))
            need = {resource: amount for resource, amount in more.items() if amount > 0}
            generation = machine.metadata.generation
            if not need:
                return Verdict(decision="")
        return await self._admission.decide(
            Request(
                uid=machine.metadata.uid,
                project=cluster.spec.project,
                need=need,
                reservation=Reservation(
                    source=cluster.metadata.key,
                    object=machine.metadata.key,
                    amount=need,
                    generation=generation,
                ),
                dry_run=dry_run,
                deadline=deadline,
            ),
            self._replaceable(cluster, machine, need, deadline)
            if old is None and machine.metadata.owner_references
            else None,
        )

    def _replaceable(
        self, cluster: UserCluster, machine: Machine, need: resources.ResourceList, deadline: float
    ) -> Replaceable | None:
        """For several quotas one answer: what each of them lends to is for it to decide."""
        rolling = self._rolling
        if rolling is None:
            return None
        asking: asyncio.Task[Sequence[str]] | None = None

        async def ask(until: float, *, anew: bool) -> Sequence[str]:
            try:
                async with asyncio.timeout_at(until):
                    return await rolling(cluster, machine, need, anew)
            except TimeoutError:
                raise Unavailable(0, "Timeout", "no answer in time") from None

        def replaceable(anew: bool) -> Awaitable[Sequence[str]]:
            nonlocal asking
            if anew:
                return ask(deadline, anew=True)
            if asking is None:
                asking = asyncio.create_task(ask(deadline - RESERVING, anew=False), name="rollout")
            return asyncio.shield(asking)

        return replaceable

    def _known_size(self, cluster_uid: str, machine: Machine) -> resources.ResourceList:
        try:
            return self._sizing.counted(cluster_uid, machine).resources
        except (NotSized, ProviderUnavailable):
            return least(machine)  # as it is counted, at the least


def undecided(why: str) -> Verdict:
    """Of a request that has not come as far as its quotas."""
    decision = denial.decision_id()
    return Verdict(decision=decision, refusal=denial.unavailable("of the project", why, decision))
