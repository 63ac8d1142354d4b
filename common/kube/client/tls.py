"""TLS towards hosts that tenants may choose: what costs us much and them nothing is not offered, and not read."""

from __future__ import annotations

import ssl
from functools import cache

from common.kube.client.bounds import MAX_HANDSHAKE

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES"
CURVE = "prime256v1"


class HandshakeTooLarge(ssl.SSLError):
    pass


class _Handshake(ssl.SSLObject):
    incoming: ssl.MemoryBIO
    _taken = 0  # bytes that OpenSSL has read of it

    def do_handshake(self) -> None:
        waiting = self.incoming.pending
        if self._taken + waiting > MAX_HANDSHAKE:
            raise HandshakeTooLarge(ssl.SSL_ERROR_SSL, f"its TLS handshake is larger than {MAX_HANDSHAKE} bytes")
        try:
            super().do_handshake()
        finally:
            self._taken += waiting - self.incoming.pending


class _Context(ssl.SSLContext):
    """OpenSSL verifies a chain in one piece, and by itself reads up to 100 KiB of certificates and 100 of them."""

    sslobject_class = _Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, _Handshake), "the class above"
        made.incoming = incoming
        return made


def verifying(authorities: str | None = None) -> ssl.SSLContext:
    """A context that verifies; with the system's authorities where none are given. Raises ssl.SSLError and ValueError.

    With finite fields (DHE) a server chooses how large they are: 10,000 bits take 0.95 s of the event loop for each
    handshake, and 0.12 s in TLS 1.3. So there are elliptic curves only. Python can name one: the one that all have.

    A chain ends at the first certificate of the authorities, as in Go: the others, which may be a chain themselves, are
    not verified. Certificates that Kubernetes accepts are accepted: Python's own default refuses those without a key
    identifier from 3.13 on. A server has no second handshake on a connection, which nothing here would count.
    """
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    if authorities is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cadata=authorities)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    context.set_ecdh_curve(CURVE)
    return context


@cache
def of_the_system() -> ssl.SSLContext:
    """As `verifying()`, one context for all: do not change it. To load the system's authorities takes 0.015 s."""
    return verifying()
