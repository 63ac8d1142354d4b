"""Who may read the pages of JSON on the health port: whoever the API server says may `get` that path, for some seconds.

Only tokens for our own audience are accepted.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from dataclasses import dataclass

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.runtime.health import AUDIENCE, PageAccess
from common.runtime.lru import LruDict
from common.server.access_reviews import review_access, review_token

log = logging.getLogger(__name__)

KEPT_SECONDS = 10.0
MAX_KEPT = 256
REVIEWS_PER_SECOND = 5  # of all who ask together; more are told to ask again


@dataclass(frozen=True)
class _Kept:
    access: PageAccess
    until: float


class PageReaders:
    """Asks the API server. `may_read` is for `Health.may_read`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: LruDict[tuple[bytes, str], _Kept] = LruDict()
        self._reviews: deque[float] = deque(maxlen=REVIEWS_PER_SECOND)

    async def may_read(self, path: str, token: str) -> PageAccess:
        """`path` is the page's own: /decisions, also for what is below it."""
        key = hashlib.sha256(token.encode()).digest(), path
        kept = self._kept.get(key)
        if kept is not None and time.monotonic() < kept.until:
            return kept.access
        if len(self._reviews) == REVIEWS_PER_SECOND and time.monotonic() - self._reviews[0] < 1.0:
            return PageAccess.NOT_KNOWN
        self._reviews.append(time.monotonic())
        try:
            access = await self._review(path, token)
        except ApiError as error:
            log.warning("access to a page cannot be checked", extra={"page": path, "error": str(error)})
            return PageAccess.NOT_KNOWN
        self._kept.keep(key, _Kept(access, time.monotonic() + KEPT_SECONDS), MAX_KEPT)
        return access

    async def _review(self, path: str, token: str) -> PageAccess:
        user = await review_token(self._cluster, token, [AUDIENCE])
        if user is None:
            return PageAccess.UNAUTHENTICATED
        attributes = {"nonResourceAttributes": {"path": path, "verb": "get"}}
        allowed = await review_access(self._cluster, user, attributes)
        return PageAccess.ALLOWED if allowed else PageAccess.FORBIDDEN
