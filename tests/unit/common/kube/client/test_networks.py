from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.kube.client.networks import Networks
from common.kube.client.reach import ANYWHERE, DEFAULT, Reach
from tests.unit.common.kube.client.test_tenant_threads import kubeconfig


@pytest.mark.parametrize(
    "address",
    [
        *("10.1.2.3", "192.168.0.1", "172.16.0.1", "203.0.113.7", "100.64.0.1", "240.0.0.1"),
        *("fd00::1", "2001:db8::1", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3"),
    ],
)
def test_where_user_clusters_are_is_allowed_by_default(address: str) -> None:
    assert Networks().allows(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.0.3", "0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "255.255.255.255"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "febf::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::169.254.169.254"),
        *("64:ff9b::169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1"),
        "2001:0:a9fe:a9fe::",  # Teredo, by its server
    ],
)
def test_this_machine_its_link_everybody_and_nobody_are_not(address: str) -> None:
    assert not Networks().allows(address)


def test_a_list_is_what_is_allowed_and_nothing_else() -> None:
    networks = Networks(("10.0.0.0/8", "127.0.0.0/8", "fd00::/8", "64:ff9b::/96"))
    allowed = ("10.255.0.1", "127.0.0.1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::192.0.2.1")
    assert all(map(networks.allows, allowed))
    assert not any(map(networks.allows, ("11.0.0.1", "::1", "fe80::1", "::ffff:11.0.0.1", "2001:db8::1")))
    for wrong in ("10.0.0.1/8", "10.0.0.0/33", "example.com", ""):
        with pytest.raises(ValueError, match=r"does not appear to be|host bits set"):
            Networks((wrong,))


@asynccontextmanager
async def listening(
    speak: Callable[[asyncio.StreamWriter], object],
) -> AsyncIterator[tuple[int, list[asyncio.StreamWriter]]]:
    """A port of this machine, and who has connected to it."""
    seen: list[asyncio.StreamWriter] = []

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer)
        speak(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()
        for writer in seen:
            writer.transport.abort()


async def said(server: str, reach: Reach = DEFAULT, timeout: float = 5.0) -> str:
    cluster = await Cluster.of_tenant(kubeconfig(server), name="alpha/c1", reach=reach, timeout=timeout)
    try:
        with pytest.raises(Unavailable) as error:
            await cluster.request("GET", "/version")
        return error.value.message
    finally:
        await cluster.close()


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "0.0.0.0", "0"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "%31%32%37.0.0.1", "127。0。0。1"),
    ],
)
async def test_this_machine_is_not_connected_to_however_a_kubeconfig_writes_it(host: str) -> None:
    async with listening(lambda writer: writer.close()) as (port, seen):
        if not host.isascii():
            with pytest.raises(ValueError, match="not a valid URL"):
                await said(f"https://{host}:{port}")
        else:
            await said(f"https://{host}:{port}")
        assert seen == []
        if host in ("127.0.0.1", "localhost"):
            assert "--user-cluster-networks" in await said(f"https://{host}:{port}")
            await said(f"https://{host}:{port}", ANYWHERE)
            assert seen, "the port is open"


async def test_a_name_that_leads_elsewhere_when_it_is_asked_again_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[str] = []

    def look_up(_host: object, port: int, **_more: object) -> list[object]:
        answers.append("198.51.100.1" if not answers else "127.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers[-1], port))]

    connected: list[str] = []
    real = socket.socket.connect

    def connect(made: socket.socket, address: tuple[str, int]) -> None:
        connected.append(address[0])
        real(made, address)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket.socket, "connect", connect)
    async with listening(lambda writer: writer.close()) as (port, seen):
        cluster = await Cluster.of_tenant(
            kubeconfig(f"https://rebind.example:{port}"), name="alpha/c1", reach=DEFAULT, timeout=0.3
        )
        try:
            for _ in range(2):
                for session in (cluster._requests, cluster._leases, cluster._watches):
                    session.connector._cached_hosts.clear()  # the answer was good for a moment only
                with pytest.raises(Unavailable):
                    await cluster.request("GET", "/version")
                with pytest.raises(Unavailable):
                    await cluster.request("GET", "/version", plural="leases")
        finally:
            await cluster.close()
        assert "127.0.0.1" in answers and seen == []


async def test_nobody_learns_what_is_at_an_address(caplog: pytest.LogCaptureFixture) -> None:
    """Refused, silent, closed at once, another protocol, another certificate, no such name: all alike."""
    caplog.set_level(logging.INFO, "common.kube.client.tenant_hosts")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        messages = {await said(f"https://127.0.0.1:{closed.getsockname()[1]}", ANYWHERE)}
    for speak in (
        lambda _writer: None,
        lambda writer: writer.close(),
        lambda writer: writer.write(b"SSH-2.0-OpenSSH_9.6\r\n"),
        lambda writer: writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n"),
        lambda writer: writer.write(b"\x15\x03\x03\x00\x02\x02\x28"),
    ):
        async with listening(speak) as (port, seen):
            messages.add(await said(f"https://127.0.0.1:{port}", ANYWHERE, timeout=2.0))
            assert seen
    messages.add(await said("https://does-not-exist.invalid:1", ANYWHERE))
    assert messages == {
        "cluster alpha/c1: get /version: its server cannot be reached; the log of seedquota-seed says why"
    }
    logged = [record.__dict__["error"] for record in caplog.records]
    assert any("Connect call failed" in why for why in logged) and any("no answer within" in why for why in logged)
    assert any("wrong version number" in why.lower().replace("_", " ") for why in logged), logged


async def test_what_keeps_a_cluster_out_of_reach_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "common.kube.client.tenant_hosts")
    cluster = await Cluster.of_tenant(kubeconfig("https://127.0.0.1:1"), name="alpha/c1", reach=DEFAULT)
    try:
        for _ in range(3):
            with pytest.raises(Unavailable, match="an address that --user-cluster-networks does not allow"):
                await cluster.request("GET", "/version")
    finally:
        await cluster.close()
    (record,) = caplog.records
    assert record.__dict__["cluster"] == "alpha/c1" and "127.0.0.1 is not in" in record.__dict__["error"]
