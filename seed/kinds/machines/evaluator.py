"""What Machines use: their sizes, as their specs, their stamps or their clouds tell."""

from __future__ import annotations

from common.api.types import UserCluster
from common.quota.resources import ResourceList
from seed.machines import footprint
from seed.machines.machine_controller import Machine
from seed.providers.size import Footprint
from seed.sizing.sizer import Sizing


class MachineEvaluator:
    """An Evaluator of Machines, whichever API they are of."""

    def __init__(self, sizing: Sizing) -> None:
        self._sizing = sizing

    def is_same(self, old: Machine, new: Machine) -> bool:
        return old.spec.provider_spec == new.spec.provider_spec

    async def admitted(self, cluster: UserCluster, subject: Machine, deadline: float) -> Footprint:
        return await self._sizing.admitted(cluster, subject, deadline)

    def counted(self, cluster: UserCluster, subject: Machine) -> Footprint:
        return self._sizing.counted(cluster.metadata.uid, subject)

    def least(self, subject: Machine) -> ResourceList:
        return footprint.least(subject)
