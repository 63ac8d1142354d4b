"""OpenID Connect with a provider: authorization code with PKCE. It makes an ID token, which the master's API server
then proves as any other token (OpenID Connect Core 1.0, RFC 7636, RFC 9207)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import secrets
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import aiohttp
import msgspec
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry, Token

from master.apiserver.problem import ProblemError

log = logging.getLogger(__name__)

TIMEOUT = 10.0  # seconds for one question to the provider
MAX_ANSWER = 1 << 20  # bytes
KEPT_SECONDS = 600.0  # so old may be what the provider says of itself, and its keys
KEYS_AGAIN_SECONDS = 10.0  # between two questions for keys because one is not known
LEEWAY = 60  # seconds by which clocks may differ
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")

T = TypeVar("T")
Url = Annotated[str, msgspec.Meta(pattern="^https://", max_length=2048)]


@dataclass(frozen=True)
class Client:
    """What the provider knows this page as. `secret`: empty for a public client. `redirect`: where the provider sends
    browsers back to. `ca`: PEM of the provider's; empty: those of the system."""

    issuer: str
    id: str
    secret: str
    redirect: str
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    ca: str = ""

    @property
    def name(self) -> str:
        """For the button."""
        return urlsplit(self.issuer).hostname or self.issuer


class Attempt(msgspec.Struct, frozen=True):
    """One sign-in that has begun: only the browser that began it ends it. `next`: where it goes then."""

    state: str
    nonce: str
    verifier: str
    next: str


class _Metadata(msgspec.Struct):
    issuer: str
    authorization_endpoint: Url
    token_endpoint: Url
    jwks_uri: Url
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class _Tokens(msgspec.Struct):
    id_token: str


class _Failed(msgspec.Struct):
    error: str = ""


class Provider:
    """Each method raises ProblemError: 503 where the provider cannot be asked, 401 where it did not sign anybody in."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._tls = ssl.create_default_context(cadata=client.ca or None)
        self._metadata: tuple[float, _Metadata] | None = None
        self._keys: tuple[float, KeySet] | None = None
        self._asking = asyncio.Lock()

    async def begin(self, next_path: str) -> tuple[str, Attempt]:
        """Where the browser is sent, and what it must bring back."""
        metadata = await self._described()
        attempt = Attempt(_secret(), _secret(), _secret(), next_path)
        challenge = hashlib.sha256(attempt.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": self.client.redirect,
            "scope": " ".join(self.client.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": base64.urlsafe_b64encode(challenge).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in metadata.authorization_endpoint else "?"
        return f"{metadata.authorization_endpoint}{joint}{urlencode(query)}", attempt

    async def end(self, attempt: Attempt, query: Mapping[str, str]) -> str:
        """The ID token. `query`: with which the browser came back."""
        if not secrets.compare_digest(query.get("state", "").encode(), attempt.state.encode()):
            raise _refused("this sign-in was not begun in this browser, or another one was begun since")
        metadata = await self._described()
        issuer = query.get("iss")
        if issuer != metadata.issuer and (issuer or metadata.authorization_response_iss_parameter_supported):
            raise _refused("another provider answered")
        if "error" in query:
            log.info("the provider did not sign in", extra={"error": query["error"][:256]})
            raise _refused("the provider did not sign you in")
        token = await self._exchange(metadata, query.get("code", ""), attempt.verifier)
        await self._verify(metadata, token, attempt.nonce)
        return token

    async def _exchange(self, metadata: _Metadata, code: str, verifier: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.client.redirect,
            "code_verifier": verifier,
        }
        auth = None
        if not self.client.secret:
            form["client_id"] = self.client.id
        elif "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            auth = aiohttp.encode_basic_auth(quote_plus(self.client.id), quote_plus(self.client.secret))
        else:
            form |= {"client_id": self.client.id, "client_secret": self.client.secret}
        status, content = await self._ask("POST", metadata.token_endpoint, form, auth)
        if status != 200:
            failed = _decoded(content, _Failed) if 400 <= status < 500 else None
            log.warning("the provider gave no token", extra={"status": status, "error": failed.error if failed else ""})
            raise _refused("the provider does not take this sign-in; begin again")
        found = _decoded(content, _Tokens)
        if found is None:
            raise _unavailable("its answer has no ID token")
        return found.id_token

    async def _verify(self, metadata: _Metadata, token: str, nonce: str) -> None:
        try:
            claims = (await self._decoded_token(metadata, token)).claims
            audience = {"essential": True, "value": self.client.id}
            registry = JWTClaimsRegistry(
                leeway=LEEWAY,
                iss={"essential": True, "value": metadata.issuer},
                aud=audience,  # type: ignore[arg-type]
                exp={"essential": True},
                iat={"essential": True},
                nonce={"essential": True, "value": nonce},
            )
            registry.validate(claims)
        except JoseError as error:
            log.warning("an ID token is not valid", extra={"error": str(error)[:256]})
            raise _refused("the provider's token is not valid") from None
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else self.client.id) != self.client.id:
            raise _refused("the provider's token is for another client")

    async def _decoded_token(self, metadata: _Metadata, token: str) -> Token:
        """A key that is not known may be a new one. Raises JoseError."""
        try:
            return jwt.decode(token, await self._known_keys(metadata, KEPT_SECONDS), algorithms=ALGORITHMS)
        except InvalidKeyIdError:
            return jwt.decode(token, await self._known_keys(metadata, KEYS_AGAIN_SECONDS), algorithms=ALGORITHMS)

    async def _described(self) -> _Metadata:
        async with self._asking:
            if self._metadata is None or time.monotonic() - self._metadata[0] > KEPT_SECONDS:
                url = f"{self.client.issuer.rstrip('/')}/.well-known/openid-configuration"
                found = _decoded(await self._get(url), _Metadata)
                if found is None or found.issuer != self.client.issuer:
                    raise _unavailable("what it says of itself is not what OpenID Connect asks for")
                self._metadata = time.monotonic(), found
            return self._metadata[1]

    async def _known_keys(self, metadata: _Metadata, seconds: float) -> KeySet:
        """Not older than so many seconds. Raises JoseError."""
        async with self._asking:
            if self._keys is None or time.monotonic() - self._keys[0] > seconds:
                found = _decoded(await self._get(metadata.jwks_uri), dict[str, list[dict[str, object]]])
                if found is None:
                    raise _unavailable("its keys cannot be read")
                self._keys = time.monotonic(), KeySet.import_key_set(found)  # type: ignore[arg-type]
            return self._keys[1]

    async def _get(self, url: str) -> bytes:
        status, content = await self._ask("GET", url)
        if status != 200:
            raise _unavailable(f"it answered {status}")
        return content

    async def _ask(
        self, method: str, url: str, form: Mapping[str, str] | None = None, auth: str | None = None
    ) -> tuple[int, bytes]:
        """Never where it sends us: the secret goes to nobody else."""
        headers = {"Accept": "application/json"} | ({"Authorization": auth} if auth is not None else {})
        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=self._tls)) as session,
                session.request(method, url, data=form, headers=headers, allow_redirects=False) as answer,
            ):
                content = await answer.content.read(MAX_ANSWER + 1)
                while len(content) <= MAX_ANSWER and (more := await answer.content.read(MAX_ANSWER)):
                    content += more
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.warning("the provider cannot be asked", extra={"error": str(error)[:256] or type(error).__name__})
            raise _unavailable("it cannot be reached") from None
        if len(content) > MAX_ANSWER:
            raise _unavailable("its answer is too large")
        return answer.status, content


def _secret() -> str:
    return secrets.token_urlsafe(32)


def _decoded(content: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _refused(why: str) -> ProblemError:
    return ProblemError(401, why, code="not_signed_in")


def _unavailable(why: str) -> ProblemError:
    return ProblemError(503, f"the provider cannot sign anybody in now: {why}")
