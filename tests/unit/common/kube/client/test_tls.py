from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from prometheus_client import REGISTRY

from common.kube.client import kubeconfig
from common.kube.client.api_client import Cluster
from common.kube.client.bounds import MAX_HANDSHAKE
from common.kube.client.errors import Unavailable
from common.kube.client.kubeconfig import Access
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.kube.client.tls import verifying
from devcluster import certificates
from seed.instance_types import http_client
from seed.instance_types.http_client import Transport

FINITE_FIELDS = range(0x0100, 0x0200)  # RFC 7919
P_256 = 0x0017
_GROUPS, _TICKET = 10, 35


def hello(context: ssl.SSLContext) -> tuple[list[str], list[int]]:
    """The ciphers and the groups that a client offers, from its first bytes (RFC 8446, 4.1.2)."""
    sent = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="host.example").do_handshake()
    data = sent.read()[5 + 4 + 2 + 32 :]
    for length in (1, 2, 1):  # session, ciphers, compression
        data = data[length + int.from_bytes(data[:length], "big") :]
    data, groups = data[2:], b""
    while data:
        kind, size = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")
        if kind == _GROUPS:
            groups = data[6 : 4 + size]
        data = data[4 + size :]
    offered = [int.from_bytes(groups[at : at + 2], "big") for at in range(0, len(groups), 2)]
    return [cipher["name"] for cipher in context.get_ciphers()], offered


def transport() -> ssl.SSLContext:
    return Transport()._ssl_context


@pytest.mark.parametrize(
    "make",
    [
        lambda: kubeconfig._tls(None),
        lambda: kubeconfig._tls(certificates.serving("x", "host.example").ca.encode()),
        transport,
        lambda: http_client.trusting(None),
        lambda: http_client._trusting(certificates.serving("x", "host.example").ca),
    ],
)
def test_no_finite_field_is_offered_to_hosts_that_tenants_choose(make: Callable[[], ssl.SSLContext]) -> None:
    context = make()
    ciphers, groups = hello(context)
    assert groups == [P_256]
    assert not set(groups) & set(FINITE_FIELDS)
    assert all(name.startswith(("TLS_", "ECDHE-")) for name in ciphers)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.options & ssl.OP_NO_RENEGOTIATION  # a second handshake, in the middle of an answer


THINGS = Resource("", "v1", "things", "Thing", namespaced=True, type=Object)


class Chain:
    """Each certificate is signed with the one before, and all have one key. The first is a root."""

    def __init__(self, length: int, host: str = "localhost") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        identifier = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        now = datetime.now(UTC)
        self.pems: list[str] = []
        for number in range(length):
            leaf = number == length - 1
            certificate = (
                x509.CertificateBuilder()
                .subject_name(_name(number))
                .issuer_name(_name(max(number - 1, 0)))
                .public_key(self.key.public_key())
                .serial_number(number + 1)
                .not_valid_before(now - timedelta(hours=1))
                .not_valid_after(now + timedelta(hours=1))
                .add_extension(x509.BasicConstraints(ca=not leaf, path_length=None), critical=True)
                .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
                .add_extension(identifier, critical=False)
                .add_extension(signer, critical=False)
                .add_extension(_usage(signs=not leaf), critical=True)
                .sign(self.key, SHA256())
            )
            self.pems.append(certificate.public_bytes(Encoding.PEM).decode())

    def served(self, directory: Path, sent: int) -> ssl.SSLContext:
        """By a server that sends so many of them, its own first."""
        pem = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        file = directory / "served.pem"
        file.write_text(pem + "".join(self.pems[: -sent - 1 : -1]))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _name(number: int) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"c{number}")])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


@asynccontextmanager
async def reached(served: ssl.SSLContext, authorities: str) -> AsyncIterator[Cluster]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"metadata": {"name": "a"}}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=served)
    port = server.sockets[0].getsockname()[1]
    cluster = Cluster(Access(f"https://localhost:{port}", verifying(authorities)), name="c")
    try:
        yield cluster
    finally:
        await cluster.close()
        server.close()


async def test_a_server_s_handshake_is_bounded(tmp_path: Path) -> None:
    """A chain is verified in one piece: of 60 certificates with keys that are slow to use, 0.4 s."""
    chain = Chain(61)
    short, long = Chain(4), len(ssl.PEM_cert_to_DER_cert(chain.pems[30])) * 60
    assert MAX_HANDSHAKE < long < 4 * MAX_HANDSHAKE
    async with reached(chain.served(tmp_path, 60), chain.pems[0]) as cluster:
        with pytest.raises(Unavailable, match=f"its TLS handshake is larger than {MAX_HANDSHAKE} bytes"):
            await cluster.get(THINGS, "a", "n")
    labels = {"server": "c", "reason": "HandshakeTooLarge"}
    assert REGISTRY.get_sample_value("seedquota_api_answers_refused_total", labels) == 1
    async with reached(short.served(tmp_path, 3), short.pems[0]) as cluster:
        assert (await cluster.get(THINGS, "a", "n")).metadata.name == "a"


def test_all_that_comes_before_the_end_of_a_handshake_is_counted(tmp_path: Path) -> None:
    """However small the pieces are in which it comes."""
    chain = Chain(61)
    incoming, outgoing, sent, received = (ssl.MemoryBIO() for _ in range(4))
    client = verifying(chain.pems[0]).wrap_bio(incoming, outgoing, server_hostname="localhost")
    server = chain.served(tmp_path, 60).wrap_bio(received, sent, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    received.write(outgoing.read())
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    taken = 0
    with pytest.raises(ssl.SSLError, match="is larger than"):
        while part := sent.read(700):
            taken += len(part)
            incoming.write(part)
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
    assert MAX_HANDSHAKE < taken <= MAX_HANDSHAKE + 700


async def test_a_chain_ends_at_what_the_kubeconfig_trusts(tmp_path: Path) -> None:
    """Else a tenant's 64 authorities could be a chain, all of it verified for a server that sends one certificate."""
    chain = Chain(20)
    async with reached(chain.served(tmp_path, 1), chain.pems[-2]) as cluster:
        assert (await cluster.get(THINGS, "a", "n")).metadata.name == "a"
    other = Chain(20)
    async with reached(chain.served(tmp_path, 1), other.pems[-2]) as cluster:
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await cluster.get(THINGS, "a", "n")
