"""Whether a Machine may be created or changed, whichever API it is of: its stamp, its size, and what it replaces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from common.api.types import UserCluster
from common.kube.client.errors import Unavailable
from common.quota.resources import ResourceList
from seed.admission import denial, projects
from seed.admission.admitter import Admission
from seed.admission.objects import RESERVING, ObjectAdmission
from seed.admission.types import Replaceable, Verdict, refused
from seed.cache.quotas import QuotaCache
from seed.kinds.machines.evaluator import MachineEvaluator
from seed.kinds.machines.rollouts import Rolling
from seed.machines.machine_controller import Machine
from seed.sizing.sizer import Sizing


class MachineAdmission(ObjectAdmission[Machine]):
    def __init__(
        self, quota_cache: QuotaCache, admission: Admission, sizing: Sizing, rolling: Rolling | None = None
    ) -> None:
        """`rolling`: None where no Machines are rolled out."""
        super().__init__(quota_cache, admission, MachineEvaluator(sizing))
        self._sizing = sizing
        self._rolling = rolling

    async def decide(
        self, cluster: UserCluster, subject: Machine, old: Machine | None, *, dry_run: bool, deadline: float
    ) -> Verdict:
        if self._sizing.tampered(cluster.metadata.uid, subject, old):
            return refused(denial.forged())
        if old is None and (unknown := projects.refuse_machine(self._quota_cache, cluster)) is not None:
            return self._admission.undecided() or unknown
        return await super().decide(cluster, subject, old, dry_run=dry_run, deadline=deadline)

    def _replaceable(
        self, cluster: UserCluster, subject: Machine, need: ResourceList, deadline: float
    ) -> Replaceable | None:
        """For several quotas one answer: what each of them lends to is for it to decide."""
        rolling = self._rolling
        if rolling is None or not subject.metadata.owner_references:
            return None
        asking: asyncio.Task[Sequence[str]] | None = None

        async def ask(until: float, *, anew: bool) -> Sequence[str]:
            try:
                async with asyncio.timeout_at(until):
                    return await rolling(cluster, subject, need, anew)
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
