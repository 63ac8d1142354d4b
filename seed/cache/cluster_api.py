"""What this seed knows of Cluster API, on every replica: Clusters with their projects, and what Machines are made of.

A Cluster with a project is a user cluster to everybody else here. Its name is one that no UserCluster can have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from common.api.types import UserCluster, UserClusterSpec
from common.kube.client.api_client import Cluster
from common.kube.client.errors import NotFound
from common.kube.client.meta import ObjectMeta, object_key
from common.kube.controller.discovery import FollowedKind, Served
from common.kube.controller.dynamic_informers import Following
from common.kube.controller.store import Change
from common.runtime.lru import LruDict
from seed.cache.clusters import ClusterCache
from seed.machines import cluster_api, infrastructure
from seed.machines.cluster_api import ClusterMachine, Infrastructure, MachinePool, Reference
from seed.machines.deployments import Deployment
from seed.machines.infrastructure_kinds import KINDS, Where
from seed.machines.machine_controller import Machine
from seed.machines.metal3 import BARE_METAL_HOSTS, BareMetalHost
from seed.model.cluster_key import HOSTED, hosted_key

log = logging.getLogger(__name__)

CLUSTERS = "clusters"
HOSTS = "hosts"
MAX_LOOKED_UP = 4096

Subject = ClusterMachine | MachinePool


class View:
    """`run()` it. `on_infrastructure(kind, key)`, `on_hosts(namespace)` and `on_cluster(key)` tell what changed."""

    def __init__(self, cluster: Cluster, cluster_cache: ClusterCache, project_label: str) -> None:
        self.on_infrastructure: Callable[[str, str], None] = lambda _kind, _key: None
        self.on_hosts: Callable[[str], None] = lambda _namespace: None
        self.on_cluster: Callable[[str], None] = lambda _key: None
        self.served = Served(cluster)
        self._cluster = cluster
        self._cluster_cache = cluster_cache
        self._label = project_label
        self._clusters = FollowedKind(
            cluster_api.GROUP, "Cluster", cluster_api.VERSIONS, cluster_api.Cluster, on_change=self._cluster_changed
        )
        self._pools = FollowedKind(cluster_api.GROUP, "MachinePool", cluster_api.VERSIONS, MachinePool)
        self._infrastructure = {kind: self._wanted(kind, known.versions) for kind, known in KINDS.items()} | {
            kind: self._wanted(kind, ("v1beta2", "v1beta1")) for kind in cluster_api.REGIONS
        }
        hosts = BARE_METAL_HOSTS
        self._following = Following(
            cluster,
            self.served,
            {
                CLUSTERS: self._clusters,
                HOSTS: FollowedKind(
                    hosts.group,
                    hosts.kind,
                    (hosts.version,),
                    BareMetalHost,
                    on_change=self._hosts_changed,
                    indexes={"namespace": lambda host: [host.metadata.namespace]},
                ),
                **self._infrastructure,
            },
        )
        # what a consistent read found where the watch cache had nothing: an object, or that there is none
        self._looked_up: LruDict[tuple[str, str], Infrastructure | None] = LruDict()

    async def run(self) -> None:
        stop = self._cluster_cache.on_user_cluster(self._declaration_changed)
        try:
            await asyncio.gather(self.served.run(), self._following.run())
        finally:
            stop()

    async def wait_settled(self) -> None:
        """Until all that is served was listed: what is not seen before that may be there all the same."""
        await self._following.wait_settled()

    def user_cluster(self, namespace: str, name: str) -> UserCluster | None:
        """As it was last seen. None for a Cluster that is not known or has no project."""
        return self._cluster_cache.hosted.get(hosted_key(namespace, name))

    async def find_hosted(self, key: str) -> UserCluster | None:
        """None where consistent reads prove that no Cluster with a project has this key. Raises ApiError."""
        now = self._following.resource(CLUSTERS)
        resource = await self.served.find_for_proof(f"clusters.{cluster_api.GROUP}", self._clusters, now)
        if resource is None:
            return None
        namespace, _, name = key.partition("/")
        found = await self._cluster.find(resource, name.removeprefix(HOSTED), namespace)
        return self._as_user_cluster(found) if found is not None else None

    async def find_user_cluster(self, namespace: str, name: str) -> UserCluster | None:
        """By a consistent read, None for one without a project. Raises ApiError, NotFound for no such Cluster."""
        self.served.check_listed()
        resource = self.served.find(self._clusters, self._following.resource(CLUSTERS))
        if resource is None:
            raise NotFound(404, "NotFound", "no Clusters are served")
        return self._as_user_cluster(await self._cluster.get(resource, name, namespace))

    async def find_pool(self, namespace: str, name: str) -> MachinePool:
        """By a consistent read. Raises ApiError."""
        resource = self.served.find(self._pools)
        if resource is None:
            raise NotFound(404, "NotFound", "no MachinePools are served")
        return await self._cluster.get(resource, name, namespace)

    async def find_deployment(self, kind: str, namespace: str, name: str) -> Deployment:
        """A MachineDeployment or MachineSet, by a consistent read. Raises ApiError."""
        resource = self.served.find(FollowedKind(cluster_api.GROUP, kind, cluster_api.VERSIONS, Deployment))
        if resource is None:
            raise NotFound(404, "NotFound", f"no {kind}s are served")
        return await self._cluster.get(resource, name, namespace)

    async def find_made(self, made: ClusterMachine) -> Machine:
        """The Machine that `made`, which refers to a template, is to be; by a consistent read. Raises ApiError."""
        reference, namespace = made.spec.infrastructure_ref, made.metadata.namespace
        known = KINDS.get(reference.kind.removesuffix(infrastructure.TEMPLATE))
        where = self._where(namespace, made.spec.cluster_name)
        if known is None or not reference.name or reference.group != infrastructure.GROUP:
            return cluster_api.machine_of(made, None, where)
        wanted = FollowedKind(infrastructure.GROUP, reference.kind, known.versions, Infrastructure)
        resource = self.served.find(wanted)
        if resource is None:
            raise NotFound(404, "NotFound", f"no {reference.kind}s are served")
        template = await self._cluster.get(resource, reference.name, namespace)
        return cluster_api.machine_of_template(made, template, where, self._hosts_in(namespace))

    async def cluster_of(self, namespace: str, name: str) -> UserCluster | None:
        """None for a Cluster of no project. Raises ApiError; without the Cluster, CAPI makes no Machine."""
        if self.knows_cluster(namespace, name):
            return self.user_cluster(namespace, name)
        return await self.find_user_cluster(namespace, name)

    def knows_cluster(self, namespace: str, name: str) -> bool:
        return self._cached_cluster(namespace, name) is not None

    async def find_machine(self, subject: Subject) -> Machine:
        """`machine_of`, by a consistent read where the watch cache does not tell. Raises ApiError."""
        reference, place = self._made_of(subject)
        if self._is_sizable(reference) and self._cached(*place) is None:
            await self.look_up(subject)
        machine = self.machine_of(subject)
        assert machine is not None, "it was looked up if need be"
        return machine

    def machine_of(self, subject: Subject) -> Machine | None:
        """None while it is not known what it is made of: then `look_up`."""
        (reference, place), namespace = self._made_of(subject), subject.metadata.namespace
        found: Infrastructure | None = None
        if self._is_sizable(reference):
            found = self._cached(*place) or self._looked_up.get(place)
            if found is None and place not in self._looked_up:
                return None
        hosts = self._hosts_in(namespace) if reference.kind == "Metal3Machine" else ()
        return cluster_api.machine_of(subject, found, self._where(namespace, subject.spec.cluster_name), hosts)

    async def look_up(self, subject: Subject) -> None:
        """What it is made of, by a consistent read. Raises ApiError."""
        reference, place = self._made_of(subject)
        wanted = self._infrastructure.get(reference.kind)
        resource = self.served.find(wanted, self._following.resource(reference.kind)) if wanted is not None else None
        found: Infrastructure | None = None
        if resource is not None:
            try:
                found = await self._cluster.get(resource, reference.name, subject.metadata.namespace)
            except NotFound:
                found = None
        self._looked_up.keep(place, found, MAX_LOOKED_UP)

    def _wanted(self, kind: str, versions: tuple[str, ...]) -> FollowedKind[Infrastructure]:
        def changed(change: Change[Infrastructure]) -> None:
            seen = change.new or change.old
            assert seen is not None, "a change has an object before or after"
            self._looked_up.pop((kind, seen.metadata.key), None)
            if kind in KINDS:
                self.on_infrastructure(kind, seen.metadata.key)
            elif change.old is None or change.new is None or change.old.spec != change.new.spec:
                self._placed(kind, seen.metadata.namespace, seen.metadata.name)

        return FollowedKind(infrastructure.GROUP, kind, versions, Infrastructure, on_change=changed)

    def _made_of(self, subject: Subject) -> tuple[Reference, tuple[str, str]]:
        """Its infrastructure object: the reference, and the kind and key."""
        spec = subject.spec.template.spec if isinstance(subject, MachinePool) else subject.spec
        reference = spec.infrastructure_ref
        return reference, (reference.kind, object_key(subject.metadata.namespace, reference.name))

    def _is_sizable(self, reference: Reference) -> bool:
        return bool(reference.name) and reference.group == infrastructure.GROUP and reference.kind in KINDS

    def _cached(self, kind: str, key: str) -> Infrastructure | None:
        reflector = self._following.get(kind)
        return reflector.store.get(key) if reflector is not None else None

    def _cached_cluster(self, namespace: str, name: str) -> cluster_api.Cluster | None:
        reflector = self._following.get(CLUSTERS)
        return reflector.store.get(object_key(namespace, name)) if reflector is not None else None

    def _hosts_in(self, namespace: str) -> list[BareMetalHost]:
        reflector = self._following.get(HOSTS)
        return reflector.store.by_index("namespace", namespace) if reflector is not None else []

    def _where(self, namespace: str, name: str) -> Where:
        cluster = self._cached_cluster(namespace, name)
        reference = cluster.spec.infrastructure_ref if cluster is not None else Reference()
        placed = None
        if reference.kind in cluster_api.REGIONS:
            placed = self._cached(reference.kind, object_key(namespace, reference.name))
        declared = self._declared(namespace, name)
        provider = declared.spec.provider if declared is not None else None
        return cluster_api.where_of(cluster, placed, provider.region if provider is not None else "")

    def _declared(self, namespace: str, name: str) -> UserCluster | None:
        """The UserCluster that has the Cluster's name: it says with which credentials clouds are asked."""
        return self._cluster_cache.user_clusters.store.get(object_key(namespace, name))

    def _as_user_cluster(self, cluster: cluster_api.Cluster) -> UserCluster | None:
        project = cluster_api.project_of(cluster, self._label)
        if not project:
            return None
        namespace, name = cluster.metadata.namespace, cluster.metadata.name
        declared = self._declared(namespace, name)
        return UserCluster(
            metadata=ObjectMeta(
                name=HOSTED + name,
                namespace=namespace,
                uid=cluster.metadata.uid,
                labels=cluster.metadata.labels,
            ),
            spec=UserClusterSpec(project=project, provider=declared.spec.provider if declared is not None else None),
        )

    def _cluster_changed(self, change: Change[cluster_api.Cluster]) -> None:
        seen = change.new or change.old
        assert seen is not None, "a change has an object before or after"
        key = hosted_key(seen.metadata.namespace, seen.metadata.name)
        self._cluster_cache.host(key, self._as_user_cluster(change.new) if change.new is not None else None)
        self.on_cluster(key)

    def _declaration_changed(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        cluster = self._cached_cluster(namespace, name)
        if cluster is not None:
            self._cluster_changed(Change(cluster, cluster))

    def _placed(self, kind: str, namespace: str, name: str) -> None:
        reflector = self._following.get(CLUSTERS)
        for cluster in reflector.store.values() if reflector is not None else ():
            reference = cluster.spec.infrastructure_ref
            if (cluster.metadata.namespace, reference.kind, reference.name) == (namespace, kind, name):
                self.on_cluster(hosted_key(namespace, cluster.metadata.name))

    def _hosts_changed(self, change: Change[BareMetalHost]) -> None:
        seen = change.new or change.old
        assert seen is not None, "a change has an object before or after"
        self.on_hosts(seen.metadata.namespace)
