"""Certificates of callers, as the server hands them on, and what another TLS context does to connections."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.server.http_parser import Head
from devcluster import certificates
from devcluster.certificates import Serving
from tests.client_certificates import Authority, Issued
from tests.unit.common.server.test_http_server import Client, Running, post, running

SERVING = certificates.serving("server")


def serves(directory: Path, authority: Authority, serving: Serving = SERVING) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, content in (("tls.crt", serving.certificate), ("tls.key", serving.key)):
        (directory / name).write_text(content)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    context.load_verify_locations(cadata=authority.pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@dataclass
class World:
    running: Running
    authority: Authority
    tls: Callable[[Authority], ssl.SSLContext]
    heads: list[bytes]

    async def connect(self, certificate: Issued | None = None) -> Client:
        trusting = ssl.create_default_context(cadata=SERVING.ca)
        if certificate is not None:
            certificate.present(trusting)
        return await self.running.connect(trusting)

    @property
    def asked(self) -> list[bytes]:
        return [request.certificate for request in self.running.service.asked]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    authority, heads = Authority(), list[bytes]()

    def noted(head: Head) -> str:
        heads.append(head.certificate)
        return "caller"

    async with running(serves(tmp_path, authority)) as found:
        found.server.identify = noted
        yield World(found, authority, lambda other: serves(tmp_path, other), heads)


async def test_every_request_has_the_certificate_of_its_connection(world: World) -> None:
    ann = world.authority.issue("ann")
    for certificate, expected in ((ann, ann.der), (None, b"")):
        client = await world.connect(certificate)
        for _ in range(2):
            client.send(post("/"))
            assert (await client.answer())[0] == 200
        assert world.heads[-2:] == world.asked[-2:] == [expected] * 2


async def test_a_certificate_of_another_authority_ends_the_handshake(world: World) -> None:
    with pytest.raises((OSError, EOFError)):  # with TLS 1.3 the caller learns it when it reads
        client = await world.connect(Authority().issue("ann"))
        client.send(post("/"))
        await client.answer()
    assert world.asked == []


async def test_another_context_ends_idle_connections_at_once_and_busy_ones_with_their_answer(world: World) -> None:
    ann = world.authority.issue("ann")
    idle, busy = await world.connect(ann), await world.connect(ann)
    idle.send(post("/"))
    await idle.answer()
    busy.send(post("/wait"))
    await world.running.until(lambda: len(world.asked) == 2)
    other = Authority()
    world.running.server.use(world.tls(other))
    assert await idle.ended() == b""
    world.running.service.go_on.set()
    assert (await busy.answer())[1]["connection"] == "close"
    bob = other.issue("bob")
    renewed = await world.connect(bob)
    renewed.send(post("/"))
    status, headers, _ = await renewed.answer()
    assert (status, world.asked[-1], "connection" in headers) == (200, bob.der, False)


async def test_a_request_that_is_coming_loses_the_certificate_of_the_context_before(world: World) -> None:
    client = await world.connect(world.authority.issue("ann"))
    request = post("/", b"body")
    client.send(request[:-2])
    await world.running.until(lambda: world.heads)
    world.running.server.use(world.tls(Authority()))
    client.send(request[-2:])
    assert (await client.answer())[1]["connection"] == "close"
    assert (world.heads[0] != b"", world.asked) == (True, [b""])
