"""Certificates and keys from outside, checked before OpenSSL reads them: a few bytes of PEM can cost hours.

An encrypted key says how often it is hashed, and a signature with an RSA key of 16,384 bits takes two seconds, on the
event loop, at each handshake. What is returned is written anew: OpenSSL reads nothing that was not checked.
"""

from __future__ import annotations

import base64
import re

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding

MAX_CERTIFICATES = 64  # OpenSSL compares each with all that it has read
MAX_KEY = 4096  # bytes; one of RSA with 4,096 bits has 3,300
MAX_RSA_BITS = 4096

_BEGIN_CERTIFICATE = re.compile(rb"-----BEGIN [A-Z0-9 ]*CERTIFICATE-----")
_KEY = re.compile(
    r"-----BEGIN (?P<label>(?:RSA |EC )?PRIVATE KEY)-----\s(?P<body>[A-Za-z0-9+/=\s]+)-----END (?P=label)-----"
)
# How PKCS #8 begins: version, then the algorithm. RSA, elliptic curves, Ed25519 and Ed448. The other half of a key of
# DSA, which may be of any size, is computed while it is read.
_PKCS8 = re.compile(
    rb"\x30(?:[\x00-\x7f]|\x81.|\x82..)\x02\x01[\x00\x01]\x30."
    rb"(?:\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01|\x06\x07\x2a\x86\x48\xce\x3d\x02\x01|\x06\x03\x2b\x65[\x70\x71])",
    re.DOTALL,
)


class InvalidPem(ValueError):
    """The message follows the name of the field, and holds nothing of it."""


def authorities(pem: bytes) -> bytes:
    """Raises InvalidPem."""
    if len(_BEGIN_CERTIFICATE.findall(pem)) > MAX_CERTIFICATES:
        raise InvalidPem(f"holds more than {MAX_CERTIFICATES} certificates")
    return pem


def client_certificate(pem: bytes) -> bytes:
    """The client's own, and those that prove it. Raises InvalidPem."""
    authorities(pem)
    try:
        found = x509.load_pem_x509_certificates(pem)
        public = found[0].public_key()
    except (ValueError, IndexError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise InvalidPem("holds no usable PEM certificate") from None
    if isinstance(public, rsa.RSAPublicKey) and public.key_size > MAX_RSA_BITS:
        raise InvalidPem(f"has an RSA key of more than {MAX_RSA_BITS} bits")
    if not isinstance(
        public, rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey
    ):
        raise InvalidPem("has a key that is neither of RSA nor of an elliptic curve")
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in found)


def client_key(pem: bytes) -> bytes:
    """Raises InvalidPem."""
    if b"ENCRYPTED" in pem:
        raise InvalidPem("is encrypted, which is not allowed here: put the key there without a passphrase")
    if len(pem) > MAX_KEY:
        raise InvalidPem(f"is longer than {MAX_KEY} bytes")
    keys = list(_KEY.finditer(pem.decode("latin-1")))
    try:
        (key,) = keys
        der = base64.b64decode("".join(key["body"].split()), validate=True)
    except ValueError:
        raise InvalidPem("does not hold one PEM private key") from None
    if key["label"] == "PRIVATE KEY" and not _PKCS8.match(der):
        raise InvalidPem("is neither of RSA nor of an elliptic curve")
    return f"-----BEGIN {key['label']}-----\n{base64.encodebytes(der).decode()}-----END {key['label']}-----\n".encode()
