"""Who a token is of, and what a user or a program itself may do: asked from the API server (TokenReview,
SubjectAccessReview, SelfSubjectAccessReview)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from common.kube.client import deep_json
from common.kube.client.api_client import Cluster

TIMEOUT = 5.0  # seconds for one request to the API server

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 (a path)
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_OWN_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    audiences: list[str] = []
    user: User = msgspec.field(default_factory=User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


_token_review = msgspec.json.Decoder(_TokenReview)
_access_review = msgspec.json.Decoder(_AccessReview)


async def review_token(cluster: Cluster, token: str, audiences: Sequence[str] = ()) -> User | None:
    """None: it is nobody's. Without audiences the token must be one for the API server itself.

    Raises ApiError.
    """
    asked: dict[str, object] = {"token": token}
    if audiences:
        asked["audiences"] = list(audiences)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": asked}
    content = await _create(cluster, _TOKEN_REVIEWS, "tokenreviews", body)
    found = deep_json.read(_token_review.decode, content, "TokenReview").status
    # No audience: the API server did not look at it, and the token is one for the API server itself.
    if not found.authenticated or (audiences and not set(audiences) & set(found.audiences)):
        return None
    return found.user


async def review_access(cluster: Cluster, user: User, attributes: Mapping[str, object]) -> bool:
    """`attributes`: the part of the spec that says what is asked for. Raises ApiError."""
    spec = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra, **attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    content = await _create(cluster, _ACCESS_REVIEWS, "subjectaccessreviews", body)
    return deep_json.read(_access_review.decode, content, "SubjectAccessReview").status.allowed


async def may(cluster: Cluster, attributes: Mapping[str, object]) -> bool:
    """Whether who asks may do that: everybody may ask (`system:basic-user`). Raises ApiError."""
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": attributes}
    content = await _create(cluster, _OWN_ACCESS_REVIEWS, "selfsubjectaccessreviews", body)
    return deep_json.read(_access_review.decode, content, "SelfSubjectAccessReview").status.allowed


async def _create(cluster: Cluster, path: str, plural: str, body: Mapping[str, object]) -> bytes:
    return await cluster.request("POST", path, msgspec.json.encode(body), timeout=TIMEOUT, verb="create", plural=plural)
