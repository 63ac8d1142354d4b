"""Accounts in memory, for tests. The conformance suite runs against it as against the stores."""

from __future__ import annotations

from collections.abc import Callable

from common.quota.account import Account, AccountKey
from seed.ledger.store import ConflictError, Stored


class MemoryStore:
    def __init__(self) -> None:
        self._stored: dict[str, Stored] = {}
        self._written = 0
        self._subscribers: dict[str, list[Callable[[Stored | None], None]]] = {}
        self._keys: dict[str, AccountKey] = {}

    async def load(self, key: AccountKey) -> Stored | None:
        return self._stored.get(key.uid)

    async def take(self, key: AccountKey) -> Stored | None:
        stored = self._stored.get(key.uid)
        if stored is None:
            return None
        self._written += 1
        taken = self._stored[key.uid] = Stored(stored.account, str(self._written))
        return taken

    async def save(self, key: AccountKey, account: Account, version: str | None) -> str:
        present = self._stored.get(key.uid)
        if (present.version if present else None) != version:
            raise ConflictError(f"{key.name}: written since version {version}")
        self._written += 1
        stored = Stored(account, str(self._written))
        self._stored[key.uid] = stored
        self._keys[key.uid] = key
        self._tell(key.uid, stored)
        return stored.version

    async def delete(self, key: AccountKey) -> None:
        if self._stored.pop(key.uid, None) is not None:
            self._tell(key.uid, None)

    async def keys(self) -> list[AccountKey]:
        return [self._keys[uid] for uid in self._stored]

    def subscribe(self, uid: str, on_change: Callable[[Stored | None], None]) -> Callable[[], None]:
        listeners = self._subscribers.setdefault(uid, [])
        listeners.append(on_change)
        return lambda: listeners.remove(on_change)

    def _tell(self, uid: str, stored: Stored | None) -> None:
        for on_change in list(self._subscribers.get(uid, ())):
            on_change(stored)
