"""The webhook's certificate where somebody else issues it: files of a mounted Secret, followed while they change.

`tls.crt` has the certificate and what is between it and the CA, `tls.key` its key, and `ca.crt` the CA that callers
trust. Without `ca.crt` callers trust what their systems do.

A new certificate of the same CA is served at once. Of another CA it is served only when callers have had time to learn
of that CA: until then the bundle has both CAs, and what was loaded before serves.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from common.runtime.waiting import within
from common.server.pki import in_file
from common.server.serving_certificate import EXPIRY

log = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
OVERLAP_SECONDS = 180.0  # a kubelet writes a Secret that changed within two minutes, on each node at another time


@dataclass(frozen=True)
class Issued:
    """What the files hold."""

    chain: bytes
    key: bytes
    ca: bytes
    expires: datetime

    def load(self, context: ssl.SSLContext) -> None:
        """ssl.SSLError if they do not belong together."""
        with in_file(self.chain + b"\n" + self.key) as path:
            context.load_cert_chain(path)


def read(directory: Path) -> Issued:
    """ValueError, which says what is wrong and holds no secret."""
    chain, key = (_content(directory / name) for name in ("tls.crt", "tls.key"))
    ca = _content(directory / "ca.crt") if (directory / "ca.crt").exists() else b""
    try:
        expires = x509.load_pem_x509_certificates(chain)[0].not_valid_after_utc
    except ValueError:
        raise ValueError(f"{directory / 'tls.crt'} has no certificate in PEM") from None
    try:
        ca = ca and b"".join(_pem(authority) for authority in x509.load_pem_x509_certificates(ca))
    except ValueError:
        raise ValueError(f"{directory / 'ca.crt'} has no certificate in PEM") from None
    issued = Issued(chain, key, ca, expires)
    try:
        issued.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # not into the live one: half of it would stay there
    except ssl.SSLError:
        raise ValueError(f"{directory / 'tls.key'} is not the key of tls.crt, or no key in PEM") from None
    return issued


class CertificateFiles:
    """Keeps `ssl_context` loaded with what the files hold. `run()` it.

    `ca_bundle` is PEM, and empty where callers trust what their systems do. `on_bundle` is called when it has changed,
    and must not block.
    """

    def __init__(
        self,
        directory: Path,
        *,
        on_bundle: Callable[[], None] | None = None,
        look_seconds: float = LOOK_SECONDS,
        overlap_seconds: float = OVERLAP_SECONDS,
    ) -> None:
        self.ssl_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ssl_context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.ca_bundle = b""
        self._directory = directory
        self._on_bundle = on_bundle
        self._look_seconds = look_seconds
        self._overlap_seconds = overlap_seconds
        self._loaded: Issued | None = None
        self._next: Issued | None = None
        self._next_since = 0.0  # monotonic: when `_next` joined the bundle
        self._error: str | None = None
        self._ready = asyncio.Event()

    def not_ready(self) -> str | None:
        """Fits a check of /readyz."""
        if self._loaded is None:
            return self._error or "there is no certificate yet"
        if _now() >= self._loaded.expires:
            return f"the certificate expired at {self._loaded.expires.isoformat()}"
        return None

    async def wait_ready(self, timeout: float) -> None:
        """Until there is something to serve with. Raises TimeoutError, which says what is missing."""
        if not await within(self._ready, timeout):
            raise TimeoutError(f"certificate: {self.not_ready()}")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._look()
            await asyncio.sleep(self._look_seconds)

    def _look(self) -> None:
        try:
            found = read(self._directory)
        except (OSError, ValueError) as error:
            self._failed(str(error))
            return
        self._error = None
        if found == self._loaded:
            self._next = None
        elif self._loaded is None or _now() >= self._loaded.expires or not _both_trusted(found.ca, self._loaded.ca):
            self._serve(found)
        elif self._next is None or self._next.ca != found.ca:
            self._next, self._next_since = found, time.monotonic()
            log.info("the webhook's next CA is introduced", extra={"served_in_seconds": self._overlap_seconds})
        elif time.monotonic() - self._next_since >= self._overlap_seconds:
            self._serve(found)
        self._publish()

    def _serve(self, issued: Issued) -> None:
        issued.load(self.ssl_context)
        self._loaded, self._next = issued, None
        EXPIRY.labels("serving").set(issued.expires.timestamp())
        log.info("webhook certificate loaded", extra={"expires": issued.expires.isoformat()})
        self._ready.set()

    def _publish(self) -> None:
        bundle = b"".join(issued.ca for issued in (self._loaded, self._next) if issued is not None)
        if bundle != self.ca_bundle:
            self.ca_bundle = bundle
            if self._on_bundle is not None:
                self._on_bundle()

    def _failed(self, message: str) -> None:
        if message != self._error:
            log.warning("webhook certificate cannot be read", extra={"error": message})
        self._error = message


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _both_trusted(ca: bytes, other: bytes) -> bool:
    """Whether a bundle can introduce one beside the other: another CA, and not the systems' own."""
    return bool(ca and other) and ca != other


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _now() -> datetime:
    return datetime.now(UTC)
