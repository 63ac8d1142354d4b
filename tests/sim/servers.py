"""The API servers (and a Redis): what is durable. Each write leaves an event that watchers hear of, sooner or later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from common.api.label_selector import LabelSelector
from common.api.labels import RELEASED_ANNOTATION, UID_LABEL
from common.api.types import QuotaSettings
from common.kube.client.errors import AlreadyExists, Conflict, NotFound, Unavailable
from common.kube.client.meta import Object
from common.kube.client.meta import ObjectMeta as Meta
from common.kube.controller.leader_election import LeaseObject
from common.quota import guarantees, surge
from common.quota.account import Account, AccountKey, Grant
from common.quota.escrow import MasterLedger, Report
from common.quota.guarantees import Guarantee
from common.quota.resources import ResourceList
from seed.ledger.store import ConflictError, Stored
from seed.ledger.store_generation import new_life
from seed.model.quota import NAMESPACES, OutOfReach, Quota
from seed.model.source_key import SourceKey


def away(what: str) -> Unavailable:
    return Unavailable(0, "Unavailable", f"{what}: no answer")


class Leases:
    """The one Lease object of a cluster. The real lease code calls this as if it were its client."""

    def __init__(self, server: Seed | Master) -> None:
        self.name = server.name
        self._server = server

    async def get(self, _resource: object, _name: str, _namespace: str | None = None) -> LeaseObject:
        self._reach()
        if self._server.lease is None:
            raise NotFound(404, "NotFound", "lease")
        return self._server.lease

    async def replace(self, _resource: object, body: LeaseObject) -> LeaseObject:
        self._reach()
        present = self._server.lease
        if present is None:
            raise NotFound(404, "NotFound", "lease")
        if present.metadata.resource_version != body.metadata.resource_version:
            raise Conflict(409, "Conflict", "lease")
        return self._answer(body, present)

    async def create(self, _resource: object, body: LeaseObject) -> LeaseObject:
        self._reach()
        if self._server.lease is not None:
            raise AlreadyExists(409, "AlreadyExists", "lease")
        return self._answer(body, None)

    def _answer(self, body: LeaseObject, present: LeaseObject | None) -> LeaseObject:
        """Nobody may hear of it, or it is done later, if nobody else has written by then."""

        def write() -> None:
            if self._server.up and self._server.lease is present:
                self._store(body)

        if not self._server.unsure(write):
            return self._store(body)
        raise away("lease")

    def _reach(self) -> None:
        if not self._server.up:
            raise away("lease")

    def _store(self, body: LeaseObject) -> LeaseObject:
        server = self._server
        server.revision += 1
        metadata = msgspec.structs.replace(body.metadata, uid="lease", resource_version=str(server.revision))
        server.lease = msgspec.structs.replace(body, metadata=metadata)
        return server.lease


EVERYBODY = "all"  # the organization of all projects
TENANTS, OF_TENANTS = ("x", "y"), "xy"  # projects that have namespaces, and their organization
PARTICIPANT = "p"  # the project of the clusters that take part in quotas of namespaces; nothing limits it
ELSEWHERE_COUNTED = frozenset(("machines", "storage", "servers"))  # by quotas of TENANTS, outside of namespaces
LABELLED = "labelled:"  # begins the subject of a quota of kind namespaces: it selects those with the label that follows
ELSEWHERE = " elsewhere"  # ends the state of a Seed without the label that quotas of some seeds pick
PROMISED = "promised:"  # ... and of one that counts what core ResourceQuotas promise there


Unsure = Callable[[Callable[[], None]], bool]
"""Whether the outcome of a write is not told. Then it has done the write, or will."""


def _told(_write: Callable[[], None]) -> bool:
    return False


class Copy(msgspec.Struct, frozen=True):
    """A quota's copy on a seed. The master writes the spec and what it shows, the seed its report.

    `version` and `decided` are for the checks: the version of the limits here, and of those that the grant was decided
    by. `released`: the master is about to delete it. `withdrawn`: by what the seed is told that it limits nothing
    there, `repeated`: what of that the seed has repeated.
    """

    key: AccountKey
    copy_uid: str
    subject: str
    limits: ResourceList
    version: int
    grant: Grant = Grant(incarnation="")
    decided: int = 0
    usage: ResourceList = {}
    reserved: ResourceList = {}
    out_of_reach: tuple[OutOfReach, ...] = ()
    learning: bool = False
    draining: bool = False
    report: Report | None = None
    released: bool = False
    of_seeds: bool = False
    withdrawn: str = ""
    repeated: str = ""
    guarantees: tuple[Guarantee, ...] = ()

    def parsed(self) -> QuotaObject:
        """Once for all that watch it."""
        label, limits = label_of(self.subject), guarantees.plain(self.limits)
        quota = Quota(
            key=self.key,
            copy_uid=self.copy_uid,
            generation=self.version,
            kind=_kind(self.subject),
            subject="" if label else self.subject,
            selector=LabelSelector(match_labels={label: ""}) if label else None,
            promises=self.subject.startswith(PROMISED),
            limits=surge.regular(limits),
            of_objects=of_objects(limits if label or self.subject in (*TENANTS, OF_TENANTS) else ()),
            surge=surge.beyond(limits),
            guarantees=self.guarantees,
            ceilings=guarantees.ceilings(limits, self.guarantees),
            enforced=True,
            warn_at_percent=100,
            grant=self.grant,
            global_usage=self.usage,
            global_reserved=self.reserved,
            out_of_reach=self.out_of_reach,
            learning=self.learning,
            draining=self.draining,
            of_seeds=self.of_seeds,
            withdrawn=self.withdrawn,
            published=self.report,
        )
        annotations = {RELEASED_ANNOTATION: "true"} if self.released else {}
        labels = {UID_LABEL: self.key.uid}
        meta = Meta(name=self.key.name, uid=self.copy_uid, labels=labels, annotations=annotations)
        return QuotaObject(metadata=meta, quota=quota)


def of_objects(names: Iterable[str]) -> frozenset[str]:
    """Those of what is in namespaces."""
    return frozenset(names) - ELSEWHERE_COUNTED


def label_of(subject: str) -> str:
    """Of the namespaces that a quota selects; empty for one of another kind."""
    return subject.partition(":")[2] if subject.startswith((LABELLED, PROMISED)) else ""


def _kind(subject: str) -> str:
    if label_of(subject):
        return NAMESPACES
    return "organization" if subject in (EVERYBODY, OF_TENANTS) else "project"


def guaranteed(limits: ResourceList) -> tuple[Guarantee, ...]:
    """What is guaranteed among the limits."""
    found: dict[str, dict[str, int]] = {}
    for name, amount in guarantees.only(limits).items():
        project, resource = guarantees.parts(name)
        found.setdefault(project, {})[resource] = amount
    return tuple(Guarantee(project=project, hard=hard) for project, hard in found.items())


class QuotaObject(Object, frozen=True, kw_only=True):
    """As a seed's programs see it. `quota` is what `seed.cache.quotas.parse_quota` would make of it."""

    quota: Quota


class Ledger:
    """Where a seed's accounts are kept: its API server, or a Redis, which can be away or lose them alone."""

    def __init__(self, seed: Seed) -> None:
        self.name = f"{seed.name}/ledger"
        self.answers = True
        self._seed = seed

    @property
    def up(self) -> bool:
        return self.answers and self._seed.up


class Seed:
    """A seed's API server: the lease, the ledger, the copies, and which user clusters there are."""

    def __init__(self, name: str, saved: Callable[[Seed, str, Account | None, Account], None]) -> None:
        self.name = name
        self._up = True
        self.outages = 0  # each ends all watches
        self.in_cluster = False  # it has the Allocations
        self.settings: QuotaSettings | None = None
        self.revision = 0
        self.lease: LeaseObject | None = None
        self.unsure: Unsure = _told
        self.kept = Ledger(self)
        self.ledger: dict[str, Stored] = {}
        self.keys: dict[str, AccountKey] = {}
        self.copies: dict[str, tuple[Copy, QuotaObject]] = {}
        self.clusters: dict[str, str] = {}  # user cluster -> project
        self.projects: dict[str, str] = {}  # copies of Projects -> organization
        self.events: list[tuple[str, str]] = []  # what changed: "ledger"/"copy"/"cluster"/"project", and which
        self.values: list[Any] = []  # ... and what it is since; None: gone
        self._saved = saved

    @property
    def up(self) -> bool:
        return self._up

    @up.setter
    def up(self, up: bool) -> None:
        self.outages += self._up and not up
        self._up = up

    # The ledger ----------------------------------------------------------------------------------------------------

    def load(self, key: AccountKey) -> Stored | None:
        return self.ledger.get(key.uid)

    def take(self, key: AccountKey) -> Stored | None:
        stored = self.ledger.get(key.uid)
        if stored is None:
            return None
        self.revision += 1
        taken = self.ledger[key.uid] = Stored(stored.account, str(self.revision))
        return taken

    def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        present = self.ledger.get(key.uid)
        if (present.version if present else None) != version:
            raise ConflictError(f"{key.name}: written since version {version}")
        self.revision += 1
        stored = Stored(account, str(self.revision))
        self.ledger[key.uid] = stored
        self.keys[key.uid] = key
        self._saved(self, key.uid, present.account if present else None, account)
        self.tell("ledger", key.uid, stored)
        return stored.version

    def delete(self, key: AccountKey) -> None:
        if self.ledger.pop(key.uid, None) is not None:
            self.tell("ledger", key.uid, None)

    def begin_store_generation(self, ledger: dict[str, Stored]) -> None:
        """Redis came back with this. What is from before only becomes a new life (seed/ledger/store_generation.py)."""
        for uid in {**self.ledger, **ledger}:
            if uid not in ledger:
                self.ledger.pop(uid, None)
                self.tell("ledger", uid, None)
                continue
            self.revision += 1
            stored = Stored(new_life(ledger[uid].account), str(self.revision))
            before, self.ledger[uid] = self.ledger.get(uid), stored
            self._saved(self, uid, before.account if before else None, stored.account)
            self.tell("ledger", uid, stored)

    # Copies --------------------------------------------------------------------------------------------------------

    def write_copy(self, copy: Copy) -> None:
        both = (copy, copy.parsed())
        self.copies[copy.key.name] = both
        self.tell("copy", copy.key.name, both)

    def delete_copy(self, name: str, *, released: bool) -> None:
        if name not in self.copies:
            return
        if released:
            self.write_copy(msgspec.structs.replace(self.copies[name][0], released=True))
        del self.copies[name]
        self.tell("copy", name, None)

    def write_project(self, name: str, organization: str | None) -> None:
        if self.projects.get(name) == organization or (organization == "" and self.projects.get(name)):
            return  # the schema refuses to take an organization away
        if organization is None:
            del self.projects[name]
        else:
            self.projects[name] = organization
        self.tell("project", name, organization)

    def write_cluster(self, key: str, project: str | None) -> None:
        if project is None:
            del self.clusters[key]
        else:
            self.clusters[key] = project
        self.tell("cluster", key, project)

    def tell(self, what: str, name: str, value: object) -> None:
        self.events.append((what, name))
        self.values.append(value)

    # Backups -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, ...]:
        return (self.lease, dict(self.ledger), dict(self.copies), dict(self.clusters), dict(self.projects))

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Versions do not begin anew: etcdctl restores with --bump-revision."""
        lease, ledger, copies, clusters, projects = saved
        projects = _joined(self.projects, projects)
        for what, before, after in (
            ("ledger", self.ledger, ledger),
            ("copy", self.copies, copies),
            ("cluster", self.clusters, clusters),
            ("project", self.projects, projects),
        ):
            for name in {**before, **after}:
                if before.get(name) != after.get(name):
                    self.tell(what, name, after.get(name))
        self.lease, self.ledger, self.copies = lease, dict(ledger), dict(copies)
        self.clusters, self.projects = dict(clusters), dict(projects)


def _joined(before: Mapping[str, str], saved: Mapping[str, str]) -> dict[str, str]:
    """What a restore brings. That it brings no Project from before its organization was set is an assumption
    (docs/reference/assumptions.md)."""
    return {name: organization or before.get(name, "") for name, organization in saved.items()}


class Spec(msgspec.Struct, frozen=True):
    """A quota as the admin wrote it, its surge among the limits (common/quota/surge.py). `noted` is the annotation
    that names the life of its ledger. `of_seeds`: it is of the Seeds that have the label."""

    key: AccountKey
    subject: str
    limits: ResourceList
    version: int
    noted: str = ""
    of_seeds: bool = False


class Master:
    """The master's API server: its lease, the quotas, their ledgers, and the seeds with their states."""

    name = "master"

    def __init__(self, saved: Callable[[str, MasterLedger | None, MasterLedger], None]) -> None:
        self.up = True
        self.revision = 0
        self.lease: LeaseObject | None = None
        self.unsure: Unsure = _told
        self.quotas: dict[str, Spec] = {}
        self.ledgers: dict[str, tuple[MasterLedger, int]] = {}
        self.seeds: dict[str, str] = {}
        self.projects: dict[str, str] = {}  # -> organization
        self.events: list[tuple[str, str]] = []
        self.values: list[Any] = []
        self._saved = saved

    def save(self, uid: str, ledger: MasterLedger, version: int | None) -> int:
        present = self.ledgers.get(uid)
        if (present[1] if present else None) != version:
            raise ConflictError(uid)
        self.revision += 1
        self.ledgers[uid] = (ledger, self.revision)
        self._saved(uid, present[0] if present else None, ledger)
        return self.revision

    def write_quota(self, spec: Spec) -> None:
        self.quotas[spec.key.name] = spec
        self.tell("quota", spec.key.name, spec)

    def delete_quota(self, name: str) -> None:
        del self.quotas[name]
        self.tell("quota", name, None)

    def write_seed(self, name: str, state: str | None) -> None:
        if state is None:
            del self.seeds[name]
        else:
            self.seeds[name] = state
        self.tell("seed", name, state)

    def write_project(self, name: str, organization: str | None) -> None:
        if organization is None:
            del self.projects[name]
        else:
            self.projects[name] = organization
        self.tell("project", name, organization)

    def tell(self, what: str, name: str, value: object) -> None:
        self.events.append((what, name))
        self.values.append(value)

    def snapshot(self) -> tuple[Any, ...]:
        return (self.lease, dict(self.quotas), dict(self.ledgers), dict(self.seeds), dict(self.projects))

    def restore(self, saved: tuple[Any, ...]) -> None:
        lease, quotas, ledgers, seeds, projects = saved
        projects = _joined(self.projects, projects)
        for what, before, after in (
            ("quota", self.quotas, quotas),
            ("seed", self.seeds, seeds),
            ("project", self.projects, projects),
        ):
            for name in {**before, **after}:
                if before.get(name) != after.get(name):
                    self.tell(what, name, after.get(name))
        self.lease, self.quotas, self.ledgers, self.seeds = lease, dict(quotas), dict(ledgers), dict(seeds)
        self.projects = dict(projects)


class ObjectMeta(msgspec.Struct, frozen=True):
    uid: str
    key: str
    generation: int


class Machine(msgspec.Struct, frozen=True):
    """What is counted: also its own footprint, as the real tally asks for it."""

    metadata: ObjectMeta
    resources: Mapping[str, int]
    unknown: tuple[str, ...] = ()
    excess: str = ""


def uid_of(name: str) -> str:
    """What the API server calls it. Names are unique, uids are so only in one source: see `name_of`."""
    return name.partition("@")[0]


def name_of(source: str, uid: str) -> str:
    """Of an object that came with a snapshot of another source the name says where it is now."""
    cluster = SourceKey(source).cluster or source
    return uid if uid.startswith(f"{cluster}-") else f"{uid}@{cluster}"


class Source:
    """A user cluster's API server."""

    is_cluster = True
    has_machines = True

    def __init__(self, key: str, seed: str, project: str) -> None:
        self.name = key
        self.key = key
        self.seed = seed
        self.project = project
        self._up = True
        self.outages = 0  # each ends all watches
        self.machines: dict[str, Machine] = {}  # by name, which is their key
        self.log: list[tuple[Machine | None, Machine | None]] = []
        self.snapshot: dict[str, Machine] | None = None
        self.between: set[str] = set()  # written and deleted between two lists: no watch tells of it

    @property
    def up(self) -> bool:
        return self._up

    @up.setter
    def up(self, up: bool) -> None:
        self.outages += self._up and not up
        self._up = up

    def write(self, old: Machine | None, new: Machine | None) -> None:
        if old is not None:
            del self.machines[old.metadata.key]
        if new is not None:
            self.machines[new.metadata.key] = new
        self.log.append((old, new))
