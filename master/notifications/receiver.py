"""Where messages go, and how they are signed: what the Secret of a QuotaNotification says, checked. Pure.

Signatures are those of https://www.standardwebhooks.com: HMAC-SHA256 over the id, the time and the body.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

import msgspec
from yarl import URL

from common.kube.client import bounded_pem
from common.kube.client.bounded_pem import InvalidPem

MAX_URL = 2048  # characters
MIN_KEY, MAX_KEY = 16, 512  # bytes
MAX_AUTHORITIES = 256 * 1024  # bytes
_KEY_PREFIX = "whsec_"


class InvalidReceiver(Exception):
    """The message names a key of the Secret, and holds nothing of what the Secret has."""


class Receiver(msgspec.Struct, frozen=True, kw_only=True):
    """`authorities`: PEM certificates that its own is checked with; empty: the system's."""

    url: URL
    signing_key: bytes = b""
    authorities: str = ""

    @property
    def plain(self) -> bool:
        """Without TLS."""
        return self.url.scheme == "http"

    def signature(self, identity: str, timestamp: int, body: bytes) -> str:
        """Empty without a key."""
        if not self.signing_key:
            return ""
        signed = b".".join((identity.encode(), str(timestamp).encode(), body))
        return "v1," + base64.b64encode(hmac.new(self.signing_key, signed, hashlib.sha256).digest()).decode()


def receiver_of(data: Mapping[str, bytes]) -> Receiver:
    """Raises InvalidReceiver."""
    return Receiver(url=_url(_text(data, "url")), signing_key=_key(data), authorities=_authorities(data))


def _text(data: Mapping[str, bytes], key: str) -> str:
    found = data.get(key, b"")
    if not found:
        raise InvalidReceiver(f"has no key {key}")
    try:
        return found.decode("ascii").strip()
    except UnicodeDecodeError:
        raise InvalidReceiver(f"key {key}: has a character that is not ASCII") from None


def _url(text: str) -> URL:
    if len(text) > MAX_URL or any(ord(character) <= 32 or ord(character) == 127 for character in text):
        raise InvalidReceiver(f"key url: is longer than {MAX_URL} characters, or has a space or control character")
    try:
        url = URL(text, encoded=True)
        problem = not url.host or url.port is None or url.scheme not in ("https", "http")
    except ValueError:
        raise InvalidReceiver("key url: is no URL") from None
    if problem:
        raise InvalidReceiver("key url: must begin with https:// and a host")
    if url.user is not None or url.password is not None or url.fragment:
        raise InvalidReceiver("key url: a user, a password and a part after # are not supported")
    return url


def _key(data: Mapping[str, bytes]) -> bytes:
    if "signingKey" not in data:
        return b""
    text = _text(data, "signingKey")
    key = text.encode()
    if text.startswith(_KEY_PREFIX):
        try:
            key = base64.b64decode(text.removeprefix(_KEY_PREFIX), validate=True)
        except binascii.Error:
            raise InvalidReceiver(f"key signingKey: what follows {_KEY_PREFIX} is not base64") from None
    if not MIN_KEY <= len(key) <= MAX_KEY:
        raise InvalidReceiver(f"key signingKey: must have {MIN_KEY} to {MAX_KEY} bytes")
    return key


def _authorities(data: Mapping[str, bytes]) -> str:
    if "ca.crt" not in data:
        return ""
    text = data["ca.crt"]
    if len(text) > MAX_AUTHORITIES:
        raise InvalidReceiver(f"key ca.crt: is larger than {MAX_AUTHORITIES} bytes")
    try:
        return bounded_pem.authorities(text).decode("ascii")
    except (InvalidPem, UnicodeDecodeError):
        raise InvalidReceiver("key ca.crt: holds no usable PEM certificates") from None
