"""Claims on an account, and how they are undone (docs/reference/protocol.md, section 4). Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from common.quota import account as accounts
from common.quota import guarantees, names, resources, shares, surge
from common.quota.account import (
    MAX_RESERVATIONS,
    MAX_TEXT,
    Account,
    Admitted,
    Denied,
    Fenced,
    Full,
    Occupied,
    Outcome,
    ReplacementConflict,
    Reservation,
    ReservationKey,
    Short,
)
from common.quota.resources import ResourceList
from common.quota.shares import Load


class Reserving:
    """Several claims on one account, decided in order against one snapshot, for one write (group commit)."""

    def __init__(self, account: Account, limits: ResourceList, load: Load | None = None) -> None:
        """`load`: the account's, where it is known."""
        self._before = account
        self._limited = accounts.ever_limited(account, limits)
        self._free = accounts.free(account, limits)
        self._room = guarantees.room(account, limits)  # where projects have guarantees
        self._reservations: dict[ReservationKey, Reservation] | None = None
        self._reserved = dict(account.reserved)
        load = shares.measure(account) if load is None else load
        self._text = load.text
        self._numbers, self._texts = dict(load.reservations), dict(load.texts)  # by source, and by tenant of one
        self.free = self._free

    @property
    def load(self) -> Load:
        """The account's after all claims."""
        return Load(self._text, self._numbers, self._texts)

    def claim(self, uid: str, reservation: Reservation) -> Outcome:
        """Of what it needs, the account keeps what matters by now (`names.kept`)."""
        if self._before.fenced:
            return Fenced()
        amount = names.kept(reservation.amount, self._limited)
        if amount is not reservation.amount:
            reservation = msgspec.structs.replace(reservation, amount=amount)
        current = self._reservations if self._reservations is not None else self._before.reservations
        key = (reservation.source, uid)
        known = current.get(key)
        after, extra = reservation, amount
        if known is not None:
            if known.replaces and reservation.generation:
                return ReplacementConflict()
            after, extra = on_top(known, reservation)
        elif (no_place := self._no_place(reservation, current)) is not None:
            return no_place
        lacking = self._lacking(reservation, extra)
        if lacking is not None:
            return lacking
        longer = shares.line_length(uid, after) - (shares.line_length(uid, known) if known is not None else 0)
        no_room = self._no_room(after, longer, extra)
        if no_room is not None:
            return no_room
        self._text += longer
        shares.add(self._texts, after, longer)
        if known is None:
            shares.add(self._numbers, after, 1)
        if self._reservations is None:
            self._reservations = dict(self._before.reservations)
        self._reservations[key] = after
        if self._room is not None:
            self._room.take(reservation.source, extra)
        for name, need in extra.items():
            self._reserved[name] = self._reserved.get(name, 0) + need
            if name in self._free:
                self._free[name] -= need
        return Admitted(known, after)

    def _no_place(self, reservation: Reservation, current: Mapping[ReservationKey, Reservation]) -> Denied | None:
        """Why nothing is reserved for one more object, whatever it needs."""
        if len(current) >= MAX_RESERVATIONS:
            return Full()
        over = shares.over(self._numbers, reservation, 1, len(current), MAX_RESERVATIONS)
        if (no := over or accounts.held_back(self._before, reservation)) is not None:
            return no
        if reservation.replaces and _is_taken(reservation, current):
            return ReplacementConflict()
        return None

    def _no_room(self, after: Reservation, longer: int, extra: ResourceList) -> Denied | None:
        """Why the ledger takes no line, or none that is so much longer."""
        if (longer > 0 and self._text + longer > MAX_TEXT) or not self._has_names_for(extra):
            return Full()
        return shares.over(self._texts, after, longer, self._text, MAX_TEXT) if longer > 0 else None

    def _lacking(self, reservation: Reservation, extra: ResourceList) -> Occupied | Short | None:
        under = (
            accounts.occupied(self._before) if reservation.replaces else {}
        )  # while there is any, no claim changes that
        if under := {name: under[name] for name, amount in extra.items() if amount > 0 and name in under}:
            return Occupied(under)
        free: ResourceList = self._free
        if self._room is not None:
            free = self._room.free(free, reservation.source)
        missing = resources.short(extra, free) | surge.withdrawn(extra, self._free)
        return Short(missing) if missing else None

    def _has_names_for(self, extra: ResourceList) -> bool:
        """A quota whose limits name other resources again and again has reservations of all of them for a while."""
        new = [name for name in extra if name not in self._reserved]
        return not new or len(self._reserved) + len(new) <= names.MAX_COUNTERS

    def account(self) -> Account:
        """The account after all claims; the very same object when none changed it."""
        if self._reservations is None:
            return self._before
        return msgspec.structs.replace(self._before, reservations=self._reservations, reserved=self._reserved)


def on_top(known: Reservation, wanted: Reservation) -> tuple[Reservation, ResourceList]:
    """One more claim for the same object, and what it costs beyond what is kept for it already.

    An update comes on top of what the generations before it need (rule 4.6). Of requests for the same generation only
    one can happen, so the largest covers them all; a repeat costs nothing.
    """
    earlier, generation = known.earlier, known.generation
    if wanted.generation > generation:
        extra, earlier, generation = wanted.amount, known.amount, wanted.generation
    else:
        covered = known.amount if wanted.generation < generation else resources.subtract(known.amount, earlier)
        extra = resources.at_least_zero(resources.subtract(wanted.amount, covered))
    after = msgspec.structs.replace(
        known,
        amount=resources.add(known.amount, extra),
        generation=generation,
        earlier=earlier,
        claims=known.claims + 1,
        request=wanted.request,
        base=resources.maximum(known.base, wanted.base) if wanted.base else known.base,
    )
    return after, extra


def _is_taken(wanted: Reservation, reservations: Mapping[ReservationKey, Reservation]) -> bool:
    source, replaced = wanted.source, wanted.replaces
    return (source, replaced) in reservations or any(
        kept.replaces == replaced and kept.source == source for kept in reservations.values()
    )


def cancel(account: Account, uid: str, admitted: Admitted) -> Account:
    """Undo one admission whose request is not answered with yes (another quota refused it: rule 4.2).

    A repeat that came since relies on the reservation: then it stays.
    """
    before, after = admitted.before, admitted.after
    if before is None:
        return withdraw(account, uid, after)
    key = (after.source, uid)
    if account.reservations.get(key) != after:
        return account
    return msgspec.structs.replace(
        account,
        reservations={**account.reservations, key: before},
        reserved=accounts.less(account.reserved, resources.subtract(after.amount, before.amount)),
    )


def withdraw(account: Account, uid: str, reservation: Reservation) -> Account:
    """Undo a claim whose request was given up before it was decided. What others rely on stays: those that came since,
    and those on top of which it came."""
    key = (reservation.source, uid)
    kept = account.reservations.get(key)
    if kept is None or kept.request != reservation.request or kept.claims > 1:
        return account
    return accounts.without(account, [key])
