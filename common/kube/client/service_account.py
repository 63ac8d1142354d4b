"""Tokens of ServiceAccounts: how to get one, and when the next one is due.

The API server that issued a token checks it. What is read from one here only tells whose it is and when it ends.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec

from common.kube.client import deep_json
from common.kube.client.connection import Connection
from common.kube.client.errors import Malformed

LIFE = 30 * 24 * 3600  # seconds; an API server gives less if its --service-account-max-token-expiration says so

_PREFIX = "system:serviceaccount:"


class Token(msgspec.Struct, frozen=True):
    """Of which ServiceAccount it is, and its life in Unix time."""

    namespace: str
    account: str
    issued: float
    ends: float

    def due(self, now: float) -> bool:
        """Whether the next one is to be requested: half of its life has passed."""
        return now >= self.issued + (self.ends - self.issued) / 2


class _Claims(msgspec.Struct):
    sub: str
    iat: float
    exp: float


class _TokenStatus(msgspec.Struct):
    token: str = ""


class _TokenRequest(msgspec.Struct):
    status: _TokenStatus


_token_request = msgspec.json.Decoder(_TokenRequest)


async def request_token(
    cluster: Connection,
    namespace: str,
    account: str,
    *,
    seconds: int,
    audiences: Sequence[str] = (),
    timeout: float | None = None,
) -> str:
    """For these audiences; none: for the API server itself. Raises ApiError."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    spec: dict[str, object] = {"expirationSeconds": seconds}
    if audiences:
        spec["audiences"] = list(audiences)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    content = await cluster.request(
        "POST", path, msgspec.json.encode(body), timeout=timeout, verb="create", plural="serviceaccounts/token"
    )
    token = deep_json.read(_token_request.decode, content, f"cluster {cluster.name}: TokenRequest").status.token
    if not token:
        raise Malformed(200, "Malformed", f"cluster {cluster.name}: TokenRequest: the answer has no token")
    return token


def read(token: str) -> Token | None:
    """None: it is no token of a ServiceAccount that ends."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), type=_Claims)
    except (ValueError, RecursionError):  # also of msgspec, and of what is neither base64 nor UTF-8
        return None
    namespace, colon, account = claims.sub.removeprefix(_PREFIX).partition(":")
    if not (claims.sub.startswith(_PREFIX) and colon and claims.iat < claims.exp):
        return None
    return Token(namespace, account, claims.iat, claims.exp)
