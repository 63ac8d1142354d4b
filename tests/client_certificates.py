"""A CA for client certificates, and what it issues: right ones and wrong ones."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from common.server.pki import in_file

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
DAY = timedelta(days=1)
PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER


@dataclass(frozen=True)
class Issued:
    der: bytes
    pem: bytes

    def present(self, tls: ssl.SSLContext) -> None:
        """In handshakes to come."""
        with in_file(self.pem) as path:
            tls.load_cert_chain(path)


class Authority:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("clients", ())
        now = datetime.now(UTC)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self._certificate = (
            x509.CertificateBuilder(self._name, self._name, self._key.public_key(), x509.random_serial_number())
            .not_valid_before(now - 9 * DAY)
            .not_valid_after(now + 9 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return self._certificate.public_bytes(PEM).decode()

    def issue(
        self,
        name: str,
        *groups: str,
        begins: datetime | None = None,
        ends: datetime | None = None,
        usages: Sequence[ObjectIdentifier] = (CLIENT,),
    ) -> Issued:
        now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
        # As Kubernetes' tools do: a CA that is renewed keeps its name, and is told by its key.
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder(self._name, _name(name, groups), key.public_key(), x509.random_serial_number())
            .not_valid_before(begins or now - DAY)
            .not_valid_after(ends or now + DAY)
            .add_extension(signer, critical=False)
        )
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return Issued(made.public_bytes(DER), made.public_bytes(PEM) + private)


def _name(common: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name([*attributes, *([x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else [])])
