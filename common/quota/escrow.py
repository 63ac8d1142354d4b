"""The master's side of the escrow: what it handed to which seed. Pure (docs/reference/protocol.md section 3).

Per quota and seed the master keeps G (`granted`) and R (`returned`), which only grow. It grants only while the sum of
G - R over all seeds stays within the limit, and persists G before a seed can see it. So G >= g and r >= R always, and
the sum of what seeds may admit is within the limit, however messages are delayed, lost, repeated or reordered.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from common.quota import blocks, guarantees, names, resources
from common.quota.account import Account, Ask, Grant
from common.quota.resources import ResourceList


class LedgerWentBackError(Exception):
    """A seed shows more than this ledger ever did: the ledger was restored from an older state."""


class ImpossibleReportError(Exception):
    """No account can have what a seed reports."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A seed's message to the master about one account: a snapshot of the ledger entry `sequence`."""

    incarnation: str
    sequence: int = 0
    master: str = ""
    nonce: str = ""
    granted: ResourceList = {}
    returned: ResourceList = {}
    used: ResourceList = {}  # counted, all sources
    reserved: ResourceList = {}
    projects: ResourceList = {}  # of both, what projects with a guarantee have, by its counter (rule 4.16)
    ask: Ask = Ask()


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed holds of one quota, as the master knows it.

    `account` is the life of the seed's account that R was learned from, `nonce` the last question answered.
    `learned` is false until a master without memory knows what this seed holds.
    """

    account: str = ""
    granted: ResourceList = {}
    returned: ResourceList = {}
    nonce: str = ""
    learned: bool = True


class MasterLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The master's record of one quota."""

    incarnation: str
    learning: bool = False
    seeds: Mapping[str, Holding] = {}


def report(account: Account) -> Report:
    """What a seed publishes of its account, after it was persisted. Blocks are idle, and what may be in the account
    twice is told once: else the master would cover it (rule 3.7)."""
    return Report(
        incarnation=account.incarnation,
        sequence=account.sequence,
        master=account.master,
        nonce=account.nonce,
        granted=account.granted,
        returned=account.returned,
        used=resources.total(account.used.values()),
        reserved=blocks.sure_reserved(account),
        projects=guarantees.of_projects(account),
        ask=account.ask,
    )


def check(said: Report) -> None:
    """Raises ImpossibleReportError. More that was returned than granted would be free for all other seeds."""
    if wrong := [name for name, amount in said.returned.items() if amount > said.granted.get(name, 0)]:
        raise ImpossibleReportError(f"more {wrong[0]} was returned than granted")
    ask = said.ask
    for amounts in (said.granted, said.returned, said.used, said.reserved, said.projects, ask.first, ask.wanted):
        if wrong := [name for name, amount in amounts.items() if amount < 0]:
            raise ImpossibleReportError(f"there is less than nothing of {wrong[0]}")


def supersedes(said: Report, known: Report | None) -> bool:
    """Whether a report may replace the one known: within one life of an account, late ones say nothing.

    A fence with another nonce always does: a ledger that was restored from a backup has counted on from an older state.
    """
    return (
        known is None
        or said.incarnation != known.incarnation
        or said.sequence >= known.sequence
        or said.nonce not in ("", known.nonce)
    )


def is_late(holding: Holding, said: Report) -> bool:
    """Whether a report is older than what was taken up of this life: what it tells of use was true once.

    A copy shows it where an earlier one arrived after a later one, to a master that has not seen the later one.
    """
    return said.incarnation == holding.account and any(
        amount > said.returned.get(name, 0) for name, amount in holding.returned.items()
    )


def held(holding: Holding) -> dict[str, int]:
    return resources.subtract(holding.granted, holding.returned)


def absorb(holding: Holding, said: Report, ledger_incarnation: str) -> Holding:
    """Take up what a seed reported. Raises LedgerWentBackError if the seed has what was never granted.

    Only a fenced account (one that asks with a nonce) may start a new life; counters that come from any other life are
    ignored. An account that is open under this master was answered by this ledger, which must know of it. Nothing is
    taken up that no honest seed can say of what it was granted, or that has no room in a ledger.
    """
    taken = _taken_up(holding, said, ledger_incarnation)
    room = max(len(taken.granted), len(taken.returned)) <= names.MAX_HELD
    return taken if room and min(held(taken).values(), default=0) >= 0 else holding


def _taken_up(holding: Holding, said: Report, ledger_incarnation: str) -> Holding:
    if not holding.learned:
        return _learn(holding, said, ledger_incarnation)
    if not said.nonce and said.incarnation != holding.account:
        if not holding.account and said.master == ledger_incarnation:
            raise LedgerWentBackError("an account is open there, none was opened here")
        return holding
    if said.master == ledger_incarnation and any(
        amount > holding.granted.get(name, 0) for name, amount in said.granted.items()
    ):
        raise LedgerWentBackError(
            f"granted {resources.text(said.granted)} there, {resources.text(holding.granted)} here"
        )
    if said.nonce and (said.nonce != holding.nonce or said.incarnation != holding.account):
        # An account that opens keeps the larger of its own g and our G: ours must be as large.
        granted = resources.maximum(holding.granted, said.granted)
        holding = msgspec.structs.replace(holding, account=said.incarnation, nonce=said.nonce, granted=granted)
    returned = resources.maximum(holding.returned, said.returned)
    if returned == holding.returned:
        return holding
    return msgspec.structs.replace(holding, returned=returned)


def _learn(holding: Holding, said: Report, ledger_incarnation: str) -> Holding:
    """A master without memory hands an account its own counters back, and knows them once it has opened with them.

    What a fenced account says is not enough: an answer of the former master may still be on its way to the same
    nonce. Once the account is open under this master, nothing but this master's grants adds to what it has.
    """
    if said.nonce:
        return Holding(
            account=said.incarnation,
            granted=said.granted,
            returned=said.returned,
            nonce=said.nonce,
            learned=False,
        )
    if not holding.nonce or said.incarnation != holding.account or said.master != ledger_incarnation:
        return holding
    return msgspec.structs.replace(
        holding,
        granted=resources.maximum(holding.granted, said.granted),
        returned=resources.maximum(holding.returned, said.returned),
        learned=True,
    )


def grantable(holding: Holding, more: ResourceList) -> dict[str, int]:
    """What of `more` can be granted: counters hold names for good, so there is an end to them (MAX_COUNTERS)."""
    counted = holding.granted
    new = [name for name in more if name not in counted][max(names.MAX_COUNTERS - len(counted), 0) :]
    return {name: amount for name, amount in more.items() if name not in new}


def beyond_counters(ledger: MasterLedger, limits: ResourceList) -> list[str]:
    """What is limited, and cannot be granted to every seed."""
    full = [holding.granted for holding in ledger.seeds.values() if len(holding.granted) >= names.MAX_COUNTERS]
    return sorted(name for name in limits if any(name not in counted for counted in full))


def raise_granted(holding: Holding, more: ResourceList) -> Holding:
    assert all(amount >= 0 for amount in more.values()), "G only grows"
    return msgspec.structs.replace(holding, granted=resources.add(holding.granted, more))


def outstanding(ledger: MasterLedger) -> dict[str, int]:
    """The sum of G - R: what seeds may be using at this moment."""
    return resources.total(held(holding) for holding in ledger.seeds.values())


def went_back(ledger: MasterLedger, known: MasterLedger) -> bool:
    """Whether `ledger`, read now, is older than `known`, which was written before: it was restored from a backup."""
    return ledger.incarnation == known.incarnation and any(
        amount > (there.granted if (there := ledger.seeds.get(seed)) is not None else {}).get(name, 0)
        for seed, holding in known.seeds.items()
        for name, amount in holding.granted.items()
    )


def certain(known: MasterLedger, attempted: MasterLedger) -> MasterLedger:
    """What is in the ledger whether `attempted` was written over `known` or not: seeds that it drops may be gone."""
    return msgspec.structs.replace(
        known, seeds={seed: holding for seed, holding in known.seeds.items() if seed in attempted.seeds}
    )


def check_shown(holding: Holding, shown: Grant, ledger_incarnation: str) -> None:
    """Raises LedgerWentBackError if a seed was shown more, by whichever master, than this ledger granted, or by another
    life of it: what was learned in this one is no longer what the seed has.
    """
    if shown.incarnation not in ("", ledger_incarnation, _unanswered(ledger_incarnation)):
        raise LedgerWentBackError(f"another life of the ledger, {shown.incarnation}, was shown there")
    if shown.incarnation == ledger_incarnation and any(
        amount > holding.granted.get(name, 0) for name, amount in shown.granted.items()
    ):
        raise LedgerWentBackError(
            f"granted {resources.text(shown.granted)} there, {resources.text(holding.granted)} here"
        )


def _unanswered(ledger_incarnation: str) -> str:
    """No account has this name as its master, so each that is open fences itself and asks with a fresh nonce: also one
    that still holds grants of this very ledger, on a cluster added again under another name."""
    return f"{ledger_incarnation}?"


def message(
    ledger: MasterLedger, seed: str, recall: ResourceList, answered: int, seen: int = 0, *, unbroken: bool = False
) -> Grant:
    """What the master shows to a seed, after it was persisted. `seen`, `unbroken`: see Grant."""
    holding = ledger.seeds[seed]
    if not holding.learned and not holding.nonce:
        return Grant(incarnation=_unanswered(ledger.incarnation))
    return Grant(
        incarnation=ledger.incarnation,
        account=holding.account,
        nonce=holding.nonce,
        granted=holding.granted,
        returned=holding.returned,
        recall=resources.add(holding.returned, recall) if recall else {},
        answered=answered,
        seen=seen,
        unbroken=unbroken,
    )
