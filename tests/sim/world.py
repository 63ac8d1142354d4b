"""The simulated world: API servers, programs, what users and admins do to them, and what is true of it all.

Everything here is one step. Which comes next, the schedule decides (`schedule.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import msgspec

from common.kube.client.meta import ObjectMeta as KubeMeta
from common.kube.controller.leader_election import Lease, LeaseObject, LeaseSpec
from common.kube.controller.lease_record import SETTLED_ANNOTATION, SINCE_ANNOTATION, WRITES_ANNOTATION
from common.quota import escrow, fencing, guarantees, resources, shares, surge
from common.quota.account import Account, AccountKey, Grant, Reservation
from common.quota.escrow import Holding, MasterLedger, Report
from common.quota.resources import ResourceList
from seed.admission.refusal import Refusal
from seed.admission.types import Request
from seed.ledger.store import Stored
from seed.model.consumer import Consumer
from seed.model.quota import Quota
from tests.sim import faults, product, servers
from tests.sim.checks import Thing, Told, Truth, Violation, Wish
from tests.sim.loop import Loop
from tests.sim.master_side import MasterReplica, Usage
from tests.sim.network import Network, Process
from tests.sim.seed_side import API_TIMEOUT, WEBHOOK_TIMEOUT, Decided, Replica, UsageSource
from tests.sim.servers import EVERYBODY, Copy, Machine, ObjectMeta, Source, Spec, name_of, uid_of

SIZES: tuple[ResourceList, ...] = (
    {"cpu": 1, "memory": 1},
    {"cpu": 1, "memory": 2},
    {"cpu": 2, "memory": 2},
    {"cpu": 3, "memory": 2},
)
UNIT: ResourceList = {"cpu": 1, "memory": 1}
FRESH = 0.5  # seconds for which an answer of the master may refuse
PROJECTS = "ab"
CROWDED = ("created at once", "created in this cluster at once", "wait already")  # in refusals
LEAST = product.ROOM // shares.KEPT // product.FEW  # of which each source finds room
WARM = 1  # the term of who has led for as long as anybody knows
RESTORE_TAKES = 6.5  # seconds in which an API server is away while it is restored: longer than a lease lasts


class Answered(Protocol):
    """Is told a replica's answer: why not, the quotas that were asked, and whether another call got it before."""

    def __call__(self, no: Refusal | None, quotas: list[Quota], repeated: bool = ..., /) -> None: ...


class Site:
    """One seed cluster, as it stands in its data centre."""

    def __init__(self, name: str, api: servers.Seed) -> None:
        self.name = name
        self.api = api
        self.sources: dict[str, Source] = {}
        self.ever: dict[str, Source] = {}  # also those that are deleted: nobody answers there
        self.replicas: list[Replica] = []
        self.dead = False  # the machines are gone, and nothing answers
        self.snapshot: tuple[Any, ...] | None = None
        self.ledger_snapshot: dict[str, Stored] | None = None


class World:
    replica_type: type[Replica] = Replica
    projects = PROJECTS
    of_seeds = False  # quotas are of the Seeds that have the label
    overlapping = False  # several webhooks are called about one creation, though the configuration does not say so

    def __init__(self, number: int, *, focus: Collection[str] = (), trace: bool = False) -> None:
        self.number = number
        self.rng = random.Random(number)
        self.now = 0.0
        self.tracing = trace
        self.swarm = faults.draw(self.rng, focus)
        self.network = Network(self.rng, self, self.note if trace else None)
        self.master = servers.Master(self._ledger_saved)
        self.master.unsure = self._unsure
        self.masters: list[MasterReplica] = []
        self.processes: list[Process] = []  # that ever were
        self.sites: dict[str, Site] = {}
        self.apis: dict[str, servers.Seed] = {}
        self.things: dict[str, Thing] = {}  # that exist, or may
        self.truth = self._make_truth()
        self.wishes: list[Wish] = []  # under way
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.refused = 0
        self.filled = 0
        self.working = False  # nothing goes wrong now
        self.claims: dict[tuple[str, str, str], tuple[int, int]] = {}  # of which epoch an account is, and since when
        self.rolling: dict[str, list[str]] = {}  # what was made by a rollout, and what it is in place of
        self.written: set[str] = set()  # while the leader followed
        self.denied: dict[str, Wish] = {}
        self.outside: set[str] = set()  # Projects that have no organization yet
        self.joined: set[str] = set()  # ... that had none
        self.asked: Counter[str] = Counter()  # how often each source has asked
        self._tokens = 0
        product.tokens(self.token)
        self.master_snapshot: tuple[Any, ...] | None = None
        self._build()

    def _make_truth(self) -> Truth:
        return Truth(self.things)

    def note(self, text: str) -> None:
        print(f"{self.now:8.2f}  {text}")

    def token(self) -> str:
        self._tokens += 1
        return f"t{self._tokens}"

    # How it begins -------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        swarm = self.swarm
        self._make_quotas()
        for number in range(1, swarm.seeds + 1):
            self.add_site(f"seed-{number}")
            self.master.write_seed(f"seed-{number}", "Active")
        if swarm.settled:
            self._settled()
        for site in self.sites.values():
            for _ in range(swarm.replicas):
                self.start_replica(site)
        for _ in range(2 if swarm["master"] or swarm["sluggish"] else 1):
            self.start_master()
        if swarm.settled:
            self._warm()

    def _make_quotas(self) -> None:
        rng, swarm = self.rng, self.swarm
        units = rng.randint(2, 10) * (6 if swarm["rush"] else 1)
        extra = {surge.PREFIX + name: rng.randint(1, 4) for name in rng.choice((("cpu",), ("cpu", "memory")))}
        limits = {"cpu": units, "memory": rng.randint(units, 2 * units)}
        self._make_quota("a", "a", limits | (extra if swarm["rollouts"] else {}))
        if swarm.two_quotas:
            more = rng.randint(max(units - 2, 2), units + 4)
            self._make_quota(
                "all", EVERYBODY, {"cpu": more} if rng.random() < 0.5 else {"cpu": more, "memory": 2 * more}
            )
            for project in self.projects:
                if swarm["projects"] and rng.random() < 0.4:
                    self.outside.add(project)
                self.master.write_project(project, self._organization(project))

    def _make_quota(self, name: str, subject: str, limits: ResourceList) -> None:
        version = len(self.master.events) + 1
        spec = Spec(AccountKey(f"{name}.{self.token()}", name), subject, limits, version, of_seeds=self.of_seeds)
        self.truth.quota(spec.key.uid, limits)
        self.master.write_quota(spec)

    def add_site(self, name: str) -> Site:
        api = servers.Seed(name, self._account_saved)
        api.unsure = self._unsure
        site = self.sites[name] = Site(name, api)
        self.apis[name] = api
        for number in range(1, self.swarm.clusters + 1):
            self.add_cluster(site, f"{name}/c{number}", "a" if number == 1 else self.rng.choice(self.projects))
        return site

    def add_cluster(self, site: Site, key: str, project: str) -> None:
        site.sources[key] = site.ever[key] = Source(key, site.name, project)
        site.api.write_cluster(key, project)

    def _settled(self) -> None:
        """Accounts are open, some machines are there, and some capacity is idle."""
        left = {name: dict(guarantees.of_counters(spec.limits)) for name, spec in self.master.quotas.items()}
        full = self.swarm["rollouts"] and self.rng.random() < 0.7  # they use surge at a full quota only
        for _ in range(20 if full else self.rng.randint(0, 6)):
            self._place(left)
        for spec in list(self.master.quotas.values()):
            life = self.token()
            holdings = {}
            for site in self.sites.values():
                used = self._used(spec, site)
                granted = resources.total(used.values())
                for name, rest in left[spec.key.name].items():
                    spare = self.rng.randint(0, rest)
                    left[spec.key.name][name] -= spare
                    granted[name] = granted.get(name, 0) + spare
                account = Account(incarnation=self.token(), epoch=WARM, master=life, granted=granted, used=used)
                account = self._with_owners(account, site)
                holdings[site.name] = Holding(account=account.incarnation, granted=granted)
                grant = Grant(incarnation=life, account=account.incarnation, granted=granted)
                site.api.save(spec.key, account, None)
                copy = Copy(spec.key, self.token(), spec.subject, spec.limits, spec.version, grant, spec.version)
                shown = msgspec.structs.replace(copy, report=escrow.report(account), of_seeds=self.of_seeds)
                site.api.write_copy(shown)
                for project, organization in self.master.projects.items():
                    site.api.write_project(project, organization)
            self.master.save(spec.key.uid, MasterLedger(incarnation=life, seeds=holdings), None)
            self.master.write_quota(msgspec.structs.replace(spec, noted=life))

    def _with_owners(self, account: Account, _site: Site) -> Account:
        return account

    def _place(self, left: dict[str, dict[str, int]]) -> None:
        """A machine that was admitted long ago."""
        site = self.rng.choice(list(self.sites.values()))
        source = self.rng.choice(list(site.sources.values()))
        size = self.rng.choice(SIZES)
        applying = [spec for spec in self.master.quotas.values() if self._counts(spec, source)]
        if any(resources.short(size, left[spec.key.name]) for spec in applying):
            return
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        admitted = {spec.key.uid: size for spec in applying}
        self._was_admitted(source, thing, size, admitted)
        self._take(left, applying, size)

    def _was_admitted(
        self, source: Source, thing: Thing, size: ResourceList, admitted: dict[str, ResourceList]
    ) -> None:
        thing.size, thing.generation, thing.reserved = size, 1, 1
        thing.admitted.update(admitted)
        self.things[thing.uid] = thing
        source.write(None, Machine(ObjectMeta(uid_of(thing.uid), thing.uid, 1), size))
        self.truth.recount(thing)

    def _take(self, left: dict[str, dict[str, int]], applying: Iterable[Spec], more: ResourceList) -> None:
        for spec in applying:
            left[spec.key.name] = resources.subtract(left[spec.key.name], resources.only(more, left[spec.key.name]))

    def _organization(self, project: str) -> str:
        return "" if project in self.outside else EVERYBODY

    def _limits(self, subject: str, project: str) -> bool:
        return subject in (project, self._organization(project))

    def _counts(self, spec: Spec, source: Source) -> bool:
        return self._limits(spec.subject, source.project)

    def _used(self, spec: Spec, site: Site) -> dict[str, ResourceList]:
        """By source."""
        counted = [source for source in site.sources.values() if self._counts(spec, source)]
        return {
            source.key: resources.total(machine.resources for machine in source.machines.values()) for source in counted
        }

    def _applying(self, thing: Thing) -> list[Spec]:
        """The quotas that limit it now."""
        project = self._source(thing).project
        return [spec for spec in self.master.quotas.values() if self._limits(spec.subject, project)]

    def _warm(self) -> None:
        """Somebody has led for as long as the replicas live: what begins now is no cold start."""
        for site in self.sites.values():
            _warm(site.api, [replica.lease for replica in site.replicas])
            site.replicas[0].look_at_lease()
        _warm(self.master, [master.lease for master in self.masters])
        self.masters[0].look_at_lease()

    # Processes -----------------------------------------------------------------------------------------------------

    def _loop(self) -> Loop:
        return Loop(self, self.rng.choice((0.9, 0.95, 1.0, 1.05, 1.1)))  # type: ignore[abstract]

    def start_replica(self, site: Site) -> None:
        replica = self.replica_type(
            f"{site.name}-{self.token()}",
            site.api,
            site.ever,
            self.network,
            self._loop(),
            self._reported,
            self._written,
        )
        site.replicas.append(replica)
        self.processes.append(replica)

    def start_master(self) -> None:
        name = f"master-{self.token()}"
        master = MasterReplica(name, self.master, self.apis, self.network, self._loop(), self.truth.shown, self.token)
        self.masters.append(master)
        self.processes.append(master)

    def crash_replica(self, site: Site, replica: Replica) -> None:
        replica.crash()
        site.replicas.remove(replica)

    def crash_master(self, master: MasterReplica) -> None:
        master.crash()
        self.masters.remove(master)

    def _unsure(self, write: Callable[[], None]) -> bool:
        """Of a lease: the answer is lost, or the write is late, by less than anybody waits for it."""
        if self.working or self.rng.random() >= 0.1 * self.swarm["unsure"]:
            return False
        if self.rng.random() < 0.5:
            write()
        else:
            self.later.append((self.now + self.rng.choice((0.5, 1.0, 2.0)), write))
        return True

    def end_master(self, master: MasterReplica) -> None:
        if master in self.masters and len(self.masters) > 1:
            self.crash_master(master)

    # What the checks hear ------------------------------------------------------------------------------------------

    def _account_saved(self, api: servers.Seed, uid: str, before: Account | None, after: Account) -> None:
        if self.tracing:
            self.note(f"  account {uid} on {api.name}: {after}")
        self.truth.account_saved(api.name, uid, before, after)

    def _ledger_saved(self, uid: str, before: MasterLedger | None, after: MasterLedger) -> None:
        if self.tracing:
            self.note(f"  ledger {uid}: {after}")
        self.truth.ledger_saved(uid, before, after)

    def _reported(self, replica: Replica, name: str, said: Report | None) -> None:
        copy = replica.view.copies.get(name)
        if said is not None and copy is not None:
            self.truth.reported(replica.api.name, copy.key.uid, said)

    def _written(self, replica: Replica, uid: str, before: Account, after: Account, decided: Decided) -> None:
        """What a leader counts, it owns, and has listed since it took the account over."""
        term, listed = decided.term, decided.listed
        if decided.limits is not None:
            self.truth.obeyed(uid, replica.api.name, before, after, decided.limits)
        claimed = self.claims.setdefault((replica.api.name, uid, after.incarnation), (before.epoch, 0))
        if after.epoch != claimed[0]:
            claimed = self.claims[replica.api.name, uid, after.incarnation] = (after.epoch, len(replica.api.events))
        if after.reservations is not before.reservations and not fencing.is_closed(after):
            for (key, object_uid), kept in before.reservations.items():
                name = name_of(key, object_uid)
                if (key, object_uid) in after.reservations or self._is_ahead(replica.api.name, uid, key, object_uid):
                    continue
                if self._is_free_there(replica.api.name, uid, kept):
                    continue
                if (thing := self.things.get(name)) is not None:
                    followed = decided.sources.get(key)
                    self.truth.dropped(uid, thing, kept, self._seen(followed, name) if followed is not None else None)
        if after.used is before.used or after.used == before.used or after.epoch != before.epoch:
            return
        self.truth.counted(uid, after.epoch, term)
        for key, used in after.used.items():
            had = before.used.get(key, {})
            changed = [name for name in used.keys() | had.keys() if used.get(name) != had.get(name)]
            for each in (key, *(f"{key} {name}" for name in changed)) if used != before.used.get(key) else ():
                if each in listed:
                    self.truth.listed(uid, each, listed[each], claimed[1])

    def _seen(self, followed: UsageSource, name: str) -> int | None:
        """The generation at which it stands in the sum."""
        return followed.seen(name)

    # What users do -------------------------------------------------------------------------------------------------

    def create(self, site: Site, source: Source, size: ResourceList, replaces: Collection[str] = ()) -> Wish:
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        self.things[thing.uid] = thing
        return self._wish(site, source, thing, size, size, replaces)

    def roll(self, site: Site, source: Source, size: ResourceList) -> None:
        """A rollout makes one in place of one that is as large, which it will delete, if all goes well."""
        older = [uid for uid, machine in source.machines.items() if not resources.short(size, machine.resources)]
        if older:
            self.create(site, source, size, self.rng.sample(older, min(len(older), 2)))

    def roll_on(self, thing: Thing) -> None:
        """What is replaced goes; or what replaces it, when the user thinks better of it."""
        older = [uid for uid in self.rolling.pop(thing.uid) if uid in self.things]
        if older and self.rng.random() < 0.8:
            self.delete(self.things[older[0]])
        elif thing.size is not None and self.rng.random() < 0.5:
            self.delete(thing)

    def storm(self, site: Site) -> None:
        """Many at once, as after an outage."""
        if not site.dead and site.sources:
            for _ in range(self.rng.randint(1, 5)):
                self.create(site, self.rng.choice(list(site.sources.values())), self.rng.choice(SIZES))

    def resize(self, site: Site, source: Source, thing: Thing, size: ResourceList) -> None:
        assert thing.size is not None, "only what exists is changed"
        need = {name: amount - thing.size[name] for name, amount in size.items() if amount > thing.size[name]}
        self._wish(site, source, thing, size, need)

    def _wish(
        self,
        site: Site,
        source: Source,
        thing: Thing,
        size: ResourceList,
        need: ResourceList,
        replaces: Collection[str] = (),
    ) -> Wish:
        wish = Wish(thing, size, thing.generation + 1, need, self.now + API_TIMEOUT)
        wish.replaces = list(replaces)
        wish.slow = self.rng.random() < 0.2 * self.swarm["slow"]
        thing.wishes.append(wish)
        self.wishes.append(wish)
        if need:
            wish.calls = self._webhooks(source, thing)
            self.call_webhooks(site, source, wish)
        else:
            wish.allowed = wish.told = True  # the webhook says so without asking anybody
            for uid, amounts in thing.admitted.items():
                wish.after[uid] = {name: min(amount, size[name]) for name, amount in amounts.items()}
        return wish

    def _webhooks(self, source: Source, thing: Thing) -> list[str]:
        """Those of the configuration there that match it: the API server calls each."""
        return [""]

    def call_webhooks(self, site: Site, source: Source, wish: Wish) -> None:
        """Through a load balancer: they may come to several replicas."""
        serving = [replica for replica in site.replicas if self._serves(replica, source)]
        if not serving:
            self._ended(wish)
            return
        replica = self.rng.choice(serving)
        for call in wish.calls:
            if len(wish.calls) > 1 and not (self.working and self.overlapping):
                replica = self.rng.choice(serving)
            self._call(site, source, wish, call, replica)

    def call_again(self, site: Site, source: Source, wish: Wish) -> None:
        """A proxy sends one of the calls once more."""
        if serving := [replica for replica in site.replicas if self._serves(replica, source)]:
            self._call(site, source, wish, self.rng.choice(wish.calls), self.rng.choice(serving))
        else:
            self._ended(wish)

    def _call(self, site: Site, source: Source, wish: Wish, call: str, replica: Replica) -> None:
        self.asked[source.key] += 1
        gives_up = self.now + WEBHOOK_TIMEOUT

        def answered(
            no: Refusal | None, quotas: list[Quota], asked: tuple[float, int], there: set[str], repeated: bool
        ) -> None:
            if no is None and self._still_limiting(replica, there) - {quota.key.uid for quota in quotas}:
                raise self.truth.unasked(wish.thing, there)
            if repeated:
                asked = wish.since.get(replica.name, asked)
            wish.since[replica.name] = asked
            wish.answered.add((replica.name, *sorted(quota.key.uid for quota in quotas)))
            if no is not None and no.code == 503 and len(wish.calls) > 1:
                wish.answered.add((replica.name, "undecided"))  # the other call may have been decided
            if no is not None and no.code == 403:
                self._judge(wish, replica, no, quotas, asked)
            if no is None:
                self._look_at_blocks(wish, site, replica, quotas)
            self._verdict(wish, call, site, no, quotas, gives_up, repeated=repeated)

        def arrives() -> None:
            if not replica.alive or self.now >= gives_up:
                return
            # Of this call: the same request may come twice.
            asked = replica.loop.time(), self.truth.writes
            there: set[str] = set()  # the quotas that limit it, so far as the replica has heard of them
            answering = self._asks(
                replica,
                source,
                wish,
                there,
                lambda no, quotas, repeated=False: answered(no, quotas, asked, there, repeated),
            )
            if answering is not None and not answering.done():
                wish.answering.append((replica, answering))

        self.network.post(f"asks for {wish.thing.uid}{call and f', {call}'}", None, site.api, arrives)

    def _is_ahead(self, seed: str, uid: str, source: str, object_uid: str) -> bool:
        """A replica has admitted it from its block, which covers it until it is named."""
        writers = (
            handle.writer
            for replica in self.sites[seed].replicas
            for handle in replica.registry._handles.values()
            if handle.writer.key.uid == uid
        )
        return any((source, object_uid) in writer.block.admitted for writer in writers)

    def _is_free_there(self, seed: str, uid: str, kept: Reservation) -> bool:
        """The quota limits nothing more of what was reserved, so nothing of it need be counted."""
        copies = (copy.quota for _, copy in self.sites[seed].api.copies.values())
        limits = next((quota.ceilings.keys() for quota in copies if quota.key.uid == uid), None)
        return bool(kept.amount) and limits is not None and limits.isdisjoint(kept.amount)

    def _still_limiting(self, _replica: Replica, there: set[str]) -> set[str]:
        """Of the quotas that limited it when the call came, those that do when it is answered."""
        return there

    def _look_at_blocks(self, wish: Wish, site: Site, replica: Replica, quotas: list[Quota]) -> None:
        """What it has just admitted from its blocks."""
        for quota in quotas:
            handle = replica.registry.get(quota)
            account = handle.writer.account if handle is not None else None
            if handle is None or account is None:
                continue
            block = handle.writer.block
            uids = {name_of(*key): kept for key, kept in block.admitted.items()}
            if (kept := uids.get(wish.thing.uid)) is not None:
                self.truth.durable[quota.key.uid, wish.thing.uid] = kept
                self.truth.from_block(quota.key.uid, site.name, account.incarnation, block)

    def give_up(self, wish: Wish) -> None:
        """The client goes away, and with it the API server's calls."""
        self._ended(wish)
        for replica, answering in wish.answering:
            if replica.alive:
                replica.loop.call(answering.cancel)

    def break_connection(self, wish: Wish) -> None:
        """... of one call. The load balancer sends one more."""
        replica, answering = self.rng.choice(wish.answering)
        if replica.alive:
            replica.loop.call(answering.cancel)
        site = self.site_of(wish.thing.source)
        if not wish.ended:
            self.call_again(site, site.sources[wish.thing.source], wish)

    def _serves(self, replica: Replica, source: Source) -> bool:
        return source.key in replica.view.cluster_cache.user_clusters.store

    def _asks(
        self,
        replica: Replica,
        source: Source,
        wish: Wish,
        there: set[str],
        answered: Answered,
    ) -> asyncio.Task[None] | None:
        """`there`: to be filled with the quotas that must be asked. Returns what answers."""
        applying = (spec for spec in self.master.quotas.values() if self._counts(spec, source))
        known = replica.view.quota_cache.projects.store.get(source.project)
        if known is not None and not known.spec.organization:
            applying = (spec for spec in applying if spec.subject != EVERYBODY)
        there.update(spec.key.uid for spec in applying if replica.view.limits.get(spec.key.name) == spec.key.uid)
        request = Request(
            uid=uid_of(wish.thing.uid),
            consumer=Consumer(self._project_of(replica, source), source.key),
            need=wish.need,
            reservation=Reservation(
                source=source.key, object=wish.thing.uid, amount=wish.need, generation=wish.claimed
            ),
            dry_run=False,
            deadline=replica.loop.time() + 0.8 * WEBHOOK_TIMEOUT,
        )
        return replica.ask(request, wish.replaces, answered)

    def _project_of(self, _replica: Replica, source: Source) -> str:
        """As the replica knows it."""
        return source.project

    def _judge(self, wish: Wish, replica: Replica, no: Refusal, quotas: list[Quota], since: tuple[float, int]) -> None:
        """`since`: when it was asked, by its clock and by the number of writes."""
        quota = next((quota for quota in quotas if quota.name == no.quota), None)
        if quota is None:  # it has limited that only since it was asked
            quota = replica.view.quota_cache.known(no.quota)
            assert quota is not None, "it has refused"
        if any(amount > quota.limits.get(name, amount) for name, amount in self._needed(wish).items()):
            return  # it never fits
        uid, told, last = quota.key.uid, None, None
        for at, use in replica.told.get(uid, ()):
            if use is not last and isinstance(use, Usage) and at >= since[0] - FRESH:
                told = resources.maximum(told or {}, use.but(replica.api.name))
            last = use
        told = Told(self.truth.used_since(uid, replica.api.name, since[1]), told)
        self.truth.refused(uid, told, self._needed(wish), [(cause.field, cause.message) for cause in no.causes])

    def _needed(self, wish: Wish) -> ResourceList:
        """What a quota was asked for."""
        return wish.need

    def _verdict(
        self,
        wish: Wish,
        call: str,
        site: Site,
        no: Refusal | None,
        quotas: list[Quota],
        gives_up: float,
        *,
        repeated: bool,
    ) -> None:
        if self.tracing:
            of = f"{wish.thing.uid}{call and f', {call}'}"
            self.note(f"  {of} is {'admitted' if no is None else 'refused: ' + no.text}{' again' * repeated}")
        if no is not None:
            self._check_refusal(wish, no)
        if no is None and not wish.ended:
            binding = self._binding(wish, site, quotas)
            known = {quota.key.uid for quota in binding}
            missing = any(spec.key.uid not in known for spec in self._applying(wish.thing))
            self.truth.allow(wish, call, binding, missing=missing, repeated=repeated)

        def heard() -> None:
            if wish.ended or self.now >= gives_up:
                return
            if no is None:
                wish.heard.add(call)
                wish.told = wish.heard.issuperset(wish.calls)
            else:
                self.refused += 1
                self.denied[wish.thing.uid] = wish
                if call not in wish.heard:
                    self._ended(wish)

        self.network.post(f"verdict for {wish.thing.uid}", None, site.api, heard)

    def _binding(self, _wish: Wish, _site: Site, quotas: list[Quota]) -> list[Quota]:
        """Of those that were asked, the ones of which the wish is use now."""
        return quotas

    def _check_refusal(self, wish: Wish, no: Refusal) -> None:
        """What others fill keeps nobody out who never asked for much."""
        crowded = no.code == 503 and any(words in no.text for words in CROWDED)
        if crowded and (asked := self.asked[wish.thing.source]) <= LEAST:
            self.fail(f"{wish.thing.uid} is refused, of a source that asked {asked} times: {no.text}")

    def finish(self, wish: Wish, *, persists: bool) -> None:
        """The API server writes it, or does not."""
        thing = wish.thing
        source = self._source(thing)
        if persists and wish.told and self.now < wish.until and wish.generation == thing.generation + 1 and source.up:
            before = source.machines.get(thing.uid)
            thing.size, thing.generation = wish.size, wish.generation
            thing.admitted = dict(wish.after)
            if wish.need:
                thing.reserved = wish.generation
            if wish.replaces:
                self.rolling[thing.uid] = wish.replaces
            meta = ObjectMeta(uid_of(thing.uid), thing.uid, thing.generation)
            source.write(before, Machine(meta, wish.size))
            if self._followed(source):
                self.written.add(thing.uid)
            if self.tracing:
                self.note(f"  {thing.uid} is written, generation {thing.generation}")
        self._ended(wish)

    def _followed(self, source: Source) -> bool:
        """Whether the leader hears of every change."""
        leaders = (replica.leader for replica in self.sites[source.seed].replicas)
        found = [leader.sources.get(source.key) for leader in leaders if leader is not None]
        return bool(found) and all(each is not None and each.settled for each in found)

    def _ended(self, wish: Wish) -> None:
        if wish.ended:
            return
        wish.ended = True
        thing = wish.thing
        thing.wishes.remove(wish)
        self.wishes.remove(wish)
        self.truth.recount(thing)
        if thing.size is None and not thing.wishes:
            self.things.pop(thing.uid, None)

    def slip(self, source: Source, size: ResourceList) -> None:
        """It comes to exist, and nobody was asked."""
        thing = Thing(f"{source.key}-{self.token()}", source.key)
        thing.size, thing.generation = size, 1
        self.things[thing.uid] = thing
        source.write(None, Machine(ObjectMeta(uid_of(thing.uid), thing.uid, 1), size))
        self.truth.excuse()

    def delete(self, thing: Thing) -> None:
        source = self._source(thing)
        machine = source.machines.get(thing.uid)
        if machine is None:
            return
        source.write(machine, None)
        thing.size = None
        thing.generation += 1_000_000  # no change of it can come any more
        self.truth.recount(thing)
        if not thing.wishes:
            self.things.pop(thing.uid, None)

    def _source(self, thing: Thing) -> Source:
        return self.site_of(thing.source).ever[thing.source]

    def site_of(self, source: str) -> Site:
        return self.sites[source.partition("/")[0]]

    # What admins do ------------------------------------------------------------------------------------------------

    def change_limits(self, name: str, limits: ResourceList) -> None:
        spec = self.master.quotas[name]
        changed = msgspec.structs.replace(spec, limits=limits, version=len(self.master.events) + 1)
        self.truth.quota(spec.key.uid, limits)
        if self.tracing:
            self.note(f"  limits of {name}: {limits}")
        self.master.write_quota(changed)

    def recreate(self, name: str) -> None:
        spec = self.master.quotas[name]
        self.master.delete_quota(name)
        self._make_quota(name, spec.subject, spec.limits)
        self.truth.excuse()  # what is there already is not admitted by the new one

    def destroy(self, site: Site) -> None:
        """Nothing of it runs any more, nor its machines."""
        for replica in list(site.replicas):
            self.crash_replica(site, replica)
        site.dead, site.api.up = True, False
        for wish in [wish for wish in self.wishes if wish.thing.source in site.sources]:
            self._ended(wish)
        for thing in [thing for thing in self.things.values() if thing.source in site.sources]:
            self.delete(thing)
        self.truth.excuse()

    def come_back(self, site: Site) -> None:
        """Its API server starts with what was on its disk, and so do the programs."""
        site.dead, site.api.up = False, True
        self.master.write_seed(site.name, "Active")
        for _ in range(2):
            self.start_replica(site)

    def delete_cluster(self, site: Site, key: str) -> None:
        """With all its machines."""
        source = site.sources[key]
        for wish in [wish for wish in self.wishes if wish.thing.source == key]:
            self._ended(wish)
        for thing in [thing for thing in self.things.values() if thing.source == key]:
            self.delete(thing)
        source.up = False
        del site.sources[key]
        site.api.write_cluster(key, None)

    def restore_seed(self, site: Site, snapshot: tuple[Any, ...]) -> None:
        self.truth.excuse()
        for stored in (*site.api.ledger.values(), *snapshot[1].values()):  # also one that was removed since
            self.truth.doubted.add(stored.account.incarnation)
        site.api.restore(snapshot)
        for key in list(site.api.clusters):
            if key not in site.sources:  # deleted since: there is nothing left to count
                site.api.write_cluster(key, None)
        for key, source in site.sources.items():
            if source.is_cluster and key not in site.api.clusters:
                site.api.write_cluster(key, source.project)
        for uid, stored in site.api.ledger.items():
            self.truth.known(uid, site.name, stored.account)

    def restore_master(self, snapshot: tuple[Any, ...]) -> None:
        self.truth.excuse()
        master = self.master
        for ledger, _ in (*master.ledgers.values(), *snapshot[2].values()):
            self.truth.doubted.add(ledger.incarnation)
        states = dict(master.seeds)
        for ledger, _ in master.ledgers.values():  # one that was removed, and holds something, is created again, too
            holders = (seed for seed, kept in ledger.seeds.items() if any(escrow.held(kept).values()))
            states = dict.fromkeys(holders, "Active") | states
        there = {spec.key.uid for spec in master.quotas.values()}
        master.restore(snapshot)
        self._forget({spec.key.uid for spec in master.quotas.values()} - there)
        for spec in list(master.quotas.values()):
            self.truth.quota(spec.key.uid, spec.limits)
            master.write_quota(msgspec.structs.replace(spec, version=len(master.events) + 1))
        self.truth.ledgers = {uid: ledger for uid, (ledger, _) in master.ledgers.items()}
        for name, state in states.items():  # the admin says again what he had said
            if master.seeds.get(name) != state:
                master.write_seed(name, state)
        for project in sorted(self.joined):
            if master.projects.get(project) == "":
                master.write_project(project, EVERYBODY)

    def _forget(self, uids: set[str]) -> None:
        """Quotas that had been deleted are back. What they had admitted before is like any other use now: seeds that
        had heard of the deletion know nothing of it."""
        for thing in self.things.values() if uids else ():
            for admitted in (thing.admitted, *(wish.after for wish in thing.wishes)):
                for uid in uids:
                    admitted.pop(uid, None)
            self.truth.recount(thing)

    def restore_source(self, source: Source, machines: dict[str, Machine]) -> None:
        """What is there again, or is larger again, was not admitted again."""
        self.truth.excuse()
        source.outages += 1
        for wish in [wish for wish in self.wishes if wish.thing.source == source.key]:
            self._ended(wish)
        for uid in [uid for uid in source.machines if uid not in machines]:
            self.delete(self.things[uid])
        for uid, machine in machines.items():
            present = source.machines.get(uid)
            if present == machine:
                continue
            thing = self.things.setdefault(uid, Thing(uid, source.key))
            thing.size, thing.generation, thing.admitted = machine.resources, machine.metadata.generation, {}
            source.write(present, machine)
            self.truth.recount(thing)

    def copy_source(self, source: Source, to: Source) -> None:
        """The other is restored from a backup of this one: their objects have equal uids."""
        copies = {}
        for machine in source.machines.values():
            uid = machine.metadata.uid
            meta = ObjectMeta(uid, name_of(to.key, uid), machine.metadata.generation)
            copies[meta.key] = Machine(meta, machine.resources)
        self.restore_source(to, copies)

    def repair(self) -> None:
        """Everything works again."""
        self.network.cut.clear()
        self.network.held.clear()
        while self.later:
            self.pass_time(2.0)
        for site in self.sites.values():
            if not site.dead:
                while len(site.replicas) < 1:
                    self.start_replica(site)
        if not self.masters:
            self.start_master()
        for site in self.sites.values():
            state = self.master.seeds.get(site.name)
            if site.dead:
                self.master.write_seed(site.name, "Lost")
            elif state != "Active":
                self.master.write_seed(site.name, "Active")
        for project in sorted(self.outside):
            self.join(project)
        self.projects_return()
        for process in (*self.masters, *(replica for site in self.sites.values() for replica in site.replicas)):
            process.deaf_until = process.loop.paused_until = 0.0

    def projects_return(self) -> None:
        """The admin makes again what was deleted."""
        if len(self.master.quotas) > 1 or self.master.projects:
            for project in self.projects:
                if project not in self.master.projects:
                    self.master.write_project(project, self._organization(project))

    def join(self, project: str) -> None:
        """The admin gives it the organization. What it has is use that nobody admitted there."""
        if self.tracing:
            self.note(f"  project {project} joins its organization")
        self.outside.discard(project)
        self.joined.add(project)
        self.truth.excuse()
        self.master.write_project(project, EVERYBODY)

    # What is there -------------------------------------------------------------------------------------------------

    def lent(self, uid: str) -> set[str]:
        """What stands on the quota's surge."""
        kept = [site.api.ledger.get(uid) for site in self.sites.values() if not site.dead]
        return {
            name_of(*key) for each in kept if each for key, loan in each.account.reservations.items() if loan.replaces
        }

    def there(self, site: Site, subject: str, without: Collection[str] = ()) -> dict[str, int]:
        total: dict[str, int] = {}
        for source in site.sources.values():
            if self._limits(subject, source.project):
                for uid, machine in source.machines.items():
                    if uid in without:
                        continue
                    for name, amount in machine.resources.items():
                        total[name] = total.get(name, 0) + amount
        return total

    def room(self, project: str, names: Collection[str] | None = None) -> int | None:
        """How many units fit into what the quotas of the project leave, of these resources or of all; None if nothing
        limits it."""
        room: int | None = None
        for spec in self.master.quotas.values():
            if self._limits(spec.subject, project):
                there = [self.there(site, spec.subject) for site in self.sites.values()]
                limits = surge.regular(spec.limits)
                for name, limit in (limits if names is None else resources.only(limits, names)).items():
                    left = max(limit - sum(each.get(name, 0) for each in there), 0)
                    room = left if room is None else min(room, left)
        return room

    def room_of(self, source: Source) -> int | None:
        """... of what is made there."""
        return self.room(source.project)

    def to_count(self, site: Site, copy: Copy, account: Account, without: Collection[str]) -> ResourceList:
        """What the account must count once all is quiet."""
        return self.there(site, copy.subject, without=without)

    # What time does ------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for wish in [wish for wish in self.wishes if wish.until <= self.now]:
            self._ended(wish)
        if self.later:
            due = [what for at, what in self.later if at <= self.now]
            self.later = [(at, what) for at, what in self.later if at > self.now]
            for what in due:
                what()
        for site in self.sites.values():
            for replica in site.replicas:
                if replica.deaf_until <= self.now:
                    replica.look_at_lease()
                replica.loop.run()
        for master in self.masters:
            if master.deaf_until <= self.now:
                master.look_at_lease()
            master.loop.run()

    # Watches -------------------------------------------------------------------------------------------------------

    def current(self) -> bool:
        """Nothing is under way, and everybody has heard everything."""
        if self.network.flying:
            return False
        for site in self.sites.values():
            if site.dead or not site.api.up:
                return False
            end = len(site.api.events)
            for replica in site.replicas:
                if replica.at != end or replica.asked:
                    return False
            for copy, _ in site.api.copies.values():
                spec = self.master.quotas.get(copy.key.name)
                if spec is None or spec.key != copy.key or not copy.version == copy.decided == spec.version:
                    return False
        leading = [master for master in self.masters if master.term is not None]
        return all(master.at == len(self.master.events) for master in leading)

    def tighten(self) -> None:
        if self.current():
            if self.tracing:
                self.note(f"  everybody has heard everything: {self.truth.totals} of {self.truth.limits}")
            for spec in self.master.quotas.values():
                everywhere = all(spec.key.name in site.api.copies for site in self.sites.values())
                if everywhere and self.truth.covered(spec.key.uid):
                    self.truth.tighten(spec.key.uid)

    def end(self) -> None:
        """Nothing of it is needed any more, but for what is asked of the servers and the truth."""
        for process in self.processes:
            process.end()
        self.network.flying.clear()
        self.later.clear()

    def fail(self, text: str) -> None:
        raise Violation(text)


def _warm(server: servers.Seed | servers.Master, leases: list[Lease]) -> None:
    annotations = dict.fromkeys((WRITES_ANNOTATION, SINCE_ANNOTATION, SETTLED_ANNOTATION), str(WARM))
    server.lease = LeaseObject(
        metadata=KubeMeta(
            name="lease", uid="lease", namespace="seedquota", resource_version="0", annotations=annotations
        ),
        spec=LeaseSpec(holder_identity="", lease_transitions=WARM),
    )
    for lease in leases:
        lease.trusted, lease._looked_at, lease._writes = WARM, lease._clock(), 1
