"""A replica of the master's program: the real lease, decisions about quotas and ledgers, on simulated watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from common.api.convert import grant_to_wire, report_to_wire
from common.api.copies import original_uid
from common.api.labels import LEDGER_ANNOTATION, UID_LABEL
from common.api.ledger_types import MASTER_LEDGERS
from common.api.types import SEEDS, ResourceQuotaStatus, Seed, SeedSpec, WireReport
from common.kube.client.api_client import Cluster
from common.kube.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Resource
from common.kube.controller.leader_election import Lease, LeaseLost
from common.kube.controller.store import Change
from common.quota import escrow, guarantees, resources, surge
from common.quota.account import Grant
from common.quota.escrow import MasterLedger, Report
from common.quota.guarantees import Guarantee
from common.quota.resources import ResourceList
from master.cache.informers import Caches
from master.cache.objects import MasterQuota, QuotaCopy
from master.grants.planner import Decision
from master.quotas.controller import Quotas
from master.quotas.events import QuotaEvents
from master.quotas.ledger_store import Ledgers
from master.quotas.state import QuotaState, SeedAccount
from master.seeds.link import Run
from master.seeds.registry import Seeds
from seed.ledger.store import ConflictError
from seed.model.quota import OutOfReach
from tests.sim import servers
from tests.sim.checks import with_surge
from tests.sim.loop import Loop
from tests.sim.network import Network, Process
from tests.sim.seed_side import LEASE_DURATION, RENEW_DEADLINE, RETRY, Turns, at_once, tell
from tests.sim.servers import ELSEWHERE, Copy, Spec, away

NAMESPACE = "seedquota"
LABEL = {"part": "here"}


def _spec(subject: str, limits: ResourceList, of_seeds: bool) -> dict[str, object]:
    """Amounts are in nanos everywhere here."""
    part = {"seeds": {"matchLabels": LABEL}} if of_seeds else {}
    limits = guarantees.plain(limits)
    return {
        "subject": {"kind": "project", "name": subject, **part},
        "quota": {name: f"{amount}n" for name, amount in surge.regular(limits).items()},
        "surge": {name: f"{amount}n" for name, amount in surge.beyond(limits).items()},
    }


def _quota(spec: Spec) -> MasterQuota:
    annotations = {LEDGER_ANNOTATION: spec.noted} if spec.noted else {}
    metadata = ObjectMeta(name=spec.key.name, uid=spec.key.uid, generation=spec.version, annotations=annotations)
    return MasterQuota(metadata=metadata, spec=_spec(spec.subject, spec.limits, spec.of_seeds))


@cache
def _seed(name: str, state: str) -> Seed:
    labels = {} if state.endswith(ELSEWHERE) else LABEL
    spec = msgspec.convert({"state": state.removesuffix(ELSEWHERE)}, SeedSpec)
    return Seed(metadata=ObjectMeta(name=name, uid=name, labels=labels), spec=spec)


def _copy(copy: Copy) -> QuotaCopy:
    said = report_to_wire(copy.report) if copy.report is not None else WireReport()
    status = ResourceQuotaStatus(
        account=msgspec.structs.replace(said, withdrawn=copy.repeated),
        grant=grant_to_wire(copy.grant, withdrawn=copy.withdrawn),
    )
    metadata = ObjectMeta(name=copy.key.name, uid=copy.copy_uid, labels={UID_LABEL: copy.key.uid})
    return QuotaCopy(metadata=metadata, spec=_spec(copy.subject, copy.limits, copy.of_seeds), status=status)


class MasterClient:
    """What a replica has for a client of the master's API server: ledgers and quotas, by calls that take their time."""

    name = "master"

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    async def get(self, resource: object, name: str, _namespace: str | None = None) -> object:
        api = self._replica.api
        if resource is MASTER_LEDGERS:
            found = await self._call("load ledger", lambda: api.ledgers.get(_uid(name)))
            if found is not None:
                return _stored(*found)
        elif cast("Resource[Object]", resource).plural == SEEDS.plural:
            if (state := await self._call(f"get seed {name}", lambda: api.seeds.get(name))) is not None:
                return _seed(name, state)
        elif (quota := await self._call(f"get quota {name}", lambda: api.quotas.get(name))) is not None:
            return _quota(quota)
        raise NotFound(404, "NotFound", name)

    async def list(self, _resource: object, _namespace: str, *, label_selector: str) -> object:
        ledgers = await self._call("list of ledgers", lambda: list(self._replica.api.ledgers))
        quotas = [SimpleNamespace(uid=uid, name=uid.partition(".")[0]) for uid in ledgers]
        return SimpleNamespace(items=[SimpleNamespace(quota=quota) for quota in quotas])

    async def create(self, _resource: object, body: Mapping[str, Any], _namespace: str) -> object:
        uid, ledger = body["quota"]["uid"], body["grants"]

        def write() -> int:
            try:
                return self._replica.api.save(uid, ledger, None)
            except ConflictError as error:
                raise AlreadyExists(409, "AlreadyExists", str(error)) from None

        return _stored(ledger, await self._call(f"make ledger {body['quota']['name']}", write))

    async def replace(self, _resource: object, body: Mapping[str, Any]) -> object:
        uid, ledger, version = body["quota"]["uid"], body["grants"], int(body["metadata"]["resourceVersion"])

        def write() -> int:
            try:
                return self._replica.api.save(uid, ledger, version)
            except ConflictError as error:
                raise Conflict(409, "Conflict", str(error)) from None

        return _stored(ledger, await self._call(f"save ledger {body['quota']['name']}", write))

    async def delete(self, _resource: object, name: str, _namespace: str) -> None:
        def write() -> None:
            if self._replica.api.ledgers.pop(_uid(name), None) is None:
                raise NotFound(404, "NotFound", name)

        await self._call("delete ledger", write)

    async def merge_patch(self, _resource: object, name: str, patch: Mapping[str, Any]) -> None:
        api, metadata = self._replica.api, patch["metadata"]
        noted = metadata["annotations"][LEDGER_ANNOTATION]

        def write() -> None:
            present = api.quotas.get(name)
            if present is None:
                raise NotFound(404, "NotFound", name)
            if present.key.uid != metadata["uid"]:
                raise Conflict(409, "Conflict", name)
            if present.noted != noted:
                api.write_quota(msgspec.structs.replace(present, noted=noted))

        await self._call(f"note ledger {name}", write)

    async def _call(self, what: str, effect: Callable[[], Any]) -> Any:
        replica = self._replica
        return await replica.network.call(what, replica, replica.api, effect, away("master"))


def _uid(ledger: str) -> str:
    return ledger.removeprefix("master-")


def _stored(ledger: MasterLedger, version: int) -> object:
    return SimpleNamespace(grants=ledger, metadata=SimpleNamespace(resource_version=str(version)))


class MasterCaches(Caches):
    """The real caches, whose watches the schedule feeds: their reflectors do not run."""

    def __init__(self, client: MasterClient, behind: Callable[[], None]) -> None:
        super().__init__(cast("Cluster", client), NAMESPACE)
        self._behind = behind
        self.specs: Mapping[str, Spec] = {}

    def guarantees_of(self, quota: MasterQuota, _limits: ResourceList, _surge: ResourceList) -> Sequence[Guarantee]:
        """Here they are a part of the quota's spec."""
        spec = self.specs.get(quota.metadata.name)
        return servers.guaranteed(spec.limits) if spec is not None and spec.key.uid == quota.metadata.uid else ()

    async def confirm(self, plural: str, name: str, seen: Object | None) -> None:
        try:
            await super().confirm(plural, name, seen)
        except Conflict:
            self._behind()  # it lists anew
            raise


class Link:
    """What is followed of one seed in this term. Takes the place of master/seeds/link.py."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seed: Any = None
        self.copies: dict[str, Copy] = {}
        self.projects: dict[str, str] = {}
        self.at = 0
        self.run = -1  # the run of its watch: it breaks when the seed's API server goes down
        self.followed = False  # since its watch broke last, there was a list
        self.listed = False
        self.settled = False
        self.connected = False
        self.in_cluster = False
        self.last_contact: float | None = None
        self.publisher = SimpleNamespace(forget=lambda _quota: None)
        self.withdrawn: dict[str, tuple[str, bool]] = {}  # by quota: its uid, and whether its copy may go
        self.sync = SimpleNamespace(withdraw=self._withdraw)
        self._heard: dict[str, tuple[str, Report | None, str]] = {}

    def _withdraw(self, quota: str, uid: str, *, over: bool) -> None:
        self.withdrawn[quota] = uid, over

    def take(self, state: str) -> None:
        self.seed = _seed(self.name, state)
        if self.lost:
            self.connected = self.followed = False

    @property
    def lost(self) -> bool:
        return bool(self.seed.spec.state == "Lost")

    def copy(self, quota: str, uid: str) -> QuotaCopy | None:
        found = self.copies.get(quota) if self.followed else None
        return _copy(found) if found is not None and found.key.uid == uid else None

    def is_copy(self, found: Object, uid: str) -> bool:
        return original_uid(found, in_cluster=False) == uid

    def news(self, copy: Copy) -> Change[QuotaCopy] | None:
        """If the seed says something new in it."""
        known, said = self._heard.get(copy.key.name), (copy.copy_uid, copy.report, copy.repeated)
        if known is not None and known[0] == said[0] and known[1] is said[1] and known[2] == said[2]:
            return None
        self._heard[copy.key.name] = said
        after = _copy(copy)
        before = after if known is not None and known[0] == copy.copy_uid else None
        return Change(before, after)

    def forget(self) -> None:
        """Before a list: it tells everything."""
        self._heard.clear()


Shown = tuple[Grant, ResourceList, tuple[OutOfReach, ...], bool, bool, int, str, tuple[Guarantee, ...]]


class Usage(dict[str, int]):
    """What all use together, and what was known when that was summed up."""

    def __init__(self, use: ResourceList, reports: Mapping[str, Report | None], ledger: MasterLedger) -> None:
        super().__init__(use)
        self.guarantees: Sequence[Guarantee] = ()
        self._reports = reports
        self._ledger = ledger

    def but(self, seed: str) -> dict[str, int]:
        """What the other seeds had said, and the surge under it; of one that has said nothing yet, what it holds."""
        said = {
            name: with_surge(resources.add(report.used, report.reserved), escrow.held(holding))
            if (report := self._reports.get(name)) is not None and not escrow.is_late(holding, report)
            else resources.at_least_zero(guarantees.merged(escrow.held(holding)))
            for name, holding in self._ledger.seeds.items()
            if name != seed
        }
        return resources.total(said.values())


class View:
    """In place of master/quotas/quota_view.py: what is shown of a decision beside its grants."""

    seeds = ()

    def __init__(self, state: QuotaState, decision: Decision) -> None:
        names = guarantees.plain(state.ceilings)
        total = resources.total(resources.only(demand.total, names) for demand in decision.demands)
        self.guarantees = guarantees.with_use(state.guarantees, [demand.projects for demand in decision.demands])
        reports = {seed: account.report for seed, account in state.seeds.items()}
        limited = {seed: of for seed, of in decision.ledger.seeds.items() if not state.account(seed).withdrawn}
        ledger = msgspec.structs.replace(decision.ledger, seeds=limited)
        self.use = Usage(dict.fromkeys(names, 0) | total, reports, ledger)
        self.version = state.quota.metadata.generation
        self.use.guarantees = self.guarantees


class Views:
    def view(self, state: QuotaState, decision: Decision, _now: float) -> View:
        return View(state, decision)


class GrantPublisher:
    """In place of master/quotas/grant_publisher.py: it is given what `Quotas` shows, and writes that into copies."""

    def __init__(self, replica: MasterReplica, term: Term) -> None:
        self._replica = replica
        self._term = term

    def publish(self, state: QuotaState, decision: Decision, view: View, _now: float) -> None:
        wanted = self._term.wanted.setdefault(state.uid, {})
        for seed in decision.ledger.seeds:
            account = state.account(seed)
            seen, unbroken = account.remembered
            recall = decision.recalls.get(seed, {})
            grant = escrow.message(decision.ledger, seed, recall, account.asked, seen, unbroken=unbroken)
            idle = tuple(OutOfReach(each.seed, resources.parse(each.idle), 0) for each in account.unavailable)
            draining, withdrawn = account.draining, account.withdrawn
            wanted[seed] = (
                grant,
                view.use,
                idle,
                decision.learning,
                draining,
                view.version,
                withdrawn,
                view.guarantees,
            )
            self._replica.publish(self._term, state.name, seed)


class StatusWriter:
    """Nobody reads the status of quotas here."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    async def run(self) -> None:
        await self._loop.create_future()

    def seen(self, _quota: MasterQuota) -> None: ...

    def offer(self, _state: QuotaState, _view: View, _now: float) -> None: ...


class Term:
    """All that is remembered, from one acquisition of the lease to its loss."""

    def __init__(self, replica: MasterReplica, *, doubtful: bool) -> None:
        self.links: dict[str, Link] = {}
        self.wanted: dict[str, dict[str, Shown]] = {}  # by quota uid: what each seed's copy shall show
        for name, state in replica.seeds.items():
            self.take(name, state)
        client = cast("Cluster", replica.client)
        seeds = SimpleNamespace(
            links=self.links, present=self._present, rush=SimpleNamespace(on=False, defers=lambda _what: False)
        )
        self.quotas = Quotas(
            client,
            replica.caches,
            cast("Seeds", seeds),
            Ledgers(client, NAMESPACE),
            cast("QuotaEvents", None),
            doubtful=doubtful,
            on_settled=replica.lease.settle,
        )
        self.turns = Turns(replica.loop, self.quotas._decide)
        self.quotas._controller = cast("Any", self.turns)
        self.quotas._views = cast("Any", Views())
        self.quotas._publisher = cast("Any", GrantPublisher(replica, self))
        self.quotas._status = cast("Any", StatusWriter(replica.loop))
        self._running = replica.loop.start(self.quotas.run())

    @property
    def broken(self) -> bool:
        """Something failed that nothing but a new term makes good."""
        return self._running.done()

    def stop(self) -> None:
        self._running.cancel()

    def take(self, seed: str, state: str | None) -> None:
        if state is None:
            self.links.pop(seed, None)
        else:
            self.links.setdefault(seed, Link(seed)).take(state)

    def account(self, copy: Copy, seed: str) -> SeedAccount | None:
        """What is remembered of the quota on the seed."""
        state = self.quotas.states.get(copy.key.name)
        return state.seeds.get(seed) if state is not None and state.uid == copy.key.uid else None

    def _present(self) -> Iterable[Link]:
        return [link for link in self.links.values() if not link.lost]


class MasterReplica(Process):
    def __init__(
        self,
        name: str,
        api: servers.Master,
        seeds: dict[str, servers.Seed],
        network: Network,
        loop: Loop,
        shows: Callable[[str, str, Grant], None],
        token: Callable[[], str],
    ) -> None:
        super().__init__(name, "master", loop)
        self.api = api
        self.apis = seeds
        self.network = network
        self.term: Term | None = None
        self.lease = Lease(
            cast("Cluster", servers.Leases(api)),
            NAMESPACE,
            "seedquota-master",
            name,
            duration=LEASE_DURATION,
            renew_deadline=RENEW_DEADLINE,
            retry=RETRY,
            clock=loop.time,
        )
        self.client = MasterClient(self)
        self.caches = MasterCaches(self.client, lambda: self.watch(len(api.events)))
        self.quotas = self.caches.specs = dict(api.quotas)
        for quota in api.quotas.values():
            self.caches.quotas.store._set(quota.key.name, _quota(quota))
        self.seeds = dict(api.seeds)
        self.projects = dict(api.projects)
        self.at = len(api.events)
        self.blind_until = 0.0  # its watch of its own cluster brings nothing
        self.blind: dict[str, float] = {}  # ... and those of seeds, until when
        self._shows = shows
        self._token = token

    def parts(self) -> list[object]:
        term = self.term
        led = [term.quotas, term.turns, term] if term is not None else []
        return [*led, self.caches, self.client, self.lease]

    # Watches -------------------------------------------------------------------------------------------------------

    def watch(self, upto: int) -> None:
        for place in range(self.at, upto):
            what, name = self.api.events[place]
            value = self.api.values[place]
            known: dict[str, Any] = {"quota": self.quotas, "seed": self.seeds, "project": self.projects}[what]
            if value is None:
                known.pop(name, None)
            else:
                known[name] = value
            if what == "quota":
                listeners = cast("Callable[[Change[Any]], None]", self.caches.quotas._on_change)
                tell(self.caches.quotas, listeners, name, _quota(value) if value is not None else None)
            elif self.term is not None:
                if what == "seed":
                    self.term.take(name, value)
                self.term.quotas.review_all()
        self.at = max(self.at, upto)

    def follow(self, seed: str, lag: Callable[[int, int], int]) -> None:
        """Reads a seed's copies, as far as its watch has come."""
        term = self.term
        link = term.links.get(seed) if term is not None else None
        if term is None or link is None or link.lost:
            return
        api = self.apis[seed]
        reached = self.network.reaches("master", api)
        if reached != link.connected or not link.settled:
            link.settled, link.connected = True, reached
            term.quotas.review_all()
        if not reached:
            return
        link.last_contact = self.loop.time()
        if link.run != api.outages:
            link.run, link.followed = api.outages, False
        if not link.followed:
            link.forget()
            before, link.copies = link.copies, {name: copy for name, (copy, _) in api.copies.items()}
            link.projects = dict(api.projects)
            link.at, link.followed, link.listed = len(api.events), True, True
            for copy in link.copies.values():
                self._hear(term, link, copy, None)
            for name in before.keys() - link.copies.keys():
                term.quotas.copy_changed(link.name, Change(_copy(before[name]), None), None)
            return
        upto = lag(link.at, len(api.events))
        for place in range(link.at, upto):
            what, name = api.events[place]
            if what == "copy":
                both = api.values[place]
                if both is None:
                    if (gone := link.copies.pop(name, None)) is not None:
                        term.quotas.copy_changed(link.name, Change(_copy(gone), None), None)
                else:
                    link.copies[name] = both[0]
                    self._hear(term, link, both[0], (0, link.run))
            elif what == "project":
                link.projects.pop(name, None)
                if (organization := api.values[place]) is not None:
                    link.projects[name] = organization
        link.at = upto

    def _hear(self, term: Term, link: Link, copy: Copy, run: Run | None) -> None:
        if (news := link.news(copy)) is not None:
            term.quotas.copy_changed(link.name, news, run)

    # The lease -----------------------------------------------------------------------------------------------------

    def look_at_lease(self) -> None:
        if self.loop.time() - self.lease._looked_at < RETRY:
            return
        if self.term is not None and self.term.broken:
            self.term = None
            self.loop.start(self.lease.release())
            return
        if self.term is not None:
            try:
                at_once(self.lease._renew(None))
            except LeaseLost:
                self._stop()
            except ApiError:
                if not self.lease.held:
                    self._stop()
            return
        try:
            taken = at_once(self.lease._try_acquire())
        except ApiError:
            return
        if taken is not None:
            self.lease.lost.clear()
            self.refresh()
            self.term = Term(self, doubtful=not taken.settled)

    def refresh(self) -> None:
        """Lists anew, before anything is done in a term: a watch may have been silent (master/cache/informers.py)."""
        self.watch(len(self.api.events))

    def _stop(self) -> None:
        if self.term is not None:
            self.term.stop()
        self.term = None
        self.lease.lost.set()
        self.lease._record = None

    # What it writes ------------------------------------------------------------------------------------------------

    def sync(self, name: str, seed: str) -> bool:
        """Makes the seed's copy what the quota is, and what it shall show. True if there is something to write."""
        term = self.term
        link = term.links.get(seed) if term is not None else None
        if link is None or not link.followed or self.seeds.get(seed) in (None, "Lost") or not link.connected:
            return False
        spec, copy, api = self.quotas.get(name), link.copies.get(name), self.apis[seed]
        if not self.confirm(name, spec, copy):
            return False
        if spec is None:
            if copy is None:
                return False
            gone = copy.key.uid
            self.network.post(f"delete copy {name}", self, api, lambda: _delete(api, name, gone))
            return True
        if spec.of_seeds and self.seeds[seed].endswith(ELSEWHERE):
            of, over = link.withdrawn.get(name, ("", False))
            if copy is None and (of, over) != (spec.key.uid, False):
                return False
            if copy is not None and (copy.key != spec.key or (of == copy.key.uid and over)):
                return self._withdraw(copy, seed)
        if copy is None or copy.key != spec.key or copy.version != spec.version:
            self.network.post(f"copy {name} to {seed}", self, api, lambda: self._write(api, spec))
            return True
        return self.publish(term, name, seed)

    def _withdraw(self, copy: Copy, seed: str) -> bool:
        api = self.apis[seed]
        if not self.api.up:
            return False
        if self.api.seeds.get(seed) != self.seeds.get(seed):  # the cache is behind (master/cache/informers.py)
            self.watch(len(self.api.events))
            return False
        name, gone = copy.key.name, copy.key.uid
        self.network.post(f"withdraw copy {name}", self, api, lambda: _delete(api, name, gone))
        return True

    def confirm(self, name: str, spec: Spec | None, copy: Copy | None) -> bool:
        """False where a copy is not taken away, or made older: the cache is behind (master/cache/informers.py)."""
        if copy is None or (spec is not None and copy.key == spec.key and copy.version <= spec.version):
            return True
        if not self.api.up:
            return False
        there = self.api.quotas.get(name)
        if (there and (there.key, there.version)) == (spec and (spec.key, spec.version)):
            return True
        self.watch(len(self.api.events))
        return False

    def sync_project(self, name: str, seed: str) -> bool:
        term = self.term
        link = term.links.get(seed) if term is not None else None
        if link is None or not link.followed or self.seeds.get(seed) in (None, "Lost") or not link.connected:
            return False
        api, organization = self.apis[seed], self.projects.get(name)
        if organization == link.projects.get(name):
            return False
        self.network.post(f"project {name} to {seed}", self, api, lambda: api.write_project(name, organization))
        return True

    def _write(self, api: servers.Seed, spec: Spec) -> None:
        both = api.copies.get(spec.key.name)
        if both is not None and both[0].key == spec.key:
            if both[0].version != spec.version:
                api.write_copy(msgspec.structs.replace(both[0], limits=spec.limits, version=spec.version))
        else:
            copy = Copy(spec.key, self._token(), spec.subject, spec.limits, spec.version, of_seeds=spec.of_seeds)
            api.write_copy(copy)

    def decide(self, name: str) -> None:
        if (term := self.term) is not None and name not in term.turns.busy:
            term.turns.add(name)
            term.turns.take(name)

    def publish(self, term: Term, name: str, seed: str) -> bool:
        link = term.links.get(seed)
        copy = link.copies.get(name) if link is not None and link.connected else None
        shown = term.wanted.get(copy.key.uid, {}).get(seed) if copy is not None else None
        if copy is None or shown is None:
            return False
        there = (copy.grant, copy.usage, copy.out_of_reach, copy.learning, copy.draining, copy.decided, copy.withdrawn)
        if shown == (*there, copy.guarantees):
            return False
        api = self.apis[seed]
        self._shows(copy.key.uid, seed, shown[0])
        self.network.post(f"show {name} to {seed}", self, api, _showing(api, copy, shown))
        return True


def _showing(api: servers.Seed, copy: Copy, shown: Shown) -> Callable[[], None]:
    name, copy_uid = copy.key.name, copy.copy_uid

    def write() -> None:
        both = api.copies.get(name)
        if both is not None and both[0].copy_uid == copy_uid:
            grant, use, out_of_reach, learning, draining, decided, withdrawn, guaranteed = shown
            api.write_copy(
                msgspec.structs.replace(
                    both[0],
                    grant=grant,
                    usage=use,
                    out_of_reach=out_of_reach,
                    learning=learning,
                    draining=draining,
                    decided=decided,
                    withdrawn=withdrawn,
                    guarantees=guaranteed,
                )
            )

    return write


def _delete(api: servers.Seed, name: str, uid: str) -> None:
    both = api.copies.get(name)
    if both is not None and both[0].key.uid == uid:
        api.delete_copy(name, released=True)
