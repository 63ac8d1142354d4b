"""Who may read the pages of JSON on the health port: whoever the API server says may `get` that path, for some seconds.

Only tokens for our own audience are accepted.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from common.kube.client.api_client import Cluster
from common.kube.client.errors import ApiError
from common.runtime.health import AUDIENCE, PageAccess
from common.runtime.lru import LruDict

log = logging.getLogger(__name__)

KEPT_SECONDS = 10.0
MAX_KEPT = 256
REVIEWS_PER_SECOND = 5  # of all who ask together; more are told to ask again
TIMEOUT = 5.0  # seconds for one request to the API server

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 (a path)
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    audiences: list[str] = []
    user: _User = msgspec.field(default_factory=_User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


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
        except (ApiError, msgspec.MsgspecError) as error:
            log.warning("access to a page cannot be checked", extra={"page": path, "error": str(error)})
            return PageAccess.NOT_KNOWN
        self._kept.keep(key, _Kept(access, time.monotonic() + KEPT_SECONDS), MAX_KEPT)
        return access

    async def _review(self, path: str, token: str) -> PageAccess:
        asked = {"token": token, "audiences": [AUDIENCE]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": asked}
        content = await self._create(_TOKEN_REVIEWS, "tokenreviews", body)
        found = msgspec.json.decode(content, type=_TokenReview).status
        # No audience: the API server did not look at it, and the token is one for the API server itself.
        if not found.authenticated or AUDIENCE not in found.audiences:
            return PageAccess.UNAUTHENTICATED
        user = found.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        content = await self._create(_ACCESS_REVIEWS, "subjectaccessreviews", body)
        allowed = msgspec.json.decode(content, type=_AccessReview).status.allowed
        return PageAccess.ALLOWED if allowed else PageAccess.FORBIDDEN

    async def _create(self, path: str, plural: str, body: Mapping[str, object]) -> bytes:
        return await self._cluster.request(
            "POST", path, msgspec.json.encode(body), timeout=TIMEOUT, verb="create", plural=plural
        )
