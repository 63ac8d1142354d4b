"""Who is calling: each cluster's webhook URL ends in a token that only this seed can make.

A tenant can read the configuration in its own cluster, hence its URL. The token is an HMAC over the UserCluster's
uid, so a tenant cannot make another's and speak for another cluster. No log, Event or message of SeedQuota may hold it;
but an API server that cannot reach the webhook shows the URL to whoever creates a Machine there. So the token proves
which cluster calls, no more: all that it gives away is that cluster's own reservations, which a recount corrects.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache

from common.kube.client.api_client import Cluster
from common.server.managed_secret import Correction, OwnSecret

SECRET_NAME = "seedquota-webhook-key"  # noqa: S105 (its name)
DATA_KEY = "key"
KEY_BYTES = 32
TOKEN_LENGTH = 32  # hex digits


@lru_cache(maxsize=1024)
def token(key: bytes, uid: str) -> str:
    """For the UserCluster with this uid."""
    return hmac.new(key, uid.encode(), hashlib.sha256).hexdigest()[:TOKEN_LENGTH]


def seal(key: bytes, text: bytes) -> str:
    """Of a stamp. What is hashed can never be a uid, so no token is a seal."""
    return hmac.new(key, b"footprint\n" + text, hashlib.sha256).hexdigest()


class WebhookKey:
    """The seed's key, in one Secret that the first replica makes. `run()` it.

    A deleted Secret is made again with the same key: no URL changes. A changed one is taken over; tokens of the key
    before it stay good, until every configuration has its new URL. `on_change` must not block.
    """

    def __init__(self, cluster: Cluster, namespace: str, *, on_change: Callable[[], None] | None = None) -> None:
        self._on_change = on_change
        self._key = b""
        self._previous = b""
        self._ready = asyncio.Event()
        self._secret = OwnSecret(cluster, namespace, SECRET_NAME, correct=self._correct, on_data=self._take)

    def not_ready(self) -> str | None:
        """Fits a check of /readyz."""
        return None if self._key else self._secret.error or "there is no key yet"

    async def wait_ready(self, timeout: float) -> None:
        """Until there is a key. Raises TimeoutError, which says what is missing."""
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            raise TimeoutError(f"Secret {self._secret.name}: {self.not_ready()}") from None

    def token(self, uid: str) -> str:
        """For the UserCluster with this uid. Not before it is ready."""
        assert self._key, "not ready"
        return token(self._key, uid)

    def verify(self, uid: str, given: str) -> bool:
        """In constant time. False for everyone until there is a key."""
        if not given.isascii():
            return False
        current = bool(self._key) and hmac.compare_digest(token(self._key, uid), given)
        previous = bool(self._previous) and hmac.compare_digest(token(self._previous, uid), given)
        return current or previous

    def seal(self, text: bytes) -> str:
        """Not before it is ready."""
        assert self._key, "not ready"
        return seal(self._key, text)

    def check_seal(self, text: bytes, given: str) -> bool:
        """In constant time; also seals of the key before this one."""
        if not given.isascii():
            return False
        return any(key and hmac.compare_digest(seal(key, text), given) for key in (self._key, self._previous))

    async def run(self) -> None:
        """Until cancelled."""
        await self._secret.run()

    def _correct(self, data: Mapping[str, bytes] | None) -> Correction | None:
        if data is not None and _usable(data):
            return None
        key = self._key or secrets.token_bytes(KEY_BYTES)
        if data is None:
            return Correction({DATA_KEY: key}, "it did not exist", warn=bool(self._key))
        return Correction({DATA_KEY: key}, "its key was unusable", warn=True)

    def _take(self, data: Mapping[str, bytes]) -> None:
        if not _usable(data) or data[DATA_KEY] == self._key:
            return
        self._key, self._previous = data[DATA_KEY], self._key
        self._ready.set()
        if self._on_change is not None:
            self._on_change()


def _usable(data: Mapping[str, bytes]) -> bool:
    return len(data.get(DATA_KEY, b"")) >= KEY_BYTES
