"""One decision of the master about one quota: what seeds reported in, a ledger to persist and what to say out. Pure.

1. Take up what seeds reported, with seeds that came and without those that are lost or gone. A seed that shows more
   than this ledger granted proves that the ledger is an older one: then it begins another life, and learns.
2. Decide what is useful (`master.grants.fair_share`), unless a seed that may hold something was not listed.
3. Raise G by what was decided. The caller makes that durable before it shows it.
4. While more is handed out than the limit (it was lowered, or use that nobody admitted was covered), every seed
   is asked to give back all that, as it becomes free: what is deleted there must not be admitted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from common.quota import escrow, guarantees, resources, surge
from common.quota.account import Ask, Grant
from common.quota.escrow import Holding, LedgerWentBackError, MasterLedger, Report
from common.quota.resources import ResourceList
from master.grants.allocation_state import SeedDemand
from master.grants.demand import Demand, lacking, learn, positive
from master.grants.fair_share import Allotment, allot

SeedState = Literal["Active", "Draining", "Withdrawn", "Lost", "Gone"]


class SeedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the master knows of one quota on one seed at this moment, beside its ledger.

    `state` is the Seed's, Gone where there is no such object any more, and Withdrawn where the quota limits nothing on
    the seed, which has not given back everything yet (protocol.md 3.11). `listed`: its copies were listed in this term
    of leadership; `tried`: that, or they could not be. `shown` is what its copy said when it was first seen in this
    term. `use` was shown by another master before, where there is no report. `silent`: it does not react to a recall;
    `hopeful`: it has not had the time to show what it does with what it was granted. `demand` is what the last decision
    of this term learned.
    """

    name: str
    state: SeedState = "Active"
    connected: bool = False
    listed: bool = False
    tried: bool = False
    shown: Grant = Grant(incarnation="")
    report: Report | None = None
    use: ResourceList | None = None
    answered: int = 0
    silent: bool = False
    hopeful: bool = False
    demand: Demand | None = None

    @property
    def present(self) -> bool:
        """It may hold something, and can be asked."""
        return self.state in ("Active", "Draining", "Withdrawn")

    @property
    def withdrawn(self) -> bool:
        return self.state == "Withdrawn"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`ledger` is to be persisted before `allotment` is acted on. `recalls` is what messages say, with those of step 4.
    `learning` is what users are shown; `granting` is false also in the moment before every seed was tried. `went_back`
    says how the ledger was found to be an older one.
    """

    ledger: MasterLedger
    demands: Sequence[SeedDemand]
    allotment: Allotment
    recalls: Mapping[str, ResourceList]
    learning: bool
    granting: bool
    went_back: str = ""


def decide(
    limits: ResourceList, ledger: MasterLedger, seeds: Sequence[SeedFacts], *, cold: bool, life: str, now: int
) -> Decision:
    """`limits`: with the guarantees that are part of them (`guarantees.ceilings`). `cold`: the lease was not held
    continuously until this term, so the ledger may have been restored from a backup (protocol.md 3.5). `life` is the
    incarnation that it gets if it proves to be an older one. `now` is monotonic, in milliseconds.
    """
    went_back = ""
    try:
        taken = _take_up(ledger, seeds)
    except LedgerWentBackError as error:
        went_back = str(error)
        taken = _take_up(forgotten(ledger, life), seeds)
    unlisted = [seed for seed in seeds if seed.present and not seed.listed]
    granting = not taken.learning and not any(cold or not seed.tried for seed in unlisted)
    most = guarantees.of_counters(limits, positive(escrow.outstanding(taken)), _charged(taken, seeds))
    demands = _demands(most, taken, seeds, now)
    allotment = allot(most, demands, learning=not granting, now=now)
    granted = _granted(taken, allotment)
    return Decision(
        ledger=granted,
        demands=demands,
        allotment=allotment,
        recalls=_recalls(limits, most, granted, allotment),
        learning=taken.learning or (cold and any(seed.tried for seed in unlisted)),
        granting=granting,
        went_back=went_back,
    )


def forgotten(ledger: MasterLedger, life: str) -> MasterLedger:
    """Another life: what is known of each seed is in doubt until it has answered."""
    return MasterLedger(
        incarnation=life,
        learning=True,
        seeds={
            seed: msgspec.structs.replace(holding, account="", nonce="", learned=False)
            for seed, holding in ledger.seeds.items()
        },
    )


def _take_up(ledger: MasterLedger, seeds: Sequence[SeedFacts]) -> MasterLedger:
    """Raises LedgerWentBackError."""
    holdings = dict(ledger.seeds)
    for seed in seeds:
        if seed.state == "Lost":
            holdings.pop(seed.name, None)
            continue
        holding = holdings.get(seed.name)
        if holding is None:
            if not seed.present:
                continue
            holding = Holding(learned=False)
        try:
            if holding.learned:
                escrow.check_shown(holding, seed.shown, ledger.incarnation)
            if seed.report is not None:
                holding = escrow.absorb(holding, seed.report, ledger.incarnation)
        except LedgerWentBackError as error:
            raise LedgerWentBackError(f"seed {seed.name}: {error}") from None
        if not seed.present and not any(escrow.held(holding).values()):
            holdings.pop(seed.name, None)
            continue
        holdings[seed.name] = holding
    learning = ledger.learning and any(not holdings[seed.name].learned for seed in seeds if seed.present)
    if learning == ledger.learning and holdings == ledger.seeds:
        return ledger
    return msgspec.structs.replace(ledger, learning=learning, seeds=holdings)


def _demands(limits: ResourceList, ledger: MasterLedger, seeds: Sequence[SeedFacts], now: int) -> list[SeedDemand]:
    demands = []
    usual = surge.regular(limits)  # what a rollout needs for a moment is nothing to keep headroom for
    for seed in seeds:
        holding = ledger.seeds.get(seed.name)
        if holding is None:
            continue
        held = escrow.held(holding)
        report = seed.report if seed.report is not None and not escrow.is_late(holding, seed.report) else None
        use = resources.add(report.used, report.reserved) if report is not None else seed.use
        use = resources.at_least_zero(held) if use is None else use
        use = {} if seed.withdrawn else use  # what is there is not limited: all that it holds can be others'
        projects = report.projects if report is not None and not seed.withdrawn else {}
        total = resources.add(use, surge.occupied(resources.only(use, limits), held))
        use, counted = _by_counter(use, projects, held), {}
        ours = report if report is not None and report.incarnation == holding.account else None
        speaks = ours is not None and seed.connected and holding.learned and not ours.nonce
        ask = ours.ask if speaks and ours is not None and not seed.withdrawn else Ask()
        if ours is not None and not seed.withdrawn:
            counted = guarantees.split(ours.used, guarantees.charges(projects, held))
        demand = learn(seed.demand, usual, held=held, use=use, ask=ask, answered=seed.answered, now=now)
        demands.append(
            SeedDemand(
                name=seed.name,
                held=held,
                use=resources.add(use, surge.occupied(resources.only(use, limits), held)),
                counted=resources.at_least_zero(counted),
                total=total,
                projects=projects,
                ask=ask,
                answered=seed.answered,
                reachable=speaks and not seed.silent,
                draining=seed.state != "Active",
                just_granted=seed.hopeful,
                demand=demand,
            )
        )
    return demands


def _charged(ledger: MasterLedger, seeds: Sequence[SeedFacts]) -> ResourceList:
    both = ((seed.report, ledger.seeds.get(seed.name)) for seed in seeds)
    return resources.total(
        guarantees.charges(report.projects, escrow.held(holding))
        for report, holding in both
        if report is not None and report.projects and holding is not None
    )


def _by_counter(use: ResourceList, projects: ResourceList, held: ResourceList) -> ResourceList:
    charged = guarantees.charges(projects, held)
    if not charged:
        return use
    found = guarantees.split(use, charged)
    return resources.add(found, guarantees.occupied(found, held))


def _recalls(
    limits: ResourceList, most: ResourceList, ledger: MasterLedger, allotment: Allotment
) -> Mapping[str, ResourceList]:
    """`most`: of each counter. What all counters of a resource have beyond its limit is recalled from each."""
    outstanding = resources.only(escrow.outstanding(ledger), most)
    over = lacking(guarantees.merged(outstanding), limits)
    more = {name: over.get(guarantees.resource(name), 0) for name in outstanding}
    excess = positive(resources.maximum(lacking(outstanding, most), more))
    if not excess:
        return allotment.recalls
    return {
        seed: positive(
            resources.maximum(allotment.recalls.get(seed, {}), resources.minimum(escrow.held(holding), excess))
        )
        for seed, holding in ledger.seeds.items()
    }


def _granted(ledger: MasterLedger, allotment: Allotment) -> MasterLedger:
    holdings = ledger.seeds
    more = {
        seed: escrow.grantable(holdings[seed], amounts)
        for seed, amounts in allotment.grants.items()
        if holdings[seed].learned
    }
    more = {seed: amounts for seed, amounts in more.items() if any(amounts.values())}
    if not more:
        return ledger
    raised = {seed: escrow.raise_granted(holdings[seed], amounts) for seed, amounts in more.items()}
    return msgspec.structs.replace(ledger, seeds={**holdings, **raised})
