"""Through whom clouds are asked, and whom that trusts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from seed.instance_types.http_client import InvalidBundle, Transport, trusting
from seed.providers.flavour import Answer, CloudError
from tests.unit.fake_api_server import eventually
from tests.unit.fake_cloud import FakeCloud, answering, fake_cloud

HOST = "api.cloud.example"


async def ask(transport: Transport, url: str = f"https://{HOST}/sizes") -> Answer:
    try:
        return await transport.within(asyncio.get_running_loop().time() + 30).request("GET", url, attempts=1)
    finally:
        await transport.close()


@asynccontextmanager
async def proxy(cloud: FakeCloud) -> AsyncIterator[tuple[str, list[str]]]:
    """Tunnels everything to the cloud (CONNECT): its URL, and where it was asked to go."""
    asked: list[str] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split("\r\n")[0])
        there, back = await asyncio.open_connection("127.0.0.1", cloud.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pipe(reader, back), pipe(there, writer), return_exceptions=True)

    server = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


async def test_a_proxy_is_used_where_the_environment_names_one_and_the_authorities_are_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with fake_cloud(answering(200, "sizes"), HOST) as cloud, proxy(cloud) as (url, asked):
        bundle = tmp_path / "ca.pem"
        bundle.write_text(cloud.ca)
        monkeypatch.setenv("HTTPS_PROXY", url)
        assert (await ask(Transport(ssl_context=trusting(bundle)))).body == b"sizes"
        assert asked == [f"CONNECT {HOST}:443 HTTP/1.1"]
        assert cloud.requests == [f"GET {HOST}/sizes"]
        with pytest.raises(CloudError, match="does not prove by its certificate who it is"):
            await ask(Transport(ssl_context=trusting(None)))
        monkeypatch.setenv("NO_PROXY", HOST)
        with pytest.raises(CloudError, match="cannot be reached"):
            await ask(Transport(ssl_context=trusting(bundle)))
        assert len(asked) == 2


async def test_without_tls_only_this_machine_is_asked_and_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hello(_request: web.Request) -> web.StreamResponse:
        return web.Response(text="hello")

    application = web.Application()
    application.router.add_get("/", hello)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        assert (await ask(Transport(), f"http://127.0.0.1:{port}/")).body == b"hello"
    finally:
        await runner.cleanup()
    for url in (f"http://{HOST}/", "http://10.0.0.1/", "http://127.0.0.1.nip.io/", "ftp://127.0.0.1/", "file:///etc"):
        with pytest.raises(CloudError, match="is to be asked without TLS, which is not done"):
            await ask(Transport(), url)


@pytest.mark.parametrize("content", [None, "", "no PEM", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"])
def test_a_file_that_holds_no_authorities_is_refused_by_its_name(tmp_path: Path, content: str | None) -> None:
    bundle = tmp_path / "ca.pem"
    if content is not None:
        bundle.write_text(content)
    with pytest.raises(InvalidBundle, match=r"ca\.pem"):
        trusting(bundle)


async def test_who_must_stop_waiting_can_see_what_went_wrong_so_far() -> None:
    async with fake_cloud(answering(500), HOST) as cloud:
        transport = cloud.transport()
        http = transport.within(asyncio.get_running_loop().time() + 60)
        asking = asyncio.create_task(http.request("GET", f"https://{HOST}/"))
        await eventually(lambda: http.trouble)
        assert http.trouble == "answered 500"
        cloud.disturb = answering(200)
        assert (await asking).status == 200
        assert http.trouble == ""
        await transport.close()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_a_cloud_that_compresses_though_nobody_asked_for_it_is_not_read(encoding: str) -> None:
    """A tenant may choose some hosts, and nine megabytes become gigabytes."""
    asked: list[str] = []

    async def compressed(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers["Accept-Encoding"])
        return await answering(200, Content_Encoding=encoding)(request)

    async with fake_cloud(compressed, HOST) as cloud:
        transport = cloud.transport()
        with pytest.raises(CloudError, match="it is compressed"):
            await transport.within(asyncio.get_running_loop().time() + 30).request(
                "GET", f"https://{HOST}/", attempts=1
            )
        assert asked == ["identity"]
        await transport.close()


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("Sat, 21 Nov 2026 08:00:09 GMT", 9.0),  # whatever time it is here
        ("Sat, 21 Nov 2026 07:59:00 GMT", 0.0),
        ("9999999", None),
        ("soon", None),
        ("Sat, 21 Nov 99999999999 08:00:09 GMT", None),
        ("Sat, 21 Nov 2026 08:00:09 +99999999999999", None),
        ("-1", None),
    ],
)
async def test_how_long_a_cloud_wants_to_be_left_alone_is_read_by_its_own_clock(said: str, seconds: float) -> None:
    busy = answering(429, Retry_After=said, Date="Sat, 21 Nov 2026 08:00:00 GMT")
    async with fake_cloud(busy, HOST) as cloud:
        transport = cloud.transport()
        with pytest.raises(CloudError) as caught:
            await transport.within(asyncio.get_running_loop().time() + 30).request(
                "GET", f"https://{HOST}/", attempts=1
            )
        assert caught.value.retry_after == seconds
        await transport.close()


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..b", "[::1]x"])
async def test_a_host_that_no_request_can_have_is_told_of_the_cloud_alone(host: str) -> None:
    """A Machine may name it."""
    transport = Transport()
    try:
        http = transport.within(asyncio.get_running_loop().time() + 5)
        with pytest.raises(CloudError, match="that no request can have") as refused:
            await http.request("GET", f"https://{host}/sizes")
        assert refused.value.refused
    finally:
        await transport.close()


async def test_nor_are_credentials_sent_that_no_header_can_have() -> None:
    async with fake_cloud(answering(200), HOST) as cloud:
        transport = cloud.transport()
        http = transport.within(asyncio.get_running_loop().time() + 30)
        with pytest.raises(CloudError, match="that no request can have"):
            await http.request("GET", f"https://{HOST}/", headers={"X-Auth-Token": "a\nHost: b"})
        await transport.close()
