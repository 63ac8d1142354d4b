"""What a writer knows of its account in the store, and how sure that is. Pure."""

from __future__ import annotations

from common.quota.account import Account
from seed.ledger.store import Stored


class KnownAccount:
    def __init__(self) -> None:
        self.stored: Stored | None = None  # the last account known to be durable
        self.read = False  # else it must be read before the next decision
        self.late_write = False  # a write whose outcome is not known may still arrive
        self.highest = ("", 0)  # incarnation and sequence of the latest account known

    def observed(self, stored: Stored | None) -> bool:
        """The store reports a write, of another or our own. Returns whether that is news."""
        if stored is None:
            self.stored, self.read = None, False
            return True
        if self.stored is not None and not _newer(stored.account, self.stored.account):
            return False
        self.stored, self.read = stored, True
        self._remember(stored.account)
        return True

    def loaded(self, stored: Stored | None, before: Stored | None) -> bool:
        """The store answered a read that was sent when `before` was known. Returns whether that is news."""
        self.read, known = True, self.stored
        if stored is not None and known is not None:
            if stored.version == known.version:
                return False
            if known is not before and _precedes(stored.account, known.account):
                return False  # reported meanwhile
        self.stored = stored  # also in place of another life that was reported meanwhile: that report may be late
        return True

    def written(self, stored: Stored, before: Stored | None) -> bool:
        """Our write is durable. Returns False if a later write has been reported meanwhile."""
        self.read, self.late_write = True, False
        self._remember(stored.account)
        if self.stored is not before and (self.stored is None or _newer(self.stored.account, stored.account)):
            return False
        self.stored = stored
        return True

    def is_taken_since(self, before: Stored | None) -> bool:
        """Whether it is the same account in another version: another replica took it, and is about to write."""
        if before is None or self.stored is None:
            return False
        here, there = before.account, self.stored.account
        same = (here.incarnation, here.sequence) == (there.incarnation, there.sequence)
        return same and before.version != self.stored.version

    def went_back(self, account: Account) -> bool:
        """Whether the store lost writes that were durable (a restored backup). Remembers the account otherwise."""
        incarnation, sequence = self.highest
        if account.incarnation == incarnation and account.sequence < sequence:
            return True
        self._remember(account)
        return False

    def _remember(self, account: Account) -> None:
        self.highest = (account.incarnation, account.sequence)


def _newer(account: Account, known: Account) -> bool:
    """Another life is always news: which one counts, the store decided. Within one life the sequence decides."""
    return account.incarnation != known.incarnation or account.sequence > known.sequence


def _precedes(account: Account, other: Account) -> bool:
    return account.incarnation == other.incarnation and account.sequence < other.sequence
