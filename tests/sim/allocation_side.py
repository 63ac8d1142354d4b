"""A replica of the seed's program where Allocations are counted beside Machines: the real sources, filter and
admission."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from common.api.types import Allocation, Organization, OrganizationStatus
from common.kube.client.api_client import Cluster
from common.kube.client.meta import ObjectMeta
from common.kube.controller.leader_election import Term
from seed.admission.objects import ObjectAdmission
from seed.admission.refusal import Refusal
from seed.admission.types import Verdict
from seed.kinds.allocations.admission import AllocationAdmission
from seed.kinds.allocations.source import AllocationSources
from seed.model.quota import Quota
from tests.sim.allocations import NAMESPACE, AllocationClient, AllocationServer, MachineEvaluator, SizedMachine
from tests.sim.namespaces import Watch
from tests.sim.seed_side import Leader, Replica, UsageSource


class _Organizations:
    def get(self, name: str) -> Organization:
        return Organization(metadata=ObjectMeta(name=name, uid=name), status=OrganizationStatus(namespace=NAMESPACE))


class Sources(dict[str, UsageSource]):
    """Of Machines; others are found beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Mapping[Any, Any]] = []

    def get(self, key: str, default: Any = None) -> Any:
        if key in self:
            return super().__getitem__(key)
        return next((others[key] for others in self.others if key in others), default)

    def __getitem__(self, key: str) -> Any:
        if (found := self.get(key)) is None:
            raise KeyError(key)
        return found


class AllocationLeader(Leader):
    def __init__(self, replica: AllocationReplica, term: Term) -> None:
        super().__init__(replica, term)
        if self.allocations is not None:
            self._tasks.append(replica.loop.create_task(self.allocations.run()))

    def _followed(self, replica: Replica) -> Mapping[str, UsageSource]:
        self.allocations: AllocationSources | None = None
        sources = Sources()
        if replica.api.in_cluster:
            server = next(each for each in replica.sources.values() if isinstance(each, AllocationServer))
            client = cast("Cluster", AllocationClient(cast("Any", replica), cast("Any", server)))
            self.allocations = AllocationSources(
                client,
                replica.view.quota_cache,
                on_change=self._changed,
                on_state=self._state_changed,
            )
            sources.others.append(self.allocations)
        return sources

    @property
    def watch(self) -> Watch:
        assert self.allocations is not None, "asked only where they are"
        return cast("Watch", self.allocations._reflector)

    def known(self) -> dict[str, UsageSource]:
        there = self.allocations
        return super().known() | ({key: cast("UsageSource", there[key]) for key in there} if there is not None else {})

    def listed(self) -> dict[str, int]:
        there = self.allocations
        found = dict.fromkeys(there, self.watch.listed_at) if there is not None and there.counted else {}
        return super().listed() | found


class AllocationReplica(Replica):
    def __init__(self, *arguments: Any) -> None:
        self.watches: list[Watch] = []  # of who leads
        super().__init__(*arguments)
        caches, organizations = self.view.quota_cache, cast("Any", _Organizations())
        self._allocations = AllocationAdmission(cast("Cluster", self.api), caches, organizations, self.admission)
        self._machines = ObjectAdmission(caches, self.admission, MachineEvaluator())

    def now(self) -> float:
        return self.network._clock.now

    @property
    def rng(self) -> random.Random:
        return self.network._rng

    def followed(self) -> list[UsageSource]:
        return [*super().followed(), *cast("list[UsageSource]", self.watches)]

    def parts(self) -> list[object]:
        led = [self.leader.allocations] if isinstance(self.leader, AllocationLeader) else []
        return [*self.watches, *(part for part in led if part is not None), *super().parts()]

    def _lead(self, term: Term) -> Leader:
        return AllocationLeader(self, term)

    def ask_to_allocate(
        self,
        new: Allocation,
        old: Allocation | None,
        quotas: list[Quota],
        deadline: float,
        heard: Callable[[Refusal | None, list[Quota]], None],
    ) -> asyncio.Task[None]:
        return self._answer(self._allocations.decide(new, old, dry_run=False, deadline=deadline), quotas, heard)

    def ask_for_machine(
        self,
        key: str,
        new: SizedMachine,
        old: SizedMachine | None,
        quotas: list[Quota],
        deadline: float,
        heard: Callable[[Refusal | None, list[Quota]], None],
    ) -> asyncio.Task[None] | None:
        cluster = self.view.cluster_cache.user_clusters.store.get(key)
        if cluster is None:
            return None
        return self._answer(self._machines.decide(cluster, new, old, dry_run=False, deadline=deadline), quotas, heard)

    def _answer(
        self,
        deciding: Coroutine[Any, Any, Verdict],
        quotas: list[Quota],
        heard: Callable[[Refusal | None, list[Quota]], None],
    ) -> asyncio.Task[None]:
        async def answer() -> None:
            verdict = await deciding
            heard(verdict.refusal, quotas)

        return self.answers(answer())
