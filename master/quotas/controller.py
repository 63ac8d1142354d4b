"""One decision after another for every quota: what seeds reported in, grants and the sums out.

Concurrency: one worker per quota at a time, all quotas at once.

Order: a decision takes up what seeds reported (`master.grants.planner` decides), makes the ledger durable if it changed
(`_persist`), and only then shows it (`_show`): to seeds through their publishers, to users in the status.

Lifetime: everything here is of one term of leadership; the next one begins from what is durable.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

from common.api.convert import wire_quantities
from common.api.labels import LEDGER_ANNOTATION
from common.api.status import ECHO
from common.api.types import WireIdle
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, NotFound
from common.kube.client.meta import Object
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.store import Change
from common.quota import guarantees
from common.quota.escrow import ImpossibleReportError, MasterLedger
from common.quota.quantity import QuantityError
from common.runtime.burst import PAUSE
from master.cache.informers import BY_SUBJECT, Caches, changed_name
from master.cache.objects import MasterQuota, QuotaCopy
from master.grants.fair_share import Allotment
from master.grants.planner import Decision, SeedFacts, decide, forgotten
from master.quotas import withdrawal
from master.quotas.countable import CountedNames
from master.quotas.events import QuotaEvents
from master.quotas.grant_publisher import GrantPublisher
from master.quotas.ledger_store import Ledgers, drop_orphans, incarnation
from master.quotas.quota_view import STALE_AFTER, QuotaView
from master.quotas.seed_facts import seed_facts
from master.quotas.state import JUST_GRANTED, QuotaState
from master.quotas.status_writer import StatusWriter
from master.quotas.views import Views, is_synced
from master.seeds.link import Run
from master.seeds.registry import Seeds

log = logging.getLogger(__name__)

WORKERS = 64
TIMEOUT = 30.0  # seconds for one decision
POLL_ASK = 0.2  # seconds until another look while an ask waits
COPIES_FIRST = 5.0  # seconds that a quota made just now waits for its first copy: nothing can be decided before
AGES_EVERY = 30.0
COMPARE_EVERY = (
    3.0  # seconds in which limits of projects and of their organization are compared anew: often many change
)


class Quotas:
    """`run` works until cancelled; the caches are synced and `seeds` runs beside it.

    `doubtful`: the ledgers that there are may have been restored, see `cold` of `master.grants.planner`. `on_settled`
    is called when all that seeds have was looked at: from then on, the next leader need not doubt them.
    """

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        seeds: Seeds,
        ledgers: Ledgers,
        events: QuotaEvents,
        *,
        doubtful: bool,
        on_settled: Callable[[], None],
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        self.states: dict[str, QuotaState] = {}
        self.fenced: dict[str, set[str]] = {}  # quotas by seed
        self.learning: dict[str, set[str]] = {}
        self._counted = CountedNames()
        self._caches = caches
        self._seeds = seeds
        self._ledgers = ledgers
        # Quotas made later in this term have a ledger that nobody can have restored.
        self._doubtful = {quota.metadata.uid for quota in caches.quotas.store.values()} if doubtful else set()
        self._unsettled = set(self._doubtful)
        self._on_settled = on_settled
        self._controller: Controller[str] = Controller(
            "quota", self._decide, workers=WORKERS, timeout=TIMEOUT, on_reconcile=on_reconcile
        )
        self._views = Views(caches, seeds, self.states, self._counted, self._doubtful)
        self._publisher = GrantPublisher(seeds)
        self._status = StatusWriter(cluster, caches, seeds, events, self.states, on_reconcile=on_reconcile)

    async def run(self) -> None:
        ends = self._caches.listen(self._changed)
        try:
            await drop_orphans(self._ledgers, self._caches)
            self._settle()
            self.review_all()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._controller.run())
                group.create_task(self._status.run())
        finally:
            ends()

    def review_all(self) -> None:
        """Something changed that every quota depends on."""
        for name in self._caches.quotas.store.keys():  # noqa: SIM118
            self._controller.queue.add(name)

    # What changed ----------------------------------------------------------------------------------------------

    def _changed(self, plural: str, change: Change[Object]) -> None:
        name, old, new = changed_name(change), change.old, change.new
        for quota in self._caches.kin(plural, change):
            self._controller.queue.add_after(quota.metadata.name, COMPARE_EVERY)
        if plural == "resourcequotas":
            if (
                old is None
                or new is None
                or old.metadata.generation != new.metadata.generation
                or old.metadata.annotations != new.metadata.annotations
            ):
                self._controller.queue.add(name)
            elif isinstance(new, MasterQuota):
                self._status.seen(new)
        elif plural == "quotasettings":
            self.review_all()  # the catalogue says what is counted
        elif plural in ("projects", "organizations") and (old is None or new is None):
            kind = plural.removesuffix("s")
            for quota in self._caches.quotas.store.by_index(BY_SUBJECT, f"{kind}/{name}"):
                self._controller.queue.add(quota.metadata.name)

    def copy_changed(self, seed: str, change: Change[QuotaCopy], run: Run | None) -> None:
        copy = change.new
        if copy is None:
            gone = self.states.get(changed_name(change))
            if gone is not None and gone.account(seed).withdrawn:
                self._controller.queue.add(gone.name)
            return
        name = copy.metadata.name
        state, link = self.states.get(name), self._seeds.links.get(seed)
        if state is None or link is None or not link.is_copy(copy, state.uid):
            return
        if self._receive(state, seed, copy, run):
            self._controller.queue.add(name)
        elif change.old is None or change.old.metadata.uid != copy.metadata.uid:
            self._look_soon(name)

    def copy_settled(self, _seed: str, plural: str, name: str) -> None:
        if plural == "resourcequotas" and name in self.states:
            self._look_soon(name)

    def _look_soon(self, name: str) -> None:
        """At what was expected to come: in a rush once for all seeds that it comes to."""
        self._controller.queue.add_after(name, PAUSE if self._seeds.rush.on else 0.0)

    def _receive(self, state: QuotaState, seed: str, copy: QuotaCopy, run: Run | None = None) -> bool:
        account = state.account(seed)
        try:
            if not account.receive(copy, run):
                return False
            assert account.report is not None, "it says something new"
            if new := self._counted.note(account.report):
                self._review_lacking(new)
            return True
        except (QuantityError, ImpossibleReportError) as error:
            facts = {"cluster": seed, "quota": state.name, "error": str(error)}
            log.error("report cannot be taken", extra=facts)
            return False

    # One decision ----------------------------------------------------------------------------------------------

    async def _decide(self, name: str) -> float | None:
        """In how many seconds the quota should be looked at again; None: when something changes."""
        state = await self._state(name)
        if state is None:
            return None
        if state.stored is None and (wait := self._ledger_can_wait(state)) > 0:
            return wait
        ledger = await self._ledger(state)
        await withdrawal.begin(state, ledger, self._seeds.links, self._caches)
        now = time.monotonic()
        facts = seed_facts(state, ledger, self._seeds.links, now)
        decision = decide(
            state.ceilings,
            ledger,
            facts,
            cold=state.doubtful,
            life=incarnation(),
            now=int(now * 1000),
        )
        for seed in decision.demands:
            state.account(seed.name).demand = seed.demand
        view = self._views.view(state, decision, now)
        await self._persist(state, decision.ledger)
        self._log_changes(state, ledger, decision)
        self._take_up(state, facts)
        anew = withdrawal.end(state, decision.ledger, self._seeds.links)
        self._answer(state, facts, decision.allotment, now)
        self._show(state, decision, view, now)
        return 0.0 if anew else self._again(state, decision, now)

    async def _state(self, name: str) -> QuotaState | None:
        """What is remembered of the quota as it is now; None where there is none."""
        quota = self._caches.quotas.store.get(name)
        state = self.states.get(name)
        if state is not None and (quota is None or quota.metadata.uid != state.uid):
            await self._forget(state, quota)
            state = None
        if quota is None:
            return None
        if state is None:
            state = self.states[name] = self._open(quota)
        state.take(quota)
        state.guarantees = self._caches.guarantees_of(quota, state.limits, state.surge)
        return state

    async def _ledger(self, state: QuotaState) -> MasterLedger:
        """The ledger to decide from. One that proves to be older than what is known begins another life."""
        if state.stored is None:
            seeds = [link.name for link in self._seeds.present() if state.picks(link.seed)]
            state.stored = await self._ledgers.load(state.quota, seeds)
            state.noted_at = time.monotonic()
        elif (
            state.quota.metadata.annotations.get(LEDGER_ANNOTATION) != state.stored.ledger.incarnation
            and time.monotonic() - state.noted_at >= ECHO
        ):
            await self._note(state, state.stored.ledger)
        if state.went_back():
            log.warning("ledger went backwards, learning what seeds hold", extra={"quota": state.name})
            return forgotten(state.stored.ledger, incarnation())
        return state.stored.ledger

    async def _persist(self, state: QuotaState, ledger: MasterLedger) -> None:
        """The barrier of each decision: what follows it is shown, and is durable. Raises ApiError; then what is stored
        is not known, and is read again."""
        stored = state.stored
        assert stored is not None, "a decision begins with a ledger"
        if ledger is not stored.ledger:
            try:
                state.stored = await self._ledgers.save(state.quota, stored, ledger)
            except BaseException:
                state.doubt(ledger)
                raise
            if ledger.incarnation != stored.ledger.incarnation:
                await self._note(state, ledger)
        state.known = None

    def _take_up(self, state: QuotaState, facts: Sequence[SeedFacts]) -> None:
        """What the seeds showed and reported is in the ledger now."""
        for fact in facts:
            if (account := state.seeds.get(fact.name)) is not None:
                account.taken_up(fact.shown)
        if all(fact.listed for fact in facts if fact.present):
            self._settle(state.uid)

    def _show(self, state: QuotaState, decision: Decision, view: QuotaView, now: float) -> None:
        """To be called only with what `_persist` has made durable."""
        self._note_troubles(view, state.name)
        self._publisher.publish(state, decision, view, now)
        self._status.offer(state, view, now)

    def _settle(self, uid: str = "") -> None:
        self._unsettled.discard(uid)
        if not self._unsettled:
            self._on_settled()

    def _open(self, quota: MasterQuota) -> QuotaState:
        state = QuotaState(quota)
        state.doubtful = state.uid in self._doubtful
        for link in self._seeds.present():
            copy = link.copy(state.name, state.uid)
            if copy is not None:
                self._receive(state, link.name, copy)
        return state

    def _ledger_can_wait(self, state: QuotaState) -> float:
        """For how many seconds: of a quota that is new, about which no seed asks. While many come, or no seed has it
        yet although one could."""
        if LEDGER_ANNOTATION in state.quota.metadata.annotations:
            return 0.0
        if any(account.report is not None for account in state.seeds.values()):
            return 0.0
        if self._seeds.rush.defers(("ledger", state.name)):
            state.rushed = True
            return PAUSE
        there = [is_synced(state, link) for link in self._seeds.present() if state.picks(link.seed)]
        if True in there or False not in there:
            return 0.0
        return state.since + COPIES_FIRST - time.monotonic()

    async def _forget(self, state: QuotaState, successor: MasterQuota | None) -> None:
        await self._caches.confirm("resourcequotas", state.name, successor)
        for link in self._seeds.links.values():
            link.publisher.forget(state.name)
        await self._ledgers.delete(state.uid)
        self._settle(state.uid)
        self.states.pop(state.name, None)
        for marked in (*self.fenced.values(), *self.learning.values()):
            marked.discard(state.name)

    def _log_changes(self, state: QuotaState, before: MasterLedger, decision: Decision) -> None:
        """What people want to know of a decision; and nothing is kept of seeds that it dropped."""
        quota = {"quota": state.name}
        if decision.went_back:
            log.warning("ledger went backwards, learning what seeds hold", extra={**quota, "error": decision.went_back})
        for seed in before.seeds:
            if seed not in decision.ledger.seeds:
                state.seeds.pop(seed, None)
                log.warning("nothing is held any more by a seed that is lost or gone", extra={**quota, "seed": seed})
        if before.learning and not decision.ledger.learning:
            log.info("learned what every seed holds", extra=quota)

    def _note_troubles(self, view: QuotaView, name: str) -> None:
        for seed in view.seeds:
            _mark(self.fenced, seed.name, name, seed.connected and seed.fenced and not seed.withdrawing)
            _mark(self.learning, seed.name, name, not seed.learned and seed.limited)

    async def _note(self, state: QuotaState, ledger: MasterLedger) -> None:
        state.noted_at = time.monotonic()
        try:
            await self._ledgers.note(state.quota, ledger.incarnation)
        except (NotFound, Conflict) as error:
            log.info("quota is gone", extra={"quota": state.name, "error": error.message})

    def _answer(self, state: QuotaState, facts: Sequence[SeedFacts], allotment: Allotment, now: float) -> None:
        """To be called with what is durable: an ask whose grant was not written is not answered. `facts` are those that
        were decided by: since then, an account may have begun another life."""
        for seed, account in state.seeds.items():
            account.note_recall(now, seed in allotment.recalls)
        reports = {fact.name: fact.report for fact in facts}
        for seed, number in (*allotment.answered.items(), *allotment.draining.items()):
            account, report = state.account(seed), reports[seed]
            if report is None:
                continue
            account.answered_life, account.answered = report.incarnation, number
            account.draining = seed in allotment.draining
            account.unavailable = [
                WireIdle(
                    seed=idle.seed,
                    idle=wire_quantities(guarantees.merged(idle.idle)),
                    seconds=self._silent(state, idle.seed, now),
                )
                for idle in list(allotment.unavailable.get(seed, ()))[:32]
            ]
            if seed in allotment.grants:
                account.granted = (now, report.sequence)
            elif not account.unavailable:
                account.refused_at = now

    def _silent(self, state: QuotaState, seed: str, now: float) -> int:
        """For how many seconds nothing could be recalled from this seed."""
        link = self._seeds.links.get(seed)
        if link is not None and not link.connected and link.last_contact is not None:
            return int(now - link.last_contact)
        account = state.seeds.get(seed)
        return int(now - account.recalled[0]) if account is not None and account.recalled is not None else 0

    def _again(self, state: QuotaState, decision: Decision, now: float) -> float | None:
        """In how many seconds to decide once more although nobody reports anything."""
        allotment = decision.allotment
        waits = state.until_change() + ([] if allotment.again is None else [allotment.again / 1000])
        if state.quota.metadata.annotations.get(LEDGER_ANNOTATION) != decision.ledger.incarnation:
            waits.append(ECHO)
        if decision.granting and any(
            seed.asking and seed.name not in allotment.answered and seed.name not in allotment.draining
            for seed in decision.demands
        ):
            hasty = any(account.hopeful(now) for account in state.seeds.values())
            waits.append(JUST_GRANTED if hasty else POLL_ASK)
        if state.view is not None and state.view.never_counted is None:
            waits.append(AGES_EVERY * random.uniform(0.8, 1.2))  # noqa: S311
        away = [seed.silent for seed in state.view.seeds if not seed.connected] if state.view is not None else []
        if away:
            soonest = min(STALE_AFTER - (STALE_AFTER if silent is None else silent) for silent in away)
            waits.append(soonest + 0.1 if soonest > 0 else AGES_EVERY * random.uniform(0.8, 1.2))  # noqa: S311
        return min(waits, default=None)

    def _review_lacking(self, devices: set[str]) -> None:
        """They are counted from now on."""
        for name, state in self.states.items():
            if state.view is not None and not devices.isdisjoint(state.view.never_counted or ()):
                self._controller.queue.add(name)


def _mark(marked: dict[str, set[str]], seed: str, quota: str, troubled: bool) -> None:
    if troubled:
        marked.setdefault(seed, set()).add(quota)
    elif (there := marked.get(seed)) is not None:
        there.discard(quota)
