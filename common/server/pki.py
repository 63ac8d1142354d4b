"""Keys and certificates: made, read, and named."""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATE = timedelta(minutes=5)


@dataclass(frozen=True)
class Policy:
    """How long things are valid. `overlap` is what callers are given to learn of a new CA.

    ValueError for times that would break the order of the steps.
    """

    ca_validity: timedelta = timedelta(days=3650)
    serving_validity: timedelta = timedelta(days=365)
    overlap: timedelta = timedelta(days=1)

    def __post_init__(self) -> None:
        # The old CA has a third of its life left when the next one is introduced; the old one is dropped `overlap`
        # after the switch, by the date of a serving certificate that must not have been renewed before.
        if not timedelta(0) < self.overlap * 3 < self.ca_validity or not self.overlap * 3 < self.serving_validity * 2:
            raise ValueError("the overlap must be less than a third of the CA's validity and two thirds of serving's")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @property
    def issued(self) -> datetime:
        return self.certificate.not_valid_before_utc + BACKDATE

    @property
    def expires(self) -> datetime:
        return self.certificate.not_valid_after_utc

    def due(self, now: datetime) -> bool:
        """At two thirds of its life there is time left for everything that may go wrong with renewing it."""
        return now >= self.issued + (self.expires - self.issued) * 2 / 3

    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def make_ca(now: datetime, policy: Policy) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Two CAs in one bundle must not have the same name: some callers pick the issuer by it.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"seedquota webhook CA {serial & 0xFFFFFFFF:08x}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + policy.ca_validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate, key)


def make_serving(now: datetime, ca: Pair, names: Iterable[str], policy: Policy) -> Pair:
    """For DNS names and IP addresses. It never outlives its CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "seedquota webhook")]))
        .issuer_name(ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(min(now + policy.serving_validity, ca.expires))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in sorted(set(names))]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
        .sign(ca.key, hashes.SHA256())
    )
    return Pair(certificate, key)


def alternative_names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = names.get_values_for_type(x509.IPAddress)
    return {*names.get_values_for_type(x509.DNSName), *(str(address) for address in addresses)}


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


class Unusable(ValueError):
    pass


def _read_pair(data: Mapping[str, bytes], certificate_key: str, key_key: str, *, is_ca: bool) -> Pair:
    certificate = _read_certificate(data, certificate_key)
    try:
        key = serialization.load_pem_private_key(data.get(key_key, b""), password=None)
    except (ValueError, TypeError) as error:
        raise Unusable(f"{key_key} is not a private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Unusable(f"{key_key} is not an elliptic curve key")
    if key.public_key() != certificate.public_key():
        raise Unusable(f"{key_key} does not belong to {certificate_key}")
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError) as error:
        raise Unusable(f"{certificate_key} does not say whether it is a CA") from error
    if constraints.ca != is_ca:
        raise Unusable(f"{certificate_key} is {'not ' if is_ca else ''}a CA")
    return Pair(certificate, key)


def _read_certificate(data: Mapping[str, bytes], key: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data.get(key, b""))
    except ValueError as error:
        raise Unusable(f"{key} is not a certificate in PEM") from error


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """Into a live context: handshakes from now on use it, open connections go on."""
    with in_file(pair.certificate_pem() + pair.key_pem()) as path:
        context.load_cert_chain(path)


@contextmanager
def in_file(content: bytes) -> Iterator[Path]:
    """Python loads keys from files only. In memory where the system can, so that no key touches a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("seedquota-tls", os.MFD_CLOEXEC)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as stream:
                stream.write(content)
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile() as stream:  # mode 0600
        stream.write(content)
        stream.flush()
        yield Path(stream.name)
