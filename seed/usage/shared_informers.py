"""Sources that share watch caches, as all Clusters of Cluster API do: what follows from the caches holds for each."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from common.kube.controller.reflector import Reflector
from seed.usage.source import NOT_LISTED, UNREADABLE, Problem, reason_of


class SharedInformers(ABC):
    """`problem` is what `_look` found last; `lost_at` (monotonic) since when the counts are kept, not followed."""

    problem: Problem | None = None
    lost_at: float | None = None
    _listed_from: float = 0

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

    def relist(self) -> None:
        for reflector in self.reflectors:
            reflector.relist()

    def _look(self) -> bool:
        """True if there is another problem than before, or none any more, or all was listed anew."""
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
        before, now = (self.problem, self._listed_from), (problem, self.listed_from)
        self.problem, self._listed_from = now
        return before != now


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

    def relist(self) -> None:
        self._caches.relist()
