from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest

from common.kube.client import kubeconfig
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
