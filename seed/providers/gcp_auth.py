"""Signing in to Google Cloud with a service account's key: a JWT for an access token (RFC 7523).

https://developers.google.com/identity/protocols/oauth2/service-account#httprest
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from urllib.parse import urlencode

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from seed.providers.flavour import CloudError, Http, Session, Settings
from seed.providers.size import CredentialsMissing

# Not the key file's own token_uri: whoever writes that file does not choose whom we call.
TOKEN_URL = "https://oauth2.googleapis.com/token"  # noqa: S105 (no password)
_SCOPE = "https://www.googleapis.com/auth/compute.readonly"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_PROJECT = re.compile(r"([a-z0-9.-]{1,100}:)?[a-z0-9-]{1,63}")
_LONGEST_KEY = 4096  # characters: RSA of 4096 bits takes 3300, and larger ones take seconds to check
LIFETIME = 3600
EARLY = 300.0  # seconds before its end at which a token is not used any more


class _Account(msgspec.Struct):
    project_id: str
    private_key_id: str
    private_key: str
    client_email: str


class _Token(msgspec.Struct):
    access_token: str
    expires_in: int


def project_of(credentials: Settings) -> str:
    """It becomes part of a URL. Raises NotSized."""
    project = credentials.get("projectID") or _account(credentials).project_id
    if not _PROJECT.fullmatch(project):
        raise CredentialsMissing(credentials.provider, "projectID is no name of a project")
    return project


async def sign_in(http: Http, credentials: Settings) -> Session:
    """Raises CloudError; NotSized when the service account cannot be read."""
    account = _account(credentials)
    form = {"grant_type": _GRANT, "assertion": _assertion(account, _key(account, credentials), datetime.now(UTC))}
    answer = await http.request(
        "POST",
        TOKEN_URL,
        headers={"Content-Type": "application/x-www-form-urlencoded"},
        body=urlencode(form).encode(),
    )
    if answer.status != 200:
        raise CloudError(f"refuses these credentials ({answer.status})", refused=True)
    token = answer.json(_Token)
    return Session({"token": token.access_token}, token.expires_in - EARLY)


def _account(credentials: Settings) -> _Account:
    """machine-controller wants base64; the JSON itself is taken too."""
    text = credentials["serviceAccount"].strip()
    try:
        raw = text.encode() if text.startswith("{") else base64.b64decode(text, validate=True)
        return msgspec.json.decode(raw, type=_Account)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # not chained: it may quote the key
        raise _malformed(credentials) from None


def _key(account: _Account, credentials: Settings) -> RSAPrivateKey:
    if len(account.private_key) > _LONGEST_KEY:
        raise _malformed(credentials)
    try:
        key = serialization.load_pem_private_key(account.private_key.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _malformed(credentials) from None
    if not isinstance(key, RSAPrivateKey):
        raise _malformed(credentials)
    return key


def _malformed(credentials: Settings) -> CredentialsMissing:
    return CredentialsMissing(credentials.provider, "serviceAccount is no service account key in JSON, in base64")


def _assertion(account: _Account, key: RSAPrivateKey, now: datetime) -> str:
    issued = int(now.timestamp())
    claims: dict[str, object] = {
        "iss": account.client_email,
        "scope": _SCOPE,
        "aud": TOKEN_URL,
        "iat": issued,
        "exp": issued + LIFETIME,
    }
    header: dict[str, object] = {"alg": "RS256", "typ": "JWT", "kid": account.private_key_id}
    signed = f"{_part(header)}.{_part(claims)}"
    signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{_base64(signature)}"


def _part(fields: dict[str, object]) -> str:
    return _base64(msgspec.json.encode(fields))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
