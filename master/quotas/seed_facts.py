"""What a decision about one quota is made from, beside its ledger: each seed as it is known now."""

from __future__ import annotations

from collections.abc import Mapping

from common.quota.account import Grant
from common.quota.escrow import MasterLedger
from master.grants.planner import SeedFacts, SeedState
from master.quotas import withdrawal
from master.quotas.state import QuotaState, SeedAccount
from master.seeds.link import SeedLink


def seed_facts(state: QuotaState, ledger: MasterLedger, links: Mapping[str, SeedLink], now: float) -> list[SeedFacts]:
    """Of every Seed that the quota is on or should be, and of those that are gone and hold something. `now` is
    monotonic, in seconds."""
    there = [seed for seed, link in links.items() if not withdrawal.is_settled(state, ledger, link)]
    gone = [seed for seed in ledger.seeds if seed not in links]
    return [_facts(seed, links.get(seed), state.account(seed), now) for seed in (*there, *gone)]


def _facts(seed: str, link: SeedLink | None, account: SeedAccount, now: float) -> SeedFacts:
    return SeedFacts(
        name=seed,
        state=_state(link, account),
        connected=link is not None and link.connected,
        listed=link is not None and link.listed,
        tried=link is not None and link.settled,
        shown=account.shown or Grant(incarnation=""),
        report=account.report,
        use=account.use_before,
        answered=account.asked,
        silent=account.silent(now),
        hopeful=account.hopeful(now),
        demand=account.demand,
    )


def _state(link: SeedLink | None, account: SeedAccount) -> SeedState:
    if link is None:
        return "Gone"
    return "Withdrawn" if account.withdrawn else link.seed.spec.state
