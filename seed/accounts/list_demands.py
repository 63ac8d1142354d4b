"""Lists that sources owe an account: what is counted must come from a list that began late enough (rule 4.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from common.kube.controller.reflector import moment
from common.runtime.unexpected import kept_task
from seed.model.quota import Quota
from seed.usage.source import UsageSource


class Demand(NamedTuple):
    """For a list of a source that begins after the moment `since`. The task ends with that list."""

    source: UsageSource
    since: int
    task: asyncio.Task[None]


class ListDemands:
    """`on_listed(name)` is called with the quota's name when a list that was demanded is complete."""

    def __init__(self, on_listed: Callable[[str], None]) -> None:
        self._on_listed = on_listed
        self._lists_from: dict[str, int] = {}  # by quota uid: the moment after which a list must begin to be counted
        self._demands: dict[tuple[str, str], Demand] = {}  # by quota uid and source

    def lists_from(self, uid: str) -> int:
        return self._lists_from.get(uid, 0)

    def has(self, uid: str, source: str) -> bool:
        return (uid, source) in self._demands

    def demand_all(self, quota: Quota, sources: Iterable[UsageSource]) -> None:
        """Whatever is counted from now on must come from a list that begins after this moment."""
        self._lists_from[quota.key.uid] = moment()
        for source in sources:
            self.demand(quota, source)

    def demand(self, quota: Quota, source: UsageSource) -> None:
        demanded, since = (quota.key.uid, source.key), self.lists_from(quota.key.uid)
        before = self._demands.get(demanded)
        if before is not None:
            if before.source is source and before.since == since:
                return
            before.task.cancel()
        token = source.request_relist()

        async def wait() -> None:
            await source.listed(token)
            self._on_listed(quota.name)

        task = kept_task("demanded lists", wait, f"{source.key} for {quota.name}")
        self._demands[demanded] = Demand(source, since, task)

    def forget(self, uid: str) -> None:
        self._lists_from.pop(uid, None)
        for demanded in [demanded for demanded in self._demands if demanded[0] == uid]:
            self._demands.pop(demanded).task.cancel()

    def close(self) -> None:
        for demand in self._demands.values():
            demand.task.cancel()
        self._demands.clear()
