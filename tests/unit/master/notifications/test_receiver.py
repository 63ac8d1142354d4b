"""Where messages may go, and how they are signed."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from common.kube.client.networks import PublicNetworks
from master.notifications.receiver import MAX_KEY, InvalidReceiver, receiver_of

URL = b"https://hooks.example.com/services/T0/B0/secret?token=a%20b"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "has no key url"),
        ({"url": b""}, "has no key url"),
        ({"url": b"https://ex\xffample.com"}, "not ASCII"),
        ({"url": b"ftp://example.com"}, "must begin with https://"),
        ({"url": b"file:///etc/passwd"}, "must begin with https://"),
        ({"url": b"https:///path"}, "no URL|must begin"),
        ({"url": b"example.com"}, "must begin with https://"),
        ({"url": b"https://example.com:99999/"}, "no URL"),
        ({"url": b"https://user:hunter2@example.com/"}, "not supported"),
        ({"url": b"https://example.com/#part"}, "not supported"),
        ({"url": b"https://example.com/a b"}, "has a space"),
        ({"url": b"https://example.com/\r\nHost: other"}, "has a space or control character"),
        ({"url": b"https://example.com/" + b"a" * 2048}, "longer than"),
        ({"url": URL, "signingKey": b"short"}, "signingKey"),
        ({"url": URL, "signingKey": b"a" * (MAX_KEY + 1)}, "signingKey"),
        ({"url": URL, "signingKey": b"whsec_!"}, "not base64"),
        ({"url": URL, "ca.crt": b"-----BEGIN CERTIFICATE-----\n" * 65}, "ca.crt"),
        ({"url": URL, "ca.crt": b"a" * 300_000}, "ca.crt"),
    ],
)
def test_a_secret_that_cannot_be_used_is_told_of_without_what_it_has(data: dict[str, bytes], said: str) -> None:
    with pytest.raises(InvalidReceiver, match=said) as error:
        receiver_of(data)
    assert "secret?" not in str(error.value)
    assert "hunter2" not in str(error.value)


def test_the_url_is_sent_as_it_is_written() -> None:
    found = receiver_of({"url": URL + b"\n"})
    assert str(found.url) == URL.decode()
    assert (found.plain, found.signature("i", 1, b"{}")) == (False, "")


@pytest.mark.parametrize("written", [b"k" * 32, b"whsec_" + base64.b64encode(b"k" * 32)])
def test_a_message_is_signed_with_its_id_and_time(written: bytes) -> None:
    """As https://www.standardwebhooks.com says."""
    found = receiver_of({"url": URL, "signingKey": written})
    expected = hmac.new(b"k" * 32, b'msg_1.1700000000.{"a":1}', hashlib.sha256).digest()
    assert found.signature("msg_1", 1700000000, b'{"a":1}') == "v1," + base64.b64encode(expected).decode()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1"),
        *("255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe"),
        *("64:ff9b:1::1", "2002:a00:1::", "2001:db8::1", "4000::1", "2001:0:a00:1::f5ff:fffe"),
    ],
)
def test_only_public_addresses_are_connected_to(address: str) -> None:
    assert not PublicNetworks().allows(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "::ffff:8.8.8.8", "2606:4700::1111", "64:ff9b::8.8.8.8"])
def test_public_addresses_are(address: str) -> None:
    assert PublicNetworks().allows(address)


def test_what_the_platform_names_is_allowed_beside_public_addresses() -> None:
    found = PublicNetworks(["10.1.0.0/16", "fd00::/8"])
    assert [found.allows(each) for each in ("10.1.2.3", "fd00::1", "1.1.1.1")] == [True] * 3
    assert [found.allows(each) for each in ("10.2.0.1", "127.0.0.1", "fc00::1")] == [False] * 3
    assert (found.names("10.1.2.3"), found.names("1.1.1.1")) == (True, False)
