"""The block of one writer: what it admits at once, and what of that has no name in the account yet (rule 4.15).

Safety: a request is admitted only from a block whose last write began less than GOOD_FOR ago. A read does not extend
this time: the leader may take the block right after the read. What was admitted since the last write is part of the
block until the next write names it, whatever that write is for. While a write is under way, or its outcome is not
known, what is admitted fits into the block before it and into the one after it. The block's number tells whether it was
done.

Who calls what: `named` before the writer decides, `hold` on what it decided, and then `saved`, `refused`, or, once the
account was read again, `read`. A conflict is no outcome: a request that a client or a proxy sent again conflicts with
what it did the first time.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import msgspec

from common.quota import account as accounts
from common.quota import blocks, guarantees, names, resources, shares, surge
from common.quota.account import MAX_RESERVATIONS, MAX_TEXT, Account, Admitted, Reservation, ReservationKey, Terms
from common.quota.resources import ResourceList
from seed.ledger.store_generation import elapsing

IDLE = 1.0  # seconds without an admission after which a block is given back
LATELY = 0.5  # ... between two admissions that belong together
BEGINS = 2  # admissions, of which each comes soon after the one before: one that comes alone needs no block
SCARCE = 2.0  # ... without a block after somebody found too little
TIMES = 3  # a block has so many times what was admitted since the write before ...
SHARE = 8  # ... and at most one part in so many of what is free
MOST = MAX_RESERVATIONS // 8  # admitted without a name, of one replica
FEW = MAX_RESERVATIONS // 4  # reservations of an account, up to which any source may have more (shares.may_take)


_NO_BLOCKS = (surge.PREFIX, guarantees.PREFIX)  # begin names of counters beside which there are none


class _Write(msgspec.Struct):
    """Under way, or of unknown outcome: which block it gives, and which of the admitted it names."""

    number: int
    named: frozenset[ReservationKey]
    left: dict[str, int]
    life: str
    limits: ResourceList
    began: float


class OwnBlock:
    def __init__(self) -> None:
        self.owner = secrets.token_hex(4)  # of this writer alone: what another left is not taken up
        self.admitted: dict[ReservationKey, Reservation] = {}  # from it, and not named yet
        self.unnamed: dict[str, int] = {}  # ... together
        self._characters = 0  # of these, in a ledger
        self._left: dict[str, int] = {}
        self._life = ""  # of the account
        self._limits: ResourceList = {}  # by which it was sized
        self._number = 0  # of the last write that is known to be done
        self._last_number = 0
        self._written = float("-inf")
        self._write: _Write | None = None
        self._asked: dict[str, int] = {}  # admitted since the last write that held a block, in whatever way
        self._largest: dict[str, int] = {}  # ... of one request
        self._requests = 0
        self._last_request = float("-inf")
        self._wanting = False  # one did not fit into what was left
        self._closed = False
        self._scarce_until = float("-inf")

    @property
    def exists(self) -> bool:
        """As far as is known; also where it is not known whether it was written."""
        return bool(self._left or self.admitted or self._write is not None)

    def close(self) -> None:
        """Nothing is admitted from it any more, and the next write gives it back."""
        self._closed = True

    # Admitting -----------------------------------------------------------------------------------------------------

    def may_admit(self, account: Account, terms: Terms, uid: str, reservation: Reservation, text: int) -> bool:
        """`account` as it is known, `text` the characters of what it has reserved and used."""
        if self._closed or elapsing() - self._written >= blocks.GOOD_FOR or account.incarnation != self._life:
            return False
        if not self._is_ours(account) or account.fenced or account.scarce:
            return False
        if self._limits != terms.limits or _is_recalled(account, terms):
            return False
        if reservation.generation or reservation.base or reservation.replaces:
            return False
        key = (reservation.source, uid)
        if key in self.admitted or key in account.reservations or accounts.held_back(account, reservation):
            return False
        crowded = len(self.admitted) >= MOST or len(account.reservations) >= FEW
        if crowded or text + self._characters > MAX_TEXT // SHARE:
            return False
        need = _kept(account, terms, reservation).amount
        if not any(amount > 0 for amount in need.values()):
            return False  # a block holds nothing for it, and its caller relies on the reservation (kinds/clusters)
        fits = _fits(need, self._left) and (self._write is None or _fits(need, self._write.left))
        self._wanting = self._wanting or not fits
        return fits

    def admit(self, account: Account, terms: Terms, uid: str, reservation: Reservation) -> Admitted:
        """What `may_admit`, in the same step of the event loop."""
        reservation = _kept(account, terms, reservation)
        self.admitted[reservation.source, uid] = reservation
        self.unnamed = resources.add(self.unnamed, reservation.amount)
        self._characters += shares.line_length(uid, reservation)
        for left in (self._left, self._write.left) if self._write is not None else (self._left,):
            for name, amount in reservation.amount.items():
                if amount > 0:
                    left[name] -= amount
        self.asked(reservation.amount)
        return Admitted(None, reservation)

    def asked(self, amount: ResourceList) -> None:
        """This was admitted, from the block or by a write."""
        now = elapsing()
        if now - self._last_request >= LATELY:
            self._asked, self._largest, self._requests = {}, {}, 0
        self._last_request = now
        self._requests += 1
        self._asked = resources.add(self._asked, amount)
        self._largest = resources.maximum(self._largest, amount)

    # Writing -------------------------------------------------------------------------------------------------------

    def is_due(self, account: Account | None, terms: Terms | None) -> bool:
        """Whether a write is due for its sake, where none is under way."""
        if self._write is not None or self.admitted:
            return True
        return account is not None and blocks.of(account, self.owner) is not None and self._must_go(account, terms)

    def named(self, account: Account) -> Account:
        """What was admitted is reserved by name, and all that is left of the block is free: to be decided on."""
        self._resolve(account)
        if account.incarnation != self._life or not self._is_ours(account):
            # The leader took it, after all that was admitted from it had come or could not come any more; or the
            # account has another life, or is an older one from a backup: then all is counted before it opens.
            self._lose()
            return blocks.without(account, [self.owner])
        return blocks.named(blocks.without(account, [self.owner]), self.admitted)

    def hold(self, account: Account, terms: Terms | None, *, short: bool) -> Account:
        """... with the block for the next moment. `short`: a request found too little."""
        now = elapsing()
        if short:
            self._scarce_until = now + SCARCE
        self._last_number += 1
        amount = {} if short or self._must_go(account, terms) else self._size(account, terms)
        if amount and account.scarce:
            account = msgspec.structs.replace(account, scarce=False)
        self._asked, self._largest, self._wanting = {}, {}, False
        self._write = _Write(
            self._last_number,
            frozenset(self.admitted),
            dict(amount),
            account.incarnation,
            terms.limits if terms is not None else {},
            now,
        )
        return blocks.hold(account, self.owner, amount, self._last_number)

    def saved(self) -> None:
        """The write is durable."""
        done, self._write = self._write, None
        if done is None:
            return
        for key in done.named:
            if (named := self.admitted.pop(key, None)) is not None:
                self._characters -= shares.line_length(key[1], named)
        self.unnamed = resources.total(kept.amount for kept in self.admitted.values())
        self._left, self._life, self._limits, self._number = done.left, done.life, done.limits, done.number
        self._written = done.began

    def refused(self) -> None:
        """The write is not done, and will not be."""
        self._write = None

    def read(self, account: Account | None) -> None:
        """A consistent read shows this, and no write of ours is under way any more."""
        if account is None:
            self.refused()
        else:
            self._resolve(account)

    def _resolve(self, account: Account) -> None:
        """Whether the write of unknown outcome was done; it cannot be done any more."""
        if self._write is None:
            return
        own = blocks.of(account, self.owner)
        done = own.generation == self._write.number if own is not None else not self._write.left
        if done and account.incarnation == self._write.life:
            self.saved()
        else:
            self.refused()

    def _is_ours(self, account: Account) -> bool:
        """The account has the block as we wrote it last."""
        own = blocks.of(account, self.owner)
        written = self._write.number if self._write is not None else self._number
        return own is not None and own.generation in (self._number, written)

    def shown(self, account: Account) -> Account:
        """What a dry run decides on: all that is reserved ahead is free, but for what was admitted from it here."""
        ours = self.admitted if self._is_ours(account) else {}
        return blocks.named(blocks.without(account, blocks.owners(account)), ours)

    def noticed(self, before: Account | None, account: Account | None) -> bool:
        """Another wrote the account. Returns whether the block has to go."""
        if account is None or blocks.of(account, self.owner) is None:
            return False
        if account.scarce and not (before is not None and before.scarce):
            self._scarce_until = elapsing() + SCARCE
        return account.scarce or account.fenced

    # Sizing --------------------------------------------------------------------------------------------------------

    def _must_go(self, account: Account, terms: Terms | None) -> bool:
        now = elapsing()
        return (
            self._closed
            or terms is None
            or account.fenced
            or now < self._scarce_until
            or now - self._last_request >= IDLE
            or _is_recalled(account, terms)
        )

    def _size(self, account: Account, terms: Terms | None) -> dict[str, int]:
        """What the next moment may need, by what the last one did. `account`: without the block."""
        if terms is None or self._requests < BEGINS or any(name.startswith(_NO_BLOCKS) for name in terms.limits):
            return {}
        grown = {name: 2 * amount for name, amount in resources.add(self._left, self.unnamed).items()}
        wanted = {name: TIMES * amount for name, amount in self._asked.items()}
        if self._wanting:
            wanted = resources.maximum(wanted, grown)
        if not self._asked:
            wanted = {name: amount // 2 for name, amount in self._left.items()}
        limited = accounts.ever_limited(account, terms.limits)
        wanted = {name: amount for name, amount in names.kept(wanted, limited).items() if amount > 0}
        if len({*account.reserved, *wanted}) > names.MAX_COUNTERS:
            return {}
        for name, free in accounts.free(account, terms.limits).items():
            if name in wanted:
                wanted[name] = min(wanted[name], free // SHARE)
                if wanted[name] < self._largest.get(name, 1):
                    return {}  # none of them would fit
        return wanted

    def _lose(self) -> None:
        self.admitted.clear()
        self.unnamed = {}
        self._characters = 0
        self._left, self._write, self._written = {}, None, float("-inf")


def _kept(account: Account, terms: Terms, reservation: Reservation) -> Reservation:
    """As `Reserving.claim` keeps it."""
    amount = names.kept(reservation.amount, accounts.ever_limited(account, terms.limits))
    return reservation if amount is reservation.amount else msgspec.structs.replace(reservation, amount=amount)


def _fits(need: ResourceList, left: Mapping[str, int]) -> bool:
    return all(amount <= left.get(name, 0) for name, amount in need.items() if amount > 0)


def _is_recalled(account: Account, terms: Terms) -> bool:
    """The master recalls what is not returned yet."""
    grant = terms.grant
    if grant.account != account.incarnation or grant.incarnation != account.master:
        return False  # it speaks to another life
    return any(amount > account.returned.get(name, 0) for name, amount in grant.recall.items())
