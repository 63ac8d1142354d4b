"""Who is signed in: a token, sealed in cookies of the browser, with an end. Nothing of it is kept here.

Every replica has the same key, from a Secret. The token in it is proven by TokenReview at each request, as one that the
HTTP API gets: a session of a token that was revoked ends with it.
"""

from __future__ import annotations

import hmac
import secrets
import time
import zlib
from collections.abc import Callable

import msgspec
from cryptography.fernet import Fernet, InvalidToken

from master.page.cookies import PIECE, PIECES

SECONDS = 8 * 3600.0  # a session ends so long after the sign-in, whatever was done in it


class Session(msgspec.Struct, frozen=True):
    """`ends`: Unix time. `csrf`: what each form of it must bring back."""

    token: str
    ends: float
    csrf: str

    def has_sent(self, csrf: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), csrf.encode())


class TooLongError(Exception):
    """The token does not fit into cookies."""


class Sealer:
    """Seals what only replicas with the same key open. `purpose` keeps one kind of cookies from being another."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._fernet = Fernet(key)
        self._clock = clock

    def seal(self, purpose: str, content: object) -> str:
        packed = zlib.compress(msgspec.json.encode([purpose, content]))
        return self._fernet.encrypt(packed).decode()

    def open(self, purpose: str, sealed: str, seconds: float) -> object | None:
        """None: it was not sealed here for that, or longer ago than that."""
        try:
            packed = self._fernet.decrypt(sealed.encode(), ttl=int(seconds))
            found = msgspec.json.decode(zlib.decompress(packed), type=tuple[str, msgspec.Raw])
        except (InvalidToken, UnicodeEncodeError, zlib.error, msgspec.DecodeError):
            return None
        return msgspec.json.decode(found[1]) if found[0] == purpose else None

    def begin(self, token: str, ends: float | None = None) -> tuple[Session, str]:
        """A new session, never one that the browser had before. `ends`: when the token does, if that is known.

        Raises TooLongError."""
        latest = self._clock() + SECONDS
        session = Session(token, min(ends, latest) if ends is not None else latest, secrets.token_urlsafe(24))
        sealed = self.seal("session", session)
        if len(sealed) > PIECE * PIECES:
            raise TooLongError
        return session, sealed

    def session(self, sealed: str) -> Session | None:
        """None: there is none, or it has ended."""
        opened = self.open("session", sealed, SECONDS) if sealed else None
        if opened is None:
            return None
        try:
            session = msgspec.convert(opened, Session)
        except msgspec.ValidationError:
            return None
        return session if self._clock() < session.ends else None


def new_key() -> bytes:
    return Fernet.generate_key()
