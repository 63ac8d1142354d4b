"""One decision for one creation that an API server asks about several times.

It calls one webhook for a creation (seed/registration/disjoint_selectors.py), but evaluates their selectors one after
another: if the labels of the namespace change meanwhile, it may call two, at the same time, and refuses the object if
one call is refused. If each call were decided by itself, one could be refused while the account is full and the next
admitted a moment later. Nothing would be created, and what the second reserved would keep others out until reservations
without an object go (docs/reference/protocol.md section 4).

Only creations: each has a uid of its own, while the same update may be sent again in another request. And only while
the same is asked of the same quotas: if another one selects the namespace by now, it must be asked, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from seed.admission.types import Verdict

KEPT = 5.0  # seconds from the first call: an API server sends them together
MOST = 4096  # creations that are kept: beyond, the oldest are decided by themselves

Key = tuple[str, str]
"""The cluster, as a source key, and the object's uid."""


class _Decision(msgspec.Struct):
    asked: object
    since: float  # on the event loop's clock
    verdict: asyncio.Future[Verdict | None]  # None: the call was given up before it was decided


class SameWrites:
    def __init__(self) -> None:
        self._decisions: dict[Key, _Decision] = {}  # the oldest first

    async def decide(self, key: Key, asked: object, decide: Callable[[], Awaitable[Verdict]]) -> Verdict:
        """What `decide` answers, or answered to the first call that asked the same. `repeated` tells which. `asked` is
        kept: it must be small, whatever tenants write."""
        loop = asyncio.get_running_loop()
        while (known := self._known(key, asked, loop.time())) is not None:
            verdict = await asyncio.shield(known.verdict)
            if verdict is not None:
                return msgspec.structs.replace(verdict, repeated=True)
        made = self._decisions[key] = _Decision(asked, loop.time(), loop.create_future())
        try:
            verdict = await decide()
        except BaseException:
            if self._decisions.get(key) is made:
                del self._decisions[key]
            made.verdict.set_result(None)
            raise
        made.verdict.set_result(verdict)
        return verdict

    def _known(self, key: Key, asked: object, now: float) -> _Decision | None:
        while self._decisions:
            oldest = next(iter(self._decisions))
            if len(self._decisions) < MOST and self._decisions[oldest].since > now - KEPT:
                break
            del self._decisions[oldest]
        known = self._decisions.get(key)
        if known is None or known.asked == asked:
            return known
        del self._decisions[key]
        return None
