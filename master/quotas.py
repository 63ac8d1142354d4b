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
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from common import grants, resources
from common.account import Ask
from common.api import (
    LEDGER_ANNOTATION,
    MASTER_MANAGER,
    UID_LABEL,
    ResourceQuotaSpec,
    StaleSource,
    WireIdle,
    WireReport,
    grant_to_wire,
    report_from_wire,
    wire_quantities,
)
from common.grants import Holding, LedgerWentBackError, MasterLedger, Report
from common.kube.client import Cluster
from common.kube.controller import Controller, ReconcileHook
from common.kube.errors import Conflict, NotFound
from common.kube.meta import Object
from common.kube.reflector import Change
from common.quantity import QuantityError
from common.resources import ResourceList
from master.allotment import Allotment, Seat, allot
from master.caches import BY_SUBJECT, Caches, changed_name, subject_of
from master.ledger import Ledgers, Stored, forgotten
from master.objects import MASTER_QUOTAS, MasterQuota, QuotaCopy
from master.publisher import Shown
from master.seeds import SeedLink, Seeds
from master.status import STALE_AFTER, QuotaView, SeedView, quota_status, same, summary

log = logging.getLogger(__name__)

WORKERS = 64
TIMEOUT = 30.0  # seconds for one decision
POLL_ASK = 0.2  # seconds until another look while an ask waits
RECALL_PATIENCE = 1.0  # seconds after which a seed that does not react to a recall counts as out of reach
JUST_GRANTED = 0.1  # seconds that a seed has to use what it asked for before another's ask takes it back
ROUND = 1.0  # seconds between mere changes of the global use on one seed ...
ROUND_PER_SEED = 0.25  # ... and this much longer for every seed
PROMPT = 0.2  # seconds until a seed that was refused hears that use has fallen
REFUSED_LATELY = 30.0
STATUS_EVERY = 0.1  # seconds between writes of one quota's status
RESERVED_EVERY = 1.0  # ... where only what is reserved has changed
STATUS_ECHO = 2.0  # seconds after a write in which the watch may still show what was before
AGES_EVERY = 30.0


class SeedAccount:
    """What the master remembers of one quota on one seed, beside the ledger."""

    def __init__(self) -> None:
        self.wire = WireReport()
        self.report: Report | None = None
        self.absorbed: Report | None = None
        self.use_before: ResourceList | None = None  # as the status said before this master began
        self.answered_life = ""
        self.answered = 0
        self.unavailable: list[WireIdle] = []
        self.refused_at = float("-inf")
        self.recalled: tuple[float, int] | None = None  # since when (monotonic), at which sequence
        self.granted: tuple[float, int] | None = None  # likewise
        self.last_report_time = ""

    def hear(self, copy: QuotaCopy) -> bool:
        """True if it says something new. Raises QuantityError; then the last report stays."""
        wire, grant = copy.status.account, copy.status.grant
        if wire == self.wire or not wire.incarnation:
            return False
        said = report_from_wire(wire)
        if said is None or not grants.supersedes(said, self.report):
            return False
        self.report, self.wire = said, wire
        if self.answered_life != wire.incarnation and grant.account == wire.incarnation:
            # What was answered before this master began stays answered.
            self.answered_life, self.answered = wire.incarnation, grant.answered
        return True

    @property
    def use(self) -> dict[str, int] | None:
        """Counted and reserved; None if it was never told."""
        if self.report is not None:
            return resources.add(self.report.used, self.report.reserved)
        return dict(self.use_before) if self.use_before is not None else None

    @property
    def asked(self) -> int:
        """The number of the last ask that was answered to this life of the account."""
        return self.answered if self.report is not None and self.report.incarnation == self.answered_life else 0

    def unresponsive(self, now: float) -> bool:
        return (
            self.recalled is not None
            and self.report is not None
            and self.recalled[1] == self.report.sequence
            and now - self.recalled[0] > RECALL_PATIENCE
        )

    def just_granted(self, now: float) -> bool:
        """Its report does not show yet what it does with what it got."""
        return (
            self.granted is not None
            and self.report is not None
            and self.granted[1] == self.report.sequence
            and now - self.granted[0] < JUST_GRANTED
        )

    def note_recall(self, now: float, recalled: bool) -> None:
        sequence = self.report.sequence if self.report is not None else 0
        if not recalled:
            self.recalled = None
        elif self.recalled is None or self.recalled[1] != sequence:
            self.recalled = (now, sequence)


class QuotaState:
    """One quota, by uid."""

    def __init__(self, quota: MasterQuota) -> None:
        self.quota = quota
        self.spec = msgspec.convert(quota.spec, ResourceQuotaSpec)
        self.limits: ResourceList = resources.parse(self.spec.quota)
        self.stored: Stored | None = None
        self.seeds: dict[str, SeedAccount] = {}
        self.view: QuotaView | None = None
        self.shown = quota.status
        self.shown_at = float("-inf")
        for line in quota.status.seeds:
            account = self.account(line.name)
            account.use_before = resources.parse(line.local_usage)
            account.last_report_time = line.last_report_time

    @property
    def uid(self) -> str:
        return self.quota.metadata.uid

    @property
    def name(self) -> str:
        return self.quota.metadata.name

    def take(self, quota: MasterQuota) -> None:
        if quota.metadata.generation != self.quota.metadata.generation:
            self.spec = msgspec.convert(quota.spec, ResourceQuotaSpec)
            self.limits = resources.parse(self.spec.quota)
        self.quota = quota

    def account(self, seed: str) -> SeedAccount:
        return self.seeds.setdefault(seed, SeedAccount())

    def doubt(self) -> None:
        """A write of the ledger failed in a way that leaves open what is stored: read it again."""
        self.stored = None
        for account in self.seeds.values():
            account.absorbed = None


class Quotas:
    """`run` works until cancelled; the caches are synced and `seeds` runs beside it."""

    def __init__(
        self,
        cluster: Cluster,
        caches: Caches,
        seeds: Seeds,
        ledgers: Ledgers,
        *,
        on_reconcile: ReconcileHook | None = None,
    ) -> None:
        self.states: dict[str, QuotaState] = {}
        self.fenced: dict[str, set[str]] = {}  # quotas by seed
        self.learning: dict[str, set[str]] = {}
        self._cluster = cluster
        self._caches = caches
        self._seeds = seeds
        self._ledgers = ledgers
        self._controller: Controller[str] = Controller(
            "quota", self._decide, workers=WORKERS, timeout=TIMEOUT, on_reconcile=on_reconcile
        )
        self._status: Controller[str] = Controller(
            "quota-status", self._show, workers=WORKERS, timeout=TIMEOUT, on_reconcile=on_reconcile
        )

    async def run(self) -> None:
        ends = self._caches.listen(self._changed)
        try:
            await self._drop_orphans()
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
                self._status.queue.add_after(name, STATUS_ECHO)
        elif plural in ("projects", "organizations") and (old is None or new is None):
            kind = plural.removesuffix("s")
            for quota in self._caches.quotas.store.by_index(BY_SUBJECT, f"{kind}/{name}"):
                self._controller.queue.add(quota.metadata.name)

    def copy_changed(self, seed: str, change: Change[QuotaCopy]) -> None:
        copy = change.new
        if copy is None:
            return
        name = copy.metadata.name
        state = self.states.get(name)
        if state is None or copy.metadata.labels.get(UID_LABEL) != state.uid:
            return
        if self._hear(state, seed, copy) or change.old is None or change.old.metadata.uid != copy.metadata.uid:
            self._controller.queue.add(name)

    def copy_settled(self, _seed: str, plural: str, name: str) -> None:
        if plural == "resourcequotas" and name in self.states:
            self._controller.queue.add(name)

    def _hear(self, state: QuotaState, seed: str, copy: QuotaCopy) -> bool:
        try:
            return state.account(seed).hear(copy)
        except QuantityError as error:
            log.error("report cannot be read", extra={"seed": seed, "quota": state.name, "error": str(error)})
            return False

    # One decision ----------------------------------------------------------------------------------------------

    async def _decide(self, name: str) -> float | None:
        quota = self._caches.quotas.store.get(name)
        state = self.states.get(name)
        if state is not None and (quota is None or quota.metadata.uid != state.uid):
            await self._forget(state)
            state = None
        if quota is None:
            return None
        if state is None:
            state = self.states[name] = self._open(quota)
        state.take(quota)
        if state.stored is None:
            state.stored = await self._ledgers.load(quota, [link.name for link in self._seeds.present()])
        elif quota.metadata.annotations.get(LEDGER_ANNOTATION) != state.stored.ledger.incarnation:
            await self._note(state, state.stored.ledger)
        ledger = self._absorb(state, state.stored.ledger)
        now = time.monotonic()
        learning = ledger.learning or not self._seeds.settled
        seats = self._seats(state, ledger, now)
        allotment = _patient(allot(state.limits, seats, learning=learning), state, now)
        ledger = _granted(ledger, allotment)
        view = self._view(state, ledger, seats, now)
        self._answer(state, allotment, now)
        await self._persist(state, ledger)
        state.view = view
        self._note_troubles(view, name)
        self._publish(state, ledger, allotment, now)
        self._status.queue.add_after(name, max(0.0, state.shown_at + STATUS_EVERY - now))
        return self._again(state, seats, allotment, learning=learning)

    def _open(self, quota: MasterQuota) -> QuotaState:
        state = QuotaState(quota)
        for link in self._seeds.present():
            copies = link.copies
            copy = copies.get(state.name) if copies is not None else None
            if copy is not None and copy.metadata.labels.get(UID_LABEL) == state.uid:
                self._hear(state, link.name, copy)
        return state

    async def _forget(self, state: QuotaState) -> None:
        for link in self._seeds.links.values():
            link.publisher.forget(state.name)
        await self._ledgers.delete(state.uid)
        self.states.pop(state.name, None)
        for marked in (*self.fenced.values(), *self.learning.values()):
            marked.discard(state.name)

    def _absorb(self, state: QuotaState, ledger: MasterLedger) -> MasterLedger:
        """The ledger with what seeds have reported since, with seeds that came and without those that are lost."""
        try:
            return self._with_reports(state, ledger)
        except LedgerWentBackError as error:
            log.warning(
                "ledger went backwards, learning what seeds hold", extra={"quota": state.name, "error": str(error)}
            )
            for account in state.seeds.values():
                account.absorbed = None
            return self._with_reports(state, forgotten(ledger))

    def _with_reports(self, state: QuotaState, ledger: MasterLedger) -> MasterLedger:
        holdings = dict(ledger.seeds)
        for link in self._seeds.links.values():
            if link.lost:
                if holdings.pop(link.name, None) is not None:
                    log.warning("capacity of a lost seed freed", extra={"quota": state.name, "seed": link.name})
                state.seeds.pop(link.name, None)
            elif link.name not in holdings:
                holdings[link.name] = Holding(learned=False)
        for seed in [seed for seed in holdings if seed not in self._seeds.links]:
            if not any(grants.held(holdings[seed]).values()):
                del holdings[seed]
                state.seeds.pop(seed, None)
        for seed, account in state.seeds.items():
            if account.report is not None and account.report is not account.absorbed and seed in holdings:
                holdings[seed] = grants.absorb(holdings[seed], account.report, ledger.incarnation)
                account.absorbed = account.report
        learning = ledger.learning and any(not holdings[link.name].learned for link in self._seeds.present())
        if ledger.learning and not learning:
            log.info("learned what every seed holds", extra={"quota": state.name})
        return msgspec.structs.replace(ledger, learning=learning, seeds=holdings)

    def _seats(self, state: QuotaState, ledger: MasterLedger, now: float) -> list[Seat]:
        seats = []
        for seed, holding in ledger.seeds.items():
            link = self._seeds.links.get(seed)
            account = state.account(seed)
            report = account.report
            held = grants.held(holding)
            use = account.use
            connected = link is not None and link.connected
            open_here = (
                connected
                and holding.learned
                and report is not None
                and not report.nonce
                and report.incarnation == holding.account
            )
            seats.append(
                Seat(
                    seed=seed,
                    held=held,
                    use=resources.at_least_zero(held) if use is None else use,
                    ask=report.ask if open_here and report is not None else Ask(),
                    answered=account.asked,
                    reachable=open_here and not account.unresponsive(now),
                    draining=link is None or link.seed.spec.state != "Active",
                )
            )
        return seats

    async def _persist(self, state: QuotaState, ledger: MasterLedger) -> None:
        stored = state.stored
        assert stored is not None, "a decision begins with a ledger"
        if ledger == stored.ledger:
            return
        try:
            state.stored = await self._ledgers.save(state.quota, stored, ledger)
        except BaseException:
            state.doubt()
            raise
        if ledger.incarnation != stored.ledger.incarnation:
            await self._note(state, ledger)

    def _note_troubles(self, view: QuotaView, name: str) -> None:
        for seed in view.seeds:
            _mark(self.fenced, seed.name, name, seed.connected and seed.fenced)
            _mark(self.learning, seed.name, name, not seed.learned and not seed.lost)

    async def _note(self, state: QuotaState, ledger: MasterLedger) -> None:
        try:
            await self._ledgers.note(state.quota, ledger.incarnation)
        except (NotFound, Conflict) as error:
            log.info("quota is gone", extra={"quota": state.name, "error": error.message})

    def _answer(self, state: QuotaState, allotment: Allotment, now: float) -> None:
        for seed, account in state.seeds.items():
            account.note_recall(now, seed in allotment.recalls)
        for seed, number in allotment.answered.items():
            account = state.account(seed)
            if account.report is None:
                continue
            account.answered_life, account.answered = account.report.incarnation, number
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

    def _again(self, state: QuotaState, seats: Iterable[Seat], allotment: Allotment, *, learning: bool) -> float | None:
        if not learning and any(
            seat.asking and not seat.draining and seat.seed not in allotment.answered for seat in seats
        ):
            hasty = any(account.just_granted(time.monotonic()) for account in state.seeds.values())
            return JUST_GRANTED if hasty else POLL_ASK
        away = [seed.silent for seed in state.view.seeds if not seed.connected] if state.view is not None else []
        if not away:
            return None
        soonest = min(STALE_AFTER - (STALE_AFTER if silent is None else silent) for silent in away)
        return soonest + 0.1 if soonest > 0 else AGES_EVERY * random.uniform(0.8, 1.2)  # noqa: S311

    # Showing it ------------------------------------------------------------------------------------------------

    def _view(self, state: QuotaState, ledger: MasterLedger, seats: Iterable[Seat], now: float) -> QuotaView:
        lines = [self._seed_view(state, seat, ledger.seeds[seat.seed], now) for seat in seats]
        lines.extend(SeedView(name=link.name, lost=True) for link in self._seeds.links.values() if link.lost)
        return QuotaView(
            generation=state.quota.metadata.generation,
            spec=state.spec,
            limits=state.limits,
            subject_exists=self._subject_exists(state.quota),
            learning=ledger.learning,
            seeds=lines,
        )

    def _seed_view(self, state: QuotaState, seat: Seat, holding: Holding, now: float) -> SeedView:
        link = self._seeds.links.get(seat.seed)
        account = state.account(seat.seed)
        report = account.report
        connected = link is not None and link.connected
        silent = now - link.last_contact if link is not None and link.last_contact is not None else None
        if connected and silent is not None:
            account.last_report_time = wall_clock(-silent)
        stale_sources: list[StaleSource] = account.wire.stale
        return SeedView(
            name=seat.seed,
            connected=connected,
            gone=link is None,
            silent=silent,
            last_report_time=account.last_report_time,
            synced=self._synced(state, link),
            reported=report is not None,
            fenced=report is not None and bool(report.nonce),
            learned=holding.learned,
            held=seat.held,
            use=seat.use,
            reserved=report.reserved if report is not None else {},
            stale_sources=stale_sources,
        )

    def _synced(self, state: QuotaState, link: SeedLink | None) -> bool | None:
        copies = link.copies if link is not None else None
        copy = copies.get(state.name) if copies is not None else None
        if copy is not None and copy.metadata.labels.get(UID_LABEL) == state.uid and copy.spec == state.quota.spec:
            return True  # also while it is out of reach: it enforces what it has
        return False if link is not None and link.connected else None

    def _subject_exists(self, quota: MasterQuota) -> bool:
        kind, name = subject_of(quota)
        if kind == "project":
            return name in self._caches.projects.store
        if kind == "organization":
            return name in self._caches.organizations.store
        return True

    def _publish(self, state: QuotaState, ledger: MasterLedger, allotment: Allotment, now: float) -> None:
        view = state.view
        assert view is not None, "a decision makes the view before it publishes"
        names = state.limits.keys()
        present = [seed for seed in view.seeds if not seed.lost]
        use = dict.fromkeys(names, 0) | resources.total(resources.only(seed.use, names) for seed in present)
        reserved = resources.total(resources.only(seed.reserved, names) for seed in present)
        global_usage = wire_quantities(use)
        shown_reserved = wire_quantities({name: amount for name, amount in reserved.items() if amount})
        hard = wire_quantities(state.limits)
        words = summary(state.spec.subject, use, state.limits, present)
        for seed in ledger.seeds:
            link = self._seeds.links.get(seed)
            copies = link.copies if link is not None and link.connected else None
            copy = copies.get(state.name) if copies is not None else None
            if link is None or copy is None or copy.metadata.labels.get(UID_LABEL) != state.uid:
                continue
            account = state.account(seed)
            message = grants.message(ledger, seed, allotment.recalls.get(seed, {}), account.asked)
            shown = Shown(
                observed_generation=copy.metadata.generation,
                hard=hard,
                global_usage=global_usage,
                reserved=shown_reserved,
                grant=grant_to_wire(message, learning=ledger.learning, unavailable=account.unavailable),
            )
            before, written_at = link.publisher.last(state.name, copy.metadata.uid)
            within = self._within(account, before, shown, use, written_at, now)
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
        """In how many seconds the seed should hear it: 0 where somebody waits for it."""
        if before is None or before.hard != shown.hard or _speaks(before, shown):
            return 0.0
        if now - account.refused_at < REFUSED_LATELY and any(
            amount < known
            for name, known in resources.parse(before.global_usage).items()
            if (amount := use.get(name)) is not None
        ):
            return PROMPT
        every = max(ROUND, ROUND_PER_SEED * len(self._seeds.links))
        return max(written_at + every - now, every / 2)

    async def _show(self, name: str) -> float | None:
        """Write the quota's own status, if it says something new."""
        state = self.states.get(name)
        if state is None or state.view is None:
            return None
        now = time.monotonic()
        status = quota_status(state.view, state.shown, wall_clock())
        if same(status, state.shown):
            there = self._caches.quotas.store.get(name)
            if there is None or now - state.shown_at < STATUS_ECHO or same(status, there.status):
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
        state.shown, state.shown_at = status, now
        return None

    # Beginning -------------------------------------------------------------------------------------------------

    async def _drop_orphans(self) -> None:
        """Ledgers of quotas that were deleted while nobody led."""
        there = {quota.metadata.uid for quota in self._caches.quotas.store.values()}
        for uid in await self._ledgers.uids():
            if uid not in there:
                await self._ledgers.delete(uid)


def _patient(allotment: Allotment, state: QuotaState, now: float) -> Allotment:
    """Without recalls from seeds that were granted something this very moment, or two that ask would only swap."""
    recalls = {
        seed: amounts for seed, amounts in allotment.recalls.items() if not state.account(seed).just_granted(now)
    }
    return msgspec.structs.replace(allotment, recalls=recalls)


def _granted(ledger: MasterLedger, allotment: Allotment) -> MasterLedger:
    holdings: Mapping[str, Holding] = ledger.seeds
    more = {
        seed: amounts for seed, amounts in allotment.grants.items() if holdings[seed].learned and any(amounts.values())
    }
    if not more:
        return ledger
    raised = {seed: grants.raise_granted(holdings[seed], amounts) for seed, amounts in more.items()}
    return msgspec.structs.replace(ledger, seeds={**holdings, **raised})


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


def _mark(marked: dict[str, set[str]], seed: str, quota: str, troubled: bool) -> None:
    if troubled:
        marked.setdefault(seed, set()).add(quota)
    elif (there := marked.get(seed)) is not None:
        there.discard(quota)


def wall_clock(offset: float = 0.0) -> str:
    """RFC 3339, only for people to read."""
    moment = datetime.fromtimestamp(time.time() + offset, UTC)
    return moment.replace(microsecond=0).isoformat().replace("+00:00", "Z")
