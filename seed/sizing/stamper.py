"""Which stamp a Machine gets when it is created or changed. Admission refuses; this never does."""

from __future__ import annotations

from seed.cache.clusters import ClusterCache
from seed.machines.machine_controller import Machine
from seed.providers.size import NotSized, ProviderUnavailable
from seed.sizing.sizer import Sizing
from seed.sizing.stamp import State, spec_hash, text_of


class Stamping:
    def __init__(self, cluster_cache: ClusterCache, sizing: Sizing) -> None:
        self._cluster_cache = cluster_cache
        self._sizing = sizing

    async def stamp(self, cluster_uid: str, machine: Machine, old: Machine | None, deadline: float) -> str | None:
        """The annotation that the Machine must have, None to leave it as it is.

        A forged one is left for admission to refuse. What cannot be sized goes unstamped: admission says why.
        """
        cluster = self._cluster_cache.user_cluster_by_uid(cluster_uid)
        if cluster is None or machine.metadata.deletion_timestamp:
            return None
        state, _ = self._sizing.stamped(cluster_uid, machine)
        unchanged = old is not None and spec_hash(old) == spec_hash(machine)
        if unchanged and old is not None and self._sizing.stamped(cluster_uid, old)[0] is State.VALID:
            before = text_of(old)
            return None if state is State.FORGED or text_of(machine) == before else before
        if state is State.FORGED:
            return None
        try:
            if state is State.VALID and await self._sizing.stamped_here(cluster, machine, deadline) is not None:
                return None
            if unchanged:  # what is only touched does not wait for a cloud
                sized = self._sizing.known(cluster_uid, machine)
            else:
                sized = await self._sizing.size(cluster, machine, deadline)
            sized.footprint.require()
        except (NotSized, ProviderUnavailable):
            return None
        return self._sizing.make_stamp(cluster_uid, machine, sized)
