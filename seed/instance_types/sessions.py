"""Sessions with clouds: made once for each set of credentials, used until shortly before they end or are refused."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import msgspec

from common.runtime.lru import LruByOwner
from seed.providers.flavour import Place, Session, Settings, SignIn

MAX_SESSIONS = 32  # of one asker


@dataclass(frozen=True, slots=True)
class _Kept:
    session: Session
    until: float  # monotonic


class Sessions:
    """Of each asker, by a keyed hash of the credentials, under a key of this process alone."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(32)
        self._kept: LruByOwner[bytes, _Kept] = LruByOwner(MAX_SESSIONS)
        self._locks: dict[tuple[Hashable, bytes], asyncio.Lock] = {}

    def of(self, asker: Hashable, place: Place, credentials: Settings) -> Signing:
        text = msgspec.json.encode((place, credentials.items()))
        return Signing(self, asker, hmac.new(self._salt, text, hashlib.sha256).digest())

    async def get(self, asker: Hashable, key: bytes, make: SignIn) -> tuple[Session, bool]:
        """The session, and whether it was made just now."""
        lock = self._locks.setdefault((asker, key), asyncio.Lock())
        try:
            async with lock:
                kept = self._kept.get(asker, key)
                if kept is not None and time.monotonic() < kept.until:
                    return kept.session, False
                session = await make()
                self._kept.keep(asker, key, _Kept(session, time.monotonic() + session.lifetime))
                return session, True
        finally:
            if not lock.locked():
                self._locks.pop((asker, key), None)

    def forget(self, asker: Hashable, key: bytes, session: Session) -> None:
        kept = self._kept.get(asker, key)
        if kept is not None and kept.session is session:
            self._kept.pop(asker, key)


class Signing:
    """Signing in during one fetch."""

    def __init__(self, sessions: Sessions, asker: Hashable, key: bytes) -> None:
        self._sessions = sessions
        self._asker = asker
        self._key = key
        self._used: Session | None = None
        self._new = False

    async def sign_in(self, make: SignIn) -> Mapping[str, str]:
        """Fits `Query.sign_in`."""
        self._used, self._new = await self._sessions.get(self._asker, self._key, make)
        return self._used.values

    def forget_old(self) -> bool:
        """After a refusal: true if an older session was used, which is forgotten; a new one may do."""
        if self._used is None:
            return False
        self._sessions.forget(self._asker, self._key, self._used)
        old, self._used = not self._new, None
        return old
