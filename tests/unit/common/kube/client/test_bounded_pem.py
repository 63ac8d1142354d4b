"""What a few bytes of PEM in a kubeconfig could cost."""

from __future__ import annotations

import base64
import datetime
import time
from collections.abc import Callable

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

from common.kube.client import kubeconfig
from common.kube.client.bounded_pem import MAX_CERTIFICATES
from common.kube.client.kubeconfig import Access, InvalidKubeconfig
from common.kube.client.networks import Networks

NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
NOW = datetime.datetime.now(datetime.UTC)
PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()
HOURS = 2**31 - 1  # rounds


def tlv(tag: int, body: bytes) -> bytes:
    length = len(body).to_bytes((len(body).bit_length() + 7) // 8 or 1, "big")
    return bytes([tag, *([len(body)] if len(body) < 128 else [0x80 | len(length), *length])]) + body


def integer(number: int) -> bytes:
    return tlv(2, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def pem(label: str, der: bytes, headers: str = "") -> bytes:
    return f"-----BEGIN {label}-----\n{headers}{base64.encodebytes(der).decode()}-----END {label}-----\n".encode()


def encrypted(kdf: bytes) -> bytes:
    """PKCS #8 with PBES2: AES-256-CBC, and a key that is derived so."""
    cipher = tlv(0x30, bytes.fromhex("060960864801650304012a") + tlv(4, bytes(16)))
    scheme = tlv(0x30, bytes.fromhex("06092a864886f70d01050d") + tlv(0x30, kdf + cipher))
    return tlv(0x30, scheme + tlv(4, bytes(160)))


PBKDF2 = tlv(0x30, bytes.fromhex("06092a864886f70d01050c") + tlv(0x30, tlv(4, b"saltsalt") + integer(HOURS)))
SCRYPT_COST = integer(2**20) + integer(1) + integer(2**20)
SCRYPT = tlv(0x30, bytes.fromhex("06092b06010401da47040b") + tlv(0x30, tlv(4, b"saltsalt") + SCRYPT_COST))
PBE = tlv(
    0x30,
    tlv(0x30, bytes.fromhex("060a2a864886f70d010c0103") + tlv(0x30, tlv(4, b"saltsalt") + integer(HOURS)))
    + tlv(4, bytes(160)),
)
LEGACY = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00000000000000000000000000000000\n\n"


def certificate_of(key: PrivateKeyTypes) -> bytes:
    builder = x509.CertificateBuilder().subject_name(NAME).issuer_name(NAME).public_key(key.public_key())  # type: ignore[arg-type]
    builder = builder.serial_number(1).not_valid_before(NOW).not_valid_after(NOW + datetime.timedelta(1))
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey) else hashes.SHA256()
    return builder.sign(key, digest).public_bytes(PEM)  # type: ignore[arg-type]


def key_of(key: PrivateKeyTypes, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(PEM, form, PLAIN)


def config(user: dict[str, bytes], authority: bytes | None = None) -> str:
    cluster = {"server": "https://127.0.0.1:6443"}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    encoded = {f"client-{name}-data": base64.b64encode(data).decode() for name, data in user.items()}
    return yaml.safe_dump(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": encoded or {"token": "t"}}],
        }
    )


async def read(user: dict[str, bytes], authority: bytes | None = None) -> Access:
    return await kubeconfig.of_tenant(config(user, authority), "alpha/c1", Networks())


@pytest.fixture(scope="module")
def certificate() -> bytes:
    return certificate_of(ec.generate_private_key(ec.SECP256R1()))


@pytest.mark.parametrize(
    "key",
    [
        pem("ENCRYPTED PRIVATE KEY", encrypted(PBKDF2)),
        pem("ENCRYPTED PRIVATE KEY", encrypted(SCRYPT)),
        pem("ENCRYPTED PRIVATE KEY", PBE),
        pem("RSA PRIVATE KEY", bytes(160), LEGACY),
        pem("EC PRIVATE KEY", bytes(160), LEGACY),
        pem("PRIVATE KEY", bytes(160), LEGACY),
        b"before\n" + pem("ENCRYPTED PRIVATE KEY", encrypted(PBKDF2)),
        pem("ENCRYPTED PRIVATE KEY", encrypted(PBKDF2)).replace(b"\n", b"\r\n"),
        key_of(ec.generate_private_key(ec.SECP256R1())) + pem("ENCRYPTED PRIVATE KEY", encrypted(PBKDF2)),
    ],
    ids=["pbkdf2", "scrypt", "pkcs12", "rsa", "ec", "label", "after text", "crlf", "second"],
)
async def test_an_encrypted_key_is_refused_before_it_is_read(key: bytes, certificate: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidKubeconfig, match="client-key-data is encrypted, which is not allowed here"):
        await read({"certificate": certificate, "key": key})
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (b"no key", "does not hold one PEM private key"),
        (pem("PRIVATE KEY", encrypted(PBKDF2)), "is neither of RSA nor of an elliptic curve"),
        (pem("ANY PRIVATE KEY", bytes(160)), "does not hold one PEM private key"),
        (pem("DSA PRIVATE KEY", bytes(160)), "does not hold one PEM private key"),
        (pem("PRIVATE KEY", bytes(160)) * 2, "does not hold one PEM private key"),
        (pem("PRIVATE KEY", bytes(4096)), "is longer than 4096 bytes"),
        (key_of(dsa.generate_private_key(1024)), "is neither of RSA nor of an elliptic curve"),
        (pem("RSA PRIVATE KEY", bytes(160)), "client certificate and key cannot be used together"),
    ],
    ids=["none", "hidden", "any", "dsa", "two", "long", "pkcs8 of dsa", "zeros"],
)
async def test_a_key_of_another_form_is_refused(key: bytes, why: str, certificate: bytes) -> None:
    with pytest.raises(InvalidKubeconfig, match=why):
        await read({"certificate": certificate, "key": key})


@pytest.mark.parametrize("bits", [4104, 16_384, 65_537])
async def test_an_rsa_key_whose_signatures_take_seconds_is_refused(bits: int) -> None:
    """Nothing of such a key is checked while it is read: signatures are made at each handshake."""
    half = 1 << bits // 2
    modulus = (half - 1) * (half - 3)
    numbers = (0, modulus, 65537, half, half - 1, half - 3, 3, 3, 3)
    small = x509.load_pem_x509_certificate(certificate_of(rsa.generate_private_key(65537, 2048)))
    algorithm = bytes.fromhex("300d06092a864886f70d0101010500")
    public = tlv(0x30, algorithm + tlv(3, b"\0" + tlv(0x30, integer(modulus) + integer(65537))))
    known = small.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    fields = small.tbs_certificate_bytes.replace(known, public)[4:]  # without the length, which has changed
    der = tlv(0x30, tlv(0x30, fields) + bytes.fromhex("300d06092a864886f70d01010b0500") + tlv(3, bytes(257)))
    key = pem("RSA PRIVATE KEY", tlv(0x30, b"".join(map(integer, numbers))))
    with pytest.raises(InvalidKubeconfig, match="client-certificate-data has an RSA key of more than 4096 bits"):
        await read({"certificate": pem("CERTIFICATE", der), "key": key})


async def test_a_certificate_of_another_kind_of_key_is_refused() -> None:
    key = dsa.generate_private_key(1024)
    with pytest.raises(InvalidKubeconfig, match="client-certificate-data has a key that is neither"):
        await read({"certificate": certificate_of(key), "key": key_of(key)})


@pytest.mark.parametrize("name", ["authority", "certificate"])
async def test_very_many_certificates_are_refused(name: str, certificate: bytes) -> None:
    many = certificate * (MAX_CERTIFICATES + 1)
    with pytest.raises(InvalidKubeconfig, match=f"{name}-data holds more than {MAX_CERTIFICATES} certificates"):
        if name == "authority":
            await read({}, many)
        else:
            await read({"certificate": many, "key": key_of(ec.generate_private_key(ec.SECP256R1()))})
    assert await read({}, certificate * MAX_CERTIFICATES)


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize(
    "generate",
    [
        lambda: rsa.generate_private_key(65537, 4096),
        lambda: ec.generate_private_key(ec.SECP256R1()),
        lambda: ec.generate_private_key(ec.SECP521R1()),
        ed25519.Ed25519PrivateKey.generate,
        ed448.Ed448PrivateKey.generate,
    ],
    ids=["rsa", "p256", "p521", "ed25519", "ed448"],
)
async def test_keys_that_installations_use_are_read(
    generate: Callable[[], PrivateKeyTypes], form: serialization.PrivateFormat
) -> None:
    """Also after what `openssl` writes before them."""
    key = generate()
    if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey):
        form = serialization.PrivateFormat.PKCS8  # they have no other
    before = b"Bag Attributes: <No Attributes>\n" + pem("EC PARAMETERS", bytes.fromhex("06082a8648ce3d030107"))
    access = await read({"certificate": certificate_of(key) * 2, "key": before + key_of(key, form) + b"\n"})
    assert access.tls is not None and access.authorization is None


async def test_a_certificate_of_no_known_version_is_refused(certificate: bytes) -> None:
    der = base64.b64decode(b"".join(certificate.splitlines()[1:-1]))
    fifth = der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020104"), 1)
    assert fifth != der
    with pytest.raises(InvalidKubeconfig, match="client-certificate-data holds no usable PEM certificate"):
        await read({"certificate": pem("CERTIFICATE", fifth), "key": key_of(ec.generate_private_key(ec.SECP256R1()))})
