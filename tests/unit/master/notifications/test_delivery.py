"""Messages go to no address that is forbidden, and no receiver takes more than its time. Receivers are real servers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
import time

import pytest

from common.kube.client.networks import PublicNetworks
from master.notifications import delivery
from master.notifications.delivery import Undelivered, deliver
from master.notifications.forms import Message
from master.notifications.receiver import InvalidReceiver, receiver_of
from tests.unit.master.notifications.receivers import Web

HERE = PublicNetworks(["127.0.0.0/8"])
MESSAGE = Message("application/json", b'{"text": "full"}')
KEY = b"k" * 32


async def send(web: Web, networks: PublicNetworks = HERE, url: bytes = b"", **more: bytes) -> None:
    data = {"url": url or web.url(), "ca.crt": web.authorities, **more}
    await deliver(receiver_of(data), MESSAGE, identity="id-1", notification="org-acme/hook", networks=networks)


async def refused(web: Web, *arguments: object, **options: object) -> str:
    with pytest.raises(Undelivered) as error:
        await send(web, *arguments, **options)  # type: ignore[arg-type]
    assert "127.0.0.1" not in str(error.value)
    assert "/hook" not in str(error.value)
    return error.value.reason


async def test_a_message_is_posted_and_can_be_verified() -> None:
    async with Web().serve() as web:
        await send(web, signingKey=KEY)
    (told,) = web.told
    assert (told.target, told.body) == ("/hook", MESSAGE.body)
    assert told.head["content-type"] == "application/json"
    signed = f"{told.head['webhook-id']}.{told.head['webhook-timestamp']}.".encode() + told.body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert told.head["webhook-signature"] == f"v1,{expected}"
    assert abs(int(told.head["webhook-timestamp"]) - time.time()) < 60


async def test_without_a_key_there_is_no_signature() -> None:
    async with Web().serve() as web:
        await send(web)
    assert "webhook-signature" not in web.told[0].head


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f000001", "[::ffff:127.0.0.1]"])
async def test_no_connection_is_made_to_an_address_that_is_forbidden(host: str) -> None:
    async with Web().serve() as web:
        assert await refused(web, PublicNetworks(), url=web.url(host=host)) == "AddressForbidden"
        assert await refused(web, PublicNetworks(["10.0.0.0/8"]), url=web.url(host=host)) == "AddressForbidden"
    assert web.connections == 0


@pytest.mark.parametrize("host", ["2130706433", "127.1", "0177.0.0.1"])
async def test_nor_to_one_in_a_notation_that_is_no_address(host: str) -> None:
    async with Web().serve() as web:
        await refused(web, PublicNetworks(), url=web.url(host=host))
    assert web.connections == 0


async def test_a_name_that_leads_elsewhere_when_it_is_connected_to_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS rebinding: what a lookup says at any other time does not matter."""
    real = socket.getaddrinfo

    def rebound(host: str, port: int, **options: object) -> object:
        return real("127.0.0.1" if host == "hooks.example.com" else host, port, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    async with Web().serve("hooks.example.com") as web:
        url = web.url(host="hooks.example.com")
        assert await refused(web, PublicNetworks(), url=url) == "AddressForbidden"
        assert web.connections == 0
        await send(web, url=url)
    assert web.told[0].head["host"].startswith("hooks.example.com")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    async with Web().serve() as other, Web().serve() as web:
        location = other.url().decode()
        web.answers = [f"HTTP/1.1 {status} x\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()]
        assert await refused(web) == "Redirected"
    assert other.connections == 0


@pytest.mark.parametrize("status", [400, 403, 410, 429, 500, 503])
async def test_what_is_not_accepted_is_not_delivered(status: int) -> None:
    async with Web(answers=[f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n".encode()]).serve() as web:
        assert await refused(web) == "ReceiverRefused"


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def dripping(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def interim(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await writer.drain()


async def large_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"a" * 60 + b": b\r\n")
        await writer.drain()


async def another_protocol(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
    await writer.drain()
    await asyncio.sleep(60)


async def no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await writer.drain()


@pytest.mark.parametrize("answer", [silent, dripping, interim, large_head, another_protocol, no_http])
async def test_a_hostile_receiver_takes_no_more_than_its_time(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    tries = 0
    async with Web(answers=[answer]).serve() as web:  # type: ignore[list-item]
        while not web.told:  # on a machine that is busy, to connect may take all of its time
            monkeypatch.setattr(delivery, "SECONDS", 2.0**tries)
            tries += 1
            async with asyncio.timeout(30):
                assert await refused(web) == "ReceiverUnreachable"
    assert len(web.told) <= tries


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"a" * 0x10000 + b"\r\n")
        await writer.drain()


async def test_of_an_endless_answer_only_the_status_counts() -> None:
    async with Web(answers=[endless]).serve() as web, asyncio.timeout(30):
        await send(web)


async def test_a_certificate_that_is_not_valid_is_refused() -> None:
    async with Web().serve("other.example.com") as web:
        assert await refused(web) == "ReceiverUnreachable"
        assert await refused(web, **{"ca.crt": Web().authorities}) == "ReceiverUnreachable"
    assert web.told == []
    async with Web().serve() as web:
        with pytest.raises(InvalidReceiver, match="key ca"):
            await send(web, **{"ca.crt": b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n"})


async def test_without_tls_only_what_the_platform_names_is_connected_to() -> None:
    async with Web().serve(tls=False) as web:
        url = web.url(scheme="http")
        assert await refused(web, PublicNetworks(), url=url) == "AddressForbidden"
        assert web.connections == 0
        await send(web, url=url)
    assert len(web.told) == 1


async def test_nobody_listens() -> None:
    async with Web().serve() as web:
        pass
    assert await refused(web) == "ReceiverUnreachable"


async def test_no_log_has_the_path_which_is_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with Web(answers=[no_http]).serve() as web:
            for url in (web.url("/hidden-token"), b"https://127.0.0.1:1/hidden-token"):
                with pytest.raises(Undelivered):
                    await send(web, url=url)
    assert any(record.message == "notification not delivered" for record in caplog.records)
    assert all("hidden-token" not in str(record.__dict__) for record in caplog.records)
