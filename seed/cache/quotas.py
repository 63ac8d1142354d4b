"""What this seed knows of quotas, projects and settings: watch caches, read by name of what they limit."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from common.api.catalogue import Catalogue
from common.api.labels import MASTER_SEEN_ANNOTATION, RELEASED_ANNOTATION, SETTINGS
from common.api.types import (
    PROJECTS,
    QUOTA_SETTINGS,
    RESOURCE_QUOTAS,
    SEED_COPIES,
    Condition,
    Project,
    QuotaSettings,
    ResourceQuota,
    SeedCopy,
    UserCluster,
)
from common.kube.client.api_client import Cluster
from common.kube.client.resource import by_name
from common.kube.controller.reflector import PROMPT_SECONDS, Reflector
from common.kube.controller.store import Change
from common.quota.quantity import QuantityError
from common.runtime.listeners import Listeners
from seed.model.consumer import Consumer
from seed.model.quota import NAMESPACES, Quota, parse_quota

log = logging.getLogger(__name__)

MISSED_FOR = 600.0  # seconds for which a quota limits whose copy somebody deleted, or went while nobody was watching


class QuotaCache:
    """Every replica keeps one. Listeners:

    - `on_quota(name)`: the quota came, changed or went, or a project that it counts did, or the catalogue changed.
    - `on_spec(name)`: the quota came or went, or its spec changed, or it counts objects only since or until now, or
      overrides raise other limits than before, which its status may say.
    - `on_members(name)`: the quota of an organization has other projects than before.
    - `on_project(name)`: a Project or a quota of it came or went. Whether the project is known may have changed.
    - `on_participation()`: the seed's own API server takes part in quotas of kind namespaces, or no more, or the master
      has another namespace there.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._quotas: dict[str, Quota] = {}
        self._withdrawn: dict[str, Quota] = {}
        self._untaken: set[str] = set()  # names
        self._by_subject: dict[tuple[str, str], dict[str, Quota]] = {}
        self._gone_from: dict[str, str] = {}  # the organization of projects whose copy went
        self._quota_listeners: Listeners[[str]] = Listeners()
        self._spec_listeners: Listeners[[str]] = Listeners()
        self._members_listeners: Listeners[[str]] = Listeners()
        self._project_listeners: Listeners[[str]] = Listeners()
        self._participation_listeners: Listeners[[]] = Listeners()
        self._in_cluster_listeners: Listeners[[]] = Listeners()
        self._find_cluster: Callable[[str], UserCluster | None] = lambda _key: None
        self.in_cluster = False  # the master is in this API server: its objects stand for themselves
        prompt = PROMPT_SECONDS
        self.quotas = Reflector(cluster, RESOURCE_QUOTAS, on_change=self._quota_changed, watch_seconds=prompt)
        self.projects = Reflector(cluster, PROJECTS, on_change=self._project_changed, watch_seconds=prompt)
        self.settings = Reflector(cluster, QUOTA_SETTINGS, on_change=self._settings_changed, watch_seconds=prompt)
        self._catalogue: tuple[QuotaSettings | None, Catalogue] = (None, Catalogue())
        self.master_seen_at: float | None = None  # its last sign (monotonic); None: none since this replica started
        self.seed = Reflector(
            cluster,
            SEED_COPIES,
            field_selector=by_name(cluster.name),
            on_change=self._seed_changed,
            watch_seconds=prompt,
        )
        self.reflectors: tuple[Reflector[Any], ...] = (self.quotas, self.projects, self.settings, self.seed)

    @property
    def lost(self) -> bool:
        """The master has declared this seed lost: what it holds is given to others."""
        return any(
            (copy.spec.copy_of or copy.spec.in_cluster) and copy.spec.state == "Lost"
            for copy in self.seed.store.values()
        )

    @property
    def unread(self) -> set[str]:
        """The names of quotas of which the latest copy is not in force here, since it cannot be read."""
        return {*self.quotas.malformed, *self._untaken}

    def quota(self, name: str) -> Quota | None:
        return self._quotas.get(name)

    def known(self, name: str) -> Quota | None:
        """Also one that the master withdraws: it limits nothing on this seed, and its account is to be closed."""
        return self._quotas.get(name) or self._withdrawn.get(name)

    def all_known(self) -> Iterable[Quota]:
        return [*self._quotas.values(), *self._withdrawn.values()]

    def latest(self, quota: Quota) -> Quota:
        """As it is by now: while a request waits for a read or a write, limits may change. Another quota of the same
        name is not it."""
        known = self._quotas.get(quota.name)
        return known if known is not None and known.key == quota.key else quota

    def all_quotas(self) -> Iterable[Quota]:
        return self._quotas.values()

    def quotas_of(self, consumer: Consumer) -> list[Quota]:
        """Every quota that limits it: its project's own and those of the project's organization, without those that
        limit what is in other clusters."""
        if consumer.quota:
            quota = self._quotas.get(consumer.quota)
            return [quota] if quota is not None else []
        project = consumer.project
        found = list(self._by_subject.get(("project", project), {}).values())
        known = self.projects.store.get(project)
        if known is not None and known.spec.organization:
            found.extend(self._by_subject.get(("organization", known.spec.organization), {}).values())
        return [quota for quota in found if self.counts_in(quota, consumer.cluster)]

    def find_clusters(self, find: Callable[[str], UserCluster | None]) -> None:
        """By their keys, whichever API tells of them."""
        self._find_cluster = find

    def counts_in(self, quota: Quota, cluster: str) -> bool:
        """Whether the user cluster of this key is in the part of its subject that the quota limits. What is in no user
        cluster is in no such part."""
        if quota.clusters is None:
            return True
        found = self._find_cluster(cluster)
        return found is not None and quota.picks(found)

    def may_belong(self, consumer: Consumer, limited: Callable[[Iterable[str]], bool] = lambda _limits: True) -> bool:
        """True while it cannot be told what limits it: the project's copy, or a default quota, has not come yet.

        `limited`: whether a quota with these limits matters.
        """
        project = consumer.project
        known = self.projects.store.get(project)
        if known is None and any(quota.kind == "organization" and limited(quota.limits) for quota in self.all_quotas()):
            return True
        settings = self.settings.store.get(SETTINGS)
        if settings is None:
            return False
        defaults = settings.spec.defaults
        organization = known.spec.organization if known is not None else ""
        waited = []
        if known is None or organization:
            waited.append((defaults.organization, "organization", organization))
        return any(
            default is not None
            and default.enforcement == "deny"
            and limited(default.quota)
            and all(quota.is_of_a_part for quota in self._by_subject.get((kind, subject), {}).values())
            for default, kind, subject in ((defaults.project, "project", project), *waited)
        )

    def may_limit(self, consumer: Consumer, resource: str) -> bool:
        """Whether a quota limits this for the consumer, or one may that has not come yet."""
        return self.may_belong(consumer, lambda limits: resource in limits) or any(
            resource in quota.limits for quota in self.quotas_of(consumer)
        )

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

    @property
    def catalogue(self) -> Catalogue:
        settings = self.settings.store.get(SETTINGS)
        if settings is not self._catalogue[0]:
            self._catalogue = settings, _catalogue_of(settings)
        return self._catalogue[1]

    def projects_of(self, quota: Quota) -> list[str]:
        """Those that it counts, as far as their copies are here."""
        if quota.kind == "project":
            return [quota.subject]
        if quota.kind == "organization":
            projects = self.projects.store.values()
            return [project.metadata.name for project in projects if project.spec.organization == quota.subject]
        return []

    def payers_of(self, quota: Quota) -> list[str]:
        """The projects whose label on a namespace says that the quota counts it. A project whose copy went goes on to
        be counted by its organization: the copy may be put back."""
        gone = [project for project in self._gone_from if quota.kind == "organization" and self.counts(quota, project)]
        return sorted({*self.projects_of(quota), *gone})

    def counted_by(self, organization: str, project: str) -> None:
        """An account of the organization has something of a project whose copy is not here, and was not since this
        replica started."""
        if self.lacks(project) and project not in self._gone_from:
            self._gone_from[project] = organization
            for name in self._by_subject.get(("organization", organization), {}):
                self._members_listeners.call(name)

    def counts(self, quota: Quota, project: str) -> bool:
        """Whether it is a quota of the project, or of the project's organization."""
        if quota.kind == "project":
            return quota.subject == project
        known = self.projects.store.get(project)
        organization = known.spec.organization if known is not None else self._gone_from.get(project, "")
        return quota.kind == "organization" and quota.subject == organization

    def namespace_quotas(self) -> list[Quota]:
        """Those of kind namespaces."""
        return list(self._by_subject.get((NAMESPACES, ""), {}).values())

    def object_quotas(self) -> list[Quota]:
        """Those that count objects in namespaces, of any kind."""
        return [quota for quota in self._quotas.values() if quota.counts_objects]

    @property
    def own_takes_part(self) -> bool:
        """Whether quotas count the namespaces of the seed's own API server."""
        return any(copy.spec.namespace_quotas == "Enabled" for copy in self.seed.store.values())

    @property
    def master_namespace(self) -> str:
        """Where the master runs, if that is the seed's own API server."""
        return next((copy.status.master_namespace for copy in self.seed.store.values() if copy.spec.in_cluster), "")

    @property
    def own_conditions(self) -> list[Condition]:
        """What the leader said last of the seed itself."""
        for copy in self.seed.store.values():
            return copy.status.agent.conditions if copy.spec.in_cluster else copy.status.conditions
        return []

    def on_quota(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Returns how to stop listening."""
        return self._quota_listeners.add(listener)

    def on_spec(self, listener: Callable[[str], None]) -> Callable[[], None]:
        return self._spec_listeners.add(listener)

    def on_members(self, listener: Callable[[str], None]) -> Callable[[], None]:
        return self._members_listeners.add(listener)

    def on_project(self, listener: Callable[[str], None]) -> Callable[[], None]:
        return self._project_listeners.add(listener)

    def on_participation(self, listener: Callable[[], None]) -> Callable[[], None]:
        return self._participation_listeners.add(listener)

    async def wait_in_cluster(self) -> None:
        """Until it is known that the master is in this API server; for ever elsewhere."""
        changed = asyncio.Event()
        stop = self._in_cluster_listeners.add(changed.set)
        try:
            while not self.in_cluster:
                changed.clear()
                await changed.wait()
        finally:
            stop()

    def _seed_changed(self, change: Change[SeedCopy]) -> None:
        """A Seed that is deleted says nothing: what was enforced stays enforced."""
        if change.new is None or _participation(change.old) != _participation(change.new):
            self._participation_listeners.call()
        if change.new is None:
            return
        sign = _sign_of_master(change.new)
        if sign and change.old is not None and sign != _sign_of_master(change.old):
            self.master_seen_at = time.monotonic()
        if change.new.spec.in_cluster == self.in_cluster:
            return
        self.in_cluster = change.new.spec.in_cluster
        self._in_cluster_listeners.call()
        for quota in self.quotas.store.values():
            self._quota_changed(Change(quota, quota))

    def _settings_changed(self, change: Change[QuotaSettings]) -> None:
        if _catalogue_of(change.old) != _catalogue_of(change.new):
            for name in list(self._quotas):
                self._quota_listeners.call(name)

    def _quota_changed(self, change: Change[ResourceQuota]) -> None:
        copy = change.new if change.new is not None else change.old
        assert copy is not None, "a change has an object before or after"
        name = copy.metadata.name
        if change.new is None and name in self._quotas and not self._is_released(copy):
            # The master has not released it, as far as was seen. It will create it again, and until then it limits.
            log.warning("copy of a quota was deleted, it stays in force", extra={"quota": name, "seconds": MISSED_FOR})
            asyncio.get_running_loop().call_later(MISSED_FOR, self._let_go, self._quotas[name])
            return
        self._untaken.add(name)
        try:
            quota = parse_quota(change.new, in_cluster=self.in_cluster) if change.new is not None else None
        except QuantityError as error:
            # The schema refuses these; should one come through, the last good copy stays in force.
            log.error("quota cannot be read", extra={"quota": name, "error": str(error)})
            return
        self._put(name, quota)
        self._untaken.discard(name)

    def _is_released(self, copy: ResourceQuota) -> bool:
        """Who deletes an original wants it gone. A copy that is deleted by another than the master is an accident."""
        return self.in_cluster or RELEASED_ANNOTATION in copy.metadata.annotations

    def _let_go(self, quota: Quota) -> None:
        if self._quotas.get(quota.name) is quota:
            self._put(quota.name, None)

    def _put(self, name: str, quota: Quota | None) -> None:
        self._withdrawn.pop(name, None)
        if quota is not None and quota.withdrawn:
            self._withdrawn[name] = quota
            quota = None
        before = self._quotas.pop(name, None)
        if before is not None:
            self._by_subject[before.kind, before.subject].pop(name)
        if quota is not None:
            self._quotas[name] = quota
            self._by_subject.setdefault((quota.kind, quota.subject), {})[name] = quota
        self._quota_listeners.call(name)
        only = quota or before
        if only is not None and only.kind == "project" and (before is None or quota is None):
            self._project_listeners.call(only.subject)
        if _decides(before) != _decides(quota):
            self._spec_listeners.call(name)

    def _project_changed(self, change: Change[Project]) -> None:
        """A project that joins an organization is counted by its quotas from now on."""
        if change.old is None or change.new is None:
            came = change.new or change.old
            assert came is not None, "a change has an object before or after"
            self._project_listeners.call(came.metadata.name)
        if change.new is not None:
            self._gone_from.pop(change.new.metadata.name, None)
        elif change.old is not None and change.old.spec.organization:
            self._gone_from[change.old.metadata.name] = change.old.spec.organization
        for project in (change.old, change.new):
            if project is not None and project.spec.organization:
                for name in self._by_subject.get(("organization", project.spec.organization), {}):
                    self._quota_listeners.call(name)
                    self._members_listeners.call(name)


def _decides(quota: Quota | None) -> object:
    return (quota.spec, quota.raised, quota.counts_objects) if quota is not None else None


def _catalogue_of(settings: QuotaSettings | None) -> Catalogue:
    return Catalogue(settings.spec.resources if settings is not None else ())


def _participation(copy: SeedCopy | None) -> tuple[str, str] | None:
    return (copy.spec.namespace_quotas, copy.status.master_namespace) if copy is not None else None


def _sign_of_master(seed: SeedCopy) -> str:
    """It differs from one sign to the next."""
    if seed.spec.in_cluster:
        return seed.status.last_seen_time
    return seed.metadata.annotations.get(MASTER_SEEN_ANNOTATION, "")
