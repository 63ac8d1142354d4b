"""What the master remembers of one quota within its term of leadership, beside the ledger."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from common.api.convert import grant_from_wire, report_from_wire
from common.api.types import ResourceQuotaSpec, Seed, WireIdle, WireReport
from common.quota import escrow, guarantees, resources, surge
from common.quota.account import Grant
from common.quota.escrow import MasterLedger, Report
from common.quota.guarantees import Guarantee
from common.quota.resources import ResourceList
from master.cache.objects import MasterQuota, OverrideStatus, QuotaCopy, spec_quota
from master.cache.picked_seeds import picks
from master.grants.demand import Demand
from master.grants.overrides import in_force
from master.quotas.ledger_store import Stored
from master.quotas.quota_view import QuotaView
from master.seeds.link import Run

RECALL_PATIENCE = 1.0  # seconds after which a seed that does not react to a recall counts as out of reach
OVERRIDES_EVERY = 600.0  # seconds between looks at the clock, which may be set, while an override will end
MAX_TOKEN = 64  # characters; the schema has the same
JUST_GRANTED = 0.1  # seconds that a seed has to use what it asked for before another's ask takes it back


class SeedAccount:
    """What the master remembers of one quota on one seed, beside the ledger."""

    def __init__(self) -> None:
        self.wire = WireReport()
        self.report: Report | None = None
        self.seen = 0  # the last sequence that it had shown before it asked with its present nonce
        self.unbroken = False  # whether it was watched from before that was written until it asked
        self._run: Run | None = None  # the run of the watch that brought the report
        self.shown: Grant | None = None  # what the copy said when it was first seen, until a decision took that up
        self.met = False
        self.use_before: ResourceList | None = None  # as the status said before this master began
        self.answered_life = ""
        self.answered = 0
        self.unavailable: list[WireIdle] = []
        self.refused_at = float("-inf")
        self.recalled: tuple[float, int] | None = None  # since when (monotonic), at which sequence
        self.granted: tuple[float, int] | None = None  # likewise
        self.demand: Demand | None = None
        self.draining = False  # the last ask was answered with nothing, because the seed drains
        self.withdrawn = ""  # the token by which the quota is withdrawn from the seed; empty: it is not
        self.settled = False  # that had come to its end at the last decision
        self.has_copy = False  # whether the seed had a copy when its copies were known last
        self.last_report_time = ""
        self.stale_before = False  # the status said so before this master began

    def receive(self, copy: QuotaCopy, run: Run | None = None) -> bool:
        """True if it says something new. Raises QuantityError and ImpossibleReportError; then the last report stays.

        `run`: the run of the watch that reported this change, None for what a list brought: that was written earlier.
        """
        wire, grant = copy.status.account, copy.status.grant
        if not self.met:
            self.met, self.shown = True, grant_from_wire(grant)
            self.withdrawn = grant.withdrawn[:MAX_TOKEN]  # a master before this one has begun that
        if wire == self.wire:
            return False
        if not wire.incarnation:
            if self.report is None:
                self.wire = wire  # it has no account yet, and may say what it waits for
            return self.report is None
        said = report_from_wire(wire)
        if said is None or not escrow.supersedes(said, self.report):
            return False
        escrow.check(said)
        if said.nonce and (self.report is None or said.nonce != self.report.nonce):
            self._fenced(self.report, said, watched=run is not None and run == self._run)
        self.report, self.wire, self._run = said, wire, run
        if self.answered_life != wire.incarnation and grant.account == wire.incarnation:
            # What was answered before this master began stays answered.
            self.answered_life, self.answered = wire.incarnation, grant.answered
        return True

    def taken_up(self, shown: Grant) -> None:
        """A decision that looked at this is durable. Before that it must be looked at again."""
        if self.shown is shown:
            self.shown = None

    def _fenced(self, before: Report | None, said: Report, *, watched: bool) -> None:
        """A fence that was never lifted leaves the doubts for which it was put up."""
        if before is None or before.incarnation != said.incarnation:
            self.seen, self.unbroken = 0, False
        elif before.nonce:
            self.seen, self.unbroken = before.sequence if self.seen else 0, self.unbroken and watched
        else:
            self.seen, self.unbroken = before.sequence, watched

    @property
    def remembered(self) -> tuple[int, bool]:
        """What the answer to its nonce says of what it had shown before: see Grant.seen and Grant.unbroken."""
        return (self.seen, self.unbroken) if self.report is not None and self.report.nonce else (0, False)

    @property
    def asked(self) -> int:
        """The number of the last ask that was answered to this life of the account."""
        return self.answered if self.report is not None and self.report.incarnation == self.answered_life else 0

    def silent(self, now: float) -> bool:
        """It does not react to a recall."""
        return (
            self.recalled is not None
            and self.report is not None
            and self.recalled[1] == self.report.sequence
            and now - self.recalled[0] > RECALL_PATIENCE
        )

    def hopeful(self, now: float) -> bool:
        """Its report does not show yet what it does with what it got."""
        return (
            self.granted is not None
            and self.report is not None
            and self.granted[1] == self.report.sequence
            and now - self.granted[0] < JUST_GRANTED
        )

    def note_recall(self, now: float, recalled: bool) -> None:
        sequence = self.report.sequence if self.report is not None else 0
        if not recalled:
            self.recalled = None
        elif self.recalled is None or self.recalled[1] != sequence:
            self.recalled = (now, sequence)


class QuotaState:
    """One quota, by uid."""

    def __init__(self, quota: MasterQuota) -> None:
        self.overrides: Sequence[OverrideStatus] = quota.status.overrides
        self.guarantees: Sequence[Guarantee] = ()  # in force of those of its organization's projects
        self.quota = quota
        self._parse()
        self.since = time.monotonic()
        self.rushed = False  # it came with many others and is not in force yet
        self.doubtful = False  # its ledger may have been restored from a backup before this term
        self.stored: Stored | None = None
        self.noted_at = float("-inf")  # when it was last noted on the quota which ledger it has
        self.known: MasterLedger | None = None  # what is in the ledger that is read next; None: not in doubt
        self.seeds: dict[str, SeedAccount] = {}
        self.view: QuotaView | None = None
        self.shown = quota.status
        self.shown_at = float("-inf")
        for line in quota.status.seeds:
            account = self.account(line.name)
            account.use_before = resources.parse(line.local_usage)
            account.last_report_time = line.last_report_time
            account.stale_before = line.state == "Stale"

    @property
    def uid(self) -> str:
        return self.quota.metadata.uid

    @property
    def name(self) -> str:
        return self.quota.metadata.name

    def take(self, quota: MasterQuota) -> None:
        changed = quota.metadata.generation != self.quota.metadata.generation
        self.quota = quota
        if changed or (self.changes_at is not None and time.time() >= self.changes_at):
            self._parse()

    def until_change(self) -> list[float]:
        """In how many seconds an override changes what is in force. Empty: in no time that is known."""
        return [] if self.changes_at is None else [min(max(self.changes_at - time.time(), 0.01), OVERRIDES_EVERY)]

    def is_spec_of(self, copy: QuotaCopy, *, in_cluster: bool) -> bool:
        """Whether a seed's object says what the quota says now. The master's own says it by `spec` and its grant."""
        return copy.spec == (self.quota.spec if in_cluster else self.copied)

    def _parse(self) -> None:
        """By the clock: overrides may have ended."""
        now = in_force(self.quota, self.overrides, time.time())
        self.overrides, self.copied, self.changes_at = now.overrides, now.spec, now.next_change
        given = {"guaranteed": self.quota.spec.get("guaranteed", {})}
        self.spec = msgspec.convert({**now.spec, **given}, ResourceQuotaSpec)
        self.limits: ResourceList = resources.parse(self.spec.quota)
        self.surge: ResourceList = resources.parse(self.spec.surge)
        own = resources.parse(spec_quota(self.quota))
        self.raised = {name: amount for name, amount in self.limits.items() if amount > own[name]}
        self.unraised = resources.only(own, self.raised)

    @property
    def ceilings(self) -> ResourceList:
        return guarantees.ceilings(surge.ceilings(self.limits, self.surge), self.guarantees)

    def account(self, seed: str) -> SeedAccount:
        return self.seeds.setdefault(seed, SeedAccount())

    def picks(self, seed: Seed) -> bool:
        """Whether it limits what is on this seed."""
        return picks(self.spec.subject.seeds, seed)

    def went_back(self) -> bool:
        """Whether the ledger that was read is older than what is known. It stays known until a write is durable."""
        if self.known is not None and self.stored is not None and not escrow.went_back(self.stored.ledger, self.known):
            self.known = None
        return self.known is not None

    def doubt(self, attempted: MasterLedger) -> None:
        """A write of the ledger failed in a way that leaves open what is stored: read it again.

        If what was read before was older than what is known, so may be what is read next.
        """
        if self.stored is not None:
            self.known = self.known or escrow.certain(self.stored.ledger, attempted)
            self.stored = None
