"""Who is calling: each webhook's URL ends in a token that only this seed can make.

A tenant can read the configuration in its own cluster, hence its URL. The token is an HMAC over the webhook's kind and
the UserCluster's uid, so a tenant cannot make another's and speak for another cluster. No log, Event or message of
SeedQuota may hold it; but an API server that cannot reach the webhook shows the URL to whoever creates a Machine there.
So the token proves which cluster asks which webhook, no more: all that it gives away is that cluster's own
reservations, which a recount corrects. Tokens end: see seed/registration/token_rotation.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache

from common.kube.client.api_client import Cluster
from common.server.managed_secret import Correction, OwnSecret
from seed.registration import token_rotation
from seed.registration.token_rotation import KEY_BYTES, TokenKeys

SECRET_NAME = "seedquota-webhook-key"  # noqa: S105 (its name)
SEAL_KEY = "seal-key"
TOKEN_LENGTH = 32  # hex digits


@lru_cache(maxsize=8192)
def token(key: bytes, kind: str, caller: str) -> str:
    """For the webhook of this kind (the first part of its path), asked by the UserCluster with this uid."""
    return hmac.new(key, f"{kind}\n{caller}".encode(), hashlib.sha256).hexdigest()[:TOKEN_LENGTH]


def seal(key: bytes, text: bytes) -> str:
    """Of a stamp."""
    return hmac.new(key, b"footprint\n" + text, hashlib.sha256).hexdigest()


class WebhookKey:
    """The seed's keys, in one Secret that the first replica makes: for tokens, and for the seals of stamps. `run()` it.

    A deleted Secret is made again with the same key for seals, and another one for tokens. A changed key for seals is
    taken over; seals of the one before it stay good while this process runs. `on_change` must not block.
    """

    def __init__(self, cluster: Cluster, namespace: str, *, on_change: Callable[[], None] | None = None) -> None:
        """`on_change`: tokens are others from now on."""
        self._on_change = on_change
        self._seal_key = b""
        self._previous_seal_key = b""
        self._tokens: TokenKeys | None = None
        self._ready = asyncio.Event()
        self._secret = OwnSecret(cluster, namespace, SECRET_NAME, correct=self._correct, on_data=self._take)

    def not_ready(self) -> str | None:
        """Fits a check of /readyz."""
        return None if self._ready.is_set() else self._secret.error or "there is no key yet"

    async def wait_ready(self, timeout: float) -> None:
        """Until there is a key. Raises TimeoutError, which says what is missing."""
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            raise TimeoutError(f"Secret {self._secret.name}: {self.not_ready()}") from None

    def token(self, kind: str, caller: str) -> str:
        """For that webhook, asked by the UserCluster with this uid. Not before it is ready."""
        assert self._tokens is not None, "not ready"
        return token(self._tokens.current, kind, caller)

    def verify(self, kind: str, caller: str, given: str) -> bool:
        """In constant time. False for everyone until there is a key."""
        if self._tokens is None or not given.isascii():
            return False
        good = False
        for key in self._tokens.accepted(_now()):
            good |= hmac.compare_digest(token(key, kind, caller), given)
        return good

    def seal(self, text: bytes) -> str:
        """Not before it is ready."""
        assert self._seal_key, "not ready"
        return seal(self._seal_key, text)

    def check_seal(self, text: bytes, given: str) -> bool:
        """In constant time; also seals of the key before this one."""
        if not given.isascii():
            return False
        keys = (self._seal_key, self._previous_seal_key)
        return any(key and hmac.compare_digest(seal(key, text), given) for key in keys)

    async def run(self) -> None:
        """Until cancelled."""
        await self._secret.run()

    def _correct(self, data: Mapping[str, bytes] | None) -> Correction | None:
        found = data or {}
        wrong: dict[str, bytes | None] = {}
        reasons: list[str] = []
        warn = False
        if not _usable(found):
            wrong[SEAL_KEY] = self._seal_key or secrets.token_bytes(KEY_BYTES)
            reasons.append("it did not exist" if data is None else "its key for seals was unusable")
            warn = data is not None or bool(self._seal_key)
        decided = token_rotation.decide(_now(), token_rotation.read(found), self._tokens)
        if decided is not None:
            keys, why = decided
            wrong |= token_rotation.write(keys)
            reasons.append(why)
        return Correction(wrong, "; ".join(reasons), warn) if wrong else None

    def _take(self, data: Mapping[str, bytes]) -> None:
        tokens = token_rotation.read(data)
        if tokens is None or not _usable(data):
            return  # will be corrected; until then what was read before is used
        if data[SEAL_KEY] != self._seal_key:
            self._seal_key, self._previous_seal_key = data[SEAL_KEY], self._seal_key
        before, self._tokens = self._tokens, tokens
        self._ready.set()
        if self._on_change is not None and (before is None or before.current != tokens.current):
            self._on_change()


def _usable(data: Mapping[str, bytes]) -> bool:
    return len(data.get(SEAL_KEY, b"")) >= KEY_BYTES


def _now() -> datetime:
    return datetime.now(UTC)
