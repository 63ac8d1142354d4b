"""What a kind that is counted gives to the engine. Each has one row in seed/kinds/registry.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from common.api.types import UserCluster
from common.kube.client.api_client import Cluster
from common.kube.client.reach import Reach
from common.kube.controller.discovery import Served
from common.kube.controller.leader_election import Lease
from seed.accounts.registry import AccountRegistry
from seed.admission.admitter import Admission
from seed.cache.cluster_api import View
from seed.cache.clusters import ClusterCache
from seed.cache.kubermatic import KubermaticView
from seed.cache.of_projects import OfProjects
from seed.cache.quotas import QuotaCache
from seed.cache.user_cluster_clients import Connections
from seed.cache.watches import Watches
from seed.options import SeedOptions
from seed.projections.local_copies import LocalCopies
from seed.registration.enforcement import Enforcement
from seed.registration.health import Proof
from seed.registration.probe import Sample
from seed.registration.wanted import Desired, WantedConfigurations
from seed.sizing.sizer import Sizing
from seed.usage.source import Problem, UsageSource
from seed.webhooks.endpoint import Webhook

Run = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Caches:
    """What a replica knows by watching. `watches` are those of quotas and user clusters."""

    quotas: QuotaCache
    clusters: ClusterCache
    watches: Watches
    cluster_api: View
    kubermatic: KubermaticView


@dataclass(frozen=True, kw_only=True)
class Replica:
    """What every part of a replica works with, whether it leads or not."""

    options: SeedOptions
    cluster: Cluster
    caches: Caches
    registry: AccountRegistry
    sizing: Sizing
    lease: Lease
    wanted: WantedConfigurations
    reach: Reach

    @property
    def local_copies(self) -> bool:
        return self.options.local_copies == "on"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What webhooks are made of, on every replica."""

    replica: Replica
    connections: Connections
    admission: Admission


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What every replica has of a kind: webhooks by the first part of their path, and what is kept up to date for them.

    `requests_to_machines`: how many more requests one caller may send than about Machines.
    """

    webhooks: Mapping[str, Webhook[Any]]
    follows: Mapping[str, Run] = field(default_factory=dict)
    requests_to_machines: int = 1


@dataclass(frozen=True, kw_only=True)
class AskedOfSeed:
    """What the seed's own API server asks about.

    `key` names it in proofs (seed/model/asked_of_seed.py), and `name` its configuration. `caller` is whom the tokens
    prove. `is_there`: whether this seed can have any of it, as far as is known, and `begins`: until it is known that it
    can. `of_clusters`: it asks about Machines of clusters (`asked_about`). These are taken for checked until it is
    known better, and its configuration is kept by their sources, only while they have something to count.
    """

    key: str
    name: str
    caller: str
    desired: Desired
    sample: Callable[[Served, str], Sample | None]
    is_there: Callable[[QuotaCache], bool] = lambda _quota_cache: True
    begins: Callable[[QuotaCache], Awaitable[None]] | None = None
    of_clusters: bool = False


@dataclass(frozen=True, kw_only=True)
class InTerm:
    """What the leader counts with in one term. `on_change` and `on_state` are told what changed of a source:
    whether something became free, and whether it can be counted. `look` tells that what is proven of a cluster's
    namespaces has changed."""

    replica: Replica
    copies: LocalCopies
    enforcements: Mapping[str, Enforcement]  # by the key of what is asked
    on_change: Callable[[UsageSource, bool], None]
    on_state: Callable[[UsageSource], None]
    on_enforced: Callable[[str], None]  # of the quota of this name
    on_cluster_proof: Callable[[str, Proof | None], None]  # how far it is proven that Machines are checked there
    unreached: Callable[[str], Problem | None]  # why there is no connection to the user cluster
    look: Callable[[str], None]


class CountedKind:
    """What the leader has of a kind in one term: its sources, and what it runs for them, by the part's name. Most kinds
    need no more."""

    def __init__(self, sources: Mapping[str, UsageSource], runs: Mapping[str, Run]) -> None:
        self.sources = sources
        self.runs = runs

    async def follow(self, key: str, uid: str, cluster: Cluster) -> None:
        """What else goes through the connection to a user cluster, for as long as that lasts."""

    def cluster_changed(self, cluster: str) -> None:
        """Whether the user cluster can be reached has changed."""

    def configuration_changed(self) -> None:
        """The CA bundle, a token, or whether webhooks are wanted."""

    def proof(self, cluster: str) -> Proof | None:
        """Whether it is proven that what is created in namespaces there is checked; None: no quota limits it."""
        return None

    def configurations(self, user_cluster: UserCluster) -> list[str]:
        """The names of the webhook configurations that the user cluster may have for it."""
        return []

    def left(self) -> list[str]:
        """The webhook configurations of clusters that may be there still."""
        return []


def proof_in_namespaces(kinds: Iterable[CountedKind], cluster: str) -> Proof | None:
    """As `CountedKind.proof`, of whichever kind limits something there."""
    return next((proof for counted in kinds if (proof := counted.proof(cluster)) is not None), None)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind that is counted."""

    serving: Callable[[Parts], Serving]
    counting: Callable[[InTerm], CountedKind]
    of_seed: AskedOfSeed | None = None
    of_projects: OfProjects | None = None
