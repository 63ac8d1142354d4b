"""Sources that share watch caches, as all Clusters of Cluster API do: what follows from the caches holds for each."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from common.kube.controller.reflector import Reflector
from seed.usage.source import NOT_LISTED, UNREADABLE, ListBarrier, Problem, reason_of


class Lists(ListBarrier, frozen=True, kw_only=True):
    """A list of each of several watch caches. One that takes the place of another lists later anyway."""

    demanded: Sequence[tuple[Reflector[Any], int]]

    def missing(self, followed: Collection[Reflector[Any]]) -> list[tuple[Reflector[Any], int]]:
        """Those of `followed` whose list is not complete yet, and its number."""
        return [
            (reflector, number)
            for reflector, number in self.demanded
            if reflector in followed and reflector.lists_completed < number
        ]


class SharedInformers(ABC):
    """`problem` is what `_look` found last; `lost_at` (monotonic) since when the counts are kept, not followed."""

    problem: Problem | None = None
    lost_at: float | None = None

    @property
    @abstractmethod
    def reflectors(self) -> Collection[Reflector[Any]]:
        """Those that there are now."""

    @property
    def counted(self) -> bool:
        return all(reflector.synced.is_set() for reflector in self.reflectors)

    @property
    def live(self) -> bool:
        return all(reflector.live for reflector in self.reflectors)

    @property
    def listed_from(self) -> float:
        return min((reflector.listed_from for reflector in self.reflectors), default=math.inf) if self.counted else 0

    def request_relist(self) -> ListBarrier:
        return Lists(demanded=[(reflector, reflector.relist()) for reflector in self.reflectors])

    def listed_since(self, token: ListBarrier) -> bool:
        assert isinstance(token, Lists), "our own token"
        return self.counted and not token.missing(self.reflectors)

    async def listed(self, token: ListBarrier) -> None:
        assert isinstance(token, Lists), "our own token"
        while not self.listed_since(token):
            for reflector, number in token.missing(self.reflectors):
                with suppress(TimeoutError):
                    await reflector.wait_listed(number, 1)
            await asyncio.sleep(0.2 if self.problem is not None else 0.02)

    def _look(self) -> bool:
        """True if there is another problem than before, or none any more."""
        problem = None
        for reflector in self.reflectors:
            if reflector.error is not None:
                reason = NOT_LISTED if reflector.error_status == 404 else reason_of(reflector.error_status)
                problem = Problem(reason, reflector.error)
                break
            if reflector.untaken is not None:
                problem = Problem(UNREADABLE, reflector.untaken)
        if problem is None:
            self.lost_at = None
        elif self.lost_at is None:
            self.lost_at = time.monotonic()
        changed, self.problem = problem != self.problem, problem
        return changed


class SharedInformerSource:
    """The part of a source (`seed.usage.source.UsageSource`) that its watch caches answer."""

    in_namespaces: None = None

    def __init__(self, caches: SharedInformers) -> None:
        self._caches = caches
        self._untaken: dict[str, str] = {}  # by uid: the names of what cannot be counted
        self._untaken_since = 0.0

    def not_taken(self, uid: str, name: str) -> None:
        if not self._untaken:
            self._untaken_since = time.monotonic()
        self._untaken[uid] = name

    def taken(self, uid: str) -> None:
        self._untaken.pop(uid, None)

    @property
    def counted(self) -> bool:
        return self._caches.counted

    @property
    def current(self) -> bool:
        return self._caches.counted and self.problem is None

    @property
    def live(self) -> bool:
        return self._caches.live

    @property
    def listed_from(self) -> float:
        return self._caches.listed_from

    @property
    def problem(self) -> Problem | None:
        if self._caches.problem is not None or not self._untaken:
            return self._caches.problem
        first = next(iter(self._untaken.values()))
        return Problem(UNREADABLE, f"{len(self._untaken)} objects cannot be counted, such as {first}")

    @property
    def lost_at(self) -> float | None:
        return self._caches.lost_at or (self._untaken_since if self._untaken else None)

    def request_relist(self) -> ListBarrier:
        return self._caches.request_relist()

    def listed_since(self, token: ListBarrier) -> bool:
        return self._caches.listed_since(token)

    async def listed(self, token: ListBarrier) -> None:
        await self._caches.listed(token)
