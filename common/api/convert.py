"""Accounts' messages as they are written in statuses and ledgers, and back."""

from __future__ import annotations

from collections.abc import Sequence

from common.api.ledger_types import WireHolding, WireMasterLedger
from common.api.types import Quantities, WireAsk, WireGrant, WireGuarantee, WireIdle, WireReport
from common.quota import guarantees, resources
from common.quota.account import Ask, Grant
from common.quota.escrow import Holding, MasterLedger, Report
from common.quota.guarantees import Guarantee


def wire_quantities(amounts: resources.ResourceList) -> Quantities:
    return {**resources.render(amounts)}


def ask_to_wire(ask: Ask) -> WireAsk:
    return WireAsk(number=ask.number, first=wire_quantities(ask.first), wanted=wire_quantities(ask.wanted))


def ask_from_wire(wire: WireAsk) -> Ask:
    return Ask(number=wire.number, first=resources.parse(wire.first), wanted=resources.parse(wire.wanted))


def report_to_wire(report: Report) -> WireReport:
    return WireReport(
        incarnation=report.incarnation,
        sequence=report.sequence,
        master=report.master,
        state="Fenced" if report.nonce else "Open",
        nonce=report.nonce,
        granted=wire_quantities(report.granted),
        returned=wire_quantities(report.returned),
        used=wire_quantities(report.used),
        reserved=wire_quantities(report.reserved),
        projects=wire_quantities(report.projects),
        ask=ask_to_wire(report.ask),
    )


def report_from_wire(wire: WireReport) -> Report | None:
    """None while the seed has published no account yet."""
    if not wire.incarnation:
        return None
    return Report(
        incarnation=wire.incarnation,
        sequence=wire.sequence,
        master=wire.master,
        nonce=wire.nonce,
        granted=resources.parse(wire.granted),
        returned=resources.parse(wire.returned),
        used=resources.parse(wire.used),
        reserved=resources.parse(wire.reserved),
        projects=resources.parse(wire.projects),
        ask=ask_from_wire(wire.ask),
    )


def grant_to_wire(
    grant: Grant,
    *,
    learning: bool = False,
    draining: bool = False,
    usage_stale: bool = False,
    withdrawn: str = "",
    unavailable: Sequence[WireIdle] = (),
    raised: Quantities | None = None,
    guaranteed: Sequence[Guarantee] = (),
) -> WireGrant:
    return WireGrant(
        incarnation=grant.incarnation,
        account=grant.account,
        nonce=grant.nonce,
        granted=wire_quantities(grant.granted),
        returned=wire_quantities(grant.returned),
        recall=wire_quantities(guarantees.plain(grant.recall)),
        guarantees=tuple(guarantee_to_wire(each) for each in guaranteed),
        recall_guaranteed=wire_quantities(guarantees.only(grant.recall)),
        answered=grant.answered,
        seen=grant.seen,
        unbroken=grant.unbroken,
        learning=learning,
        draining=draining,
        usage_stale=usage_stale,
        withdrawn=withdrawn,
        unavailable=tuple(unavailable),
        raised=raised or {},
    )


def grant_from_wire(wire: WireGrant) -> Grant:
    return Grant(
        incarnation=wire.incarnation,
        account=wire.account,
        nonce=wire.nonce,
        granted=resources.parse(wire.granted),
        returned=resources.parse(wire.returned),
        recall=resources.parse(wire.recall) | resources.parse(wire.recall_guaranteed),
        answered=wire.answered,
        seen=wire.seen,
        unbroken=wire.unbroken,
    )


def guarantee_to_wire(guarantee: Guarantee) -> WireGuarantee:
    hard, used = wire_quantities(guarantee.hard), wire_quantities(guarantee.used)
    return WireGuarantee(project=guarantee.project, hard=hard, used=used)


def guarantee_from_wire(wire: WireGuarantee) -> Guarantee:
    return Guarantee(project=wire.project, hard=resources.parse(wire.hard), used=resources.parse(wire.used))


def ledger_to_wire(ledger: MasterLedger) -> WireMasterLedger:
    return WireMasterLedger(
        incarnation=ledger.incarnation,
        learning=ledger.learning,
        seeds={
            seed: WireHolding(
                account=holding.account,
                granted=wire_quantities(holding.granted),
                returned=wire_quantities(holding.returned),
                learned=holding.learned,
                nonce=holding.nonce,
            )
            for seed, holding in ledger.seeds.items()
        },
    )


def ledger_from_wire(wire: WireMasterLedger) -> MasterLedger:
    return MasterLedger(
        incarnation=wire.incarnation,
        learning=wire.learning,
        seeds={
            seed: Holding(
                account=holding.account,
                granted=resources.parse(holding.granted),
                returned=resources.parse(holding.returned),
                learned=holding.learned,
                nonce=holding.nonce,
            )
            for seed, holding in wire.seeds.items()
        },
    )
