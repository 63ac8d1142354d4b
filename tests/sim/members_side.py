"""A replica of the seed's program where one account has sources of every kind: Machines, namespaces and Allocations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from common.kube.controller.leader_election import Term
from tests.sim.allocation_side import AllocationLeader, AllocationReplica, Sources
from tests.sim.namespace_side import NamespaceLeader, NamespaceReplica
from tests.sim.seed_side import Leader, Replica, UsageSource


class MembersLeader(NamespaceLeader, AllocationLeader):
    def _followed(self, replica: Replica) -> Mapping[str, UsageSource]:
        sources = AllocationLeader._followed(self, replica)
        assert isinstance(sources, Sources), "made there"
        sources.others.append(NamespaceLeader._followed(self, replica))
        return sources

    def known(self) -> dict[str, UsageSource]:
        return AllocationLeader.known(self) | {key: cast("UsageSource", each) for key, each in self.namespaces.items()}

    def listed(self) -> dict[str, int]:
        return AllocationLeader.listed(self) | NamespaceLeader.listed(self)

    def follow_clusters(self, replica: Replica) -> None:
        Leader.follow_clusters(self, replica)
        NamespaceLeader.follow_clusters(self, replica)


class MembersReplica(NamespaceReplica, AllocationReplica):
    def followed(self) -> list[UsageSource]:
        return [*super().followed(), *Replica.followed(self)]

    def _lead(self, term: Term) -> Leader:
        return MembersLeader(self, term)
