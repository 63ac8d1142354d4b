"""A replica of the master's program: the real lease and the real decision, with what it remembers of one term."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import msgspec

from common.api.convert import grant_to_wire, report_to_wire
from common.api.types import ResourceQuotaStatus, WireReport
from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.kube.client.meta import ObjectMeta
from common.kube.controller.leader_election import Lease, LeaseLost
from common.quota import escrow, resources
from common.quota.account import Grant
from common.quota.escrow import MasterLedger, Report
from common.quota.resources import ResourceList
from master.cache.objects import QuotaCopy
from master.grants import planner
from master.grants.planner import Decision, SeedFacts
from master.quotas.state import SeedAccount
from master.seeds.link import Run
from seed.cache.quota import OutOfReach
from seed.ledger.store import ConflictError
from tests.sim import servers
from tests.sim.checks import with_surge
from tests.sim.loop import Loop
from tests.sim.network import Network, Process
from tests.sim.seed_side import LEASE_DURATION, RENEW_DEADLINE, RETRY, at_once
from tests.sim.servers import Copy, Spec, away

POLL_ASK = 0.2


class Heard(SeedAccount):
    """What is remembered of one quota on one seed."""

    def __init__(self) -> None:
        super().__init__()
        self.out_of_reach: tuple[OutOfReach, ...] = ()
        self._last: tuple[Report | None, Grant] | None = None

    def news(self, copy: Copy, run: Run | None) -> bool:
        """True if it says something new."""
        if self._last is not None and self._last[0] is copy.report:
            return False
        first, self._last = self._last is None, (copy.report, copy.grant)
        status = ResourceQuotaStatus(
            account=report_to_wire(copy.report) if copy.report is not None else WireReport(),
            grant=grant_to_wire(copy.grant),
        )
        return self.receive(QuotaCopy(metadata=ObjectMeta(name=copy.key.name), status=status), run) or first

    def facts(self, name: str, state: str | None, link: Link, now: float) -> SeedFacts:
        return SeedFacts(
            name=name,
            state=cast("Literal['Active', 'Draining', 'Lost', 'Gone']", state or "Gone"),
            connected=link.connected,
            listed=link.listed,
            tried=link.tried,
            shown=self.shown or Grant(incarnation=""),
            report=self.report,
            answered=self.asked,
            silent=self.silent(now),
            hopeful=self.hopeful(now),
            demand=self.demand,
        )


class Link:
    """What is followed of one seed in this term."""

    def __init__(self) -> None:
        self.copies: dict[str, Copy] = {}
        self.projects: dict[str, str] = {}
        self.at = 0
        self.listed = False
        self.run = 0  # the run of its watch: it breaks when the seed's API server goes down
        self.tried = False
        self.connected = False


Shown = tuple[Grant, ResourceList, tuple[OutOfReach, ...], bool, bool, int]


class Usage(dict[str, int]):
    """What all use together, and what was known when that was summed up."""

    def __init__(self, use: ResourceList, facts: list[SeedFacts], ledger: MasterLedger) -> None:
        super().__init__(use)
        self._facts = facts
        self._ledger = ledger

    def but(self, seed: str) -> dict[str, int]:
        """What the other seeds had said, and the surge under it; of one that has said nothing yet, what it holds."""
        said = {
            fact.name: with_surge(resources.add(fact.report.used, fact.report.reserved), escrow.held(holding))
            if fact.report is not None and not escrow.is_late(holding, fact.report)
            else resources.at_least_zero(escrow.held(holding))
            for fact in self._facts
            if fact.name != seed and (holding := self._ledger.seeds.get(fact.name)) is not None
        }
        return resources.total(said.values())


class QuotaMemory:
    def __init__(self) -> None:
        self.ledger: MasterLedger | None = None
        self.known: MasterLedger | None = None  # what is in the ledger that is read next; None: not in doubt
        self.version: int | None = None
        self.heard: dict[str, Heard] = {}
        self.wanted: dict[str, Shown] = {}  # what each seed's copy shall show
        self.busy = False


class Term:
    """All that is remembered, from one acquisition of the lease to its loss."""

    def __init__(self, doubtful: set[str]) -> None:
        self.doubtful = doubtful  # quotas whose ledgers may have been restored before the term began
        self.unsettled = set(doubtful)  # ... and of which not all has been looked at
        self.links: dict[str, Link] = {}
        self.memory: dict[str, QuotaMemory] = {}  # by quota uid
        self.due: dict[str, None] = {}  # quotas about which there is news

    def of(self, uid: str) -> QuotaMemory:
        return self.memory.setdefault(uid, QuotaMemory())

    def forget(self, seed: str) -> None:
        self.links.pop(seed, None)
        for memory in self.memory.values():
            memory.heard.pop(seed, None)


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
        self.error: Exception | None = None
        self.lease = Lease(
            cast("Cluster", servers.Leases(api)),
            "seedquota",
            "seedquota-master",
            name,
            duration=LEASE_DURATION,
            renew_deadline=RENEW_DEADLINE,
            retry=RETRY,
            clock=loop.time,
        )
        self.quotas = dict(api.quotas)
        self.seeds = dict(api.seeds)
        self.projects = dict(api.projects)
        self.at = len(api.events)
        self.blind_until = 0.0  # its watch of its own cluster brings nothing
        self.blind: dict[str, float] = {}  # ... and those of seeds, until when
        self._shows = shows
        self._token = token

    def parts(self) -> list[object]:
        return [self.lease]

    # Watches -------------------------------------------------------------------------------------------------------

    def watch(self, upto: int) -> None:
        for place in range(self.at, upto):
            what, name = self.api.events[place]
            value = self.api.values[place]
            cache: dict[str, Any] = {"quota": self.quotas, "seed": self.seeds, "project": self.projects}[what]
            if value is None:
                cache.pop(name, None)
            else:
                cache[name] = value
            if self.term is not None:
                self.term.due.update(dict.fromkeys(self.quotas))
                if what == "seed" and value in (None, "Lost"):
                    self.term.forget(name)
        self.at = max(self.at, upto)

    def follow(self, seed: str, lag: Callable[[int, int], int]) -> None:
        """Reads a seed's copies, as far as its watch has come."""
        term = self.term
        if term is None or self.seeds.get(seed) in (None, "Lost"):
            return
        link = term.links.setdefault(seed, Link())
        api = self.apis[seed]
        reached = self.network.reaches("master", api)
        if reached != link.connected or not link.tried:
            link.tried, link.connected = True, reached
            term.due.update(dict.fromkeys(self.quotas))
        if not reached:
            return
        if link.run != api.outages:
            link.run, link.listed = api.outages, False
        if not link.listed:
            link.copies = {name: copy for name, (copy, _) in api.copies.items()}
            link.projects = dict(api.projects)
            link.at, link.listed = len(api.events), True
            for copy in link.copies.values():
                self._hear(term, seed, copy, None)
            return
        upto = lag(link.at, len(api.events))
        for place in range(link.at, upto):
            what, name = api.events[place]
            if what == "copy":
                both = api.values[place]
                if both is None:
                    link.copies.pop(name, None)
                else:
                    link.copies[name] = both[0]
                    self._hear(term, seed, both[0], (0, link.run))
            elif what == "project":
                link.projects.pop(name, None)
                if (organization := api.values[place]) is not None:
                    link.projects[name] = organization
        link.at = upto

    def _hear(self, term: Term, seed: str, copy: Copy, run: Run | None) -> None:
        if term.of(copy.key.uid).heard.setdefault(seed, Heard()).news(copy, run):
            term.due[copy.key.name] = None

    # The lease -----------------------------------------------------------------------------------------------------

    def look_at_lease(self) -> None:
        if self.loop.time() - self.lease._looked_at < RETRY:
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
            self.term = Term({spec.key.uid for spec in self.quotas.values()} if not taken.settled else set())
            self._settle(self.term)

    def refresh(self) -> None:
        """Lists anew, before anything is done in a term: a watch may have been silent (master/cache/informers.py)."""
        self.watch(len(self.api.events))

    def _settle(self, term: Term, uid: str = "") -> None:
        term.unsettled.discard(uid)
        if not term.unsettled:
            self.lease.settle()

    def _stop(self) -> None:
        self.term = None
        self.lease.lost.set()
        self.lease._record = None

    # What it writes ------------------------------------------------------------------------------------------------

    def sync(self, name: str, seed: str) -> bool:
        """Makes the seed's copy what the quota is, and what it shall show. True if there is something to write."""
        term = self.term
        link = term.links.get(seed) if term is not None else None
        if link is None or not link.listed or self.seeds.get(seed) in (None, "Lost") or not link.connected:
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
        if copy is None or copy.key != spec.key or copy.version != spec.version:
            self.network.post(f"copy {name} to {seed}", self, api, lambda: self._write(api, spec))
            return True
        return self._publish(term, name, seed)

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
        if link is None or not link.listed or self.seeds.get(seed) in (None, "Lost") or not link.connected:
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
            api.write_copy(Copy(spec.key, self._token(), spec.subject, spec.limits, spec.version))

    def decide(self, name: str) -> None:
        term, spec = self.term, self.quotas.get(name)
        if term is None or (spec is not None and term.of(spec.key.uid).busy):
            return
        term.due.pop(name, None)
        if spec is not None:
            self.loop.start(self._decide(term, spec))

    async def _decide(self, term: Term, spec: Spec) -> None:
        memory = term.of(spec.key.uid)
        memory.busy = True
        try:
            await self._decide_with(term, spec, memory)
        except (ApiError, ConflictError):
            self.loop.call_later(POLL_ASK, term.due.__setitem__, spec.key.name, None)
        except Exception as error:  # noqa: BLE001 (the schedule fails by it)
            self.error = error
        finally:
            memory.busy = False

    async def _decide_with(self, term: Term, spec: Spec, memory: QuotaMemory) -> None:
        uid = spec.key.uid
        if memory.ledger is None:
            memory.ledger, memory.version = await self._load(spec)
        now = self.loop.time()
        before = memory.ledger
        if memory.known is not None:
            if escrow.went_back(before, memory.known):
                before = planner.forgotten(before, self._token())
            else:
                memory.known = None
        facts = [
            memory.heard.setdefault(seed, Heard()).facts(
                seed, self.seeds.get(seed), term.links.get(seed) or Link(), now
            )
            for seed in {**self.seeds, **dict.fromkeys(before.seeds)}
        ]
        decided = planner.decide(
            spec.limits, before, facts, cold=uid in term.doubtful, life=self._token(), now=int(now * 1000)
        )
        self._answer(memory, decided, now)
        ledger = decided.ledger
        if ledger != memory.ledger:
            await self._persist(spec.key.name, memory, uid, ledger)
            self._note(spec, ledger)
        memory.known = None
        for fact in facts:
            if (heard := memory.heard.get(fact.name)) is not None:
                heard.taken_up(fact.shown)
        if all(fact.listed for fact in facts if fact.present):
            self._settle(term, uid)
        self._show(term, spec, memory, decided, facts)
        allotment = decided.allotment
        asking = any(
            demand.asking and demand.name not in allotment.answered and demand.name not in allotment.draining
            for demand in decided.demands
        )
        waits = [allotment.again / 1000] if allotment.again is not None else []
        if asking or not decided.granting:
            waits.append(POLL_ASK)
        if waits:
            self.loop.call_later(min(waits), term.due.__setitem__, spec.key.name, None)

    async def _persist(self, name: str, memory: QuotaMemory, uid: str, ledger: MasterLedger) -> None:
        api, version = self.api, memory.version
        try:
            memory.version = await self.network.call(
                f"save ledger {name}", self, api, lambda: api.save(uid, ledger, version), away("master")
            )
        except (ApiError, ConflictError):
            assert memory.ledger is not None, "a decision begins with a ledger"
            memory.known = memory.known or escrow.certain(memory.ledger, ledger)
            memory.ledger = None
            raise
        memory.ledger = ledger

    async def _load(self, spec: Spec) -> tuple[MasterLedger, int]:
        uid, api = spec.key.uid, self.api
        found = await self.network.call("load ledger", self, api, lambda: api.ledgers.get(uid), away("master"))
        if found is None:
            seeds = {seed: escrow.Holding(learned=not spec.noted) for seed in sorted(self.seeds)}
            ledger, version = MasterLedger(incarnation=self._token(), learning=bool(spec.noted), seeds=seeds), None
        elif spec.noted and found[0].incarnation != spec.noted:
            ledger, version = planner.forgotten(found[0], self._token()), found[1]
        else:
            return cast("tuple[MasterLedger, int]", found)
        version = await self.network.call(
            f"make ledger {spec.key.name}", self, api, lambda: api.save(uid, ledger, version), away("master")
        )
        self._note(spec, ledger)
        return ledger, version

    def _note(self, spec: Spec, ledger: MasterLedger) -> None:
        present = self.api.quotas.get(spec.key.name)
        if present is not None and present.key == spec.key and present.noted != ledger.incarnation:
            self.api.write_quota(msgspec.structs.replace(present, noted=ledger.incarnation))

    def _answer(self, memory: QuotaMemory, decided: Decision, now: float) -> None:
        allotment = decided.allotment
        for seed, heard in memory.heard.items():
            heard.note_recall(now, seed in allotment.recalls)
        for seed, number in (*allotment.answered.items(), *allotment.draining.items()):
            heard = memory.heard[seed]
            if heard.report is None:
                continue
            heard.draining = seed in allotment.draining
            heard.answered_life, heard.answered = heard.report.incarnation, number
            heard.out_of_reach = tuple(
                OutOfReach(idle.seed, idle.idle, 0) for idle in allotment.unavailable.get(seed, ())
            )
            if seed in allotment.grants:
                heard.granted = (now, heard.report.sequence)

    def _show(self, term: Term, spec: Spec, memory: QuotaMemory, decided: Decision, facts: list[SeedFacts]) -> None:
        ledger = decided.ledger
        total = resources.total(resources.only(demand.use, spec.limits) for demand in decided.demands)
        use = Usage(dict.fromkeys(spec.limits, 0) | total, facts, ledger)
        for seed in ledger.seeds:
            heard = memory.heard.setdefault(seed, Heard())  # it may have been forgotten while the ledger was written
            seen, unbroken = heard.remembered
            recall = decided.recalls.get(seed, {})
            grant = escrow.message(ledger, seed, recall, heard.asked, seen, unbroken=unbroken)
            memory.wanted[seed] = (grant, use, heard.out_of_reach, decided.learning, heard.draining, spec.version)
            self._publish(term, spec.key.name, seed)

    def _publish(self, term: Term, name: str, seed: str) -> bool:
        link = term.links.get(seed)
        copy = link.copies.get(name) if link is not None and link.connected else None
        shown = term.of(copy.key.uid).wanted.get(seed) if copy is not None else None
        if copy is None or shown is None:
            return False
        if shown == (copy.grant, copy.usage, copy.out_of_reach, copy.learning, copy.draining, copy.decided):
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
            grant, use, out_of_reach, learning, draining, decided = shown
            api.write_copy(
                msgspec.structs.replace(
                    both[0],
                    grant=grant,
                    usage=use,
                    out_of_reach=out_of_reach,
                    learning=learning,
                    draining=draining,
                    decided=decided,
                )
            )

    return write


def _delete(api: servers.Seed, name: str, uid: str) -> None:
    both = api.copies.get(name)
    if both is not None and both[0].key.uid == uid:
        api.delete_copy(name, released=True)
