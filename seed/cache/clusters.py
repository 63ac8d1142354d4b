"""What this seed knows of user clusters: UserClusters and clusters of other APIs on the seed, which of them it follows,
and in which of them Machines are not checked."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from common.api.cluster_identity import KUBE_SYSTEM
from common.api.label_selector import LabelRequirement, LabelSelector
from common.api.labels import PROJECT_LABEL
from common.api.types import USER_CLUSTERS, UserCluster
from common.kube.client.api_client import Cluster
from common.kube.controller.reflector import PROMPT_SECONDS, Reflector
from common.kube.controller.store import Change
from common.runtime import metrics
from common.runtime.listeners import Listeners
from seed.cache.of_projects import OfProjects
from seed.cache.quotas import QuotaCache
from seed.model.asked_of_seed import asked_about
from seed.model.cluster_key import HOSTED, is_of_kubermatic
from seed.model.consumer import Consumer, consumer_of
from seed.model.quota import NAMESPACES, Quota, is_shared, takes_part
from seed.model.selected_namespaces import EVERY, OF_USER_CLUSTERS, Exempt
from seed.model.source_key import OWN_API_SERVER, SourceKey

BY_PROJECT = "project"
BY_UID = "uid"
SHARED = "shared"  # those that take part, and whose namespaces are of the projects that their labels name


class ClusterCache:
    """Every replica keeps one. Listeners:

    - `on_user_cluster(key)`: a cluster that is followed came, changed or went, or whether its project is known.
    - `on_hosted(key)`: `host` was called.
    - `on_participants()`: in other clusters namespaces are counted, or whose they are is told otherwise.
    - `on_relabelled(key)`: a cluster has other labels than before, so it may be in the part that a quota limits, or not
      any more.
    - `on_enforced(consumer)`: what the condition Enforced of a UserCluster says is another. `tell_enforced` calls none.
    """

    def __init__(
        self,
        cluster: Cluster,
        quota_cache: QuotaCache,
        exempt: Iterable[str] = (),
        *,
        of_projects: Sequence[OfProjects],
    ) -> None:
        """`exempt`: namespaces of the seed's own API server that no quota counts, beside kube-system."""
        self.of_projects = of_projects
        self._exempt = frozenset({KUBE_SYSTEM, *exempt})
        self._quota_cache = quota_cache
        self._cluster_listeners: Listeners[[str]] = Listeners()
        self._hosted_listeners: Listeners[[str]] = Listeners()
        self._enforced_listeners: Listeners[[Consumer]] = Listeners()
        self._participants_listeners: Listeners[[]] = Listeners()
        self._relabelled_listeners: Listeners[[str]] = Listeners()
        self._relabelled: dict[str, float] = {}  # by key: when that was seen (monotonic)
        self.reassigned: dict[str, float] = {}  # ... that its namespaceProjects had changed
        self.hosted: dict[str, UserCluster] = {}  # by key, see `host`
        self._enforced: dict[str, bool] = {}  # see `tell_enforced`
        self._proven: dict[str, tuple[bool, tuple[str, int] | None]] = {}  # and for which spec, see `tell_proven`
        self._hosted_by_project: dict[str, dict[str, UserCluster]] = {}
        self._reached: dict[str, UserCluster] = {}  # by uid: hosted ones that a kubeconfig leads to
        self.user_clusters = Reflector(
            cluster,
            USER_CLUSTERS,
            indexes={
                BY_UID: lambda uc: [uc.metadata.uid],
                BY_PROJECT: lambda uc: [uc.spec.project],
                SHARED: lambda uc: [SHARED] if takes_part(uc) and is_shared(uc) else [],
            },
            on_change=self._cluster_changed,
            watch_seconds=PROMPT_SECONDS,
        )
        self.reflectors: tuple[Reflector[Any], ...] = (self.user_clusters,)
        quota_cache.find_clusters(self.find)
        quota_cache.on_project(self._project_changed)
        quota_cache.on_participation(self._participants_listeners.call)

    def source_keys(self, quota: Quota) -> list[SourceKey]:
        """The sources that the quota counts: for each project its clusters, the Machines of each of them, and in the
        master's cluster its Allocations; and its namespaces in each cluster that it covers."""
        of_projects = (self.sources_of(project, quota) for project in self._quota_cache.projects_of(quota))
        in_namespaces = (SourceKey.of_namespaces(quota.key.uid, cluster) for cluster in self.covered(quota))
        return [*itertools.chain.from_iterable(of_projects), *in_namespaces]

    def find(self, key: str) -> UserCluster | None:
        """Whichever API tells of it."""
        found = self.user_clusters.store.get(key)
        return found if found is not None else self.hosted.get(key)

    def picked(self, quota: Quota) -> int:
        """How many user clusters are in the part of its subject that the quota limits; 0 if that is all of it."""
        if quota.clusters is None:
            return 0
        if quota.kind == NAMESPACES:
            return sum(quota.picks(cluster) for cluster in self.user_clusters.store.values())
        projects = self._quota_cache.payers_of(quota)
        own = {each.metadata.key for project in projects for each in self.clusters_of(project) if quota.picks(each)}
        return len(own.union(cluster for cluster in self.covered(quota)))

    def participants(self) -> dict[str, UserCluster | None]:
        """The clusters whose namespaces quotas may count, by key. None: the seed's own API server."""
        found: dict[str, UserCluster | None] = {
            cluster.metadata.key: cluster for cluster in self.user_clusters.store.values() if takes_part(cluster)
        }
        if self._quota_cache.own_takes_part:
            found[OWN_API_SERVER] = None
        return found

    def takes_part(self, cluster: str) -> bool:
        """Whether quotas may count its namespaces."""
        if cluster == OWN_API_SERVER:
            return self._quota_cache.own_takes_part
        found = self.user_clusters.store.get(cluster)
        return found is not None and takes_part(found)

    def covered(self, quota: Quota) -> list[str]:
        """The clusters whose namespaces the quota counts."""
        if not quota.counts_objects:
            return []
        if quota.kind == NAMESPACES:
            return [cluster for cluster in self.participants() if self.covers(quota, cluster)]
        shared = (each.metadata.key for each in self.user_clusters.store.by_index(SHARED, SHARED))
        projects = self._quota_cache.payers_of(quota)
        own = (each for project in projects for each in self.user_clusters.store.by_index(BY_PROJECT, project))
        keys = dict.fromkeys((OWN_API_SERVER, *shared, *(each.metadata.key for each in own)))
        return [key for key in keys if self.covers(quota, key)]

    def covers(self, quota: Quota, cluster: str) -> bool:
        """Whether the quota may count namespaces there. A quota of a project counts what is in its own clusters, and
        where labels say whose a namespace is, those of the project. Labels of clusters are those of UserClusters: the
        seed's own API server has none, and is counted by quotas that ask for none."""
        if not quota.counts_objects:
            return False
        if cluster == OWN_API_SERVER:
            return quota.clusters is None and self._quota_cache.own_takes_part
        found = self.user_clusters.store.get(cluster)
        if found is None or not takes_part(found) or not quota.picks(found):
            return False
        return quota.kind == NAMESPACES or is_shared(found) or self._quota_cache.counts(quota, found.spec.project)

    def not_counted(self, quota: Quota) -> list[str]:
        """The user clusters of its projects whose namespaces it would count if they took part."""
        if quota.kind == NAMESPACES or not quota.of_objects:
            return []
        projects = self._quota_cache.payers_of(quota)
        own = (each for project in projects for each in self.user_clusters.store.by_index(BY_PROJECT, project))
        apart = (each for each in own if each.spec.kubeconfig_secret_ref is not None and not takes_part(each))
        return sorted(each.metadata.key for each in apart if quota.picks(each))

    def selector(self, quota: Quota, cluster: str) -> LabelSelector | None:
        """Of the namespaces that the quota counts there; None if it counts none."""
        if not self.covers(quota, cluster):
            return None
        if quota.kind == NAMESPACES:
            return quota.selector
        if not self.is_shared(cluster):
            return EVERY
        projects = tuple(self._quota_cache.payers_of(quota))
        return LabelSelector(match_expressions=(LabelRequirement(PROJECT_LABEL, "In", projects),)) if projects else None

    def is_shared(self, cluster: str) -> bool:
        """Whether labels there say of which project a namespace is. Elsewhere tenants write them."""
        found = self.user_clusters.store.get(cluster)
        return found is None or is_shared(found)

    def project_in(self, cluster: str, labels: Mapping[str, str]) -> str:
        """Whose a namespace with these labels is; empty if it is of no project."""
        found = self.user_clusters.store.get(cluster)
        return found.spec.project if found is not None and not is_shared(found) else labels.get(PROJECT_LABEL, "")

    def exempt(self, cluster: str) -> Exempt:
        """The namespaces there that quotas do not count."""
        if cluster != OWN_API_SERVER:
            return OF_USER_CLUSTERS
        masters = self._quota_cache.master_namespace
        return Exempt(self._exempt | {masters} if masters else self._exempt)

    def sources_of(self, project: str, quota: Quota) -> list[SourceKey]:
        """Those that the quota counts, if it counts the project. What is on the seed itself is in no cluster."""
        there = (each for each in self.of_projects if quota.clusters is None and each.is_there(self._quota_cache))
        own = [SourceKey.of_project(each.kind, project) for each in there]
        return [*own, *(SourceKey(each.metadata.key) for each in self.clusters_of(project) if quota.picks(each))]

    def project_of(self, key: str) -> str | None:
        """Whose the source is; None for one of a cluster that is not known."""
        source = SourceKey(key)
        cluster = self.find(source.cluster)
        if cluster is None or (source.quota and is_shared(cluster)):
            return source.project or None
        return cluster.spec.project

    def strays(self, quota: Quota) -> list[SourceKey]:
        """The sources, as far as the quota may count them, of all projects that have clusters here and no copy."""
        clusters = [*self.user_clusters.store.values(), *self.hosted.values()]
        projects = {cluster.spec.project for cluster in clusters if self._quota_cache.lacks(cluster.spec.project)}
        return [key for project in sorted(projects) for key in self.sources_of(project, quota)]

    def unenforced(self, quota: Quota) -> list[str]:
        """Clusters of which the leader said last that Machines are not checked there. Also what is not proven to be
        checked since the quota has this spec: Allocations, clusters, and namespaces of a cluster."""
        of_seed = [key for key in self._asked_of_seed(quota) if not self._is_proven(key, quota)]
        return of_seed + [key for key in self.source_keys(quota) if self._is_unenforced(key, quota)]

    def _asked_of_seed(self, quota: Quota) -> list[str]:
        """What the seed's own API server must ask about for the quota's limits to hold, beside Machines."""
        return [each.asked for each in self.limited_on_seed(quota)]

    def limited_on_seed(self, quota: Quota) -> list[OfProjects]:
        """The kinds on the seed itself that the quota limits."""
        return [each for each in self.of_projects if quota.clusters is None and each.limits(self._quota_cache, quota)]

    def _is_proven(self, key: str, quota: Quota) -> bool:
        told = self._proven.get(key)
        if told is not None and told[1] in (None, quota.spec):
            return told[0]
        known = quota.published is not None and quota.published_generation == quota.generation
        return known and quota.shown(SourceKey(key)) not in quota.published_unenforced

    def tell_proven(self, key: str, proven: bool, quota: Quota | None = None) -> bool:
        """The leader saw it of what the seed's own API server is to ask about, or of a source of objects in the
        namespaces of this quota, as far as its present spec asks. True if that is new."""
        told = proven, quota.spec if quota is not None else None
        before = self._proven.get(key)
        self._proven[key] = told
        return before != told

    def forget_told(self) -> None:
        """A term begins. What another leader has published since is later than what this replica saw before."""
        self._proven.clear()
        self._enforced.clear()

    def tell_enforced(self, key: str, enforced: bool) -> bool:
        """The leader saw it of a Cluster of Kubermatic, or of all of Cluster API. True if that is new."""
        before = self._enforced.get(key)
        self._enforced[key] = enforced
        return before != enforced

    def forget_enforced(self, key: str) -> None:
        """The cluster is not there any more."""
        self._enforced.pop(key, None)

    def _is_unenforced(self, key: SourceKey, quota: Quota) -> bool:
        if key.quota:
            return not self._is_proven(key, quota)
        declared = self.user_clusters.store.get(key)
        if declared is not None:
            return _unenforced(declared)
        told = self._enforced.get(asked_about(key))
        return not told if told is not None else quota.shown(key) in quota.published_unenforced

    def clusters_of(self, project: str) -> list[UserCluster]:
        """Whichever API tells of them."""
        return [
            *self.user_clusters.store.by_index(BY_PROJECT, project),
            *self._hosted_by_project.get(project, {}).values(),
        ]

    def host(self, key: str, cluster: UserCluster | None) -> None:
        """A user cluster that another API of the seed tells of; None when it is gone, or none of a project's."""
        before = self.hosted.pop(key, None)
        if before is not None:
            self._hosted_by_project[before.spec.project].pop(key)
            self._reached.pop(before.metadata.uid, None)
        if cluster is not None:
            self.hosted[key] = cluster
            self._hosted_by_project.setdefault(cluster.spec.project, {})[key] = cluster
            if cluster.spec.kubeconfig_secret_ref is not None:
                self._reached[cluster.metadata.uid] = cluster
        if is_of_kubermatic(key):
            self._cluster_listeners.call(key)
        self._hosted_listeners.call(key)
        self._look_at_changes(key, before, cluster)

    def count_clusters(self) -> int:
        """A UserCluster and the Cluster of Cluster API of its namespace, name and project are one."""
        declared = {(cluster.spec.project, cluster.metadata.key) for cluster in self.user_clusters.store.values()}
        hosted = {(cluster.spec.project, key.replace(f"/{HOSTED}", "/")) for key, cluster in self.hosted.items()}
        return len(declared | hosted)

    def followed(self) -> list[UserCluster]:
        """Those whose Machines are in an API server of their own, or declared to be in the seed's."""
        return [*self.user_clusters.store.values(), *self._reached.values()]

    def followed_as(self, key: str) -> UserCluster | None:
        found = self.user_clusters.store.get(key)
        return self.hosted.get(key) if found is None and is_of_kubermatic(key) else found

    def user_cluster_by_uid(self, uid: str) -> UserCluster | None:
        found = self.user_clusters.store.by_index(BY_UID, uid)
        return found[0] if found else self._reached.get(uid)

    def on_user_cluster(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Returns how to stop listening."""
        return self._cluster_listeners.add(listener)

    def on_hosted(self, listener: Callable[[str], None]) -> Callable[[], None]:
        return self._hosted_listeners.add(listener)

    def on_relabelled(self, listener: Callable[[str], None]) -> Callable[[], None]:
        return self._relabelled_listeners.add(listener)

    def on_participants(self, listener: Callable[[], None]) -> Callable[[], None]:
        return self._participants_listeners.add(listener)

    def on_enforced(self, listener: Callable[[Consumer], None]) -> Callable[[], None]:
        return self._enforced_listeners.add(listener)

    def _cluster_changed(self, change: Change[UserCluster]) -> None:
        cluster = change.new if change.new is not None else change.old
        assert cluster is not None, "a change has an object before or after"
        self._cluster_listeners.call(cluster.metadata.key)
        if change.new is None:
            metrics.no_cluster(cluster.metadata.key)
        if _participation(change.old) != _participation(change.new):
            self._participants_listeners.call()
        if _unenforced(change.old) != _unenforced(change.new):
            self._enforced_listeners.call(consumer_of(cluster))
        self._look_at_changes(cluster.metadata.key, change.old, change.new)

    def _look_at_changes(self, key: str, before: UserCluster | None, after: UserCluster | None) -> None:
        if after is None:
            self._relabelled.pop(key, None)
            self.reassigned.pop(key, None)
        elif before is not None:
            if is_shared(before) != is_shared(after):
                self.reassigned[key] = time.monotonic()
            if before.metadata.labels != after.metadata.labels:
                self._relabelled[key] = time.monotonic()
                self._relabelled_listeners.call(key)

    def relabelled_at(self, key: str) -> float | None:
        """When this replica saw its labels change last (monotonic)."""
        return self._relabelled.get(key)

    def _project_changed(self, project: str) -> None:
        for cluster in self.user_clusters.store.by_index(BY_PROJECT, project):
            self._cluster_listeners.call(cluster.metadata.key)


def _participation(cluster: UserCluster | None) -> object:
    """What decides which quotas count its namespaces, and where they are read."""
    if cluster is None or not takes_part(cluster):
        return None
    metadata, spec = cluster.metadata, cluster.spec
    return metadata.uid, metadata.labels, spec.project, spec.namespace_projects, spec.kubeconfig_secret_ref


def _unenforced(cluster: UserCluster | None) -> bool:
    conditions = cluster.status.conditions if cluster is not None else []
    return any(found.type == "Enforced" and found.status == "False" for found in conditions)
