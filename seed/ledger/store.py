"""Where a seed keeps its accounts, durably: one compare-and-set per change (docs/reference/protocol.md section 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from common.quota.account import Account, AccountKey


class Stored(msgspec.Struct, frozen=True):
    """An account as it was read or written, with the version that the next write must name."""

    account: Account
    version: str


class ConflictError(Exception):
    """Somebody else wrote since: read again and decide again."""


class StoreUnavailableError(Exception):
    """The outcome is unknown: the write may have happened. Read before the next decision."""


class Store(Protocol):
    """Every method raises StoreUnavailableError when the store does not answer in time."""

    async def load(self, key: AccountKey) -> Stored | None:
        """The present state, read consistently; None where there is no such account."""

    async def take(self, key: AccountKey) -> Stored | None:
        """As `load`, and what others are about to write by what they read before is refused: they conflict."""

    async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        """Write if nobody wrote since `version` (None: if there is no such account). Raises ConflictError."""

    async def delete(self, key: AccountKey) -> None:
        """Forget the account. Deleting what is not there is no error."""

    async def keys(self) -> list[AccountKey]:
        """Every account there is."""

    def subscribe(self, uid: str, on_change: Callable[[Stored | None], None]) -> Callable[[], None]:
        """Tell of writes by others (and maybe of our own) as they are seen. Returns how to stop."""


class NoAccountError(Exception):
    """The ledger holds no account of this quota (yet, or any more)."""
