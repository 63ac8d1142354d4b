"""Client certificates at the HTTP API and at a real API server, whose CA file says which are valid for both."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from common.kube.client.api_client import Cluster
from common.runtime.flags import Address
from devcluster import manifests
from devcluster.controlplane import ApiServer as KubeApiServer
from devcluster.controlplane import ControlPlane
from devcluster.install import NAMESPACE
from devcluster.objects import CHARTS, named, namespace, rights
from master.apiserver.client_certificates import KEY, NAME
from master.apiserver.server import ApiServer
from master.cache.informers import Caches
from tests.client_certificates import DAY, SERVER, Authority, Issued
from tests.integration.installed.site import until
from tests.running import running

pytestmark = pytest.mark.integration

USER = "seedquota-master"
PATH = "/api/v1/organizations/acme/quotas"
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
CONFIG_MAP = f"/api/v1/namespaces/kube-system/configmaps/{NAME}"
ROLES = "rbac.authorization.k8s.io"
BINDING = f"/apis/{ROLES}/v1/namespaces/kube-system/rolebindings/seedquota-master-client-ca-{USER}"


class World:
    def __init__(self, server: KubeApiServer, api: ApiServer) -> None:
        self.server = server
        self.api = api
        self.authority = Authority()

    async def trust(self, authority: Authority) -> None:
        """As somebody who renews the CA does: the API server reads its file again."""
        self.authority = authority
        self.server.client_ca.write_text(authority.pem)

        async def trusted() -> None:
            for answer in (await self.ask(authority.issue("ann", "readers")), await self.review(authority.issue("x"))):
                assert answer in (200, 201)

        await until(trusted, 120)

    def session(self, certificate: Issued | None, tls: ssl.SSLContext) -> aiohttp.ClientSession:
        if certificate is not None:
            certificate.present(tls)
        timeout = aiohttp.ClientTimeout(total=30)
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), timeout=timeout)

    def connect(self, certificate: Issued | None = None) -> aiohttp.ClientSession:
        bundle = self.api.certificates.ca_bundle.decode()
        return self.session(certificate, ssl.create_default_context(cadata=bundle))

    async def ask(self, certificate: Issued | None = None, token: str = "") -> int:
        """Of a connection of its own. 0: the handshake failed."""
        async with self.connect(certificate) as session:
            try:
                return await self.on(session, token)
            except aiohttp.ClientConnectionError:
                return 0

    async def on(self, session: aiohttp.ClientSession, token: str = "") -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with session.get(f"https://127.0.0.1:{self.api.server.port}{PATH}", headers=headers) as answer:
            await answer.read()
            return answer.status

    async def review(self, certificate: Issued) -> int:
        """By the API server."""
        async with self.session(certificate, ssl.create_default_context(cadata=self.server.ca)) as session:
            return (await self.who(session))[0]

    async def who(self, session: aiohttp.ClientSession) -> tuple[int, Any]:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        async with session.post(f"{self.server.url}{REVIEW}", json=body) as answer:
            return answer.status, json.loads(await answer.read())


def bound(role: str, kind: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{ROLES}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": "org-acme"},
        "roleRef": {"apiGroup": ROLES, "kind": "ClusterRole", "name": f"seedquota:{role}"},
        "subjects": [{"kind": kind, "name": name, "apiGroup": ROLES}],
    }


@pytest_asyncio.fixture(scope="module")
async def world(control_plane: ControlPlane) -> AsyncIterator[World]:
    await control_plane.start(["client-certificates"])
    server = control_plane.cluster("client-certificates")
    roles = CHARTS / "rbac"
    await manifests.apply(
        server,
        [
            *manifests.load(CHARTS / "crds"),
            *map(namespace, (NAMESPACE, "org-acme")),
            *rights("master", USER),
            *rights("master-api", USER),
            *rights("master-client-ca", USER, "kube-system"),
            *(found for found in manifests.load(roles / "master-api.yaml") if found["kind"] == "Secret"),
            *manifests.load(roles / "api-actors.yaml"),
            bound("reader", "Group", "readers"),
            bound("reader", "User", "ann"),
            named("Organization", "acme"),
        ],
    )
    cluster = await Cluster.from_kubeconfig(server.kubeconfig(USER), name="master")
    caches = Caches(cluster, NAMESPACE)
    api = ApiServer(cluster, caches, NAMESPACE, Address("127.0.0.1", 0), ["127.0.0.1"])
    async with running(caches.run(), api.run()):
        found = World(server, api)

        async def ready() -> None:
            assert api.not_ready() is None and caches.not_synced() is None

        await until(ready, 60)
        await found.trust(found.authority)
        yield found
    await cluster.close()
    await server.kill()


async def test_name_and_groups_are_those_that_the_api_server_reads(world: World) -> None:
    issue = world.authority.issue
    by_group, by_name = issue("bob", "other", "readers"), issue("ann")
    assert [await world.ask(each) for each in (by_group, by_name)] == [200, 200]
    assert await world.ask(issue("bob", "other")) == 404, "known, and without rights"
    assert await world.ask(issue("root", "system:masters")) == 200, "as at the API server"
    async with world.session(by_group, ssl.create_default_context(cadata=world.server.ca)) as session:
        status, found = await world.who(session)
    user = found["status"]["userInfo"]
    assert (status, user["username"], user["groups"]) == (201, "bob", ["other", "readers", "system:authenticated"])


async def test_without_a_certificate_a_token_is_needed_and_with_one_it_is_not_looked_at(world: World) -> None:
    assert await world.ask() == 401
    assert await world.ask(token="forged") == 401
    assert await world.ask(token=world.server.tokens["admin"]) == 200
    assert await world.ask(world.authority.issue("ann"), token="forged") == 200
    bob = world.authority.issue("bob")
    assert await world.ask(bob, token=world.server.tokens["admin"]) == 404, "it is bob who asks"
    nobody = world.authority.issue("", "readers")
    assert await world.ask(nobody) == 401
    assert await world.ask(nobody, token=world.server.tokens["admin"]) == 200


async def test_a_certificate_that_is_not_valid_ends_the_handshake(world: World) -> None:
    now = datetime.now(UTC)
    wrong = {
        "of another CA": Authority().issue("ann"),
        "expired": world.authority.issue("ann", begins=now - 2 * DAY, ends=now - timedelta(seconds=5)),
        "not valid yet": world.authority.issue("ann", begins=now + DAY, ends=now + 2 * DAY),
        "for servers": world.authority.issue("ann", usages=(SERVER,)),
    }
    token = world.server.tokens["admin"]
    answers = {what: (await world.ask(each), await world.ask(each, token)) for what, each in wrong.items()}
    assert answers == dict.fromkeys(wrong, (0, 0))
    assert [await world.review(each) for each in wrong.values()] == [401] * len(wrong), "nor by the API server"


async def test_a_certificate_that_expires_ends_on_a_connection_that_is_open(world: World) -> None:
    begins = datetime.now(UTC)
    short = world.authority.issue("ann", begins=begins - DAY, ends=begins + timedelta(seconds=15))
    async with world.connect(short) as session:
        assert await world.on(session) == 200
        (kept,) = [len(each) for each in session.connector._conns.values()]  # type: ignore[union-attr]
        assert kept == 1

        async def expired() -> None:
            assert await world.on(session) == 401

        await until(expired, 60)


async def test_a_renewed_ca_counts_at_once_and_the_one_before_until_it_is_taken_away(world: World) -> None:
    """The API server adds to the ConfigMap what its file has, and takes nothing away."""
    before = world.authority.issue("ann")
    async with world.connect(before) as session:
        assert await world.on(session) == 200
        await world.trust(Authority())
        assert await world.on(session) == 200
        async with world.server.session() as admin:
            headers = {"Content-Type": "application/merge-patch+json"}
            only = {"data": {KEY: world.authority.pem}}
            async with admin.patch(CONFIG_MAP, json=only, headers=headers) as answer:
                assert answer.status == 200

        async def refused() -> None:
            assert await world.ask(before) == 0

        await until(refused, 60)
        with pytest.raises(aiohttp.ClientConnectionError):  # the connection has ended, and another has no valid one
            await world.on(session)
    assert await world.ask(world.authority.issue("ann")) == 200


async def test_without_the_right_to_read_the_ca_tokens_alone_are_accepted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.server.session() as admin, admin.delete(BINDING) as answer:
        assert answer.status == 200
    cluster = await Cluster.from_kubeconfig(world.server.kubeconfig(USER), name="master")
    caches = Caches(cluster, NAMESPACE)
    api = ApiServer(cluster, caches, NAMESPACE, Address("127.0.0.1", 0), ["127.0.0.1"])
    tasks = [asyncio.create_task(caches.run()), asyncio.create_task(api.run())]
    other = World(world.server, api)

    async def served() -> None:
        assert api.not_ready() is None and caches.not_synced() is None
        lines = [vars(line) for line in caplog.records if line.message == "not following the API server"]
        assert [line["resource"] for line in lines if "forbidden" in line["error"]] == ["configmaps"]

    try:
        await until(served, 60)
        assert await other.ask(token=world.server.tokens["admin"]) == 200
        assert await other.ask(world.authority.issue("ann")) == 401
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.close()
        await manifests.apply(world.server, rights("master-client-ca", USER, "kube-system"))
