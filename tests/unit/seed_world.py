"""A seed without Kubernetes: caches filled by hand, accounts in memory, and the master's part played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import msgspec

from common.api.labels import RELEASED_ANNOTATION, UID_LABEL
from common.api.types import Project, ResourceQuota, SecretRef, UserCluster, WireGrant
from common.kube.client.api_client import Cluster
from common.kube.controller.store import Change
from common.quota import resources
from common.quota.account import Account
from seed import metrics
from seed.accounts.registry import AccountHandle, AccountRegistry
from seed.admission.admitter import Admission
from seed.cache.clusters import ClusterCache
from seed.cache.quotas import QuotaCache
from seed.instance_types.cache import FlavourCache
from seed.instance_types.http_client import Transport
from seed.instance_types.settings import SettingsReader
from seed.kinds.registry import OF_PROJECTS
from seed.model.quota import NAMESPACES, Quota, parse_quota
from seed.model.source_key import SourceKey
from seed.registration.token import seal
from seed.sizing.sizer import Sizing
from tests.memory_store import MemoryStore

PROJECT = "alpha"
ORGANIZATION = "acme"
CLUSTER_UID = "c1-uid"


def amounts(text: str) -> dict[str, str]:
    """`cpu=8,memory=16Gi` as quantities by name."""
    return dict(part.split("=") for part in text.split(",") if part)


def nanos(text: str) -> dict[str, int]:
    return resources.parse(amounts(text))


def quota_copy(name: str, *, limits: str, surge: str = "", usage: str = "", draining: bool = False) -> Quota:
    """As it comes to a seed."""
    body = {
        "metadata": {"name": name, "uid": f"{name}-copy", "labels": {UID_LABEL: f"{name}-uid"}},
        "spec": {
            "subject": {"kind": "project", "name": PROJECT},
            "quota": amounts(limits),
            "surge": amounts(surge),
            "enforcement": "deny",
        },
        "status": {"globalUsage": amounts(usage), "grant": {"draining": draining}},
    }
    quota = parse_quota(msgspec.convert(body, ResourceQuota), in_cluster=False)
    assert quota is not None
    return quota


def sizing(transport: Transport | None = None) -> Sizing:
    """Without a seed to read Secrets from; stamps are sealed with a key of its own."""
    cache = FlavourCache(transport or Transport(), on_lookup=metrics.flavour_lookup, on_fetch=metrics.provider_request)
    settings = SettingsReader(cast(Cluster, None), environment={})

    def sealed(text: bytes) -> str:
        return seal(b"k" * 32, text)

    return Sizing(cache, settings, sealed, lambda text, given: sealed(text) == given)


class SeedWorld:
    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        cluster = cast(Cluster, SimpleNamespace(name="seed"))
        self.quota_cache = QuotaCache(cluster)
        self.cluster_cache = ClusterCache(cluster, self.quota_cache, of_projects=OF_PROJECTS)
        self.registry = AccountRegistry(self.quota_cache, self.cluster_cache, store)
        self.admission = Admission(self.quota_cache, self.registry)
        self.copies: dict[str, ResourceQuota] = {}
        self.present: dict[str, object] = {}  # what a fresh read of the seed's API server finds, by key
        project = {"metadata": {"name": PROJECT, "uid": "alpha-uid"}, "spec": {"organization": ORGANIZATION}}
        self.quota_cache.projects.store._set(PROJECT, msgspec.convert(project, Project))
        user_cluster = {
            "metadata": {"name": "c1", "namespace": PROJECT, "uid": CLUSTER_UID},
            "spec": {"project": PROJECT},
        }
        self.cluster_cache.user_clusters.store._set(f"{PROJECT}/c1", msgspec.convert(user_cluster, UserCluster))

    def label(self, **labels: str) -> None:
        """The user cluster has these labels from now on."""
        before = self._user_cluster
        self._becomes(msgspec.structs.replace(before, metadata=msgspec.structs.replace(before.metadata, labels=labels)))

    def share(self, namespace_projects: str) -> None:
        """The user cluster takes part in quotas of what is in namespaces, which are of these projects from now on."""
        before, secret = self._user_cluster, SecretRef(name="kubeconfig")
        spec = msgspec.structs.replace(
            before.spec,
            namespace_quotas="Enabled",
            namespace_projects=namespace_projects,
            kubeconfig_secret_ref=secret,
        )
        self._becomes(msgspec.structs.replace(before, spec=spec))

    @property
    def _user_cluster(self) -> UserCluster:
        found = self.cluster_cache.user_clusters.store.get(f"{PROJECT}/c1")
        assert found is not None
        return found

    def _becomes(self, after: UserCluster) -> None:
        before = self._user_cluster
        self.cluster_cache.user_clusters.store._set(f"{PROJECT}/c1", after)
        self.present[f"{PROJECT}/c1"] = after
        self.cluster_cache._cluster_changed(Change(before, after))

    def forget_project(self) -> None:
        """Its copy is not here any more."""
        self._project(None)

    def join(self, organization: str) -> None:
        """The Project's copy comes, and says so."""
        project = {"metadata": {"name": PROJECT, "uid": "alpha-uid"}, "spec": {"organization": organization}}
        self._project(msgspec.convert(project, Project))

    def _project(self, new: Project | None) -> None:
        projects = self.quota_cache.projects.store
        old = projects._remove(PROJECT)
        self.present.pop(PROJECT, None)
        if new is not None:
            projects._set(PROJECT, new)
            self.present[PROJECT] = new
        self.quota_cache._project_changed(Change(old, new))

    async def quota(
        self,
        name: str = "project-alpha",
        *,
        limits: str,
        granted: str = "",
        used: str = "",
        kind: str = "project",
        enforcement: str = "deny",
        **spec: object,
    ) -> AccountHandle:
        """A quota whose account is open with what it was granted, and uses what is `used`. If it is of kind namespaces,
        those of the user cluster are counted, and have nothing."""
        subject = PROJECT if kind == "project" else ORGANIZATION
        body = {
            "metadata": {"name": name, "uid": f"{name}-copy", "labels": {UID_LABEL: f"{name}-uid"}},
            "spec": {
                "subject": {"kind": kind, "name": subject},
                "quota": amounts(limits),
                "enforcement": enforcement,
                **spec,
            },
        }
        self._put(msgspec.convert(body, ResourceQuota))
        handle, counted = self.handle(name), {f"{PROJECT}/c1": nanos(used)} if used else {}
        if self.copies[name].spec.subject.kind == NAMESPACES:
            counted[SourceKey.of_namespaces(handle.key.uid, f"{PROJECT}/c1").text] = {}
        await handle.writer.create(
            Account(
                incarnation="life",
                master="m",
                epoch=1,
                granted=nanos(granted),
                used=counted,
            )
        )
        self.tell(name, granted=amounts(granted))
        return handle

    def handle(self, name: str = "project-alpha") -> AccountHandle:
        quota = self.quota_cache.known(name)
        assert quota is not None
        handle = self.registry.get(quota)
        assert handle is not None
        return handle

    def account(self, name: str = "project-alpha") -> Account:
        account = self.handle(name).writer.account
        assert account is not None
        return account

    def tell(
        self, name: str = "project-alpha", *, usage: str | None = None, reserved: str | None = None, **grant: object
    ) -> None:
        """The master writes the status of the seed's copy."""
        copy = self.copies[name]
        status = copy.status
        changed = {**msgspec.structs.asdict(status.grant), "incarnation": "m", "account": "life", **grant}
        status = msgspec.structs.replace(
            status,
            grant=msgspec.convert(changed, WireGrant, from_attributes=True),
            global_usage=status.global_usage if usage is None else amounts(usage),
            reserved=status.reserved if reserved is None else amounts(reserved),
        )
        self._put(msgspec.structs.replace(copy, status=status))

    def limit(self, name: str, limits: Mapping[str, str]) -> None:
        copy = self.copies[name]
        metadata = msgspec.structs.replace(copy.metadata, generation=copy.metadata.generation + 1)
        spec = msgspec.structs.replace(copy.spec, quota=dict(limits))
        self._put(msgspec.structs.replace(copy, metadata=metadata, spec=spec))

    def without_surge(self, name: str) -> None:
        copy = self.copies[name]
        self._put(msgspec.structs.replace(copy, spec=msgspec.structs.replace(copy.spec, surge={})))

    def remove(self, name: str, *, by_master: bool = True) -> None:
        copy = self.copies.pop(name)
        if by_master:
            metadata = msgspec.structs.replace(copy.metadata, annotations={RELEASED_ANNOTATION: "true"})
            copy = msgspec.structs.replace(copy, metadata=metadata)
        self.quota_cache._quota_changed(Change(copy, None))

    def _put(self, copy: ResourceQuota) -> None:
        before = self.copies.get(copy.metadata.name)
        self.copies[copy.metadata.name] = copy
        self.quota_cache._quota_changed(Change(before, copy))

    async def asked(self, name: str = "project-alpha", number: int = 1) -> None:
        """Until the seed has asked the master so many times."""
        async with asyncio.timeout(30):
            while self.account(name).ask.number < number:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def seed_world(store: MemoryStore | None = None) -> AsyncIterator[SeedWorld]:
    world = SeedWorld(store or MemoryStore())
    try:
        yield world
    finally:
        await world.registry.close()
