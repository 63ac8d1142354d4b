"""One admission request, from the object to the verdict (protocol.md section 4), whichever API it came from.

Order: every quota that applies, a reservation in each of their accounts, all or none, and only then an answer. Where
this replica has reserved enough ahead in all of them, that is one step, without a write.

Time: whatever cannot be decided in time is 503, never a guess.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from seed.accounts.registry import AccountRegistry
from seed.admission import denial
from seed.admission.quota_claim import QuotaClaim, ignore
from seed.admission.types import Attempt, Confirm, Replaceable, Request, Verdict, decision_id, refused
from seed.cache.quotas import QuotaCache
from seed.model.quota import Quota

log = logging.getLogger(__name__)


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
        claims = [
            QuotaClaim(self._quota_cache, self._registry, quota, request.of(quota.name), decision, replaceable)
            for quota in map(self._quota_cache.latest, quotas)
        ]
        for claim in claims if not request.asks_fits else ():
            if (never := claim.never_fits()) is not None:
                # Nothing is reserved in the others meanwhile, where it would keep out what fits.
                return Verdict(decision=decision, refusal=never.refusal, request=request, attempts=[never])
        if claims and not request.dry_run and confirm is None and all(claim.has_block() for claim in claims):
            taken = [claim.take() for claim in claims]
            warnings = [warning for attempt in taken for warning in attempt.warnings]
            return Verdict(decision=decision, warnings=warnings, request=request, attempts=taken)
        made = await self._make(claims, request)
        attempts = [attempt for _, attempt in made]
        waited = any(attempt.waited for attempt in attempts)
        refusals = [attempt.refusal for attempt in attempts if attempt.refusal is not None]
        if claims and not refusals and confirm is not None and not request.dry_run and (why := await confirm()):
            refusals = [denial.unavailable("of the namespace", why)]
        if refusals:
            await self._cancel(made, request)
            # A final refusal says more than one that is worth a retry.
            refusal = min(refusals, key=lambda refusal: refusal.code == 503)
            return Verdict(decision=decision, refusal=refusal, waited=waited, request=request, attempts=attempts)
        warnings = [warning for attempt in attempts for warning in attempt.warnings]
        return Verdict(decision=decision, warnings=warnings, waited=waited, request=request, attempts=attempts)

    async def _make(self, claims: Sequence[QuotaClaim], request: Request) -> list[tuple[QuotaClaim, Attempt]]:
        """Quotas that seem short are asked before the others, in which nothing is reserved meanwhile: who goes on to
        ask for what one quota cannot give would keep the others full (rule 4.2)."""
        if len(claims) < 2:
            return [(claim, await claim.make()) for claim in claims]
        short = [claim for claim in claims if claim.seems_short()] if not request.dry_run else []
        rest, made = [claim for claim in claims if claim not in short], await _made(short)
        if any(attempt.refusal is not None for _, attempt in made):
            return [*made, *((claim, claim.seen()) for claim in rest)]
        return [*made, *await _made(rest)]

    async def _cancel(self, made: Sequence[tuple[QuotaClaim, Attempt]], request: Request) -> None:
        """Rule 4.2: one that denies releases what the others reserved. What fails here goes on evidence later."""
        undone = {
            undoing: claim
            for claim, attempt in made
            if attempt.admitted is not None and (undoing := claim.undo(attempt.admitted)) is not None
        }
        if not undone:
            return
        for undoing in undone:  # the request may end before them
            undoing.add_done_callback(ignore)
        left = request.deadline - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait(undone, timeout=max(left, 0))
        for future in done:
            error = future.exception()
            if error is not None:
                facts = {"quota": undone[future].quota.name, "cluster": request.reservation.source, "error": str(error)}
                log.info("reservation left to evidence", extra=facts)


async def _made(claims: Sequence[QuotaClaim]) -> list[tuple[QuotaClaim, Attempt]]:
    """All at once."""
    if not claims:
        return []
    return list(zip(claims, await asyncio.gather(*[claim.begin() for claim in claims]), strict=True))
