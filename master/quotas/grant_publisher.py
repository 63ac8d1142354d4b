"""Shows each seed its grant and the sums, once a decision is durable."""

from __future__ import annotations

from common.api.convert import grant_to_wire, wire_quantities
from common.quota import escrow, guarantees, resources
from common.quota.resources import ResourceList
from master.grants.planner import Decision
from master.quotas.countable import uncounted
from master.quotas.publish_delay import WAITING, publish_delay
from master.quotas.quota_view import QuotaView
from master.quotas.state import QuotaState, SeedAccount
from master.quotas.status import summary
from master.seeds.registry import Seeds
from master.seeds.status_publisher import Shown

SOON = 0.01  # seconds until a seed is shown what people wait for: in a rush it has to wait
FIRST_WORD = 3.0  # seconds until a seed that has said nothing is written to: mostly it asks sooner
RUSHED_WORD = 120.0  # ... where many came at once, of which it asks one after the other


class GrantPublisher:
    """Offers each seed's part of a decision to that seed's own publisher."""

    def __init__(self, seeds: Seeds) -> None:
        self._seeds = seeds

    def publish(self, state: QuotaState, decision: Decision, view: QuotaView, now: float) -> None:
        """Only what is durable. `now` is monotonic, in seconds. It waits for nothing: each seed's publisher writes."""
        ledger, recalls = decision.ledger, decision.recalls
        names = guarantees.plain(state.ceilings).keys()
        present = [seed for seed in view.seeds if seed.limited]
        use = dict.fromkeys(names, 0) | resources.total(resources.only(seed.use, names) for seed in present)
        reserved = resources.total(resources.only(seed.reserved, names) for seed in present)
        global_usage = wire_quantities(use)
        shown_reserved = wire_quantities({name: amount for name, amount in reserved.items() if amount})
        hard = wire_quantities(state.limits)
        stale = usage_stale(view)
        clusters = sum(seed.clusters for seed in present)
        unknown = {*uncounted(view.spec, view.allocated, clusters=clusters), *view.not_served}
        words = summary(state.spec, use, state.limits, present, unknown, state.overrides)
        for seed in ledger.seeds:
            link = self._seeds.links.get(seed)
            copy = link.copy(state.name, state.uid) if link is not None and link.connected else None
            if link is None or copy is None:
                continue
            account = state.account(seed)
            seen, unbroken = account.remembered
            message = escrow.message(ledger, seed, recalls.get(seed, {}), account.asked, seen, unbroken=unbroken)
            before, written_at = link.publisher.last(state.name, copy.metadata.uid)
            has_limits = state.is_spec_of(copy, in_cluster=link.in_cluster)
            if state.overrides and not has_limits and link.sync is not None:
                link.sync.add(("resourcequotas", state.name))  # by the clock; its spec has not changed
            # A limit that is on its way to the seed is shown when it is there: one write instead of two.
            shown = Shown(
                observed_generation=copy.metadata.generation,
                hard=hard if before is None or has_limits else before.hard,
                global_usage=global_usage,
                reserved=shown_reserved,
                grant=grant_to_wire(
                    message,
                    raised=wire_quantities(state.raised) if link.in_cluster else {},
                    learning=decision.learning,
                    draining=account.draining,
                    usage_stale=stale,
                    withdrawn=account.withdrawn,
                    unavailable=account.unavailable,
                    guaranteed=view.guarantees,
                ),
            )
            within = self._within(account, before, shown, use, written_at, now)
            if before is None and account.report is None and link.in_cluster and state.spec.subject.seeds is not None:
                within = SOON  # there, it limits nothing before it is said that it does
            elif before is None and account.report is None and state.rushed:
                within = RUSHED_WORD
            link.publisher.offer(state.name, copy.metadata.uid, shown, words, within=within)

    def _within(
        self,
        account: SeedAccount,
        before: Shown | None,
        shown: Shown,
        use: ResourceList,
        written_at: float,
        now: float,
    ) -> float:
        """In how many seconds the seed should be shown it: 0 where somebody waits for it. One that has not reported
        yet is about to ask."""
        if before is None:
            return 0.0 if account.report is not None else FIRST_WORD
        if _speaks(before, shown):
            return 0.0
        if before.hard != shown.hard:
            return SOON
        since = now - account.refused_at
        fell = since < WAITING and any(
            amount < known
            for name, known in resources.parse(before.global_usage).items()
            if (amount := use.get(name)) is not None
        )
        return publish_delay(since if fell else None, now - written_at, len(self._seeds.links))


def usage_stale(view: QuotaView) -> bool:
    """Whether some of the use was not reported lately, or is not known."""
    return view.learning or any(
        seed.gone
        or seed.stale
        or seed.agent_silent
        or seed.fenced
        or not seed.reported
        or not seed.learned
        or bool(seed.stale_sources)
        for seed in view.seeds
        if seed.limited and not seed.absent
    )


def _speaks(before: Shown, shown: Shown) -> bool:
    """Whether the grant says something that the seed waits for. That a recall is over can wait."""
    was, now = before.grant, shown.grant
    return (was.incarnation, was.account, was.nonce, was.granted, was.answered, was.learning, was.withdrawn) != (
        now.incarnation,
        now.account,
        now.nonce,
        now.granted,
        now.answered,
        now.learning,
        now.withdrawn,
    ) or (bool(now.recall) and now.recall != was.recall)
