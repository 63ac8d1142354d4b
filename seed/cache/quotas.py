"""What this seed knows of quotas, projects and user clusters: watch caches, read by name of what they limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from common.api.cluster_identity import KUBE_SYSTEM
from common.api.labels import RELEASED_ANNOTATION, SETTINGS
from common.api.types import (
    PROJECTS,
    QUOTA_SETTINGS,
    RESOURCE_QUOTAS,
    SEED_COPIES,
    USER_CLUSTERS,
    DefaultQuota,
    Project,
    ResourceQuota,
    SeedCopy,
    UserCluster,
)
from common.kube.client.api_client import Cluster
from common.kube.controller.reflector import PROMPT_SECONDS, Reflector
from common.kube.controller.store import Change
from common.quota.quantity import QuantityError
from common.runtime.listeners import Listeners
from seed.cache.consumer import Consumer, consumer_of
from seed.cache.quota import NAMESPACES, Quota, parse_quota, takes_part
from seed.cache.source_keys import (
    CLUSTER_API,
    HOSTED,
    OWN_API_SERVER,
    clusters_key,
    is_hosted,
    is_of_kubermatic,
    namespaces_key,
    project_of_key,
    shown,
)

log = logging.getLogger(__name__)

BY_SUBJECT = "subject"
BY_UID = "uid"
MISSED_FOR = 600.0  # seconds for which a quota limits whose copy somebody deleted, or went while nobody was watching


class Catalog:
    """Every replica keeps one. `on_quota(name)`, `on_user_cluster(key)` and `on_hosted(key)` tell what changed, and
    `on_spec(name)` that a quota came or went or that its spec did, not its status."""

    def __init__(self, cluster: Cluster, release_namespace: str = "") -> None:
        """`release_namespace`: where the agent runs, in the seed's own API server."""
        self._release_namespace = release_namespace
        self._quotas: dict[str, Quota] = {}
        self._by_subject: dict[tuple[str, str], dict[str, Quota]] = {}
        self._quota_listeners: Listeners[[str]] = Listeners()
        self._spec_listeners: Listeners[[str]] = Listeners()
        self._cluster_listeners: Listeners[[str]] = Listeners()
        self._hosted_listeners: Listeners[[str]] = Listeners()
        self._participants_listeners: Listeners[[]] = Listeners()
        self.hosted: dict[str, UserCluster] = {}  # by key, see `host`
        self._unenforced: set[str] = set()  # see `tell_enforced`
        self._enforced_in_namespaces: dict[str, bool] = {}  # by source, see `tell_enforced_in_namespaces`
        self._hosted_by_project: dict[str, dict[str, UserCluster]] = {}
        self._reached: dict[str, UserCluster] = {}  # by uid: hosted ones that a kubeconfig leads to
        prompt = PROMPT_SECONDS
        self.quotas = Reflector(cluster, RESOURCE_QUOTAS, on_change=self._quota_changed, watch_seconds=prompt)
        self.projects = Reflector(cluster, PROJECTS, on_change=self._project_changed, watch_seconds=prompt)
        self.settings = Reflector(cluster, QUOTA_SETTINGS, watch_seconds=prompt)
        self.user_clusters = Reflector(
            cluster,
            USER_CLUSTERS,
            indexes={BY_UID: lambda uc: [uc.metadata.uid], "project": lambda uc: [uc.spec.project]},
            on_change=self._cluster_changed,
            watch_seconds=prompt,
        )
        self.in_cluster = False  # the master is in this API server: its objects stand for themselves
        self.seed = Reflector(
            cluster,
            SEED_COPIES,
            field_selector=f"metadata.name={cluster.name}",
            on_change=self._seed_changed,
            watch_seconds=prompt,
        )
        self._reflectors: tuple[Reflector[Any], ...] = (
            self.quotas,
            self.projects,
            self.settings,
            self.user_clusters,
            self.seed,
        )

    def not_ready(self) -> str | None:
        """Fits a check of /readyz. A cache that was complete and lags still serves."""
        for reflector in self._reflectors:
            if not reflector.synced.is_set():
                return reflector.error or "not listed yet"
        return None

    @property
    def proven_at(self) -> float:
        """Nothing that had happened by then is missing here (monotonic)."""
        return min(reflector.proven_at for reflector in self._reflectors)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(reflector.run() for reflector in self._reflectors))

    async def wait_synced(self) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()

    @property
    def lost(self) -> bool:
        """The master has declared this seed lost: what it holds is given to others."""
        return any(
            (copy.spec.copy_of or copy.spec.in_cluster) and copy.spec.state == "Lost"
            for copy in self.seed.store.values()
        )

    def quota(self, name: str) -> Quota | None:
        return self._quotas.get(name)

    def all_quotas(self) -> Iterable[Quota]:
        return self._quotas.values()

    def quotas_of(self, consumer: Consumer) -> list[Quota]:
        """Every quota that limits it: its project's own and those of the project's organization."""
        if consumer.quota:
            quota = self._quotas.get(consumer.quota)
            return [quota] if quota is not None else []
        project = consumer.project
        found = list(self._by_subject.get(("project", project), {}).values())
        known = self.projects.store.get(project)
        if known is not None and known.spec.organization:
            found.extend(self._by_subject.get(("organization", known.spec.organization), {}).values())
        return found

    def may_belong(self, consumer: Consumer, resource: str = "") -> bool:
        """True while it cannot be told what limits it: the project's copy, or a default quota, has not come yet.

        `resource`: only what limits that one matters.
        """
        project = consumer.project
        known = self.projects.store.get(project)
        if known is None and any(
            quota.kind == "organization" and (not resource or resource in quota.limits) for quota in self.all_quotas()
        ):
            return True
        settings = self.settings.store.get(SETTINGS)
        if settings is None:
            return False
        defaults = settings.spec.defaults
        organization = known.spec.organization if known is not None else ""
        return self._awaits(defaults.project, "project", project, resource) or (
            (known is None or bool(organization))
            and self._awaits(defaults.organization, "organization", organization, resource)
        )

    def _awaits(self, default: DefaultQuota | None, kind: str, subject: str, resource: str) -> bool:
        if default is None or default.enforcement != "deny" or (resource and resource not in default.quota):
            return False
        return not self._by_subject.get((kind, subject))

    def may_limit(self, consumer: Consumer, resource: str) -> bool:
        """Whether a quota limits this for the consumer, or one may that has not come yet."""
        return self.may_belong(consumer, resource) or any(
            resource in quota.limits for quota in self.quotas_of(consumer)
        )

    def source_keys(self, quota: Quota) -> list[str]:
        """The sources that the quota counts: for each project its clusters, and the Machines of each of them. Those of
        a quota of kind namespaces are the clusters that it covers."""
        if quota.kind == NAMESPACES:
            return [namespaces_key(quota.key.uid, cluster) for cluster in self.covered(quota)]
        return [key for project in self._projects_of(quota) for key in self.sources_of(project)]

    def namespace_quotas(self) -> list[Quota]:
        return list(self._by_subject.get((NAMESPACES, ""), {}).values())

    def covered(self, quota: Quota) -> list[str]:
        """The clusters whose namespaces the quota counts. Labels are those of UserClusters: the seed's own API server
        has none, and is counted by quotas that name no labels."""
        return [key for key in self.participants() if self.covers(quota, key)]

    def takes_part(self, cluster: str) -> bool:
        """Whether quotas may count its namespaces."""
        found = self.user_clusters.store.get(cluster)
        return self.own_takes_part if cluster == OWN_API_SERVER else found is not None and takes_part(found)

    def covers(self, quota: Quota, cluster: str) -> bool:
        if cluster == OWN_API_SERVER:
            return quota.kind == NAMESPACES and quota.clusters is None and self.own_takes_part
        found = self.user_clusters.store.get(cluster)
        return found is not None and quota.covers(found)

    def protected(self, cluster: str) -> tuple[str, ...]:
        """The namespaces there that a quota counts only if its selector names them, see seed/cache/selected.py."""
        own = (self._release_namespace,) if cluster == OWN_API_SERVER and self._release_namespace else ()
        return (KUBE_SYSTEM, *own)

    def participants(self) -> dict[str, UserCluster | None]:
        """The clusters whose namespaces quotas may count, by key. None: the seed's own API server."""
        found: dict[str, UserCluster | None] = {
            cluster.metadata.key: cluster for cluster in self.user_clusters.store.values() if takes_part(cluster)
        }
        if self.own_takes_part:
            found[OWN_API_SERVER] = None
        return found

    @property
    def own_takes_part(self) -> bool:
        return any(copy.spec.namespace_quotas == "Enabled" for copy in self.seed.store.values())

    def sources_of(self, project: str) -> list[str]:
        return [clusters_key(project), *(cluster.metadata.key for cluster in self._clusters_of(project))]

    def project_of(self, key: str) -> str | None:
        """Whose the source is; None for one of a cluster that is not known."""
        cluster = self.user_clusters.store.get(key) or self.hosted.get(key)
        return cluster.spec.project if cluster is not None else project_of_key(key)

    def lacks(self, project: str) -> bool:
        """Its copy is not here, which tells nothing of whose it is."""
        return project not in self.projects.store

    def knows(self, project: str) -> bool:
        """A Project of that name is here, or a quota that has it as its subject."""
        return project in self.projects.store or bool(self._by_subject.get(("project", project)))

    @property
    def has_copies(self) -> bool:
        """The master has brought something by which a project can be known."""
        return bool(self._quotas) or len(self.projects.store) > 0

    @property
    def unknown_projects_allowed(self) -> bool:
        settings = self.settings.store.get(SETTINGS)
        return settings is not None and settings.spec.unknown_projects == "Allow"

    def strays(self) -> list[str]:
        """The sources of all projects that have clusters here and no copy."""
        clusters = [*self.user_clusters.store.values(), *self.hosted.values()]
        projects = {cluster.spec.project for cluster in clusters if self.lacks(cluster.spec.project)}
        return [key for project in sorted(projects) for key in self.sources_of(project)]

    def unenforced(self, quota: Quota) -> list[str]:
        """Clusters of which the leader said last that Machines are not checked there. Of a quota of kind namespaces,
        also those of which nothing was said since the quota has this spec."""
        if quota.kind == NAMESPACES:
            said = self._enforced_in_namespaces
            known = quota.published is not None and quota.published_generation == quota.generation
            before = quota.published_unenforced
            return [
                shown(key) for key in self.source_keys(quota) if not said.get(key, known and shown(key) not in before)
            ]
        return [key for key in self.source_keys(quota) if self._is_unenforced(key)]

    def tell_enforced_in_namespaces(self, key: str, enforced: bool) -> bool:
        """The leader saw it of a source of objects in namespaces. True if that is new."""
        before = self._enforced_in_namespaces.get(key)
        self._enforced_in_namespaces[key] = enforced
        return before != enforced

    def tell_enforced(self, key: str, enforced: bool) -> bool:
        """The leader saw it of a Cluster of Kubermatic, or of CLUSTER_API for all of them. True if that is new."""
        before = key not in self._unenforced
        if enforced:
            self._unenforced.discard(key)
        else:
            self._unenforced.add(key)
        return before != enforced

    def _is_unenforced(self, key: str) -> bool:
        declared = self.user_clusters.store.get(key)
        if declared is not None:
            return _unenforced(declared)
        return (CLUSTER_API if is_hosted(key) else key) in self._unenforced

    def _projects_of(self, quota: Quota) -> list[str]:
        if quota.kind == "project":
            return [quota.subject]
        if quota.kind == "organization":
            projects = self.projects.store.values()
            return [project.metadata.name for project in projects if project.spec.organization == quota.subject]
        return []

    def _clusters_of(self, project: str) -> list[UserCluster]:
        return [
            *self.user_clusters.store.by_index("project", project),
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
            self._tell_of_cluster(key)
        self._hosted_listeners.call(key)

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

    def on_quota(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Returns how to stop listening."""
        return self._quota_listeners.add(listener)

    def on_spec(self, listener: Callable[[str], None]) -> Callable[[], None]:
        return self._spec_listeners.add(listener)

    def on_user_cluster(self, listener: Callable[[str], None]) -> Callable[[], None]:
        return self._cluster_listeners.add(listener)

    def on_hosted(self, listener: Callable[[str], None]) -> Callable[[], None]:
        return self._hosted_listeners.add(listener)

    def on_participants(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Called when other clusters take part in quotas of kind namespaces, or these by other labels."""
        return self._participants_listeners.add(listener)

    def _participants_changed(self) -> None:
        self._participants_listeners.call()
        for quota in self.namespace_quotas():
            self._quota_listeners.call(quota.name)

    def _seed_changed(self, change: Change[SeedCopy]) -> None:
        """A Seed that is deleted says nothing: what was enforced stays enforced."""
        if _namespace_quotas_of(change.old) != _namespace_quotas_of(change.new):
            self._participants_changed()
        if change.new is None or change.new.spec.in_cluster == self.in_cluster:
            return
        self.in_cluster = change.new.spec.in_cluster
        for quota in self.quotas.store.values():
            self._quota_changed(Change(quota, quota))

    def _quota_changed(self, change: Change[ResourceQuota]) -> None:
        copy = change.new if change.new is not None else change.old
        assert copy is not None, "a change has an object before or after"
        name = copy.metadata.name
        if change.new is None and name in self._quotas and not self._is_released(copy):
            # The master has not released it, as far as was seen. It will create it again, and until then it limits.
            log.warning("copy of a quota was deleted, it stays in force", extra={"quota": name, "seconds": MISSED_FOR})
            asyncio.get_running_loop().call_later(MISSED_FOR, self._let_go, self._quotas[name])
            return
        try:
            quota = parse_quota(change.new, in_cluster=self.in_cluster) if change.new is not None else None
        except QuantityError as error:
            # The schema refuses these; should one come through, the last good copy stays in force.
            log.error("quota cannot be read", extra={"quota": name, "error": str(error)})
            return
        self._put(name, quota)

    def _is_released(self, copy: ResourceQuota) -> bool:
        """Who deletes an original wants it gone. A copy that is deleted by another than the master is an accident."""
        return self.in_cluster or RELEASED_ANNOTATION in copy.metadata.annotations

    def _let_go(self, quota: Quota) -> None:
        if self._quotas.get(quota.name) is quota:
            self._put(quota.name, None)

    def _put(self, name: str, quota: Quota | None) -> None:
        before = self._quotas.pop(name, None)
        if before is not None:
            self._by_subject[before.kind, before.subject].pop(name)
        if quota is not None:
            self._quotas[name] = quota
            self._by_subject.setdefault((quota.kind, quota.subject), {})[name] = quota
        self._quota_listeners.call(name)
        only = quota or before
        if only is not None and only.kind == "project" and (before is None or quota is None):
            self._tell_of_clusters(only.subject)
        if before is None or quota is None or before.spec != quota.spec:
            self._spec_listeners.call(name)

    def _project_changed(self, change: Change[Project]) -> None:
        """A project that joins an organization is counted by its quotas from now on."""
        if change.old is None or change.new is None:
            came = change.new or change.old
            assert came is not None, "a change has an object before or after"
            self._tell_of_clusters(came.metadata.name)
        for project in (change.old, change.new):
            if project is not None and project.spec.organization:
                for name in self._by_subject.get(("organization", project.spec.organization), {}):
                    self._quota_listeners.call(name)

    def _cluster_changed(self, change: Change[UserCluster]) -> None:
        cluster = change.new if change.new is not None else change.old
        assert cluster is not None, "a change has an object before or after"
        self._tell_of_cluster(cluster.metadata.key)
        if _participation(change.old) != _participation(change.new):
            self._participants_changed()
        if _unenforced(change.old) != _unenforced(change.new):
            for quota in self.quotas_of(consumer_of(cluster)):
                self._quota_listeners.call(quota.name)

    def _tell_of_clusters(self, project: str) -> None:
        """Whether their project is known may be another answer now."""
        for cluster in self.user_clusters.store.by_index("project", project):
            self._tell_of_cluster(cluster.metadata.key)

    def _tell_of_cluster(self, key: str) -> None:
        self._cluster_listeners.call(key)


def _participation(cluster: UserCluster | None) -> object:
    """What decides which quotas count its namespaces, and where they are read."""
    if cluster is None or not takes_part(cluster):
        return None
    return cluster.metadata.uid, cluster.metadata.labels, cluster.spec.kubeconfig_secret_ref


def _namespace_quotas_of(copy: SeedCopy | None) -> str:
    return copy.spec.namespace_quotas if copy is not None else ""


def _unenforced(cluster: UserCluster | None) -> bool:
    conditions = cluster.status.conditions if cluster is not None else []
    return any(found.type == "Enforced" and found.status == "False" for found in conditions)
