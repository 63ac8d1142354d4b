"""Whatever a tenant's Secret holds, it is a receiver that can be connected to safely, or refused with a reason."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from common.kube.client.networks import PublicNetworks
from master.notifications.receiver import InvalidReceiver, receiver_of

PARTS = st.sampled_from(
    [
        "https",
        "http",
        "://",
        ":",
        "/",
        "//",
        "@",
        "[",
        "]",
        "::1",
        "%00",
        "%2e",
        "#",
        "?",
        "\\",
        "xn--",
        "..",
        "-",
        "a.example",
        "443",
    ]
)
URLS = st.one_of(
    st.binary(max_size=64),
    st.lists(PARTS, max_size=8).map(lambda parts: "".join(parts).encode()),
    st.lists(PARTS, max_size=6).map(lambda parts: ("https://" + "".join(parts)).encode()),
)


@given(url=URLS, key=st.binary(max_size=40), authorities=st.binary(max_size=80))
def test_a_secret_is_read_or_refused(url: bytes, key: bytes, authorities: bytes) -> None:
    try:
        found = receiver_of({"url": url, "signingKey": key, "ca.crt": authorities})
    except InvalidReceiver as error:
        assert str(error)
        return
    assert found.url.scheme in ("https", "http")
    assert found.url.host
    assert found.url.user is None and found.url.password is None and not found.url.fragment
    assert len(found.signature("i", 1, b"{}")) == len("v1,") + 44


@given(address=st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str))
def test_what_python_calls_private_is_never_connected_to(address: str) -> None:
    """By another way than the code goes, as far as there is one."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if PublicNetworks().allows(address):
        assert not (found.is_private or found.is_loopback or found.is_link_local or found.is_multicast)
        assert not (found.is_reserved or found.is_unspecified) or address.startswith("64:ff9b:")
