"""One request at one quota: a reservation in its account, or why there is none (protocol.md section 4).

What this replica has reserved ahead is asked first, and decides at once or not at all. All else is decided by a write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from common.kube.client.errors import ApiError, Forbidden
from common.quota import blocks, guarantees, reservations, resources, surge
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
from seed.accounts.capacity import MasterAnswer
from seed.accounts.registry import AccountHandle, AccountRegistry
from seed.accounts.reservation_gc import MOST_UNSEEN
from seed.admission import denial, limits
from seed.admission.refusal import Refusal
from seed.admission.types import Attempt, Replaceable, Request
from seed.cache.quotas import QuotaCache
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.store import NoAccountError, StoreUnavailableError
from seed.ledger.writer import BusyError
from seed.model.quota import Quota

log = logging.getLogger(__name__)

PAUSE = 0.05  # seconds before asking again when an answer brought nothing
RETURNS = 4  # pauses in which blocks of other replicas come back, before the master is asked
MAX_PLACES = 16  # that a rollout's Machine is tried in before it is refused

NotNow = Fenced | Full | OverShare | HeldBack | ReplacementConflict | Occupied  # and more capacity does not help


class QuotaClaim:
    """In this order: whether there is any hope; `take` if each quota's `has_block`, else `make`, and `undo` where
    another quota refuses."""

    def __init__(
        self,
        quota_cache: QuotaCache,
        registry: AccountRegistry,
        quota: Quota,
        request: Request,
        decision: str,
        replaceable: Replaceable | None,
    ) -> None:
        """`request`: what is asked of this quota."""
        self._quota_cache = quota_cache
        self._registry = registry
        self.quota = quota
        self._request = request
        self._reservation = msgspec.structs.replace(request.reservation, request=decision)
        self._replaceable = replaceable

    def never_fits(self) -> Attempt | None:
        """Refused before anything is reserved."""
        quota, request = self.quota, self._request
        if not limits.never_fits(quota, request):
            return None
        seen = self._registry.snapshot(quota)
        refusal = limits.exceeded(quota, request, seen.used, quota.limits, quota.global_reserved)
        return Attempt(snapshot=seen, refusal=refusal)

    def seems_short(self) -> bool:
        """It cannot give it now, by what is known here, if others get what they ask for: it refuses, or the master has
        to be asked. It may have room by now, and nobody is refused from memory."""
        handle, quota, request = self._registry.get(self.quota), self.quota, self._request
        if not quota.enforced:
            return False
        if handle is None or not (seen := handle.snapshot(quota)).open:
            return True
        left = {name: free - handle.asked.get(name, 0) for name, free in seen.free.items()}
        return bool(resources.short(request.need, left)) or _hopeless(handle, quota, request) is not None

    def seen(self) -> Attempt:
        """Where another quota has refused: it has room, as far as is known here, and was not asked."""
        return Attempt(snapshot=self._registry.snapshot(self.quota))

    def has_block(self) -> bool:
        """What is needed was reserved ahead here. So it is until the event loop goes on."""
        handle = self._registry.get(self.quota)
        if handle is None or self._is_uncounted(handle):
            return False
        return handle.writer.may_admit(self._request.uid, self._reservation)

    def take(self) -> Attempt:
        """From the block: its next write names the reservation."""
        handle = self._registry.get(self.quota)
        assert handle is not None, "has_block has said so"
        admitted = handle.writer.admit(self._request.uid, self._reservation)
        seen = handle.snapshot(self.quota)
        seen = msgspec.structs.replace(seen, use=resources.add(seen.use, handle.writer.block.unnamed))
        warnings = limits.little_left(seen, self._request)
        return Attempt(snapshot=seen, warnings=warnings, admitted=admitted, ahead=True)

    def begin(self) -> asyncio.Task[Attempt]:
        """`make`, of one of several quotas. What is asked for is known from now on (`seems_short`)."""
        task = asyncio.create_task(self.make())
        if (handle := self._registry.get(self.quota)) is not None:
            need = self._request.need
            handle.asked = resources.add(handle.asked, need)

            def ended(_: asyncio.Task[Attempt]) -> None:
                left = resources.subtract(handle.asked, need)
                handle.asked = {name: amount for name, amount in left.items() if amount}

            task.add_done_callback(ended)
        return task

    async def make(self) -> Attempt:
        quota, handle = self.quota, self._registry.get(self.quota)
        if handle is None:
            why = "this seed has not opened its account yet"
            return Attempt(snapshot=self._registry.snapshot(quota), refusal=denial.not_open(quota, why))
        refusal: Refusal | None = None
        try:
            attempt = await self._reserve(handle, self._request)
            if quota.enforced and _is_full(attempt) and not self._request.dry_run:
                attempt = await self._once_counted(handle, attempt)
            if quota.enforced and _is_full(attempt) and quota.surge and self._replaceable is not None:
                attempt = await self._lend(handle, attempt, self._replaceable)
        except (BusyError, NoAccountError) as error:
            refusal = denial.not_open(quota, str(error))
        except Forbidden as error:
            facts = {"quota": quota.name, "cluster": self._request.reservation.source, "error": str(error)}
            log.warning("rollouts cannot be read", extra=facts)
        except ApiError as error:
            why = f"whether the machine is of a rollout cannot be read: {error}"
            refusal = denial.cannot_decide(quota, why)
        except (TimeoutError, StoreUnavailableError, MalformedLedgerError):
            refusal = denial.cannot_decide(quota, "the ledger does not answer")
        if refusal is not None:
            attempt = Attempt(snapshot=handle.snapshot(quota), refusal=refusal)
        if attempt.refusal is None or quota.enforced:
            return attempt
        seen = handle.snapshot(quota)
        return Attempt(snapshot=seen, warnings=limits.warned(seen, self._request))

    async def _reserve(self, handle: AccountHandle, request: Request) -> Attempt:
        """In what is held here. If that is too little, the master is asked for more until the deadline."""
        quota, clock = self.quota, asyncio.get_running_loop().time
        reservation = msgspec.structs.replace(request.reservation, request=self._reservation.request)
        answer: MasterAnswer | None = None
        returns = RETURNS
        while True:
            waited = answer is not None
            if request.dry_run:
                outcome = handle.writer.preview(request.uid, reservation)
            else:
                outcome = await handle.writer.claim(request.uid, reservation, request.deadline)
            if isinstance(outcome, Admitted) and self._is_uncounted(handle):
                self._undo(handle, outcome).add_done_callback(ignore)
                refusal = denial.cannot_decide(
                    quota,
                    "what is in this cluster is being counted; if that does not end, the quota's condition UsageCurrent"
                    " says why",
                )
                return Attempt(snapshot=handle.snapshot(quota), refusal=refusal, waited=waited)
            if isinstance(outcome, Admitted):
                seen, admitted = handle.snapshot(quota), None if request.dry_run else outcome
                warnings = limits.little_left(seen, request)
                return Attempt(snapshot=seen, warnings=warnings, admitted=admitted, waited=waited)
            if not isinstance(outcome, Short):
                refusal = _not_now(outcome, self._quota_cache.latest(quota))
                return Attempt(snapshot=handle.snapshot(quota), refusal=refusal, waited=waited)
            quota = self._quota_cache.latest(quota)
            hopeless = _hopeless(handle, quota, request)
            if hopeless is not None:
                return Attempt(snapshot=handle.snapshot(quota), refusal=hopeless, waited=waited)
            if request.dry_run:
                seen = handle.snapshot(quota)
                return Attempt(snapshot=seen, refusal=limits.full_everywhere(seen, request))
            left = request.deadline - clock()
            if left <= 0 or not quota.enforced or (answer is not None and answer.final):
                break
            if returns and _may_return(handle, outcome):
                returns -= 1
                await asyncio.sleep(min(PAUSE, left))
                continue
            if answer is not None:
                await asyncio.sleep(min(PAUSE, left))
            try:
                need = guarantees.asked(request.need, quota.guarantees, request.consumer.project)
                answer = await handle.requester.wait(need, request.deadline - clock())
            except TimeoutError:
                answer = None
                break
        quota = self._quota_cache.latest(quota)
        refusal = limits.out_of_time(quota, answered=answer is not None, unsettled=_unsettled(handle, outcome))
        return Attempt(snapshot=handle.snapshot(quota), refusal=refusal, waited=True)

    async def _once_counted(self, handle: AccountHandle, attempt: Attempt) -> Attempt:
        """An update that would fit without what is reserved for an earlier one of the same object. An API server asks
        again if the object was changed meanwhile: then the earlier one was stored before that, or never will be, and
        the next count tells."""
        request, clock = self._request, asyncio.get_running_loop().time
        while (left := request.deadline - clock()) > 0:
            earlier = self._earlier_update(handle)
            used = resources.subtract(attempt.snapshot.used, earlier)
            if not earlier or resources.over_limit(request.need, used, self.quota.ceilings):
                return attempt
            await asyncio.sleep(min(PAUSE, left))
            if self._earlier_update(handle) != earlier:
                attempt = await self._reserve(handle, request)
                if not _is_full(attempt):
                    return attempt
        if not self._earlier_update(handle):
            return attempt
        refusal = denial.cannot_decide(self.quota, "what was admitted for this object before is being counted")
        return Attempt(snapshot=handle.snapshot(self.quota), refusal=refusal, waited=attempt.waited)

    def _earlier_update(self, handle: AccountHandle) -> ResourceList:
        """What is reserved for it, beside what the object needed before."""
        account, wanted = handle.writer.account, self._request.reservation
        known = account.reservations.get((wanted.source, self._request.uid)) if account is not None else None
        if known is None or not 0 < known.generation < wanted.generation:
            return {}
        return resources.subtract(known.amount, known.earlier)

    def _is_uncounted(self, handle: AccountHandle) -> bool:
        """An open account comes to count namespaces when its quota first names what is in them, or when a cluster takes
        part, and a cluster when that enters the part of the subject that the quota limits: until that is counted, it
        seems that nothing is there."""
        account, request = handle.writer.account, self._request
        may_enter = request.shares is not None or self.quota.clusters is not None
        return may_enter and account is not None and request.reservation.source not in account.used

    async def _lend(self, handle: AccountHandle, refused: Attempt, replaceable: Replaceable) -> Attempt:
        """What a rollout makes at a full quota is admitted on surge, in place of one that will go: see
        common/quota/surge_loans.py."""
        request = self._request
        need = surge.lent(request.need, self.quota.surge)
        older = await replaceable(False)
        for replaced in older[:MAX_PLACES]:
            reservation = msgspec.structs.replace(request.reservation, amount=need, replaces=replaced)
            lent = msgspec.structs.replace(request, need=need, reservation=reservation)
            attempt = await self._reserve(handle, lent)
            if attempt.refusal is None:
                return await self._confirm(handle, attempt, replaceable)
            if attempt.refusal.code != 409:
                break
        else:
            return refused
        assert refused.refusal is not None, "it is lent to who was refused"
        return msgspec.structs.replace(attempt, refusal=denial.beyond_surge(refused.refusal, attempt.refusal))

    async def _confirm(self, handle: AccountHandle, lent: Attempt, replaceable: Replaceable) -> Attempt:
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
                self._undo(handle, admitted).add_done_callback(ignore)
        if admitted.after.replaces in there:
            return lent
        why = "the machine that this one replaces is gone already, or their rollout has changed"
        refusal = denial.cannot_decide(self.quota, why)
        return Attempt(snapshot=handle.snapshot(self.quota), refusal=refusal, waited=lent.waited)

    def undo(self, admitted: Admitted) -> asyncio.Future[None] | None:
        """None where the account is not here any more."""
        handle = self._registry.get(self.quota)
        return self._undo(handle, admitted) if handle is not None else None

    def _undo(self, handle: AccountHandle, admitted: Admitted) -> asyncio.Future[None]:
        def cancelled(account: Account) -> tuple[Account, None]:
            return reservations.cancel(account, self._request.uid, admitted), None

        return handle.writer.change(cancelled)


def _is_full(attempt: Attempt) -> bool:
    return attempt.refusal is not None and attempt.refusal.code == 403


def ignore(ended: asyncio.Future[None]) -> None:
    """Of a change that nobody waits for."""
    if not ended.cancelled():
        ended.exception()


def _unsettled(handle: AccountHandle, short: Short) -> limits.Unsettled | None:
    """Why what is missing may be here all the same."""
    account = handle.writer.account
    if account is None or not _may_return(handle, short):
        return None
    return limits.Unsettled.RESERVED_AHEAD if blocks.owners(account) else limits.Unsettled.NAMED_LATE


def _may_return(handle: AccountHandle, short: Short) -> bool:
    """Whether all that is missing is reserved ahead by other replicas, or may be in the account twice."""
    account = handle.writer.account
    return account is not None and not resources.short(short.missing, _all_of(blocks.unsettled(account), short.missing))


def _all_of(amounts: ResourceList, names: ResourceList) -> ResourceList:
    """With 0 for what is missing: a name that is missing would be unlimited."""
    return {name: amounts.get(name, 0) for name in names}


def _hopeless(handle: AccountHandle, quota: Quota, request: Request) -> Refusal | None:
    """A refusal that is certain by now: by the master's fresh answer, or by our own use alone."""
    project, seen = request.consumer.project, handle.snapshot(quota)
    answer = handle.requester.refuses(request.need, project)
    if answer is None:
        return limits.full_here(seen, request)
    kept = guarantees.kept_from(answer.guarantees, project)
    used = resources.add(resources.maximum(answer.used, seen.use), kept)
    return limits.exceeded(quota, request, used, quota.ceilings, answer.reserved, kept)


def _not_now(outcome: NotNow, quota: Quota) -> Refusal:
    match outcome:
        case Fenced():
            return denial.not_open(quota, "its account is being rebuilt or waits for the master")
        case Full():
            return denial.cannot_decide(quota, "too many objects are being created at once")
        case OverShare(tenant=tenant):
            where = f"of {tenant} in this cluster" if tenant else "in this cluster"
            why = f"too much is being created {where} at once: it has its share, and others go on"
            return denial.cannot_decide(quota, why)
        case HeldBack(tenant=tenant):
            where = f"for {tenant} in this cluster" if tenant else "in this cluster"
            why = (
                f"{MOST_UNSEEN} that were admitted {where} did not appear; another webhook may refuse them;"
                " each is released about a minute after it was admitted"
            )
            return denial.cannot_decide(quota, why)
        case ReplacementConflict():
            return denial.taken(quota.name)
        case Occupied(amounts=amounts):
            return denial.occupied(quota.name, amounts)
