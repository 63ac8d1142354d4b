"""What a batch of claims and changes makes of an account."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.quota import account as accounts
from common.quota import shares
from common.quota.account import Account, Fenced, Outcome, Reservation, Terms
from common.quota.reservations import Reserving
from common.quota.shares import Load
from seed.ledger.batcher import Change, Claim, Creation, Entry
from seed.ledger.store import NoAccountError


class Decider:
    def __init__(self, name: str, terms: Callable[[], Terms | None], trusts: Callable[[Account], bool]) -> None:
        """`trusts`: whether this process may admit by the account."""
        self._name = name
        self._terms = terms
        self._trusts = trusts
        # Reservations and use, and their load.
        self._measured: tuple[object, object, Load] = (None, None, Load(0, {}, {}))

    def decide(self, batch: Sequence[Entry], account: Account | None) -> tuple[list[object], Account | None]:
        """The outcome of each entry, in order, and the account after all of them. An outcome may be an exception."""
        terms = self._terms()
        outcomes: list[object] = []
        reserving: Reserving | None = None
        for entry in batch:
            if isinstance(entry, Claim):
                if account is None or terms is None or not self._trusts(account):
                    outcomes.append(Fenced())
                    continue
                if reserving is None:
                    account = accounts.apply_grant(account, terms.grant)  # also what became free in this very batch
                    reserving = Reserving(account, terms.limits, self.load(account))
                outcomes.append(reserving.claim(entry.uid, entry.reservation))
                continue
            if reserving is not None:
                account, reserving = self._reserved(reserving), None
            account, outcome = self._change(entry, account)
            outcomes.append(outcome)
        return outcomes, self._reserved(reserving) if reserving is not None else account

    def preview(self, account: Account | None, uid: str, reservation: Reservation) -> Outcome:
        terms = self._terms()
        if account is None or terms is None or not self._trusts(account):
            return Fenced()
        account = accounts.apply_grant(account, terms.grant)
        return Reserving(account, terms.limits, self.load(account)).claim(uid, reservation)

    def load(self, account: Account) -> Load:
        """Measured anew only after another has changed it: not for each of thousands of claims."""
        reservations, used, load = self._measured
        if reservations is not account.reservations or used is not account.used:
            load = shares.measure(account)
            self._measured = (account.reservations, account.used, load)
        return load

    def _reserved(self, reserving: Reserving) -> Account:
        account = reserving.account()
        self._measured = (account.reservations, account.used, reserving.load)
        return account

    def _change(self, entry: Change[object], account: Account | None) -> tuple[Account | None, object]:
        if isinstance(entry.apply, Creation):
            return entry.apply.where_missing(account)
        if account is None:
            return None, NoAccountError(f"{self._name} has no account")
        try:
            return entry.apply(account)
        except Exception as error:  # noqa: BLE001 (for the caller of this change alone; the rest of the batch goes on)
            return account, error
