"""What is reported to the master about an account, and when. Pure."""

from __future__ import annotations

from collections.abc import Set

import msgspec

from common.api import conditions
from common.api.types import AccountWait, NamespaceLack, NamespaceUse, StaleSource
from common.quota import resources
from common.quota.account import Account, ReservationKey
from common.quota.escrow import Report
from common.quota.resources import ResourceList
from seed.usage.source import KEPT_IN_PART, NOT_LISTED, Problem, UsageSource

USE_INTERVAL = 0.05  # seconds between two publications of changed use
BUSY_INTERVAL = 0.25  # ... under load: each costs two API servers as much as several Machines
CHANGES_OF_ONE = 2  # of an account, by one object: it is admitted, then counted
QUIET_INTERVAL = 1.0  # ... of a change that moves no total

MAX_NAMED = 32  # sources of each kind: what a status takes
MAX_TEXT = 1024  # characters of what one of them says
UNCOUNTED = "what is there cannot be counted, because of an unexpected error: see the log of seedquota-seed"
STALE_STEP = 60  # the published age of a stale source grows in steps of so many seconds


class Sources(msgspec.Struct, frozen=True):
    """What is reported of sources beside their use: those whose count is old, and those whose Machines are not checked.
    `generation` is that of the quota's copy which all replicas have. `clusters`: in how many it may count namespaces.
    `not_counted`: clusters of its projects where it does not. `namespaces`: the largest, and how many others.
    `without_quota`: of one of promises, where nothing is promised, and how many more such namespaces there are.
    `waits_for`: what the account waits for, if it does. `not_served`: what is limited, and no cluster serves.
    `picked`: how many clusters `subject.clusters` picks. `withdrawn`: of a closed account what the grant says there.
    `raised`: what overrides have raised, where a replica may admit by that."""

    stale: tuple[StaleSource, ...] = ()
    unenforced: tuple[str, ...] = ()
    generation: int | None = None
    clusters: int = 0
    not_counted: tuple[str, ...] = ()
    namespaces: tuple[NamespaceUse, ...] = ()
    namespaces_omitted: int = 0
    without_quota: tuple[NamespaceLack, ...] = ()
    without_quota_omitted: int = 0
    waits_for: AccountWait | None = None
    not_served: tuple[str, ...] = ()
    picked: int = 0
    withdrawn: str = ""
    raised: ResourceList = {}

    @property
    def troubles(self) -> Sources:
        """Without what tells of use alone, and without what an account waits for next: that is over soon."""
        return msgspec.structs.replace(
            self, namespaces=(), namespaces_omitted=0, without_quota=(), without_quota_omitted=0, waits_for=None
        )

    @property
    def names(self) -> tuple[list[str], tuple[str, ...], int | None, int, tuple[str, ...]]:
        stale = [source.source for source in self.stale]
        return stale, self.unenforced, self.generation, self.clusters, self.not_counted


class Published(msgspec.Struct, frozen=True):
    """What was reported to the master last, through which copy, and when (monotonic). The report is None while it
    is not known whether it arrived. `reserved`: for which objects something was. `pause`: seconds before changed use is
    reported again."""

    copy_uid: str
    report: Report | None
    sources: Sources
    at: float
    reserved: Set[ReservationKey] = frozenset()
    pause: float = USE_INTERVAL


def pause_after(before: Published | None, said: Report, reserved: Set[ReservationKey], now: float) -> float:
    """Of a publication at `now`: twice as long as the last if several objects changed since then, which one write may
    do. Who creates one after the other waits for no pause."""
    known = before.report if before is not None else None
    if before is None or known is None or now - before.at >= 2 * BUSY_INTERVAL:
        return USE_INTERVAL
    if now - before.at < before.pause:
        return before.pause  # it could not wait, so little has changed
    if max(said.sequence - known.sequence, len(reserved ^ before.reserved)) <= CHANGES_OF_ONE:
        return USE_INTERVAL
    return min(2 * before.pause, BUSY_INTERVAL)


def stale_source(
    source: UsageSource, shown: str, account: Account, now: float, uncounted_since: float | None = None
) -> StaleSource | None:
    """None for one that is followed, and counted. `shown`: what people call it. Times are monotonic."""
    problem, since = source.problem, source.lost_at
    if problem is None or since is None:
        problem, since = Problem(NOT_LISTED, UNCOUNTED), uncounted_since
    if since is None:
        return None
    in_part = problem.reason in KEPT_IN_PART
    unknown = _uncounted(source, account) if in_part else []
    message = f"{conditions.some(unknown)}: {problem.message}" if unknown else problem.message
    return StaleSource(
        source=shown,
        seconds=int(now - since) // STALE_STEP * STALE_STEP,
        never_counted=bool(unknown) or (not source.counted and source.key not in account.used),
        not_listed=message[:MAX_TEXT] if in_part else "",
    )


def _uncounted(source: UsageSource, account: Account) -> list[str]:
    """The resources of which nothing is known there. An account does not tell a count of zero from none."""
    doubtful = source.in_namespaces.doubtful(0) if source.in_namespaces is not None else None
    return sorted((doubtful or frozenset()) - account.used.get(source.key, {}).keys())


def publish_in(
    before: Published | None, said: Report, sources: Sources, shown: Report | None, now: float
) -> float | None:
    """In how many seconds this must be published; None when the master has it already. Pure.

    What somebody waits for goes at once; changed use after a short pause; the rest when it is quiet. `shown` by the
    copy, as far as its watch has come: an earlier report that arrives late takes the place of the last one.
    """
    if before is None:
        return 0.0
    known = before.report
    if known is None:
        return max(0.0, before.at + USE_INTERVAL - now)
    if msgspec.structs.replace(said, sequence=0) == msgspec.structs.replace(known, sequence=0):
        if sources.troubles != before.sources.troubles:
            return 0.0
        arrived = shown is None or shown == known  # numbers of writes come again with a ledger that was restored
        if arrived and sources == before.sources:
            return None
        return max(0.0, before.at + QUIET_INTERVAL - now)
    urgent = (
        said.incarnation != known.incarnation
        or said.master != known.master
        or said.nonce != known.nonce
        or said.returned != known.returned
        or said.ask != known.ask
        or sources.names != before.sources.names
    )
    if urgent:
        return 0.0
    use_changed = resources.add(said.used, said.reserved) != resources.add(known.used, known.reserved)
    return max(0.0, before.at + (before.pause if use_changed else QUIET_INTERVAL) - now)
