"""Deliberate breakages of the rules, one at a time. A simulator that does not notice them proves nothing.

Each replaces a part of the real code by what somebody in a hurry might write. `focus` names what must go wrong in the
schedules for the rule to matter, so that few are needed; `scene` is in which order, where chance would take too long.

Not in the list, since they break nothing that is promised: to believe late reports (what grows is merged by maximum,
the rest is said again), and to believe that a seed that comes holds nothing (it fences itself and tells what it holds;
past the limit, that is recalled in the message that opens it). Nor what only takes time, such as the order in which
reservations are looked at: quiet lasts for long enough.
"""

from __future__ import annotations

import asyncio
import gc
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec

from common.api.types import PROJECTS
from common.kube.client.errors import ApiError
from common.kube.controller.leader_election import Lease, LeaseObject
from common.quota import account as accounts
from common.quota import escrow, fencing, reservations, resources, shares, surge, surge_loans
from common.quota.account import Account, AccountKey, Ask, Grant, Reservation
from common.quota.escrow import Holding, MasterLedger, Report
from common.quota.reservations import Reserving
from master.grants import fair_share, planner
from master.grants.allocation_state import AllocationState
from master.grants.demand import lacking
from master.grants.fair_share import Allotment
from master.quotas import controller as quota_controller
from master.quotas.controller import Quotas
from master.quotas.state import QuotaState
from seed.accounts import capacity, plan, reservation_gc
from seed.accounts.account_write import write
from seed.accounts.capacity import CapacityRequester, MasterAnswer
from seed.accounts.controller import Accounts
from seed.accounts.registry import AccountRegistry
from seed.accounts.source_removal import SourceRemoval
from seed.admission import denial
from seed.admission.admitter import Admission
from seed.admission.quota_claim import QuotaClaim
from seed.cache.quotas import QuotaCache
from seed.kinds.machines.totals import MachineTotals
from seed.ledger import decision
from seed.ledger.batcher import Batcher
from seed.ledger.store import StoreUnavailableError
from seed.ledger.writer import AccountWriter
from seed.model.quota import Quota
from tests.sim import (
    allocation_mutants,
    block_mutants,
    guarantee_mutants,
    members_mutants,
    namespace_mutants,
    promise_mutants,
    scenes,
    schedule,
    servers,
    tenancy_mutants,
)
from tests.sim.checks import Violation
from tests.sim.master_side import MasterReplica
from tests.sim.mutant import Mutant
from tests.sim.seed_side import UsageSource
from tests.sim.world import World

FIRST = 1_000_000_000  # mutants have schedules of their own
replace = msgspec.structs.replace


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    before = [(place, name, vars(place)[name]) for place, name, _ in mutant.patches]
    try:
        for place, name, value in mutant.patches:
            setattr(place, name, value)
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


class Found(msgspec.Struct, frozen=True):
    """`schedules`: how many it took, of which these fail `unbroken`, too. `what` is empty if it was not noticed."""

    schedules: int
    what: str
    unbroken: tuple[int, ...] = ()


def hunt(mutant: Mutant, budget: int | None = None, first: int = FIRST) -> Found:
    most, unbroken = budget or mutant.budget, []
    for number in range(most):
        if number % 50 == 49:
            gc.collect()
        with applied(mutant):
            what = _violation(first + number, mutant)
        if what and _violation(first + number, mutant):
            unbroken.append(first + number)
        elif what:
            return Found(number + 1, what, tuple(unbroken))
    return Found(most, "", tuple(unbroken))


def _violation(number: int, mutant: Mutant) -> str:
    try:
        schedule.run(number, focus=mutant.focus, scene=mutant.scene)
    except Violation as error:
        return str(error)
    except Exception as error:  # the product's, or the simulator's: it would be noticed
        if isinstance(error, TypeError) or (isinstance(error, AttributeError | NameError) and _is_a_mutants(error)):
            raise  # the mutant is not called as what it replaces, or uses what is gone: it breaks no rule
        return f"{type(error).__name__}: {error}"
    return ""


def _is_a_mutants(error: Exception) -> bool:
    (*_, (frame, _)) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_filename.endswith("mutants.py")


def run(name: str | None, number: int, *, focus: tuple[str, ...] = (), unbroken: bool = False, trace: bool) -> World:
    if name is None:
        return schedule.run(number, focus=focus, trace=trace)
    mutant = BY_NAME[name]
    if unbroken:
        return schedule.run(number, focus=mutant.focus, scene=mutant.scene, trace=trace)
    with applied(mutant):
        return schedule.run(number, focus=mutant.focus, scene=mutant.scene, trace=trace)


# Accounts ------------------------------------------------------------------------------------------------------------


def adopt_a_lower_counter(account: Account, grant: Grant) -> Account:
    if account.fenced or grant.account != account.incarnation or grant.incarnation != account.master:
        return account
    return replace(account, granted=grant.granted)


def obey_any_life(account: Account, grant: Grant) -> Account:
    if account.fenced:
        return account
    granted = resources.maximum(account.granted, grant.granted)
    return accounts.give_back(
        account if granted == account.granted else replace(account, granted=granted), grant.recall
    )


def obey_while_fenced(account: Account, grant: Grant) -> Account:
    if not account.fenced or grant.incarnation != account.master:
        return _obey(account, grant)
    return replace(account, granted=resources.maximum(account.granted, grant.granted), nonce="")


def _give_back(account: Account, recall: Mapping[str, int], busy: Mapping[str, int]) -> Account:
    returned = dict(account.returned)
    for name, target in recall.items():
        idle = account.granted.get(name, 0) - returned.get(name, 0) - busy.get(name, 0)
        if idle > 0 and target > returned.get(name, 0):
            returned[name] = min(target, returned.get(name, 0) + idle)
    return account if account.fenced or returned == account.returned else replace(account, returned=returned)


def return_what_is_used(account: Account, recall: Mapping[str, int]) -> Account:
    return _give_back(account, recall, {})


def return_what_is_reserved(account: Account, recall: Mapping[str, int]) -> Account:
    return _give_back(account, recall, resources.total(account.used.values()))


def never_give_back(account: Account, _grant: Grant) -> Account:
    return account


def drop_all_of_a_source(
    account: Account, epoch: int, source: str, used: Mapping[str, int], seen: Mapping[str, int], gone: object = ()
) -> Account:
    every = dict.fromkeys(accounts.of_source(account, source), 1 << 40)
    return _count(account, epoch, source, used, every)


def drop_before_the_update_is_seen(
    account: Account, epoch: int, source: str, used: Mapping[str, int], seen: Mapping[str, int], gone: Any = ()
) -> Account:
    return _count(account, epoch, source, used, dict.fromkeys(seen, 1 << 40), gone)


def forget_what_was_deleted(
    account: Account, epoch: int, source: str, used: Mapping[str, int], seen: Mapping[str, int], gone: Any = ()
) -> Account:
    return _count(account, epoch, source, used, seen)


def an_update_rides_on_the_creation(known: Reservation, wanted: Reservation) -> tuple[Reservation, Mapping[str, int]]:
    """Charged as the larger of the two, not on top."""
    extra = resources.at_least_zero(resources.subtract(wanted.amount, known.amount))
    after = replace(
        known,
        amount=resources.add(known.amount, extra),
        generation=max(known.generation, wanted.generation),
        claims=known.claims + 1,
        request=wanted.request,
    )
    return after, extra


def as_long_as_there_is_room(_has: int, more: int, filled: int, room: int) -> bool:
    return filled + more <= room


def a_repeat_takes_the_place(known: Reservation, wanted: Reservation) -> tuple[Reservation, Mapping[str, int]]:
    return wanted, resources.subtract(wanted.amount, known.amount)


def a_rebuilt_account_keeps_its_counters(account: Account, incarnation: str, nonce: str) -> Account:
    return fencing.fence(replace(account, incarnation=incarnation, ask=Ask()), nonce)


def a_rebuilt_account_is_not_fenced(account: Account, incarnation: str, nonce: str) -> Account:
    return replace(account, incarnation=incarnation, ask=Ask())


def reopen_without_the_nonce(account: Account, grant: Grant) -> bool:
    return account.fenced and bool(grant.incarnation)


def _reopen(account: Account, _epoch: int, grant: Grant) -> Account:
    return replace(
        account,
        nonce="",
        in_doubt=False,
        master=grant.incarnation,
        granted=resources.maximum(account.granted, grant.granted),
        returned=resources.maximum(account.returned, grant.returned),
    )


def reopen_with_the_asks_of_the_backup(account: Account, epoch: int, grant: Grant) -> Account:
    return replace(_really_reopen(account, epoch, grant), ask=account.ask)


def admit_beyond_what_is_held(account: Account, limits: Mapping[str, int]) -> dict[str, int]:
    used = accounts.use(account)
    return {name: limit - used.get(name, 0) for name, limit in limits.items()}


# Rollouts ------------------------------------------------------------------------------------------------------------


def a_loan_is_counted_at_once(
    account: Account, epoch: int, source: str, used: Any, seen: Any, gone: Any, **_loans: object
) -> Account:
    return _count(account, epoch, source, used, seen, gone)


def surge_that_is_occupied_is_given_back(account: Account, recall: Mapping[str, int]) -> Account:
    return _give_back(account, recall, resources.add(resources.total(account.used.values()), account.reserved))


def cover_what_stands_on_surge(state: AllocationState) -> None:
    for seed in state.seeds:
        state.grant(seed, state.beyond(seed))


def a_loan_never_ends(
    account: Account, epoch: int, source: str, used: Any, seen: Any, gone: Any, sizes: Any, present: Any
) -> Account:
    return _on_surge(account, epoch, source, used, seen, gone, sizes, surge_loans.of_source(account, source), _count)


def a_loan_waits_for_its_own_place(
    account: Account, epoch: int, source: str, used: Any, seen: Any, gone: Any, sizes: Any, present: Any
) -> Account:
    stand = [uid for uid, kept in surge_loans.of_source(account, source).items() if kept.replaces in present]

    def count(account: Account, epoch: int, source: str, used: Any, seen: Any, gone: Any) -> Account:
        ending = {uid: size for uid, size in sizes.items() if uid not in stand}
        return _count_loans(account, epoch, source, used, seen, gone, ending, present)

    return _on_surge(account, epoch, source, used, seen, gone, sizes, stand, count)


def _on_surge(
    account: Account, epoch: int, source: str, used: Any, seen: Any, gone: Any, sizes: Any, uids: Any, count: Any
) -> Account:
    standing = [uid for uid in uids if uid in sizes]
    used = resources.subtract(used, resources.total(sizes[uid] for uid in standing))
    seen = {uid: generation for uid, generation in seen.items() if uid not in standing}
    after: Account = count(account, epoch, source, used, seen, gone)
    return after


# The seed's programs ---------------------------------------------------------------------------------------------


async def answer_before_the_write(self: Any, batch: list[Any], *, read: bool = False) -> None:
    if not self._known.read:
        await self._load()
    before = self._known.stored
    outcomes, after = self._decider.decide(batch, self._sound(before.account) if before else None)
    for entry, outcome in zip(batch, outcomes, strict=True):
        if not entry.future.done():
            if isinstance(outcome, Exception):
                entry.future.set_exception(outcome)
            else:
                entry.future.set_result(outcome)
    if after is not None and (before is None or after is not before.account):
        await self._save(before, replace(after, sequence=after.sequence + 1), len(batch))


async def an_unknown_outcome_is_a_yes(self: Any, batch: list[Any], *, read: bool = False) -> None:
    try:
        await _commit(self, batch, read=read)
    except StoreUnavailableError:
        self._known.read = False
        before = self._known.stored
        if before is None:
            raise
        outcomes, _ = self._decider.decide(batch, before.account)
        for entry, outcome in zip(batch, outcomes, strict=True):
            if not entry.future.done() and not isinstance(outcome, Exception):
                entry.future.set_result(outcome)


def blind_write(self: servers.Seed, key: AccountKey, account: Account, version: str | None) -> str:
    present = self.ledger.get(key.uid)
    if present is not None and account.sequence <= present.account.sequence:
        account = replace(account, sequence=present.account.sequence + 1)
    return _save(self, key, account, present.version if present else None)


def age_of_the_first_claim(account: Account, known: reservation_gc.FirstSeen, now: float) -> reservation_gc.FirstSeen:
    return {key: (kept, known[key][1] if key in known else now) for key, kept in account.reservations.items()}


def known_by_its_value(account: Account, known: reservation_gc.FirstSeen, now: float) -> reservation_gc.FirstSeen:
    plain = {key: replace(kept, request="") for key, kept in account.reservations.items()}
    return {
        key: (kept, seen[1])
        if (seen := known.get(key)) is not None and replace(seen[0], request="") == plain[key]
        else (kept, now)
        for key, kept in account.reservations.items()
    }


def keyed_by_uid_alone(self: Reserving, uid: str, reservation: Reservation) -> accounts.Outcome:
    present = self.account().reservations
    source = next((source for source, other in present if other == uid), reservation.source)
    return _claim(self, uid, replace(reservation, source=source))


def withdrawn_whoever_relies_on_it(account: Account, uid: str, reservation: Reservation) -> Account:
    return accounts.without(account, [(reservation.source, uid)])


def deleted_for_ever(self: MachineTotals, change: Any) -> bool:
    gone = dict(self._gone)
    freed = _apply(self, change)
    self._gone.update(gone)
    return freed


def held_back_for_ever(account: Account, epoch: int, sources: Any) -> Account:
    return _hold_back(account, epoch, {*sources, *account.held_back})


async def never_there(self: UsageSource, _name: str, _uid: str) -> int | None:
    return None


def lists_from_before(self: Accounts, quota: Any, source: Any) -> bool:
    return bool(source.counted)


def stale_is_zero(self: Accounts, account: Account, source: Any, quota: Any, released: Any = frozenset()) -> Account:
    if source.problem is not None:
        return accounts.count(account, self.term, source.key, {}, seen={})
    return _counted(self, account, source, quota, released)


async def drop_early(self: Any, handle: Any, quota: Any, account: Account) -> None:
    named = {*account.used, *(source for source, _ in account.reservations)}
    for key in named - set(self._cluster_cache.source_keys(quota)):
        await write(handle, quota, lambda now, key=key: (accounts.forget_source(now, self._accounts.term, key), None))


def open_at_once(account: Account, grant: Grant, progress: Any, sources: Any, **_facts: object) -> Any:
    return plan.Open(()), progress


def open_without_a_list(account: Account, grant: Grant, progress: Any, sources: Any, **facts: Any) -> Any:
    step, after = _opening(account, grant, progress, sources, **facts)
    return (plan.Open(()), after) if isinstance(step, plan.Open) else (step, after)


def open_without_the_window(*arguments: Any, window: float, **facts: Any) -> Any:
    return _opening(*arguments, window=0.0, **facts)


def window_from_before_the_fence(*arguments: Any, now: float, **facts: Any) -> Any:
    step, after = _next_step(*arguments, now=now, **facts)
    before: plan.Progress = arguments[2]
    return step, replace(after, fenced_since=now if before.fenced_since is None else before.fenced_since)


def doubt_is_nothing(account: Account, *arguments: Any, **facts: Any) -> Any:
    return _opening(replace(account, in_doubt=False), *arguments, **facts)


def a_break_is_nothing(account: Account, grant: Grant, *arguments: Any, **facts: Any) -> Any:
    return _opening(account, replace(grant, unbroken=True), *arguments, **facts)


def claimed_without_doubt(account: Account, term: int, *, cold: bool, nonce: str, **_run: int) -> Account:
    after = accounts.claim_epoch(account, term)
    return fencing.fence(after, nonce) if cold else after


def claimed_whoever_led_first(account: Account, term: int, *, since: int, cold: bool, nonce: str) -> Account:
    return _claimed(account, term, since=0, cold=cold, nonce=nonce)


def settled_by_sight(self: Lease, found: LeaseObject, number: int) -> bool:
    continuous = _join(self, found, number)
    self._settled = continuous
    return continuous


def a_record_that_went_back_is_trusted(self: Lease, found: LeaseObject, now: float) -> None:
    trusted = self.trusted
    _look(self, found, now)
    self.trusted = self.trusted or trusted


async def no_cancel(self: Admission, *_arguments: object) -> None:
    """What the other quotas reserved stays."""


async def never_asks(self: CapacityRequester, need: object, timeout: float) -> object:
    raise TimeoutError


def whatever_was_deleted_here(self: CapacityRequester, need: Any, project: str) -> Any:
    if self._answer is not None:
        self._answer = replace(self._answer, own={})
    return _refuses(self, need, project)


def a_refusal_without_the_other_seeds(
    quota: str, need: Any, used: Any, limits: Any, being_created: Any, **options: Any
) -> Any:
    refusal = _exceeded(quota, need, used, limits, being_created, **options)
    causes = [
        replace(cause, message=re.sub("used ([^=]+)=[^,]+", r"used \1=0", cause.message)) for cause in refusal.causes
    ]
    return replace(refusal, causes=causes)


def a_refusal_of_more(quota: str, need: Any, used: Any, limits: Any, being_created: Any, **options: Any) -> Any:
    return _exceeded(quota, resources.add(need, need), used, limits, being_created, **options)


async def in_place_of_nothing(self: QuotaClaim, handle: Any, refused: Any, replaceable: Any) -> Any:
    async def nothing(anew: bool) -> list[str]:
        return [f"{uid}-{self._request.uid}" for uid in await replaceable(anew)]

    return await _lend(self, handle, refused, nothing)


async def lent_unconfirmed(self: QuotaClaim, handle_: Any, lent: Any, _replaceable: Any) -> Any:
    return lent


async def what_is_free_here_alone(self: CapacityRequester, need: Any, _timeout: float) -> MasterAnswer:
    """As if nobody else had anything to spare."""
    quota = self._quota()
    limits = quota.ceilings if quota is not None else {}
    self._answer = MasterAnswer(used=limits, reserved={}, own=self._own(), final=True, at=self._clock())
    return self._answer


async def of_no_organization(self: Any, key: str, quota: Quota) -> bool:
    cluster = await self._find(key)
    if cluster is None or quota.kind != "organization":
        return await _belongs(self, key, quota)
    found = await self._cluster.find(PROJECTS, cluster.spec.project)
    return found is not None and found.spec.organization == quota.subject


def whatever_was_listed(self: Accounts, quota: Quota, source: Any) -> bool:
    progress = self._progress.get(quota.key.uid)
    asked = self._demands._asked.get(quota.key.uid, ())
    joined = progress is not None and progress.claimed == self.term and source not in asked
    return bool(source.counted) if joined else _may_count(self, quota, source)


def whoever_deleted_it(self: QuotaCache, change: Any) -> None:
    if change.new is None:
        self._put(change.old.metadata.name, None)
    else:
        _quota_changed(self, change)


def obey_the_limit_when_told_to(account: Account, limits: Mapping[str, int]) -> dict[str, int]:
    used, held = accounts.use(account), accounts.held(account)
    return {name: held.get(name, 0) - used.get(name, 0) for name in limits}


async def read_what_may_still_change(self: AccountWriter, *, take: bool = False) -> None:
    self._known.late_write = False
    await _load(self)


# The master --------------------------------------------------------------------------------------------------------


def all_that_is_held_is_used(limits: Any, ledger: Any, seeds: Any, now: int) -> Any:
    demands = _demands(limits, ledger, seeds, now)
    return [replace(each, use=resources.maximum(each.use, resources.at_least_zero(each.held))) for each in demands]


def grant_while_learning(limits: Any, demands: Any, *arguments: Any, **options: Any) -> Any:
    options["learning"] = False
    return _allot(limits, demands, *arguments, **options)


def grant_what_is_not_used(limits: Mapping[str, int], ledger: MasterLedger, seeds: Any, **options: Any) -> Any:
    """As if the pool were what nobody uses, instead of what nobody holds."""
    decided = _decide(limits, ledger, seeds, **options)
    holdings = dict(decided.ledger.seeds)
    for demand in decided.demands:
        if demand.ask.number > demand.answered and holdings[demand.name].learned:
            use = resources.total(resources.only(one.use, limits) for one in decided.demands)
            room = resources.subtract(limits, use)
            if not resources.short(demand.ask.first, room):
                holdings[demand.name] = escrow.raise_granted(holdings[demand.name], demand.ask.first)
    return replace(decided, ledger=replace(decided.ledger, seeds=holdings))


def warm_from_the_start(limits: Any, ledger: Any, seeds: Any, *, cold: bool, life: str, **options: Any) -> Any:
    seeds = [replace(seed, listed=True, tried=True) for seed in seeds]
    return _decide(limits, ledger, seeds, cold=False, life=life, **options)


def absorb_from_any_life(holding: Holding, said: Report, ledger_incarnation: str) -> Holding:
    if not holding.learned:
        return _absorb(holding, said, ledger_incarnation)
    returned = resources.maximum(holding.returned, said.returned)
    return replace(_absorb(holding, said, ledger_incarnation), returned=returned)


def learn_from_a_fence(holding: Holding, said: Report, ledger_incarnation: str) -> Holding:
    return replace(_learn(holding, said, ledger_incarnation), learned=True)


def free_what_is_silent(ledger: MasterLedger, seeds: Any) -> MasterLedger:
    taken = _take_up(ledger, seeds)
    freed = {
        seed.name: replace(kept, returned=kept.granted)
        for seed in seeds
        if not seed.connected and (kept := taken.seeds.get(seed.name)) is not None and kept.learned
    }
    return replace(taken, seeds={**taken.seeds, **freed}) if freed else taken


def free_what_is_withdrawn(ledger: MasterLedger, seeds: Any) -> MasterLedger:
    taken = _take_up(ledger, seeds)
    withdrawn = {seed.name: taken.seeds[seed.name] for seed in seeds if seed.withdrawn}
    freed = {seed: replace(kept, returned=kept.granted) for seed, kept in withdrawn.items()}
    return replace(taken, seeds={**taken.seeds, **freed}) if freed else taken


def recall_what_is_idle(_limits: Any, _most: Any, _ledger: Any, decided: Allotment) -> Mapping[str, Mapping[str, int]]:
    """Past the limit, too, where what becomes free is not to be admitted again."""
    return decided.recalls


def cover_what_is_reserved(state: AllocationState) -> None:
    for seed in state.seeds:
        state.grant(seed, lacking(state.use[seed.name], seed.held))


def never_went_back(*_arguments: object) -> None:
    """Whatever a seed shows, this ledger is right."""


def absorb_blindly(holding: Holding, said: Report, ledger_incarnation: str) -> Holding:
    try:
        return _absorb(holding, said, ledger_incarnation)
    except escrow.LedgerWentBackError:
        return holding


def what_another_life_showed_is_nothing(holding: Holding, shown: Grant, ledger_incarnation: str) -> None:
    if shown.incarnation == ledger_incarnation:
        _check_shown(holding, shown, ledger_incarnation)


async def show_before_it_is_persisted(self: Quotas, state: QuotaState, ledger: MasterLedger) -> None:
    """Nobody waits for the write."""
    stored = state.stored
    assert stored is not None, "a decision begins with a ledger"
    if ledger is not stored.ledger:
        saving = asyncio.ensure_future(self._ledgers.save(state.quota, stored, ledger))
        saving.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        state.stored = None


async def a_write_that_failed_is_believed(self: Quotas, state: QuotaState, ledger: MasterLedger) -> None:
    stored = state.stored
    try:
        await _persist(self, state, ledger)
    except ApiError:
        state.known, state.stored = None, stored
        raise


def master_writes_blindly(self: servers.Master, uid: str, ledger: MasterLedger, version: int | None) -> int:
    present = self.ledgers.get(uid)
    return _save_ledger(self, uid, ledger, present[1] if present else None)


_persist = Quotas._persist
_count = accounts.count
_lend = QuotaClaim._lend
_really_reopen = fencing.reopen
_belongs = SourceRemoval._belongs
_may_count = Accounts.may_count
_quota_changed = QuotaCache._quota_changed
_count_loans = surge_loans.count
_refuses = CapacityRequester.refuses
_exceeded = denial.exceeded
_load = AccountWriter._load
_demands = planner._demands
_hold_back = accounts.hold_back
_claim = Reserving.claim
_apply = MachineTotals.apply
_next_step = plan.next_step
_obey = accounts.apply_grant
_commit = AccountWriter._commit
_save = servers.Seed.save
_save_ledger = servers.Master.save
_counted = Accounts.counted
_opening = plan._opening
_claimed = plan.claimed
_join = Lease._join
_look = Lease._look
_allot = fair_share.allot
_decide = planner.decide
_take_up = planner._take_up
_absorb = escrow.absorb
_check_shown = escrow.check_shown
_learn = escrow._learn

ALL: tuple[Mutant, ...] = (
    Mutant("answer before the write", ((AccountWriter, "_commit", answer_before_the_write),)),
    Mutant("an unknown outcome is a yes", ((AccountWriter, "_commit", an_unknown_outcome_is_a_yes),), ("loss",)),
    Mutant(
        "release by age alone",
        ((UsageSource, "generation", never_there),),
        budget=200,
        scene=scenes.what_is_admitted_is_not_seen,
    ),
    Mutant(
        "release without the in-flight window",
        (
            (
                reservation_gc,
                "overdue",
                lambda known, _window, _now, _proven: [(key, seen) for key, (seen, _) in known.items()],
            ),
        ),
        ("slow", "fast"),
    ),
    Mutant("no epoch check", ((accounts, "check_epoch", lambda *_a: None),), ("sluggish", "deletes")),
    Mutant("blind write, no compare-and-set", ((servers.Seed, "save", blind_write),)),
    Mutant(
        "lists from before the epoch", ((Accounts, "may_count", lists_from_before),), ("sluggish", "lag", "deletes")
    ),
    Mutant(
        "adopt a lower counter",
        ((accounts, "receive", adopt_a_lower_counter),),
        ("two_seeds",),
        200,
        scenes.an_older_grant,
    ),
    Mutant(
        "receive from another life",
        ((accounts, "apply_grant", obey_any_life),),
        budget=200,
        scene=scenes.another_life_of_the_master,
    ),
    Mutant(
        "a grant lifts the fence",
        ((accounts, "apply_grant", obey_while_fenced),),
        ("restore_seed", "cold"),
    ),
    Mutant("return what is used", ((accounts, "give_back", return_what_is_used),)),
    Mutant("return what is reserved", ((accounts, "give_back", return_what_is_reserved),)),
    Mutant("never give back", ((accounts, "apply_grant", never_give_back),)),
    Mutant("a count drops what it has not seen", ((accounts, "count", drop_all_of_a_source),)),
    Mutant(
        "a count drops an update it has not seen",
        ((accounts, "count", drop_before_the_update_is_seen),),
        ("updates", "slow", "lag"),
    ),
    Mutant("what was seen and deleted is not dropped", ((accounts, "count", forget_what_was_deleted),), ("nothing",)),
    Mutant(
        "an update is charged as the larger",
        ((reservations, "on_top", an_update_rides_on_the_creation),),
        ("updates",),
    ),
    Mutant(
        "a repeat takes the place",
        ((reservations, "on_top", a_repeat_takes_the_place),),
        ("nothing",),
        200,
        scenes.updates_before_the_count,
    ),
    Mutant(
        "a repeat does not begin the window anew",
        ((reservation_gc, "watched", age_of_the_first_claim),),
        budget=200,
        scene=scenes.an_update_tried_again,
    ),
    Mutant(
        "a reservation is known by its value",
        ((reservation_gc, "watched", known_by_its_value),),
        budget=200,
        scene=scenes.an_update_repeated_when_its_evidence_falls_due,
    ),
    Mutant(
        "reservations are keyed by uid alone",
        ((Reserving, "claim", keyed_by_uid_alone),),
        budget=200,
        scene=scenes.two_clusters_from_one_snapshot,
    ),
    Mutant(
        "a claim that was given up is withdrawn whoever relies on it",
        ((reservations, "withdraw", withdrawn_whoever_relies_on_it),),
        ("repeats", "loss"),
    ),
    Mutant(
        "what was deleted is so for ever",
        ((MachineTotals, "apply", deleted_for_ever),),
        budget=200,
        scene=scenes.a_user_cluster_restored,
    ),
    Mutant(
        "what was known before a restore is so still",
        ((UsageSource, "live", property(lambda _self: True)),),
        budget=200,
        scene=scenes.a_user_cluster_restored,
    ),
    Mutant(
        "one source fills what all share",
        ((shares, "may_take", as_long_as_there_is_room),),
        ("nothing",),
        budget=200,
        scene=scenes.a_cluster_that_fills_its_share,
    ),
    Mutant(
        "one source fills the line",
        ((Batcher, "over_share", lambda *_a: None),),
        ("nothing",),
        budget=200,
        scene=scenes.a_cluster_that_fills_its_share,
    ),
    Mutant(
        "what is held back is so for ever",
        ((accounts, "hold_back", held_back_for_ever),),
        budget=200,
        scene=scenes.what_another_webhook_refuses,
    ),
    Mutant(
        "a rebuilt account keeps its counters",
        ((fencing, "rebuild", a_rebuilt_account_keeps_its_counters),),
        ("nothing",),
        200,
        scenes.an_older_ledger_under_the_leader,
    ),
    Mutant(
        "a rebuilt account is not fenced",
        ((fencing, "rebuild", a_rebuilt_account_is_not_fenced),),
        ("nothing",),
        200,
        scenes.an_older_ledger_under_the_leader,
    ),
    Mutant("the limit is all there is", ((accounts, "free", admit_beyond_what_is_held),)),
    Mutant(
        "reopen without the nonce",
        ((fencing, "answers", reopen_without_the_nonce), (fencing, "reopen", _reopen)),
        ("restore_seed", "late"),
    ),
    Mutant(
        "reopen without a recount",
        ((plan, "_opening", open_without_a_list),),
        ("nothing",),
        200,
        scenes.a_lost_ledger,
    ),
    Mutant("open at once", ((plan, "_opening", open_at_once),), ("nothing",), 200, scenes.a_lost_ledger),
    Mutant(
        "open a lost ledger without the window",
        ((plan, "_opening", open_without_the_window),),
        ("nothing",),
        200,
        scenes.a_lost_ledger,
    ),
    Mutant(
        "the window begins before the account was fenced",
        ((plan, "next_step", window_from_before_the_fence),),
        ("nothing",),
        200,
        scenes.a_lost_ledger,
    ),
    Mutant(
        "a ledger in doubt opens without the window",
        ((plan, "_opening", doubt_is_nothing),),
        (),
        400,
        scenes.a_restore_that_nobody_remembers,
    ),
    Mutant(
        "a cold start puts nothing in doubt",
        ((plan, "claimed", claimed_without_doubt),),
        (),
        400,
        scenes.a_restore_that_nobody_remembers,
    ),
    Mutant(
        "what the master saw last proves a ledger whole",
        ((plan, "_opening", a_break_is_nothing),),
        (),
        400,
        scenes.a_restore_to_what_the_master_saw_last,
    ),
    Mutant(
        "the life before goes on",
        ((fencing, "is_superseded", lambda *_a: False),),
        ("two_seeds",),
        200,
        scenes.a_restore_of_the_life_before,
    ),
    Mutant(
        "a ledger that went back is believed",
        ((AccountWriter, "_sound", lambda _self, account: account), (fencing, "went_back", lambda *_a: False)),
        ("restore_seed",),
    ),
    Mutant(
        "a cold replica admits",
        ((AccountWriter, "_trusts", lambda *_a: True),),
        budget=200,
        scene=scenes.a_cold_start_from_a_backup,
    ),
    Mutant(
        "what a restore has undone stays answered",
        ((fencing, "reopen", reopen_with_the_asks_of_the_backup),),
        ("nothing", "two_seeds"),
        200,
        scenes.a_backup_from_before_many_asks,
    ),
    Mutant(
        "a cold leader does not fence",
        ((plan, "claimed", lambda account, term, **_k: accounts.claim_epoch(account, term)),),
        budget=200,
        scene=scenes.a_cold_start_from_a_backup,
    ),
    Mutant(
        "what the first leader did not claim was claimed",
        ((plan, "claimed", claimed_whoever_led_first),),
        budget=200,
        scene=scenes.a_first_leader_who_claims_nothing,
    ),
    Mutant(
        "a loan is counted where there is no room", ((surge_loans, "count", a_loan_is_counted_at_once),), ("rollouts",)
    ),
    Mutant("a loan never ends", ((surge_loans, "count", a_loan_never_ends),), ("rollouts",)),
    Mutant("a loan waits for its own place", ((surge_loans, "count", a_loan_waits_for_its_own_place),), ("rollouts",)),
    Mutant(
        "the place that a rollout leaves is nobody's",
        (
            (surge_loans, "_kept_in_quota", lambda account, _key: account),
            (surge_loans, "_kept_beside", lambda account, *_a: account),  # it would keep the same place
        ),
        ("rollouts",),
        200,
        scenes.a_rollout_whose_older_goes_first,
    ),
    Mutant(
        "what was lent is not confirmed",
        ((QuotaClaim, "_confirm", lent_unconfirmed),),
        ("nothing", "rollouts"),
        200,
        scenes.a_rollout_whose_older_goes_while_it_waits,
    ),
    Mutant(
        "what an older Machine gives up is not kept for the newer one",
        ((surge_loans, "_kept_beside", lambda account, *_a: account),),
        ("nothing", "rollouts"),
        400,
        scenes.an_older_one_that_shrinks,
    ),
    Mutant(
        "a surge that was withdrawn is lent",
        ((surge, "withdrawn", lambda *_a: {}),),
        ("rollouts",),
        400,
        scenes.a_surge_withdrawn,
    ),
    Mutant("what replaces nothing is lent to", ((QuotaClaim, "_lend", in_place_of_nothing),), ("rollouts",)),
    Mutant("two replace the same one", ((reservations, "_is_taken", lambda *_a: False),), ("rollouts",)),
    Mutant(
        "what was lent before a loss is use like any other",
        ((surge, "occupied", lambda _use, _held: {}),),
        ("rollouts",),
        200,
        scenes.ledgers_lost_in_a_rollout,
    ),
    Mutant(
        "surge is lent beside what was lent before a loss",
        ((accounts, "occupied", lambda _account: {}),),
        ("rollouts",),
        400,
        scenes.ledgers_lost_in_a_rollout,
    ),
    Mutant(
        "what stands on surge is covered past the limit",
        ((fair_share, "cover", cover_what_stands_on_surge),),
        ("rollouts",),
        200,
        scenes.ledgers_lost_in_a_rollout,
    ),
    Mutant(
        "what stands on surge is not covered within the limit",
        ((fair_share, "cover_on_surge", lambda _table: None),),
        ("rollouts", "two_seeds"),
        400,
        scenes.ledgers_lost_in_a_rollout,
    ),
    Mutant(
        "surge that is occupied is given back",
        ((accounts, "give_back", surge_that_is_occupied_is_given_back),),
        ("rollouts", "two_seeds"),
        400,
        scenes.ledgers_lost_in_a_rollout,
    ),
    Mutant(
        "a stale source counts as zero",
        ((Accounts, "counted", stale_is_zero),),
        budget=200,
        scene=scenes.a_source_that_goes_away,
    ),
    Mutant(
        "a deleted source is dropped early",
        ((SourceRemoval, "forget", drop_early),),
        budget=200,
        scene=scenes.a_cluster_that_the_leader_does_not_know,
    ),
    Mutant("two quotas without cancel", ((Admission, "_cancel", no_cancel),), ("nothing", "two_quotas")),
    Mutant("an answer refuses for ever", ((capacity, "FRESH", 1e9),)),
    Mutant(
        "what was deleted here still refuses",
        ((CapacityRequester, "refuses", whatever_was_deleted_here),),
        ("deletes",),
        200,
        scenes.room_at_home_after_an_answer,
    ),
    Mutant("what others hold is refused", ((CapacityRequester, "wait", what_is_free_here_alone),)),
    Mutant("a refusal does not add up", ((denial, "exceeded", a_refusal_without_the_other_seeds),)),
    Mutant("a refusal says more than was asked for", ((denial, "exceeded", a_refusal_of_more),)),
    Mutant("what is held is shown as used", ((planner, "_demands", all_that_is_held_is_used),), ("two_seeds",)),
    Mutant(
        "a lowered limit is obeyed when recalled",
        ((accounts, "free", obey_the_limit_when_told_to),),
        budget=200,
        scene=scenes.a_lowered_limit_heard_alone,
    ),
    Mutant(
        "an unknown outcome is read, not taken",
        ((AccountWriter, "_load", read_what_may_still_change),),
        budget=200,
        scene=scenes.a_count_that_arrives_late,
    ),
    Mutant(
        "a missing Project is of no organization",
        ((SourceRemoval, "_belongs", of_no_organization), (AccountRegistry, "_missed", lambda *_a: [])),
        ("two_quotas",),
        200,
        scenes.a_project_that_vanishes,
    ),
    Mutant(
        "a source that joins is counted by the list that there is",
        ((Accounts, "may_count", whatever_was_listed),),
        ("two_quotas", "projects"),
    ),
    Mutant(
        "what a project has when it joins an organization is not counted",
        ((QuotaCache, "_project_changed", lambda *_a: None),),
        ("two_quotas", "projects"),
    ),
    Mutant(
        "a project that is not known is limited by its own quota",
        ((QuotaCache, "may_belong", lambda *_a: False),),
        ("two_quotas",),
        200,
        scenes.a_project_that_vanishes,
    ),
    Mutant(
        "a copy that is deleted limits no more",
        ((QuotaCache, "_quota_changed", whoever_deleted_it),),
        budget=200,
        scene=scenes.a_copy_that_somebody_deletes,
    ),
    Mutant("nobody asks the master", ((CapacityRequester, "wait", never_asks),)),
    Mutant(
        "grant while learning",
        ((planner, "allot", grant_while_learning),),
        ("nothing", "two_seeds"),
        200,
        scenes.a_seed_away_while_the_master_is_restored,
    ),
    Mutant("grant what is not used", ((quota_controller, "decide", grant_what_is_not_used),)),
    Mutant(
        "a cold master grants",
        ((quota_controller, "decide", warm_from_the_start),),
        ("nothing", "two_seeds"),
        200,
        scenes.a_seed_away_while_the_master_is_restored,
    ),
    Mutant(
        "absorb what another life returned",
        ((escrow, "absorb", absorb_from_any_life),),
        ("two_seeds",),
        200,
        scenes.a_report_of_the_life_before,
    ),
    Mutant(
        "learn from a fence",
        ((escrow, "_learn", learn_from_a_fence),),
        ("two_seeds",),
        300,
        scenes.an_answer_of_the_life_before,
    ),
    Mutant(
        "past the limit, what is idle is recalled",
        ((planner, "_recalls", recall_what_is_idle),),
        ("nothing", "two_seeds"),
        200,
        scenes.a_limit_lowered,
    ),
    Mutant(
        "what is recalled is admitted again",
        ((decision, "accounts", SimpleNamespace(**{**vars(accounts), "apply_grant": accounts.receive})),),
        ("nothing", "two_seeds"),
        200,
        scenes.a_limit_lowered,
    ),
    Mutant(
        "what is reserved is covered",
        ((fair_share, "cover", cover_what_is_reserved),),
        ("nothing",),
        200,
        scenes.updates_before_the_count,
    ),
    Mutant(
        "a standby leads by what it had",
        ((MasterReplica, "refresh", lambda _self: None), (MasterReplica, "confirm", lambda *_a: True)),
        ("two_seeds",),
        200,
        scenes.a_standby_that_saw_nothing,
    ),
    Mutant("what nobody admitted is not covered", ((fair_share, "cover", lambda _table: None),), ("slip",)),
    Mutant(
        "a late report covers",
        ((escrow, "is_late", lambda *_a: False),),
        ("two_seeds",),
        200,
        scenes.a_late_report,
    ),
    Mutant("what is silent is freed", ((planner, "_take_up", free_what_is_silent),), ("cut",)),
    Mutant("what is withdrawn is freed at once", ((planner, "_take_up", free_what_is_withdrawn),), ("parts",)),
    Mutant(
        "a master's ledger that went back is believed",
        ((escrow, "check_shown", never_went_back), (escrow, "absorb", absorb_blindly)),
        ("nothing", "two_seeds"),
        200,
        scenes.a_restored_master,
    ),
    Mutant(
        "what another life of the ledger has shown is nothing",
        ((escrow, "check_shown", what_another_life_showed_is_nothing),),
        ("nothing", "two_seeds"),
        400,
        scenes.a_ledger_of_an_earlier_life,
    ),
    Mutant(
        "a lease that went back is trusted",
        ((Lease, "_look", a_record_that_went_back_is_trusted),),
        (),
        400,
        scenes.a_restore_that_nobody_remembers,
    ),
    Mutant(
        "the doubts of a master end with him",
        ((Lease, "_join", settled_by_sight),),
        ("two_seeds",),
        200,
        scenes.a_first_master_who_hears_nothing,
    ),
    Mutant("show before it is persisted", ((Quotas, "_persist", show_before_it_is_persisted),), ("master",)),
    Mutant(
        "a master's write that failed is taken as not done",
        ((Quotas, "_persist", a_write_that_failed_is_believed),),
        ("loss", "late"),
    ),
    Mutant(
        "the master writes blindly",
        ((servers.Master, "save", master_writes_blindly),),
        ("two_seeds",),
        200,
        scenes.two_masters,
    ),
    *namespace_mutants.ALL,
    *tenancy_mutants.ALL,
    *members_mutants.ALL,
    *promise_mutants.ALL,
    *allocation_mutants.ALL,
    *block_mutants.ALL,
    *guarantee_mutants.ALL,
)
BY_NAME: dict[str, Mutant] = {mutant.name: mutant for mutant in ALL}
