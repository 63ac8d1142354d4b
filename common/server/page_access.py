"""Who may read the pages of JSON on the health port: whoever the API server says may `get` that path, for some seconds.
And who may ask a question there: whoever may `post` to it.

Only tokens for our own audience are accepted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from dataclasses import dataclass
from enum import Enum

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.runtime.lru import LruDict
from common.server.access_reviews import review_access, review_token
from common.server.fair_queue import FairRate

log = logging.getLogger(__name__)

AUDIENCE = "seedquota"
"""Of the tokens: the port has no TLS, so one that is sent there must be worth nothing elsewhere."""

TOKEN_HEADER = "Seedquota-Token"  # noqa: S105 (its name)
"""For requests through an API server's proxy, which keeps the Authorization header for itself."""

KEPT_SECONDS = 10.0
MAX_KEPT = 256
REVIEWS_PER_SECOND = 5  # of all who ask together: the addresses take turns ...
PATIENCE = 5.0  # ... and who waits for longer is told to ask again


class PageAccess(Enum):
    """Whether a token may read a page, as an HTTP status."""

    ALLOWED = 200
    UNAUTHENTICATED = 401
    FORBIDDEN = 403
    NOT_KNOWN = 503


@dataclass(frozen=True)
class _Kept:
    access: PageAccess
    until: float


class PageReaders:
    """Asks the API server. `may_read` is for `Health.may_read`, `may_ask` for `Health.may_ask`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: LruDict[tuple[bytes, str, str], _Kept] = LruDict()
        self._reviews = FairRate(REVIEWS_PER_SECOND, REVIEWS_PER_SECOND)

    async def may_read(self, path: str, token: str, address: str) -> PageAccess:
        """`path` is the page's own: /decisions, also for what is below it. `address`: where the request comes from."""
        return await self._may("get", path, token, address)

    async def may_ask(self, path: str, token: str, address: str) -> PageAccess:
        """As `may_read`, of what is sent there."""
        return await self._may("post", path, token, address)

    async def _may(self, verb: str, path: str, token: str, address: str) -> PageAccess:
        key = hashlib.sha256(token.encode()).digest(), path, verb
        kept = self._kept.get(key)
        if kept is not None and time.monotonic() < kept.until:
            return kept.access
        try:
            async with asyncio.timeout(PATIENCE):
                await self._reviews.turn(address)
        except TimeoutError:
            return PageAccess.NOT_KNOWN
        try:
            access = await self._review(verb, path, token)
        except ApiError as error:
            facts = {"page": path, "caller": address, "error": str(error)}
            log.warning("access to a page cannot be checked", extra=facts)
            return PageAccess.NOT_KNOWN
        self._kept.keep(key, _Kept(access, time.monotonic() + KEPT_SECONDS), MAX_KEPT)
        return access

    async def _review(self, verb: str, path: str, token: str) -> PageAccess:
        user = await review_token(self._cluster, token, [AUDIENCE])
        if user is None:
            return PageAccess.UNAUTHENTICATED
        attributes = {"nonResourceAttributes": {"path": path, "verb": verb}}
        allowed = await review_access(self._cluster, user, attributes)
        return PageAccess.ALLOWED if allowed else PageAccess.FORBIDDEN
