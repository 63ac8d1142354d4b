"""Mutants of blocks: see tests/sim/mutants.py.

Not in the list, since they only take time: not to say that capacity is scarce, and never to settle what was named late.
Two rules have others beside them: what is admitted from a block behind a fence is in the account that opens, and a
limit that is lowered also recalls what blocks have.
"""

from __future__ import annotations

from typing import Any

import msgspec

from common.quota import account as accounts
from common.quota import blocks, escrow, fencing, reservations, resources
from common.quota.account import Account, Admitted, Reservation, Terms
from common.quota.escrow import Report
from common.quota.resources import ResourceList
from seed.accounts import publisher
from seed.accounts.account_write import write
from seed.accounts.block_collector import BlockCollector
from seed.accounts.registry import AccountHandle
from seed.ledger import own_block
from seed.ledger.own_block import OwnBlock
from seed.ledger.writer import AccountWriter
from seed.model.quota import Quota
from tests.sim import block_scenes
from tests.sim.mutant import Mutant

replace = msgspec.structs.replace
_hold, _saved, _refused, _init = (
    OwnBlock.hold,
    OwnBlock.saved,
    OwnBlock.refused,
    OwnBlock.__init__,
)
_read_again = AccountWriter._read_again
_report, _rebuild, _use = escrow.report, fencing.rebuild, accounts.use


def use_without_blocks(account: Account) -> dict[str, int]:
    return resources.subtract(_use(account), resources.total(kept.amount for kept in blocks.owners(account).values()))


async def taken_when_seen(self: BlockCollector, handle: AccountHandle, quota: Quota, _account: object) -> None:
    await write(handle, quota, lambda present: (blocks.without(present, blocks.owners(present)), None))


def listed_or_not(_self: BlockCollector, *_arguments: object) -> bool:
    return True


def never_named(self: OwnBlock, account: Account) -> Account:
    return blocks.without(account, [self.owner])


def named_for_ever(self: OwnBlock) -> None:
    admitted = dict(self.admitted)
    _saved(self)
    self.admitted.update(admitted)


def all_were_named(self: OwnBlock) -> None:
    _saved(self)
    self.admitted.clear()


def refused_and_forgotten(self: OwnBlock) -> None:
    _refused(self)
    self.admitted.clear()


def done_in_any_case(self: OwnBlock, account: Account) -> None:
    if self._write is not None:
        self._number = ((own := blocks.of(account, self.owner)) is not None and own.generation) or 0
        number = self._number
        self.saved()
        self._number = number


def kept_though_scarce(self: OwnBlock, _before: object, _account: object) -> bool:
    return False


def needed_for_ever(self: OwnBlock, _account: object, _terms: object) -> bool:
    return False


def certain_without_blocks(account: Account) -> dict[str, int]:
    return _use(account)


def all_is_reserved(account: Account) -> Report:
    return replace(_report(account), reserved=account.reserved)


def named_in_time(account: Account, admitted: Any) -> Account:
    after = _named(account, admitted)
    there = {key: replace(kept, late=False) for key, kept in after.reservations.items()}
    return replace(after, reservations=there)


_named = blocks.named


def one_for_all(self: OwnBlock) -> None:
    _init(self)
    self.owner = "one"


def as_large_as_before(self: OwnBlock, account: Account, terms: Terms | None, *, short: bool) -> Account:
    """What comes while it is written may use all that was left."""
    after = _hold(self, account, terms, short=short)
    if self._write is not None and self._left:
        self._write.left = resources.maximum(self._write.left, self._left)
    return after


def all_that_is_free(self: OwnBlock, account: Account, terms: Terms | None) -> dict[str, int]:
    return dict(terms.limits) if terms is not None and self._requests else {}


def nothing_is_subtracted(
    self: OwnBlock, account: Account, _terms: Terms, uid: str, reservation: Reservation
) -> Admitted:
    self.admitted[reservation.source, uid] = reservation
    return Admitted(None, reservation)


async def a_conflict_refuses(self: AccountWriter, *, take: bool) -> None:
    self.block.refused()
    await _read_again(self, take=take)


def any_amount_fits(_need: ResourceList, _left: object) -> bool:
    return True


RUSH = ("rush",)
UNSURE = ("rush", "loss", "late")

ALL = (
    Mutant("a block is not a part of use", ((accounts, "use", use_without_blocks),), RUSH),
    Mutant("a block is as large as the limit", ((OwnBlock, "_size", all_that_is_free),), RUSH),
    Mutant("more is admitted than is left of a block", ((own_block, "_fits", any_amount_fits),), RUSH),
    Mutant("a block does not become less", ((OwnBlock, "admit", nothing_is_subtracted),), RUSH),
    Mutant("a block is good for ever", ((blocks, "GOOD_FOR", 1e9),), RUSH, 400, block_scenes.a_replica_that_comes_back),
    Mutant(
        "a block is taken at once",
        ((BlockCollector, "take", taken_when_seen),),
        RUSH,
        1500,
        block_scenes.a_replica_that_dies,
    ),
    Mutant(
        "a block is taken by old lists",
        ((BlockCollector, "_all_listed", listed_or_not),),
        RUSH,
        1500,
        block_scenes.a_source_that_is_not_heard,
    ),
    Mutant("what a block admitted is not named", ((OwnBlock, "named", never_named),), RUSH),
    Mutant("what a block admitted is named for ever", ((OwnBlock, "saved", named_for_ever),), RUSH),
    Mutant("what comes during a write is taken for named", ((OwnBlock, "saved", all_were_named),), RUSH),
    Mutant("a conflict forgets what a block admitted", ((OwnBlock, "refused", refused_and_forgotten),), RUSH),
    Mutant(
        "a write of a block that is unsure is believed",
        ((OwnBlock, "_resolve", done_in_any_case),),
        UNSURE,
    ),
    Mutant(
        "a block is never given back",
        ((OwnBlock, "_must_go", needed_for_ever), (OwnBlock, "noticed", kept_though_scarce)),
        RUSH,
    ),
    Mutant("who refuses takes blocks for used", ((blocks, "sure_use", certain_without_blocks),), RUSH),
    Mutant(
        "a conflict of a write that was sent twice is a refusal",
        ((AccountWriter, "_read_again", a_conflict_refuses),),
        RUSH,
        400,
        block_scenes.a_write_that_is_sent_again,
    ),
    Mutant(
        "an update that comes before the name has the place of the creation",
        ((blocks, "_below", reservations.on_top),),
        ("rush", "updates"),
    ),
    Mutant("blocks are reported as reserved", ((publisher, "report", all_is_reserved),), RUSH),
    Mutant("what is named late is certain", ((blocks, "named", named_in_time),), RUSH),
    Mutant("all replicas have one block", ((OwnBlock, "__init__", one_for_all),), RUSH),
    Mutant("a block that becomes smaller is used as it was", ((OwnBlock, "hold", as_large_as_before),), RUSH),
)
