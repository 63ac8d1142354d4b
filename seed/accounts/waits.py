"""What each account that admits nothing waits for, and since when."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from common.api import conditions
from common.api.account_waits import WaitReason
from common.api.conditions import NAMED
from common.api.types import AccountWait
from seed.accounts.plan import WaitsFor
from seed.model.quota import Quota
from seed.model.source_key import SourceKey

MAX_NAME = 512  # characters of what is said of one source


class _Waiting(NamedTuple):
    uid: str  # of the quota
    since: float
    reason: WaitReason
    said: AccountWait


class Waits:
    """By quota, as the leader sees it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}  # by quota name

    def came(self, quota: Quota) -> None:
        """A quota that has no account yet: until somebody looks at it, it waits for that."""
        if self._of(quota) is None:
            self.note(quota, WaitsFor(WaitReason.TURN))

    def note(
        self, quota: Quota, found: WaitsFor | None, unlisted: Callable[[str], Sequence[str]] = lambda _key: ()
    ) -> None:
        """`found` is None for one that admits. `unlisted`: which kinds of a source lack a list, by its key."""
        if found is None:
            self._waiting.pop(quota.name, None)
            return
        before = self._of(quota)
        if before is not None and before.reason is not found.reason:
            before = None
        if before is not None and before.said.until:
            return  # the time is not told anew each time that it is looked at
        lacking = {key: unlisted(key) for key in sorted(found.sources)}
        kinds = sorted({kind for each in lacking.values() for kind in each})
        said = AccountWait(
            reason=found.reason,
            sources=tuple(_named(key, each)[:MAX_NAME] for key, each in list(lacking.items())[:NAMED]),
            sources_omitted=max(len(lacking) - NAMED, 0),
            kinds=tuple(kind[:MAX_NAME] for kind in kinds[:NAMED]),
            kinds_omitted=max(len(kinds) - NAMED, 0),
            until=conditions.now(found.seconds) if found.reason is WaitReason.IN_FLIGHT_WINDOW else "",
        )
        since = before.since if before is not None else self._clock()
        self._waiting[quota.name] = _Waiting(quota.key.uid, since, found.reason, said)

    def forget(self, name: str) -> None:
        self._waiting.pop(name, None)

    def of(self, quota: Quota) -> AccountWait | None:
        """None: it admits, or nobody has looked at it yet."""
        known = self._of(quota)
        return known.said if known is not None else None

    def seconds(self, quota: Quota) -> float:
        """For how long it waits for what it waits for."""
        known = self._of(quota)
        return self._clock() - known.since if known is not None else 0.0

    def longest(self) -> dict[WaitReason, float]:
        """By reason, in seconds: the longest of all that wait for it now, 0 where none does."""
        now = self._clock()
        found = dict.fromkeys(WaitReason, 0.0)
        for known in self._waiting.values():
            found[known.reason] = max(found[known.reason], now - known.since)
        return found

    def _of(self, quota: Quota) -> _Waiting | None:
        known = self._waiting.get(quota.name)
        return known if known is not None and known.uid == quota.key.uid else None


def _named(key: str, kinds: Sequence[str]) -> str:
    name = SourceKey(key).shown
    return f"{name} ({conditions.some(kinds)})" if kinds else name
