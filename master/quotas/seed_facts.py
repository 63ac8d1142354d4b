"""What a decision about one quota is made from, beside its ledger: each seed as it is known now."""

from __future__ import annotations

from collections.abc import Mapping

from common.quota.account import Grant
from common.quota.escrow import MasterLedger
from master.grants.planner import SeedFacts
from master.quotas.state import QuotaState, SeedAccount
from master.seeds.link import SeedLink


def seed_facts(state: QuotaState, ledger: MasterLedger, links: Mapping[str, SeedLink], now: float) -> list[SeedFacts]:
    """Of every Seed, and of those that are gone and hold something. `now` is monotonic, in seconds."""
    gone = [seed for seed in ledger.seeds if seed not in links]
    return [_facts(seed, links.get(seed), state.account(seed), now) for seed in (*links, *gone)]


def _facts(seed: str, link: SeedLink | None, account: SeedAccount, now: float) -> SeedFacts:
    return SeedFacts(
        name=seed,
        state=link.seed.spec.state if link is not None else "Gone",
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
