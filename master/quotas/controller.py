"""One decision after another for every quota: what seeds reported in, grants and the sums out.

One worker per quota at a time, all quotas at once. A decision takes up what seeds reported, decides (allotment),
makes the ledger durable if it changed, and only then shows it: to seeds through their publishers, to users in the
status. Everything here is of one term of leadership; the next one begins from what is durable.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

import msgspec

from common.api import conditions
from common.api.convert import grant_to_wire, wire_quantities
from common.api.labels import LEDGER_ANNOTATION, MASTER_MANAGER, UID_LABEL
from common.api.types import StaleSource, WireIdle
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Conflict, NotFound
from common.kube.client.meta import Object
from common.kube.controller.controller import Controller, ReconcileHook
from common.kube.controller.store import Change
from common.quota import escrow, resources
from common.quota.account import Grant
from common.quota.escrow import Holding, MasterLedger
from common.quota.quantity import QuantityError
from common.quota.resources import ResourceList
from common.runtime.burst import PATIENCE, PAUSE
from master.cache.informers import BY_SUBJECT, Caches, changed_name, subject_of
from master.cache.objects import MASTER_QUOTAS, MasterQuota, QuotaCopy
from master.grants.fair_share import Allotment, Seat
from master.grants.planner import Decision, SeedFacts, decide, forgotten
from master.quotas.condition_events import new_warnings
from master.quotas.countable import CountedNames
from master.quotas.events import QuotaEvents
from master.quotas.ledger_store import Ledgers, incarnation
from master.quotas.publish_delay import WAITING, publish_delay
from master.quotas.state import JUST_GRANTED, QuotaState, SeedAccount
from master.quotas.status import STALE_AFTER, QuotaView, SeedView, quota_status, same, summary
from master.seeds.link import Run, SeedLink
from master.seeds.registry import Seeds
from master.seeds.status_publisher import Shown

log = logging.getLogger(__name__)

WORKERS = 64
STATUS_WORKERS = 8  # what people read must not crowd out what programs wait for
TIMEOUT = 30.0  # seconds for one decision
POLL_ASK = 0.2  # seconds until another look while an ask waits
COPIES_FIRST = 5.0  # seconds that a quota made just now waits for its first copy: nothing can be decided before
SOON = 0.01  # seconds until a seed is shown what people wait for: in a rush it has to wait
FIRST_WORD = 3.0  # seconds until a seed that has said nothing is written to: mostly it asks sooner
RUSHED_WORD = 120.0  # ... where many came at once, of which it asks one after the other
STATUS_EVERY = 0.1  # seconds between writes of one quota's status
STATUS_SETTLING = 1.0  # ... while it is on its way to the seeds: mostly it is there sooner
RESERVED_EVERY = 1.0  # ... where only what is reserved has changed
ECHO = 2.0  # seconds after a write in which the watch may still show what was before
AGES_EVERY = 30.0


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
        self._cluster = cluster
        self._caches = caches
        self._seeds = seeds
        self._ledgers = ledgers
        self._events = events
        # Quotas made later in this term have a ledger that nobody can have restored.
        self._doubtful = {quota.metadata.uid for quota in caches.quotas.store.values()} if doubtful else set()
        self._unsettled = set(self._doubtful)
        self._on_settled = on_settled
        self._controller: Controller[str] = Controller(
            "quota", self._decide, workers=WORKERS, timeout=TIMEOUT, on_reconcile=on_reconcile
        )
        self._status: Controller[str] = Controller(
            "quota-status", self._show, workers=STATUS_WORKERS, timeout=TIMEOUT, on_reconcile=on_reconcile
        )

    async def run(self) -> None:
        ends = self._caches.listen(self._changed)
        try:
            await self._drop_orphans()
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
        name = changed_name(change)
        old, new = change.old, change.new
        if plural == "resourcequotas":
            if (
                old is None
                or new is None
                or old.metadata.generation != new.metadata.generation
                or old.metadata.annotations != new.metadata.annotations
            ):
                self._controller.queue.add(name)
            elif (
                isinstance(new, MasterQuota)
                and (state := self.states.get(name)) is not None
                and not same(new.status, state.shown)
            ):
                self._status.queue.add_after(name, ECHO)
        elif plural in ("projects", "organizations") and (old is None or new is None):
            kind = plural.removesuffix("s")
            for quota in self._caches.quotas.store.by_index(BY_SUBJECT, f"{kind}/{name}"):
                self._controller.queue.add(quota.metadata.name)

    def copy_changed(self, seed: str, change: Change[QuotaCopy], run: Run | None) -> None:
        copy = change.new
        if copy is None:
            return
        name = copy.metadata.name
        state = self.states.get(name)
        if state is None or copy.metadata.labels.get(UID_LABEL) != state.uid:
            return
        if self._hear(state, seed, copy, run):
            self._controller.queue.add(name)
        elif change.old is None or change.old.metadata.uid != copy.metadata.uid:
            self._look_soon(name)

    def copy_settled(self, _seed: str, plural: str, name: str) -> None:
        if plural == "resourcequotas" and name in self.states:
            self._look_soon(name)

    def _look_soon(self, name: str) -> None:
        """At what was expected to come: in a rush once for all seeds that it comes to."""
        self._controller.queue.add_after(name, PAUSE if self._seeds.rush.on else 0.0)

    def _hear(self, state: QuotaState, seed: str, copy: QuotaCopy, run: Run | None = None) -> bool:
        account = state.account(seed)
        try:
            if not account.hear(copy, run):
                return False
            assert account.report is not None, "it says something new"
            self._counted.note(account.report)
            return True
        except QuantityError as error:
            log.error("report cannot be read", extra={"seed": seed, "quota": state.name, "error": str(error)})
            return False

    # One decision ----------------------------------------------------------------------------------------------

    async def _decide(self, name: str) -> float | None:
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
        if state.stored is None:
            if (wait := self._ledger_can_wait(state)) > 0:
                return wait
            state.stored = await self._ledgers.load(quota, [link.name for link in self._seeds.present()])
            state.noted_at = time.monotonic()
        elif (
            quota.metadata.annotations.get(LEDGER_ANNOTATION) != state.stored.ledger.incarnation
            and time.monotonic() - state.noted_at >= ECHO
        ):
            await self._note(state, state.stored.ledger)
        ledger = state.stored.ledger
        if state.went_back():
            log.warning("ledger went backwards, learning what seeds hold", extra={"quota": name})
            ledger = forgotten(ledger, incarnation())
        now = time.monotonic()
        facts = self._facts(state, ledger, now)
        decision = decide(
            state.ceilings,
            ledger,
            facts,
            cold=state.uid in self._doubtful,
            life=incarnation(),
            now=int(now * 1000),
        )
        for seat in decision.seats:
            state.account(seat.seed).demand = seat.demand
        self._tell(state, ledger, decision)
        view = self._view(state, decision, now)
        self._answer(state, decision.allotment, now)
        await self._persist(state, decision.ledger)
        state.known = None
        for fact in facts:
            if (account := state.seeds.get(fact.name)) is not None:
                account.taken_up(fact.shown)
        if all(fact.heard for fact in facts if fact.present):
            self._settle(state.uid)
        state.view = view
        self._note_troubles(view, name)
        self._publish(state, decision, now)
        settling = _settling(view)
        state.rushed = state.rushed and settling
        every = (PATIENCE if state.rushed else STATUS_SETTLING) if settling else STATUS_EVERY
        self._status.queue.add_after(name, max(every - STATUS_EVERY, state.shown_at + every - now))
        return self._again(state, decision, now)

    def _settle(self, uid: str = "") -> None:
        self._unsettled.discard(uid)
        if not self._unsettled:
            self._on_settled()

    def _open(self, quota: MasterQuota) -> QuotaState:
        state = QuotaState(quota)
        for link in self._seeds.present():
            copies = link.copies
            copy = copies.get(state.name) if copies is not None else None
            if copy is not None and copy.metadata.labels.get(UID_LABEL) == state.uid:
                self._hear(state, link.name, copy)
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
        there = [self._synced(state, link) for link in self._seeds.present()]
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

    def _facts(self, state: QuotaState, ledger: MasterLedger, now: float) -> list[SeedFacts]:
        gone = [seed for seed in ledger.seeds if seed not in self._seeds.links]
        return [self._fact(state, seed, now) for seed in (*self._seeds.links, *gone)]

    def _fact(self, state: QuotaState, seed: str, now: float) -> SeedFacts:
        link = self._seeds.links.get(seed)
        account = state.account(seed)
        return SeedFacts(
            name=seed,
            state=link.seed.spec.state if link is not None else "Gone",
            connected=link is not None and link.connected,
            heard=link is not None and link.heard,
            tried=link is not None and link.settled,
            shown=account.shown or Grant(incarnation=""),
            report=account.report,
            use=account.use_before,
            answered=account.asked,
            silent=account.silent(now),
            hopeful=account.hopeful(now),
            demand=account.demand,
        )

    def _tell(self, state: QuotaState, before: MasterLedger, decision: Decision) -> None:
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

    async def _persist(self, state: QuotaState, ledger: MasterLedger) -> None:
        stored = state.stored
        assert stored is not None, "a decision begins with a ledger"
        if ledger is stored.ledger:
            return
        try:
            state.stored = await self._ledgers.save(state.quota, stored, ledger)
        except BaseException:
            state.doubt(ledger)
            raise
        if ledger.incarnation != stored.ledger.incarnation:
            await self._note(state, ledger)

    def _note_troubles(self, view: QuotaView, name: str) -> None:
        for seed in view.seeds:
            _mark(self.fenced, seed.name, name, seed.connected and seed.fenced)
            _mark(self.learning, seed.name, name, not seed.learned and not seed.lost)

    async def _note(self, state: QuotaState, ledger: MasterLedger) -> None:
        state.noted_at = time.monotonic()
        try:
            await self._ledgers.note(state.quota, ledger.incarnation)
        except (NotFound, Conflict) as error:
            log.info("quota is gone", extra={"quota": state.name, "error": error.message})

    def _answer(self, state: QuotaState, allotment: Allotment, now: float) -> None:
        for seed, account in state.seeds.items():
            account.note_recall(now, seed in allotment.recalls)
        for seed, number in (*allotment.answered.items(), *allotment.draining.items()):
            account = state.account(seed)
            if account.report is None:
                continue
            account.answered_life, account.answered = account.report.incarnation, number
            account.draining = seed in allotment.draining
            account.unavailable = [
                WireIdle(
                    seed=idle.seed,
                    idle=wire_quantities(idle.idle),
                    seconds=self._silent(state, idle.seed, now),
                )
                for idle in list(allotment.unavailable.get(seed, ()))[:32]
            ]
            if seed in allotment.grants:
                account.granted = (now, account.report.sequence)
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
        waits = [] if allotment.again is None else [allotment.again / 1000]
        if state.quota.metadata.annotations.get(LEDGER_ANNOTATION) != decision.ledger.incarnation:
            waits.append(ECHO)
        if decision.granting and any(
            seat.asking and seat.seed not in allotment.answered and seat.seed not in allotment.draining
            for seat in decision.seats
        ):
            hasty = any(account.hopeful(now) for account in state.seeds.values())
            waits.append(JUST_GRANTED if hasty else POLL_ASK)
        if state.view is not None and state.view.never_counted != []:
            waits.append(AGES_EVERY)
        away = [seed.silent for seed in state.view.seeds if not seed.connected] if state.view is not None else []
        if away:
            soonest = min(STALE_AFTER - (STALE_AFTER if silent is None else silent) for silent in away)
            waits.append(soonest + 0.1 if soonest > 0 else AGES_EVERY * random.uniform(0.8, 1.2))  # noqa: S311
        return min(waits, default=None)

    # Showing it ------------------------------------------------------------------------------------------------

    def _view(self, state: QuotaState, decision: Decision, now: float) -> QuotaView:
        ledger = decision.ledger
        lines = [self._seed_view(state, seat, ledger.seeds[seat.seed], now) for seat in decision.seats]
        lines.extend(SeedView(name=link.name, lost=True) for link in self._seeds.links.values() if link.lost)
        return QuotaView(
            generation=state.quota.metadata.generation,
            spec=state.spec,
            limits=state.limits,
            surge=state.surge,
            subject_exists=self._subject_exists(state.quota),
            learning=decision.learning,
            beyond_counters=escrow.beyond_counters(ledger, state.ceilings),
            never_counted=self._never_counted(state, ledger),
            seeds=lines,
        )

    def _never_counted(self, state: QuotaState, ledger: MasterLedger) -> list[str] | None:
        """None before all that seeds report was taken up."""
        lacking = self._counted.lacking(state.limits, ledger)
        known = len(self.states) >= len(self._caches.quotas.store) and all(
            link.heard or link.never_connected for link in self._seeds.present()
        )
        return lacking if known or not lacking else None

    def _seed_view(self, state: QuotaState, seat: Seat, holding: Holding, now: float) -> SeedView:
        link = self._seeds.links.get(seat.seed)
        account = state.account(seat.seed)
        report = account.report
        connected = link is not None and link.connected
        silent = now - link.last_contact if link is not None and link.last_contact is not None else None
        if silent is None and link is not None and not link.settled and not account.stale_before:
            silent = 0.0  # it is only being tried for the first time
        if connected and silent is not None:
            account.last_report_time = conditions.now(-silent)
        stale_sources: list[StaleSource] = account.wire.stale
        return SeedView(
            name=seat.seed,
            connected=connected,
            never_connected=link is not None and link.never_connected,
            gone=link is None,
            silent=silent,
            last_report_time=account.last_report_time,
            synced=self._synced(state, link),
            behind=self._behind(state, link),
            reported=report is not None,
            fenced=report is not None and bool(report.nonce),
            learned=holding.learned and not (state.uid in self._doubtful and link is not None and not link.heard),
            held=seat.held,
            use=seat.use,
            reserved=report.reserved if report is not None else {},
            stale_sources=stale_sources,
            unenforced=account.wire.unenforced,
        )

    def _synced(self, state: QuotaState, link: SeedLink | None) -> bool | None:
        copies = link.copies if link is not None else None
        copy = copies.get(state.name) if copies is not None else None
        if copy is not None and copy.metadata.labels.get(UID_LABEL) == state.uid and copy.spec == state.quota.spec:
            return True  # also while it is out of reach: it enforces what it has
        return False if link is not None and link.connected else None

    def _behind(self, state: QuotaState, link: SeedLink | None) -> bool:
        """An agent of a release that does not say which generation its replicas have is believed, as it always was."""
        copies = link.copies if link is not None else None
        copy = copies.get(state.name) if copies is not None else None
        if copy is None:
            return False  # it is not synced
        said = copy.status.account
        return not said.incarnation or said.enforced_generation not in (None, copy.metadata.generation)

    def _subject_exists(self, quota: MasterQuota) -> bool:
        kind, name = subject_of(quota)
        if kind == "project":
            return name in self._caches.projects.store
        if kind == "organization":
            return name in self._caches.organizations.store
        return True

    def _publish(self, state: QuotaState, decision: Decision, now: float) -> None:
        ledger, recalls = decision.ledger, decision.recalls
        view = state.view
        assert view is not None, "a decision makes the view before it publishes"
        names = state.ceilings.keys()
        present = [seed for seed in view.seeds if not seed.lost]
        use = dict.fromkeys(names, 0) | resources.total(resources.only(seed.use, names) for seed in present)
        reserved = resources.total(resources.only(seed.reserved, names) for seed in present)
        global_usage = wire_quantities(use)
        shown_reserved = wire_quantities({name: amount for name, amount in reserved.items() if amount})
        hard = wire_quantities(state.limits)
        words = summary(state.spec, use, state.limits, present)
        for seed in ledger.seeds:
            link = self._seeds.links.get(seed)
            copies = link.copies if link is not None and link.connected else None
            copy = copies.get(state.name) if copies is not None else None
            if link is None or copy is None or copy.metadata.labels.get(UID_LABEL) != state.uid:
                continue
            account = state.account(seed)
            seen, unbroken = account.remembered
            message = escrow.message(ledger, seed, recalls.get(seed, {}), account.asked, seen, unbroken=unbroken)
            before, written_at = link.publisher.last(state.name, copy.metadata.uid)
            # A limit that is on its way to the seed is shown when it is there: one write instead of two.
            shown = Shown(
                observed_generation=copy.metadata.generation,
                hard=hard if before is None or copy.spec == state.quota.spec else before.hard,
                global_usage=global_usage,
                reserved=shown_reserved,
                grant=grant_to_wire(
                    message,
                    learning=decision.learning,
                    draining=account.draining,
                    unavailable=account.unavailable,
                ),
            )
            within = self._within(account, before, shown, use, written_at, now)
            if before is None and account.report is None and state.rushed:
                within = RUSHED_WORD
            link.publisher.offer(state.name, copy.metadata.uid, shown, words, within=within)

    def _within(
        self,
        account: SeedAccount,
        before: Shown | None,
        shown: Shown,
        use: ResourceList,
        written_at: float,
        now: float,
    ) -> float:
        """In how many seconds the seed should hear it: 0 where somebody waits for it. One that has not said anything
        yet is about to ask."""
        if before is None:
            return 0.0 if account.report is not None else FIRST_WORD
        if _speaks(before, shown):
            return 0.0
        if before.hard != shown.hard:
            return SOON
        since = now - account.refused_at
        fell = since < WAITING and any(
            amount < known
            for name, known in resources.parse(before.global_usage).items()
            if (amount := use.get(name)) is not None
        )
        return publish_delay(since if fell else None, now - written_at, len(self._seeds.links))

    async def _show(self, name: str) -> float | None:
        """Write the quota's own status, if it says something new."""
        state = self.states.get(name)
        if state is None or state.view is None:
            return None
        arrives = state.shown.observed_generation != state.view.generation or _settling(state.view)
        if arrives and self._seeds.rush.defers(("status", name)):
            return PAUSE
        now = time.monotonic()
        status = quota_status(state.view, state.shown, conditions.now())
        if same(status, state.shown):
            there = self._caches.quotas.store.get(name)
            if there is None or now - state.shown_at < ECHO or same(status, there.status):
                return None
        elif same(msgspec.structs.replace(status, reserved=state.shown.reserved), state.shown):
            wait = state.shown_at + RESERVED_EVERY - now
            if wait > 0:
                return wait
        body = {
            "metadata": {"name": name, "uid": state.uid},
            "status": {**msgspec.to_builtins(status), "conditions": status.conditions},
        }
        try:
            await self._cluster.apply(MASTER_QUOTAS, body, MASTER_MANAGER, "status")
        except NotFound:
            return None
        for reason, note in new_warnings(state.shown.conditions, status.conditions):
            self._events.warn(name, state.uid, reason, note)
        state.shown, state.shown_at = status, now
        return None

    # Beginning -------------------------------------------------------------------------------------------------

    async def _drop_orphans(self) -> None:
        """Ledgers of quotas that were deleted while nobody led."""
        cached = self._caches.quotas.store
        there = {quota.metadata.uid for quota in cached.values()}
        for uid, name in (await self._ledgers.quotas()).items():
            if uid in there:
                continue
            try:
                await self._caches.confirm("resourcequotas", name, cached.get(name))
            except Conflict as error:
                log.warning("ledger kept", extra={"quota": name, "uid": uid, "error": error.message})
            else:
                await self._ledgers.delete(uid)


def _speaks(before: Shown, shown: Shown) -> bool:
    """Whether the grant says something that the seed waits for. That a recall is over can wait."""
    was, now = before.grant, shown.grant
    return (was.incarnation, was.account, was.nonce, was.granted, was.answered, was.learning) != (
        now.incarnation,
        now.account,
        now.nonce,
        now.granted,
        now.answered,
        now.learning,
    ) or (bool(now.recall) and now.recall != was.recall)


def _settling(view: QuotaView) -> bool:
    """Not in force yet on a seed that is in reach."""
    return any(
        seed.synced is False or (seed.connected and (seed.behind or seed.fenced or not seed.reported))
        for seed in view.seeds
        if not seed.lost and not seed.gone
    )


def _mark(marked: dict[str, set[str]], seed: str, quota: str, troubled: bool) -> None:
    if troubled:
        marked.setdefault(seed, set()).add(quota)
    elif (there := marked.get(seed)) is not None:
        there.discard(quota)
