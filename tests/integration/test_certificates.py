"""The webhook's certificates and key on a real API server, with the rights of charts/rbac, under real TLS clients."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from common.api.core import SECRETS
from common.kube.client.api_client import Cluster
from common.server import rotation, serving_certificate
from common.server.pki import Policy
from common.server.serving_certificate import Certificates
from devcluster import manifests
from devcluster.controlplane import ApiServer, ControlPlane
from devcluster.patience import patient_timeout
from seed.registration import token as webhook_token
from seed.registration import token_rotation
from seed.registration.token import WebhookKey
from tests.running import running
from tests.unit.fake_api_server import eventually as until

pytestmark = pytest.mark.integration

RBAC = Path(__file__).parents[2] / "charts" / "rbac" / "seed.yaml"
NAMES = ("127.0.0.1", "localhost")
MANY = 20  # calls: several of each client


def bindings(namespace: str) -> list[manifests.Manifest]:
    group = "rbac.authorization.k8s.io"
    subjects = [{"apiGroup": group, "kind": "User", "name": "seedquota-seed"}]
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "seedquota-seed", "namespace": namespace},
            "subjects": subjects,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "seedquota-seed"},
        },
    ]


@pytest_asyncio.fixture(scope="module")
async def server(control_plane: ControlPlane) -> AsyncIterator[ApiServer]:
    await control_plane.start(["certificates"])
    server = control_plane.cluster("certificates")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "seedquota"}}
    await manifests.apply(server, [namespace, *manifests.load(RBAC), *bindings("seedquota")])
    yield server
    await server.kill()


@pytest_asyncio.fixture
async def admin(server: ApiServer) -> AsyncIterator[Cluster]:
    cluster = await Cluster.from_kubeconfig(server.kubeconfig(), name="seed")
    yield cluster
    for secret in (await cluster.list(SECRETS, "seedquota")).items:
        await cluster.delete(SECRETS, secret.metadata.name, "seedquota")
    await cluster.close()


@pytest_asyncio.fixture
async def seed(server: ApiServer) -> AsyncIterator[Cluster]:
    cluster = await Cluster.from_kubeconfig(server.kubeconfig("seedquota-seed"), name="seed")
    yield cluster
    await cluster.close()


@asynccontextmanager
async def ready(*parts: Certificates | WebhookKey) -> AsyncIterator[None]:
    async with running(*(part.run() for part in parts)):
        await asyncio.gather(*(part.wait_ready(30) for part in parts))
        yield


@asynccontextmanager
async def webhook(context: ssl.SSLContext) -> AsyncIterator[str]:
    async def answer(_request: web.Request) -> web.Response:
        await asyncio.sleep(0.005)
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


class Callers:
    """Clients that call again and again, each request on a connection of its own, trusting what `bundle` says then.

    `lag`: how long a changed bundle takes to reach them, as it does to reach webhook configurations.
    """

    def __init__(self, url: str, bundle: Callable[[], bytes], lag: float = 0.0) -> None:
        self.calls = 0
        self.learned: list[int] = []  # how many calls there were, at each bundle after the first
        self.failures: list[str] = []
        self._url = url
        self._bundle = bundle
        self._lag = lag
        self._trusted = bundle()

    async def run(self, clients: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._learn())
            group.create_task(self._call(keep_alive=True))
            for _ in range(clients):
                group.create_task(self._call(keep_alive=False))

    async def _learn(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            if (bundle := self._bundle()) != self._trusted:
                await asyncio.sleep(self._lag)
                self._trusted = bundle
                self.learned.append(self.calls)

    async def _call(self, *, keep_alive: bool) -> None:
        async with AsyncExitStack() as stack:
            trusted, session = b"", None
            while True:
                if session is None or (trusted != self._trusted and not keep_alive):
                    trusted = self._trusted
                    context = ssl.create_default_context(cadata=trusted.decode())
                    connector = aiohttp.TCPConnector(ssl=context, force_close=not keep_alive)
                    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
                try:
                    async with session.post(self._url, timeout=aiohttp.ClientTimeout(total=30)) as answer:
                        assert answer.status == 200
                        await answer.text()
                except (aiohttp.ClientError, OSError) as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                self.calls += 1
                await asyncio.sleep(0.05)


@asynccontextmanager
async def calling(callers: Callers, clients: int = 4) -> AsyncIterator[None]:
    async with running(callers.run(clients)):
        yield


async def test_serving_and_then_the_ca_rotate_under_load_without_one_failed_request(
    seed: Cluster, admin: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    # Between each step and what must not come before it there are seven seconds: a busy machine is late now and then.
    policy = Policy(
        ca_validity=timedelta(seconds=45), serving_validity=timedelta(seconds=21), overlap=timedelta(seconds=8)
    )
    bundles: list[bytes] = []
    served = Certificates(seed, "seedquota", NAMES, policy=policy, recheck_seconds=0.2)
    other_replica = Certificates(
        admin,
        "seedquota",
        NAMES,
        policy=policy,
        recheck_seconds=0.2,
        on_bundle=lambda: bundles.append(other_replica.ca_bundle),
    )
    async with ready(served, other_replica), webhook(served.ssl_context) as url:
        first = served.ca_bundle
        callers = Callers(url, lambda: other_replica.ca_bundle, lag=0.5)
        async with calling(callers):
            await until(lambda: first not in served.ca_bundle and served.ca_bundle == other_replica.ca_bundle, 150)
            await until(lambda: len(callers.learned) == 2 and callers.calls > callers.learned[-1] + MANY)
        assert callers.failures == []
        assert 0 < callers.learned[0] < callers.learned[1] - MANY
        loaded = caplog.messages.count("webhook certificate loaded")
        assert loaded >= 6, "by both replicas: the first, a renewed one, and one of the next CA"
        assert all(record.levelno == logging.INFO for record in caplog.records)
        assert bundles[1].startswith(first), "the next CA is introduced beside the first"
        assert bundles[1].endswith(bundles[2]), "then the first is dropped"


async def test_two_replicas_that_start_at_once_end_with_the_same_certificate(seed: Cluster, admin: Cluster) -> None:
    first, second = (Certificates(cluster, "seedquota", NAMES) for cluster in (seed, admin))
    async with ready(first, second):
        await until(lambda: first.ca_bundle == second.ca_bundle)
        async with webhook(first.ssl_context) as one, webhook(second.ssl_context) as two:
            context = ssl.create_default_context(cadata=first.ca_bundle.decode())
            async with aiohttp.ClientSession() as session:
                for url in (one, two, one.replace("127.0.0.1", "localhost")):
                    async with session.post(url, ssl=context) as answer:
                        assert answer.status == 200
        assert first.not_ready() is None


@pytest.mark.parametrize("key", ["ca.crt", "tls.key"])
async def test_an_unusable_secret_is_replaced_and_says_so_and_serving_goes_on(
    seed: Cluster, admin: Cluster, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    served = Certificates(seed, "seedquota", NAMES)
    async with ready(served), webhook(served.ssl_context) as url:
        before = await admin.get(SECRETS, serving_certificate.SECRET_NAME, "seedquota")
        garbage = base64.b64encode(b"garbage").decode()
        with caplog.at_level(logging.INFO):
            await admin.merge_patch(SECRETS, serving_certificate.SECRET_NAME, {"data": {key: garbage}}, "seedquota")
            await until(lambda: {"secret written", "webhook certificate loaded"} <= set(caplog.messages))
        (warning,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
        assert warning.message == "secret written"
        assert key in vars(warning)["why"]
        after = await admin.get(SECRETS, serving_certificate.SECRET_NAME, "seedquota")
        assert after.data[key] not in (b"garbage", before.data[key])
        assert rotation.read(after.data).problems == ()
        context = ssl.create_default_context(cadata=served.ca_bundle.decode())
        async with aiohttp.ClientSession() as session, session.post(url, ssl=context) as answer:
            assert answer.status == 200


async def test_a_secret_that_cannot_be_written_is_an_error_that_says_why(server: ApiServer) -> None:
    async with AsyncExitStack() as stack:
        stranger = await Cluster.from_kubeconfig(server.kubeconfig("seedquota-master"), name="seed")
        stack.push_async_callback(stranger.close)
        served = Certificates(stranger, "seedquota", NAMES)
        async with running(served.run()):
            await until(lambda: served.error is not None)
            with pytest.raises(TimeoutError, match=r"seedquota/seedquota-webhook-tls: .*forbidden"):
                await served.wait_ready(0.5)


async def test_a_deleted_secret_replaces_the_tokens_in_all_replicas_and_keeps_the_seals(
    seed: Cluster, admin: Cluster
) -> None:
    first, second = WebhookKey(seed, "seedquota"), WebhookKey(admin, "seedquota")
    assert not first.verify("machines", "uid", "")
    async with ready(first, second):
        token, seal = first.token("machines", "uid"), first.seal(b"stamp")
        assert second.verify("machines", "uid", token)
        assert not second.verify("machines", "another", token)
        await admin.delete(SECRETS, webhook_token.SECRET_NAME, "seedquota")
        await until(lambda: first.token("machines", "uid") != token)
        fresh = first.token("machines", "uid")
        await until(lambda: second.token("machines", "uid") == fresh)
        assert second.verify("machines", "uid", token), "until the configurations have the new one"
        third = WebhookKey(admin, "seedquota")
        async with ready(third):
            assert third.token("machines", "uid") == fresh
            assert third.seal(b"stamp") == seal


async def test_a_key_that_is_due_is_followed_by_one_that_all_replicas_have_read(seed: Cluster, admin: Cluster) -> None:
    changes: list[str] = []
    first = WebhookKey(seed, "seedquota", on_change=lambda: changes.append(first.token("machines", "uid")))
    second = WebhookKey(admin, "seedquota")
    async with ready(first, second):
        (old,) = changes
        long_ago = base64.b64encode(b"2020-01-01T00:00:00+00:00").decode()
        patch = {"data": {token_rotation.SINCE: long_ago}}
        await admin.merge_patch(SECRETS, webhook_token.SECRET_NAME, patch, "seedquota")
        async with patient_timeout(30):
            while (
                token_rotation.NEXT
                not in (secret := await admin.get(SECRETS, webhook_token.SECRET_NAME, "seedquota")).data
            ):
                await asyncio.sleep(0.02)
        expected = webhook_token.token(secret.data[token_rotation.NEXT], "machines", "uid")
        await until(lambda: second.verify("machines", "uid", expected))
        assert first.token("machines", "uid") == old, "not before every replica must have read it"
        patch = {"data": {token_rotation.NEXT_FROM: long_ago}}
        await admin.merge_patch(SECRETS, webhook_token.SECRET_NAME, patch, "seedquota")
        await until(lambda: len(changes) == 2)
        assert changes[1] == expected
        assert first.verify("machines", "uid", old)
        await until(lambda: second.token("machines", "uid") == expected)
        assert second.verify("machines", "uid", old)


@pytest.mark.parametrize("steps", range(4))
async def test_it_can_be_ended_at_the_very_moment_that_it_wakes_up(seed: Cluster, admin: Cluster, steps: int) -> None:
    def cancel(after: int) -> None:
        if after:
            asyncio.get_running_loop().call_soon(cancel, after - 1)
        else:
            task.cancel()

    ends: list[Callable[[], None]] = []
    key = WebhookKey(seed, "seedquota", on_change=lambda: ends.pop()() if ends else None)
    task = asyncio.create_task(key.run())
    await key.wait_ready(30)
    await asyncio.sleep(0.1)
    ends.append(lambda: cancel(steps))
    fresh = base64.b64encode(b"n" * 32).decode()
    patch = {"data": {token_rotation.CURRENT: fresh}}
    await admin.merge_patch(SECRETS, webhook_token.SECRET_NAME, patch, "seedquota")
    ended, _ = await asyncio.wait([task], timeout=30)
    task.cancel()
    assert ended


async def test_an_unusable_key_is_put_back(seed: Cluster, admin: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    key = WebhookKey(seed, "seedquota")
    async with ready(key):
        before = (await admin.get(SECRETS, webhook_token.SECRET_NAME, "seedquota")).data
        patch = {"data": {webhook_token.SEAL_KEY: "c2hvcnQ="}}
        await admin.merge_patch(SECRETS, webhook_token.SECRET_NAME, patch, "seedquota")
        await until(lambda: "secret written" in caplog.messages)
        assert (await admin.get(SECRETS, webhook_token.SECRET_NAME, "seedquota")).data == before
    assert caplog.records[-1].levelno == logging.WARNING
