"""A real OpenID provider over TLS, an API server that trusts it, and the HTTP API with the page beside that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from common.kube.client.api_client import Cluster
from common.runtime.flags import Address
from devcluster import binaries, certificates, manifests
from devcluster.controlplane import ApiServer as KubeApiServer
from devcluster.controlplane import ControlPlane
from devcluster.install import MASTER_USER, NAMESPACE
from devcluster.network import free_port
from devcluster.objects import CHARTS, namespace, rights
from devcluster.processes import ProcessGroup
from devcluster.servers import Server
from master.apiserver.server import ApiServer
from master.cache.informers import Caches
from master.page.app import CALLBACK, Page
from master.page.navigation import prefix_of
from master.page.oidc import Client, Provider
from master.page.session_key import SessionKey
from tests.integration.installed.site import until

CLIENT, SECRET = "seedquota", "secret"
USER, PASSWORD = "test-user2", "verysecure"
NAME = "oidc:id2"
"""What the API server calls the user."""


class OidcProvider(Server):
    poll_seconds = 0.1

    def __init__(self, program: Path, directory: Path, group: ProcessGroup, redirects: Sequence[str]) -> None:
        address = f"127.0.0.1:{free_port()}"
        self.issuer = f"https://{address}"
        serving = certificates.serving("provider")
        self.ca = serving.ca
        certificate, key = directory / "provider.crt", directory / "provider.key"
        certificate.write_text(serving.certificate)
        key.write_text(serving.key)
        (directory / "provider-ca.crt").write_text(serving.ca)
        super().__init__("provider", [str(program), address, str(certificate), str(key), *redirects], directory, group)

    async def _ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{self.issuer}/.well-known/openid-configuration", ssl=False) as answer,
            ):
                return answer.status == 200
        except aiohttp.ClientError:
            return False


@dataclass
class SignInPlace:
    """`below`: another one of the same host, below a path."""

    url: str
    below: str
    server: KubeApiServer
    provider: OidcProvider
    oidc: Provider


@asynccontextmanager
async def trusted_provider(directory: Path) -> AsyncIterator[SignInPlace]:
    program = (await binaries.ensure(["oidc-provider"]))["oidc-provider"]
    url, below = f"https://127.0.0.1:{free_port()}", f"https://127.0.0.1:{free_port()}/tools/quota"
    group = ProcessGroup()
    provider = OidcProvider(program, directory, group, [f"{url}{CALLBACK}", f"{below}{CALLBACK}"])
    try:
        await provider.start()
        flags = [
            f"--oidc-issuer-url={provider.issuer}",
            f"--oidc-client-id={CLIENT}",
            f"--oidc-ca-file={directory / 'provider-ca.crt'}",
            "--oidc-username-claim=sub",
            "--oidc-username-prefix=oidc:",
        ]
        async with ControlPlane(directory) as plane:
            await plane.start(["master"], flags=flags)
            server = plane.cluster("master")
            await _install(server)
            async with _served(server, provider, url) as oidc, _served(server, provider, below):
                yield SignInPlace(url, below, server, provider, oidc)
    finally:
        await asyncio.to_thread(group.close)


async def _install(server: KubeApiServer) -> None:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "seedquota:viewer"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": NAME}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "viewer"},
        "roleRef": role,
        "subjects": [subject],
    }
    roles = CHARTS / "rbac"
    await manifests.apply(
        server,
        [
            *manifests.load(CHARTS / "crds"),
            namespace(NAMESPACE),
            *rights("master", MASTER_USER),
            *rights("master-api", MASTER_USER),
            *rights("master-client-ca", MASTER_USER, "kube-system"),
            *(found for found in manifests.load(roles / "master-api.yaml") if found["kind"] == "Secret"),
            *manifests.load(roles / "viewer.yaml"),
            binding,
        ],
    )


@asynccontextmanager
async def _served(server: KubeApiServer, provider: OidcProvider, url: str) -> AsyncIterator[Provider]:
    cluster = await Cluster.from_kubeconfig(server.kubeconfig(MASTER_USER), name="master")
    caches = Caches(cluster, NAMESPACE)
    client = Client(provider.issuer, CLIENT, SECRET, f"{url}{CALLBACK}", ca=provider.ca)
    key, oidc, prefix = SessionKey(cluster, NAMESPACE), Provider(client), prefix_of(url)
    page = Page(lambda: key.sealer, prefix, provider=oidc)
    address = Address("127.0.0.1", urlsplit(url).port or 443)
    api = ApiServer(cluster, caches, NAMESPACE, address, ["127.0.0.1"], mount=page.mount, prefix=prefix)
    tasks = [asyncio.create_task(work) for work in (caches.run(), key.run(), api.run())]

    async def ready() -> None:
        assert (api.not_ready(), key.not_ready(), caches.not_synced()) == (None, None, None)

    try:
        await until(ready, 60)
        yield oidc
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.close()
