"""What the master knows of one quota after a decision, for its status and for the seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from common.api import account_waits, conditions
from common.quota import escrow, guarantees, resources
from common.quota.escrow import Holding, MasterLedger
from common.quota.quantity import QuantityError
from master.cache.informers import Caches, organization_of, subject_of
from master.cache.objects import MasterQuota
from master.grants.allocation_state import SeedDemand
from master.grants.planner import Decision
from master.quotas.countable import CountedNames, in_use
from master.quotas.quota_view import QuotaView, SeedView
from master.quotas.state import QuotaState
from master.seeds.link import SeedLink
from master.seeds.registry import Seeds


class Views:
    """Makes a quota's view. `states`: of all quotas. `counted`: the devices that some source has counted. `doubtful`:
    uids of quotas whose ledgers may have been restored from a backup."""

    def __init__(
        self,
        caches: Caches,
        seeds: Seeds,
        states: Mapping[str, QuotaState],
        counted: CountedNames,
        doubtful: Collection[str],
    ) -> None:
        self._caches = caches
        self._seeds = seeds
        self._states = states
        self._counted = counted
        self._doubtful = doubtful

    def view(self, state: QuotaState, decision: Decision, now: float) -> QuotaView:
        """As of `now`, monotonic seconds. What it says of the ledger is true once the decision is durable.

        It also notes in `state` when each seed reported last.
        """
        ledger = decision.ledger
        lines = [self._seed_view(state, seed, ledger.seeds[seed.name], now) for seed in decision.demands]
        lost = [link for link in self._seeds.links.values() if link.lost and state.picks(link.seed)]
        lines.extend(SeedView(name=link.name, lost=True) for link in lost)
        organization = self._organization(state.quota)
        return QuotaView(
            generation=state.quota.metadata.generation,
            spec=state.spec,
            limits=state.limits,
            surge=state.surge,
            overrides=state.overrides,
            raised=state.raised,
            unraised=state.unraised,
            subject_exists=self._subject_exists(state.quota),
            learning=decision.learning,
            beyond_counters=escrow.beyond_counters(ledger, state.ceilings),
            never_counted=self._never_counted(state, ledger),
            allocated=in_use(self._caches.allocated_types(state.spec.subject.seeds), *(seed.use for seed in lines)),
            organization=organization,
            organization_limits=self._caches.limits_of(organization) if organization else None,
            overcommit=self._caches.overcommit(),
            guarantees=guarantees.with_use(state.guarantees, [seed.projects for seed in decision.demands]),
            seeds=lines,
        )

    def _never_counted(self, state: QuotaState, ledger: MasterLedger) -> list[str] | None:
        """None before all that seeds report was taken up."""
        lacking = self._counted.lacking(state.limits, ledger)
        known = len(self._states) >= len(self._caches.quotas.store) and all(
            link.listed or link.never_connected for link in self._seeds.present() if state.picks(link.seed)
        )
        return lacking if known or not lacking else None

    def _seed_view(self, state: QuotaState, seed: SeedDemand, holding: Holding, now: float) -> SeedView:
        link = self._seeds.links.get(seed.name)
        account = state.account(seed.name)
        report = account.report
        connected = link is not None and link.connected
        silent = now - link.last_contact if link is not None and link.last_contact is not None else None
        if silent is None and link is not None and not link.settled and not account.stale_before:
            silent = 0.0  # it is only being tried for the first time
        agent_silent = connected and link is not None and link.agent_silent
        if agent_silent and link is not None:
            account.last_report_time = conditions.now(link.reported_at - now)
        elif connected and silent is not None:
            account.last_report_time = conditions.now(-silent)
        stale_sources = account.wire.stale
        return SeedView(
            name=seed.name,
            connected=connected,
            never_connected=link is not None and link.never_connected,
            withdrawing=bool(account.withdrawn),
            gone=link is None,
            silent=silent,
            agent_silent=agent_silent,
            last_report_time=account.last_report_time,
            synced=is_synced(state, link),
            behind=_is_behind(state, link),
            reported=report is not None,
            fenced=report is not None and bool(report.nonce),
            learned=holding.learned and not (state.uid in self._doubtful and link is not None and not link.listed),
            held=guarantees.merged(seed.held),
            kept_for=guarantees.idle_by_project(seed.use, seed.held),
            use=seed.total,
            reserved=report.reserved if report is not None else {},
            stale_sources=stale_sources,
            unenforced=account.wire.unenforced,
            waits_for=account_waits.written(waits) if (waits := account.wire.waits_for) is not None else None,
            clusters=account.wire.clusters,
            picked=account.wire.picked,
            not_counted=account.wire.not_counted,
            not_served=account.wire.not_served,
            namespaces=account.wire.namespaces,
            namespaces_omitted=account.wire.namespaces_omitted,
            without_quota=account.wire.without_quota,
            without_quota_omitted=account.wire.without_quota_omitted,
        )

    def _organization(self, quota: MasterQuota) -> str:
        """That of the quota's subject; empty if it has none."""
        kind, name = subject_of(quota)
        if kind == "organization":
            return name
        project = self._caches.projects.store.get(name) if kind == "project" else None
        return organization_of(project) if project is not None else ""

    def _subject_exists(self, quota: MasterQuota) -> bool:
        kind, name = subject_of(quota)
        if kind == "project":
            return name in self._caches.projects.store
        if kind == "organization":
            return name in self._caches.organizations.store
        return True


def is_synced(state: QuotaState, link: SeedLink | None) -> bool | None:
    copy = link.copy(state.name, state.uid) if link is not None else None
    if copy is not None and link is not None and state.is_spec_of(copy, in_cluster=link.in_cluster):
        return True  # also while it is out of reach: it enforces what it has
    return False if link is not None and link.connected else None


def _is_behind(state: QuotaState, link: SeedLink | None) -> bool:
    """An agent of a release that does not say which generation its replicas have is believed, as it always was."""
    copies = link.copies if link is not None else None
    copy = copies.get(state.name) if copies is not None else None
    if link is None or copy is None:
        return False  # it is not synced
    said = copy.status.account
    if not said.incarnation or said.enforced_generation not in (None, copy.metadata.generation):
        return True
    try:
        raised = resources.parse(said.enforced_raised) if link.in_cluster else {}
    except QuantityError:
        return True
    return any(amount > state.limits.get(name, 0) for name, amount in raised.items())
