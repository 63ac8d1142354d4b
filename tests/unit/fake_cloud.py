"""A cloud on this machine: TLS under its own host names, its wire format from a handler, and every kind of bad day."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from devcluster.certificates import serving
from seed.instance_types.http_client import Transport
from seed.machines.machine_controller import Machine
from seed.providers.flavour import (
    AccountQuota,
    Catalogue,
    Cloud,
    Flavour,
    Lookup,
    Origin,
    Query,
    Session,
    Settings,
    SignIn,
)
from seed.providers.size import CredentialsMissing, Footprint
from seed.providers.spec import Provider, Spec

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeCloud:
    """`requests` holds all that came, as `GET host/path?query`. `disturb` answers instead of the handler while set.

    `ca` is the PEM of its authority, `port` where it is on 127.0.0.1.
    """

    def __init__(self, handler: Handler, transport: Callable[[], Transport], ca: str) -> None:
        self.handler = handler
        self.ca = ca
        self.port = 0
        self.requests: list[str] = []
        self.disturb: Handler | None = None
        self.transport = transport

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.host.split(':')[0]}{request.path_qs}")
        return await (self.disturb or self.handler)(request)

    async def ask(
        self,
        cloud: Cloud,
        lookup: Lookup,
        settings: Mapping[str, str] | None = None,
        *,
        seconds: float = 30.0,
        origin: Origin = Origin.PLATFORM,
    ) -> Catalogue:
        """One fetch with real requests. `settings` are values by name, beside those that stand in the Machine.

        `origin`: whose the credentials are.
        """
        return await self._told(cloud, cloud.fetch, lookup, settings, seconds, origin)

    async def account_quota(self, cloud: Cloud, lookup: Lookup) -> AccountQuota:
        """The same for the quota of the account."""
        assert cloud.quota is not None
        return await self._told(cloud, cloud.quota, lookup, None, 30.0, Origin.PLATFORM)

    async def _told(
        self,
        cloud: Cloud,
        ask: Callable[[Query], Awaitable[T]],
        lookup: Lookup,
        settings: Mapping[str, str] | None,
        seconds: float,
        origin: Origin,
    ) -> T:
        values = dict(settings or {})
        where = Settings(lookup.provider, _values(lookup.where, values))
        given = _values(lookup.credentials, values)
        credentials = Settings(lookup.provider, given, error=CredentialsMissing, origin=origin)

        async def sign_in(make: SignIn) -> Mapping[str, str]:
            session: Session = await make()
            return session.values

        transport = self.transport()
        try:
            http = transport.within(asyncio.get_running_loop().time() + seconds)
            return await ask(Query(cloud.place(where), lookup.flavour, where, credentials, http, sign_in))
        finally:
            await transport.close()


def _values(wanted: Mapping[str, object], given: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, setting in wanted.items():
        found[name] = given.get(name, "") or str(getattr(setting, "value", ""))
    return found


def lookup(size: Provider, provider: str, spec: Mapping[str, object]) -> Lookup:
    """What the provider must ask for this cloudProviderSpec."""
    asked = size(Spec(provider, msgspec.json.encode(spec), ""))
    assert isinstance(asked, Lookup), asked
    return asked


def machine(provider: str, spec: Mapping[str, object], name: str = "m") -> Machine:
    body = {
        "metadata": {"name": name, "namespace": "kube-system", "uid": f"uid-{name}"},
        "spec": {"providerSpec": {"value": {"cloudProvider": provider, "cloudProviderSpec": spec}}},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Machine)


def cost(asked: Lookup, catalogue: Catalogue) -> Footprint:
    """The Machine's footprint by what the cloud answered. KeyError if the flavour is not among it."""
    flavour: Flavour = catalogue.flavours[asked.flavour]
    return asked.complete(flavour)


class _Here(AbstractResolver):
    """Every name is this server."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host="127.0.0.1", port=self._port, family=socket.AF_INET, proto=0, flags=0)
        ]

    async def close(self) -> None:
        pass


@asynccontextmanager
async def fake_cloud(handler: Handler, *hosts: str) -> AsyncIterator[FakeCloud]:
    """Serves `handler` as `hosts` over TLS; whoever uses the cloud's `transport()` reaches and trusts it."""
    made = serving("cloud", *hosts)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        pem = Path(directory, "cloud.pem")
        pem.write_text(made.certificate + made.key)
        served.load_cert_chain(pem)
    trusting = ssl.create_default_context(cadata=made.ca)

    cloud = FakeCloud(handler, lambda: Transport(ssl_context=trusting, resolver=_Here(cloud.port)), made.ca)
    application = web.Application(client_max_size=2**24)
    application.router.add_route("*", "/{path:.*}", cloud.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=served)
        await site.start()
        cloud.port = int(runner.addresses[0][1])
        yield cloud
    finally:
        await runner.cleanup()


async def hang(_request: web.Request) -> web.StreamResponse:
    """A cloud that takes the request and says nothing."""
    await asyncio.sleep(60)
    return web.Response(status=504)  # nobody waits so long; an error would be logged in the time of another test


def answering(status: int, body: str = "", **headers: str) -> Handler:
    """A cloud that answers everything alike."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=body, headers=named)

    return answer


def never_logged(*words: str) -> object:
    """A fixture for all tests of a module: none of them logs one of these words."""

    @pytest.fixture(autouse=True)
    def nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        with caplog.at_level(logging.DEBUG):
            yield
        logged = " ".join(str(vars(record)) for record in caplog.get_records("call"))
        assert not any(word in logged for word in words)

    return nothing_secret_is_logged
