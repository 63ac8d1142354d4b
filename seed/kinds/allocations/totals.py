"""What the Allocations of a project use together. Pure but for being mutable."""

from __future__ import annotations

from common.api.types import Allocation
from seed.kinds.allocations import evaluator as allocations
from seed.usage.object_sum import Counted, ObjectSum


class AllocationTotals(ObjectSum[Counted]):
    def put(self, allocation: Allocation) -> bool:
        """True if something became free."""
        metadata = allocation.metadata
        return self.keep(metadata.uid, Counted(metadata.generation, allocations.used(allocation)))
