"""One admission request, from the object to the verdict (docs/protocol.md section 4), whichever API it came from.

Numbered as the rules are: the footprint, every quota that applies, a reservation in each of their accounts, all or
none, and only then an answer. Whatever cannot be decided in time is 503, never a guess.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from common.kube.client.errors import ApiError, Forbidden
from common.quota import reservations, resources, surge
from common.quota.account import (
    Account,
    Admitted,
    Fenced,
    Full,
    HeldBack,
    Occupied,
    OverShare,
    ReplacementConflict,
    Short,
)
from common.quota.resources import ResourceList
from seed.accounts.capacity import Answer
from seed.accounts.registry import AccountHandle, AccountRegistry
from seed.accounts.reservation_gc import MOST_UNSEEN
from seed.admission import denial
from seed.admission.refusal import Refusal
from seed.admission.types import Attempt, Confirm, Replaceable, Request, Verdict, decision_id, refused
from seed.cache.quotas import QuotaCache
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.store import NoAccountError, StoreUnavailableError
from seed.ledger.writer import BusyError
from seed.model.quota import Quota

log = logging.getLogger(__name__)

PAUSE = 0.05  # seconds before asking again when an answer brought nothing
NotNow = Fenced | Full | OverShare | HeldBack | ReplacementConflict
MAX_PLACES = 16  # that a rollout's Machine is tried in before it is refused


class Admission:
    def __init__(
        self, quota_cache: QuotaCache, registry: AccountRegistry, stale: Callable[[], str | None] = lambda: None
    ) -> None:
        """`stale`: why this replica may not know what limits whom (seed/cache/replicas.py)."""
        self._quota_cache = quota_cache
        self._registry = registry
        self._stale = stale

    def undecided(self, request: Request | None = None, of: str = "of the project") -> Verdict | None:
        """What everybody is told while this replica must not admit anything."""
        if self._quota_cache.lost:
            return refused(denial.lost(), request)
        why = self._stale()
        return refused(denial.unavailable(of, why), request) if why is not None else None

    async def decide(
        self,
        request: Request,
        replaceable: Replaceable | None = None,
        quotas: Sequence[Quota] | None = None,
        confirm: Confirm | None = None,
    ) -> Verdict:
        """`quotas`: those that it is asked of, where they are not all of its consumer's. They are known then."""
        undecided = self.undecided(request, "of the project" if request.shares is None else "of the namespace")
        if undecided is not None:
            return undecided
        if quotas is None:
            if self._quota_cache.may_belong(request.consumer):
                why = denial.limits_missing(request.consumer.project)
                return refused(denial.unavailable("of the project", why), request)
            quotas = self._quota_cache.quotas_of(request.consumer)
        decision = decision_id()
        if not quotas:
            return Verdict(decision=decision, request=request)
        quotas = [self._latest(quota) for quota in quotas]
        for quota in quotas:
            attempt = self._never_fits(quota, request) if not request.asks_fits else None
            if attempt is not None:
                # Nothing is reserved in the others meanwhile, where it would keep out what fits.
                return Verdict(decision=decision, refusal=attempt.refusal, request=request, attempts=[attempt])
        asks_first = len(quotas) > 1 and not request.asks_fits
        full = [quota for quota in quotas if asks_first and self._seems_full(quota, request)]
        quotas = [*full, *(quota for quota in quotas if quota not in full)]
        attempts: list[Attempt] = []
        for quota in full:
            attempts.append(await self._reserve(quota, request, decision, replaceable))
            if attempts[-1].refusal is not None:
                quotas = quotas[: len(attempts)]
                break
        rest = quotas[len(attempts) :]
        if len(rest) == 1:
            attempts.append(await self._reserve(rest[0], request, decision, replaceable))
        else:
            asked = (self._reserve(quota, request, decision, replaceable) for quota in rest)
            attempts.extend(await asyncio.gather(*asked))
        refusals = [attempt.refusal for attempt in attempts if attempt.refusal is not None]
        if not refusals and confirm is not None and not request.dry_run and (why := await confirm()):
            refusals = [denial.unavailable("of the namespace", why)]
        waited = any(attempt.waited for attempt in attempts)
        if refusals:
            await self._cancel(request, quotas, attempts)
            # A final refusal says more than one that is worth a retry.
            refusal = min(refusals, key=lambda refusal: refusal.code == 503)
            return Verdict(decision=decision, refusal=refusal, waited=waited, request=request, attempts=attempts)
        warnings = [warning for attempt in attempts for warning in attempt.warnings]
        return Verdict(decision=decision, warnings=warnings, waited=waited, request=request, attempts=attempts)

    def _never_fits(self, quota: Quota, request: Request) -> Attempt | None:
        """A refusal for which nothing has to be reserved."""
        if not quota.enforced:
            return None
        shares = request.shares
        need = request.need if shares is None else shares[quota.name].amount
        if resources.short(need, quota.limits):
            seen = self._registry.snapshot(quota)
            refusal = self._exceeded(quota, need, seen.used, quota.limits, quota.global_reserved)
            return Attempt(snapshot=seen, refusal=refusal)
        return None

    def _seems_full(self, quota: Quota, request: Request) -> bool:
        """By what is known here. Where quotas of namespaces overlap, such a quota is asked before the others, in which
        nothing is reserved then: many clients that go on asking for one full quota would keep the others full. It may
        have room by now, and nobody is refused from memory."""
        if not quota.enforced or request.shares is None:
            return False
        handle = self._registry.get(quota)
        if handle is None:
            return False
        return self._hopeless(handle, quota, request.shares[quota.name].amount) is not None

    async def _cancel(self, request: Request, quotas: Sequence[Quota], attempts: Sequence[Attempt]) -> None:
        """Rule 4.2: one that denies releases what the others reserved. What fails here goes on evidence later."""
        undone: dict[asyncio.Future[None], Quota] = {}
        for quota, attempt in zip(quotas, attempts, strict=True):
            handle = self._registry.get(quota)
            if attempt.admitted is not None and handle is not None:
                undone[handle.writer.change(_cancelling(request.uid, attempt.admitted))] = quota
        if not undone:
            return
        left = request.deadline - asyncio.get_running_loop().time()
        done, late = await asyncio.wait(undone, timeout=max(left, 0))
        for future in late:
            future.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        for future in done:
            error = future.exception()
            if error is not None:
                facts = {"quota": undone[future].name, "cluster": request.reservation.source, "error": str(error)}
                log.info("reservation left to evidence", extra=facts)

    async def _reserve(self, quota: Quota, request: Request, decision: str, replaceable: Replaceable | None) -> Attempt:
        request = request.of(quota.name)
        handle = self._registry.get(quota)
        if handle is None:
            why = "this seed has not opened its account yet"
            return Attempt(snapshot=self._registry.snapshot(quota), refusal=denial.not_open(quota, why))
        try:
            attempt = await self._claim(handle, quota, request, decision)
            refusal = attempt.refusal if quota.enforced and quota.surge else None
            if refusal is not None and refusal.code == 403 and replaceable is not None:
                attempt = await self._lend(handle, quota, request, decision, attempt, replaceable)
        except (BusyError, NoAccountError) as error:
            refusal = denial.not_open(quota, str(error))
            attempt = Attempt(snapshot=handle.snapshot(quota), refusal=refusal)
        except Forbidden as error:
            facts = {"quota": quota.name, "cluster": request.reservation.source, "error": str(error)}
            log.warning("rollouts cannot be read", extra=facts)
        except ApiError as error:
            why = f"whether the machine is of a rollout cannot be read: {error}"
            attempt = Attempt(snapshot=handle.snapshot(quota), refusal=denial.unavailable(quota.name, why))
        except (TimeoutError, StoreUnavailableError, MalformedLedgerError):
            refusal = denial.unavailable(quota.name, "the ledger does not answer")
            attempt = Attempt(snapshot=handle.snapshot(quota), refusal=refusal)
        if attempt.refusal is None or quota.enforced:
            return attempt
        return self._warned(handle, quota, request.need)

    async def _lend(
        self,
        handle: AccountHandle,
        quota: Quota,
        request: Request,
        decision: str,
        refused: Attempt,
        replaceable: Replaceable,
    ) -> Attempt:
        """What a rollout makes at a full quota is admitted on surge, in place of one that will go: see
        common/quota/surge_loans.py."""
        need = surge.lent(request.need, quota.surge)
        older = await replaceable(False)
        for replaced in older[:MAX_PLACES]:
            reservation = msgspec.structs.replace(request.reservation, amount=need, replaces=replaced)
            lent = msgspec.structs.replace(request, need=need, reservation=reservation)
            attempt = await self._claim(handle, quota, lent, decision)
            if attempt.refusal is None:
                return await self._confirm(handle, quota, request.uid, attempt, replaceable)
            if attempt.refusal.code != 409:
                break
        else:
            return refused
        assert refused.refusal is not None, "it is lent to who was refused"
        return msgspec.structs.replace(attempt, refusal=denial.beyond_surge(refused.refusal, attempt.refusal))

    async def _confirm(
        self,
        handle: AccountHandle,
        quota: Quota,
        uid: str,
        lent: Attempt,
        replaceable: Replaceable,
    ) -> Attempt:
        """Rule 4.9: a loan has the place of its older Machine only if no count before it saw that one gone, and it may
        have waited long for the surge. An older one that is there after the loan was written was there before."""
        admitted = lent.admitted
        if admitted is None:
            return lent
        there: Sequence[str] = ()
        try:
            there = await replaceable(True)
        finally:
            if admitted.after.replaces not in there:
                undone = handle.writer.change(_cancelling(uid, admitted))
                undone.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        if admitted.after.replaces in there:
            return lent
        why = "the machine that this one replaces is gone already, or their rollout has changed"
        refusal = denial.unavailable(quota.name, why)
        return Attempt(snapshot=handle.snapshot(quota), refusal=refusal, waited=lent.waited)

    async def _claim(self, handle: AccountHandle, quota: Quota, request: Request, decision: str) -> Attempt:
        clock = asyncio.get_running_loop().time
        answer: Answer | None = None
        reservation = msgspec.structs.replace(request.reservation, request=decision)
        while True:
            waited = answer is not None
            if request.dry_run:
                outcome = handle.writer.preview(request.uid, reservation)
            else:
                outcome = await handle.writer.claim(request.uid, reservation, request.deadline)
            match outcome:
                case Admitted():
                    admitted = None if request.dry_run else outcome
                    near = self._near(handle, quota, request)
                    return Attempt(snapshot=handle.snapshot(quota), warnings=near, admitted=admitted, waited=waited)
                case Fenced() | Full() | OverShare() | HeldBack() | ReplacementConflict():
                    refusal = _not_now(outcome, self._latest(quota))
                    return Attempt(snapshot=handle.snapshot(quota), refusal=refusal, waited=waited)
                case Occupied(amounts=amounts):
                    refusal = denial.occupied(quota.name, amounts)
                    return Attempt(snapshot=handle.snapshot(quota), refusal=refusal, waited=waited)
                case Short():
                    pass
            quota = self._latest(quota)
            hopeless = self._hopeless(handle, quota, request.need)
            if hopeless is not None:
                return Attempt(snapshot=handle.snapshot(quota), refusal=hopeless, waited=waited)
            if request.dry_run:
                return self._foreseen(handle, quota, request.need)
            left = request.deadline - clock()
            if left <= 0 or not quota.enforced or (answer is not None and answer.final):
                return self._too_late(handle, quota, answer)
            if answer is not None:
                await asyncio.sleep(min(PAUSE, left))
            try:
                answer = await handle.requester.wait(request.need, request.deadline - clock())
            except TimeoutError:
                return self._too_late(handle, quota, None)

    def _latest(self, quota: Quota) -> Quota:
        """As it is by now: while a request waited for a read or a write, its limits may have changed. Another quota of
        the same name is not it."""
        known = self._quota_cache.quota(quota.name)
        return known if known is not None and known.key == quota.key else quota

    def _hopeless(self, handle: AccountHandle, quota: Quota, need: ResourceList) -> Refusal | None:
        """A refusal that is certain by now: by the master's fresh answer, or by our own use alone."""
        own = handle.use
        answer = handle.requester.refuses(need)
        if answer is not None:
            used = resources.maximum(answer.used, own)
            return self._exceeded(quota, need, used, quota.ceilings, answer.reserved)
        if resources.over_limit(need, own, quota.ceilings):
            used = resources.maximum(quota.global_usage, own)
            return self._exceeded(quota, need, used, quota.ceilings, quota.global_reserved)
        return None

    def _exceeded(
        self,
        quota: Quota,
        need: ResourceList,
        used: ResourceList,
        limits: ResourceList,
        reserved: ResourceList,
    ) -> Refusal:
        objects = "machines"
        if quota.kind == "namespaces":
            objects = "ResourceQuotas" if quota.promises else "objects"
        elif need.keys() <= self._quota_cache.catalogue.allocated:
            objects = "allocations"
        return denial.exceeded(quota.name, need, used, limits, reserved, objects=objects)

    def _foreseen(self, handle: AccountHandle, quota: Quota, need: ResourceList) -> Attempt:
        """A dry run asks nobody: what the master showed last decides whether what others hold idle would do."""
        used = resources.maximum(quota.global_usage, handle.use)
        if resources.over_limit(need, used, quota.ceilings):
            refusal = self._exceeded(quota, need, used, quota.ceilings, quota.global_reserved)
            return Attempt(snapshot=handle.snapshot(quota), refusal=refusal)
        return Attempt(snapshot=handle.snapshot(quota))

    def _too_late(self, handle: AccountHandle, quota: Quota, answer: Answer | None) -> Attempt:
        quota = self._latest(quota)
        if quota.out_of_reach:
            why = ", ".join(
                f"{resources.text(held.idle)} is free but held by seed {held.seed}, "
                f"unreachable for {denial.age(held.seconds)}"
                for held in quota.out_of_reach
            )
        elif quota.draining and answer is not None:
            why = "this seed is draining and gets no more capacity"
        elif quota.learning:
            why = "the master is learning what each seed holds"
        else:
            why = "the master did not answer in time"
        return Attempt(snapshot=handle.snapshot(quota), refusal=denial.unavailable(quota.name, why), waited=True)

    def _near(self, handle: AccountHandle, quota: Quota, request: Request) -> Sequence[str]:
        after: dict[str, int] = {}
        near = False
        usage, use = quota.global_usage, handle.use
        for name, need in request.need.items():
            limit = quota.limits.get(name)
            if limit is None or need <= 0:
                continue
            known, own = usage.get(name, 0), use.get(name, 0)
            # What the master knew did not include this one; what was admitted never exceeds the limit.
            elsewhere = known + need
            if elsewhere > limit:
                elsewhere = max(limit, known)
            if request.dry_run:
                own += need
            amount = after[name] = elsewhere if elsewhere > own else own
            if amount * 100 >= limit * quota.warn_at_percent:
                near = True
        if not near:
            return ()
        warning = denial.near_limit(quota.name, after, resources.only(quota.limits, after), quota.warn_at_percent)
        return () if warning is None else (warning,)

    def _warned(self, handle: AccountHandle, quota: Quota, need: ResourceList) -> Attempt:
        """Enforcement `warn`: admitted without a reservation; counting will show it (rule 5)."""
        used = resources.maximum(quota.global_usage, handle.use)
        over = resources.over_limit(need, used, quota.limits)
        if not over:
            return Attempt(snapshot=handle.snapshot(quota))
        after = resources.add(used, resources.only(need, quota.limits))
        warning = denial.over_allowed(quota.name, over, after, quota.limits)
        return Attempt(snapshot=handle.snapshot(quota), warnings=(warning,))


def _not_now(outcome: NotNow, quota: Quota) -> Refusal:
    match outcome:
        case Fenced():
            return denial.not_open(quota, "its account is being rebuilt or waits for the master")
        case Full():
            return denial.unavailable(quota.name, "too many objects are being created at once")
        case OverShare():
            why = "too much is being created in this cluster at once: it has its share, and others go on"
            return denial.unavailable(quota.name, why)
        case HeldBack():
            why = (
                f"{MOST_UNSEEN} that were admitted in this cluster did not appear; another webhook may refuse them;"
                " each is released about a minute after it was admitted"
            )
            return denial.unavailable(quota.name, why)
        case ReplacementConflict():
            return denial.taken(quota.name)


def _cancelling(uid: str, admitted: Admitted) -> Callable[[Account], tuple[Account, None]]:
    return lambda account: (reservations.cancel(account, uid, admitted), None)
