"""The webhook configuration on a real API server, kept with the rights that charts/rbac gives."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from msgspec import structs

from common.api.types import SecretRef, UserCluster, UserClusterSpec
from common.kube.client.api_client import Cluster
from common.kube.client.connection import JSON
from common.kube.client.errors import Invalid, NotFound, Unavailable
from common.kube.client.meta import ObjectMeta
from common.kube.client.reach import ANYWHERE
from common.server.pki import Policy, make_ca
from devcluster import certificates, manifests
from devcluster.cluster_api import infrastructure_crd
from devcluster.controlplane import ApiServer, ControlPlane
from devcluster.patience import patient_timeout
from seed.kinds.machines import cluster_api_configuration as cluster_api
from seed.kinds.machines import source as source_module
from seed.kinds.machines.configuration import NAME, desired
from seed.kinds.machines.machine_api import API_SERVICES
from seed.kinds.machines.source import Source
from seed.machines.machine_controller import MACHINES as MACHINE_RESOURCE
from seed.registration import keeper as keeper_module
from seed.registration.configuration import (
    WEBHOOK_CONFIGURATIONS,
    ServicePort,
    Webhook,
    WebhookConfiguration,
    WebhookServer,
    through_service,
)
from seed.registration.keeper import ConfigurationKeeper
from tests.running import running
from tests.unit.fake_api_server import eventually as until
from tests.unit.fake_api_server import within
from tests.unit.seed_world import sizing

pytestmark = pytest.mark.integration

RBAC = Path(__file__).parents[2] / "charts" / "rbac" / "user-cluster.yaml"
TOKEN = "c0ffee00c0ffee00c0ffee00c0ffee00"
NOWHERE = "https://127.0.0.1:1"  # nobody answers: all of our pods are dead
MACHINES = "/apis/cluster.k8s.io/v1alpha1/namespaces/{}/machines"

CA = make_ca(datetime.now(UTC), Policy()).certificate_pem()  # an API server takes nothing else

BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "seedquota-user-cluster"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "seedquota-seed"}],
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "seedquota-user-cluster",
    },
}


SOON = 15.0  # seconds: what no event brings about is looked at again after a minute


def token(_kind: str) -> str:
    return TOKEN


def user_cluster(name: str = "c1", *, own_source: bool = False) -> UserCluster:
    return UserCluster(
        metadata=ObjectMeta(name=name, namespace="alpha", uid="6f9619ff"),
        spec=UserClusterSpec(project="alpha", kubeconfig_secret_ref=None if own_source else SecretRef(name="c1")),
    )


def wanted(**changes: object) -> WebhookConfiguration:
    configuration = desired(
        user_cluster(),
        WebhookServer(base_url=NOWHERE, token=token, ca_bundle=CA, break_glass_group="seedquota:break-glass"),
    )
    admitting, scale = configuration.webhooks
    return structs.replace(configuration, webhooks=[{**admitting, **changes}, scale])


@pytest_asyncio.fixture(scope="module")
async def server(control_plane: ControlPlane) -> AsyncIterator[ApiServer]:
    await control_plane.start(["webhook-configuration"])
    server = control_plane.cluster("webhook-configuration")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "alpha"}}
    await manifests.apply(server, [namespace, *manifests.load(RBAC, manifests.MACHINE_CRDS), BINDING])
    yield server
    await server.kill()


@pytest_asyncio.fixture
async def admin(server: ApiServer) -> AsyncIterator[Cluster]:
    cluster = await Cluster.from_kubeconfig(server.kubeconfig(), name="c1")
    yield cluster
    for configuration in (await cluster.list(WEBHOOK_CONFIGURATIONS)).items:
        await cluster.delete(WEBHOOK_CONFIGURATIONS, configuration.metadata.name)
    await cluster.close()


class Counting:
    """The seed's connection to the cluster, and what it wrote there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.writes: list[str] = []
        cluster.on_request = self._count

    def _count(self, verb: str, _plural: str, status: int, _seconds: float) -> None:
        if verb not in ("get", "list", "watch") and 200 <= status < 300:
            self.writes.append(verb)


@pytest_asyncio.fixture
async def seed(server: ApiServer, admin: Cluster) -> AsyncIterator[Counting]:  # admin tidies up afterwards
    cluster = await Cluster.from_kubeconfig(server.kubeconfig("seedquota-seed"), name="c1")
    yield Counting(cluster)
    await cluster.close()


@asynccontextmanager
async def keeping(
    cluster: Cluster,
    want: Callable[[], WebhookConfiguration] = wanted,
    *,
    in_place: bool = True,
    on_restore: Callable[[], None] = lambda: None,
) -> AsyncIterator[ConfigurationKeeper]:
    keeper = ConfigurationKeeper(cluster, want, on_restore=on_restore)
    async with running(keeper.run()):
        if in_place:
            await until(lambda: keeper.in_place)
        yield keeper


async def found(admin: Cluster) -> list[Webhook] | None:
    with suppress(NotFound):
        return (await admin.get(WEBHOOK_CONFIGURATIONS, NAME)).webhooks
    return None


async def settle() -> None:
    """Long enough for a loop of writes to show itself: one round takes a few milliseconds."""
    await asyncio.sleep(0.4)


async def test_it_is_created_and_then_left_alone(seed: Counting, admin: Cluster) -> None:
    async with keeping(seed.cluster) as keeper:
        assert keeper.error is None
        assert keeper.break_glass
        assert keeper.began, "nothing was asked before"
        configuration = await admin.get(WEBHOOK_CONFIGURATIONS, NAME)
        assert configuration.webhooks == wanted().webhooks, "every default is written out: comparing is exact"
        assert configuration.metadata.labels == {"app.kubernetes.io/managed-by": "seedquota"}
        await admin.merge_patch(WEBHOOK_CONFIGURATIONS, NAME, {"metadata": {"annotations": {"by": "tenant"}}})
        await settle()
        assert seed.writes == ["create"]


async def test_one_through_a_service_is_asked_there_and_then_left_alone(
    seed: Counting, admin: Cluster, server: ApiServer
) -> None:
    """There is no such Service here: the API server's own words say that it looked for it."""
    want = through_service(wanted(), NOWHERE, "alpha", ServicePort("seedquota-seed"))
    async with keeping(seed.cluster, lambda: want):
        assert await found(admin) == want.webhooks, "every default is written out: comparing is exact"
        text = await eventually(server, 500, "m1", "alpha", "system:masters")
        assert 'service \\"seedquota-seed\\" not found' in text
        await settle()
        assert seed.writes == ["create"]


async def test_a_program_that_starts_again_writes_nothing(seed: Counting) -> None:
    async with keeping(seed.cluster):
        pass
    async with keeping(seed.cluster) as keeper:
        await settle()
        assert keeper.in_place and not keeper.began
    assert seed.writes == ["create"]


async def test_drift_is_told_from_the_start_also_after_a_restart(
    seed: Counting, admin: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with keeping(seed.cluster):
        pass
    async with keeping(seed.cluster):
        await admin.delete(WEBHOOK_CONFIGURATIONS, NAME)
        await until(lambda: "webhook configuration restored" in caplog.messages)


async def test_it_is_back_soon_after_its_deletion(
    seed: Counting, admin: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with keeping(seed.cluster):
        async with within(SOON):
            await admin.delete(WEBHOOK_CONFIGURATIONS, NAME)
            while await found(admin) is None:
                await asyncio.sleep(0.005)
        await until(lambda: "webhook configuration restored" in caplog.messages)
        assert vars(caplog.records[-1])["why"] == "missing"
        await settle()
    assert seed.writes == ["create", "create"]


DRIFTS: dict[str, Mapping[str, object]] = {
    "url": {"clientConfig": {"url": "https://127.0.0.1:2/elsewhere"}},
    "ca": {"clientConfig": {"caBundle": None}},
    "ignored failures": {"failurePolicy": "Ignore"},
    "namespaces left out": {"namespaceSelector": {"matchLabels": {"a": "b"}}},
    "objects left out": {"objectSelector": {"matchLabels": {"a": "b"}}},
    "timeout": {"timeoutSeconds": 30},
    "another rule": {
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "*"}
        ]
    },
    "another way in": {"matchConditions": [{"name": "never", "expression": "false"}]},
    "changes not asked about": {
        "matchConditions": [
            {"name": "break-glass", "expression": "!('seedquota:break-glass' in request.userInfo.groups)"},
            {"name": "may-cost", "expression": "request.operation == 'CREATE'"},
        ]
    },
}


@pytest.mark.parametrize("drift", DRIFTS)
async def test_what_a_tenant_changes_is_corrected_with_one_write(
    seed: Counting, admin: Cluster, caplog: pytest.LogCaptureFixture, drift: str
) -> None:
    async with keeping(seed.cluster) as keeper:
        webhook, scale = (await admin.get(WEBHOOK_CONFIGURATIONS, NAME)).webhooks
        changed = {**webhook, **DRIFTS[drift]}
        if isinstance(client := DRIFTS[drift].get("clientConfig"), dict):
            changed["clientConfig"] = {**wanted_client(), **client}
        await admin.merge_patch(WEBHOOK_CONFIGURATIONS, NAME, {"webhooks": [changed, scale]})
        await until(lambda: len(seed.writes) == 2)
        await settle()
        assert await found(admin) == wanted().webhooks
        assert keeper.in_place
    assert seed.writes == ["create", "update"]
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "webhook configuration restored"
    ]


def wanted_client() -> dict[str, object]:
    client = wanted().webhooks[0]["clientConfig"]
    assert isinstance(client, dict)
    return client


async def test_webhooks_that_were_removed_are_restored(seed: Counting, admin: Cluster) -> None:
    async with keeping(seed.cluster):
        for left in ([], *([webhook] for webhook in wanted().webhooks)):
            writes = len(seed.writes)
            await admin.merge_patch(WEBHOOK_CONFIGURATIONS, NAME, {"webhooks": left})
            await until(lambda: len(seed.writes) > writes)  # noqa: B023 (awaited here)
            await settle()
            assert await found(admin) == wanted().webhooks
    assert seed.writes == ["create", "update", "update", "update"]


async def test_a_webhook_that_was_added_and_a_label_that_was_removed_are_corrected(
    seed: Counting, admin: Cluster
) -> None:
    async with keeping(seed.cluster):
        webhooks = wanted().webhooks
        other = {**webhooks[0], "name": "other.example.com"}
        patch = {"metadata": {"labels": None}, "webhooks": [other, *webhooks]}
        await admin.merge_patch(WEBHOOK_CONFIGURATIONS, NAME, patch)
        await until(lambda: len(seed.writes) == 2)
        await settle()
        configuration = await admin.get(WEBHOOK_CONFIGURATIONS, NAME)
        assert configuration.webhooks == webhooks
        assert configuration.metadata.labels == wanted().metadata.labels
    assert seed.writes == ["create", "update"]


async def test_another_desire_is_carried_out_with_one_write_and_is_no_drift(
    seed: Counting, admin: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    timeout = 3
    async with keeping(seed.cluster, lambda: wanted(timeoutSeconds=timeout)) as keeper:
        timeout = 5
        keeper.changed()
        await until(lambda: len(seed.writes) == 2)
        await settle()
        assert await found(admin) == wanted(timeoutSeconds=5).webhooks
    assert seed.writes == ["create", "update"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_defaults_that_an_api_server_adds_start_no_loop(seed: Counting, admin: Cluster) -> None:
    def less() -> WebhookConfiguration:
        left_out = ("timeoutSeconds", "matchPolicy", "objectSelector")
        kept = [{key: webhook[key] for key in webhook if key not in left_out} for webhook in wanted().webhooks]
        return structs.replace(wanted(), webhooks=kept)

    async with keeping(seed.cluster, less) as keeper:
        await settle()
        assert keeper.in_place
        assert seed.writes == ["create"]
        await admin.delete(WEBHOOK_CONFIGURATIONS, NAME)
        await until(lambda: len(seed.writes) == 2)
        await settle()
        assert keeper.in_place
    assert seed.writes == ["create", "create"]


async def test_who_deletes_it_in_a_loop_finds_it_restored_each_time_with_one_write(
    seed: Counting, admin: Cluster
) -> None:
    restored: list[float] = []
    async with keeping(seed.cluster, on_restore=lambda: restored.append(time.monotonic())) as keeper:
        assert not keeper.contested
        deletions = keeper_module.BURST + 10
        for _ in range(deletions):
            async with within(SOON):
                await admin.delete(WEBHOOK_CONFIGURATIONS, NAME)
                while await found(admin) != wanted().webhooks:
                    await asyncio.sleep(0.005)
        await until(lambda: len(restored) == deletions)
        assert keeper.contested, "Machines may have been created in between"
    assert seed.writes == ["create"] * (deletions + 1)
    for first, later in zip(restored, restored[keeper_module.BURST + 1 :], strict=False):
        assert later - first > keeper_module.WRITE_SECONDS, "what a tenant does makes bounded work"


class DropsMatchConditions(Cluster):
    """Kubernetes before 1.28: fields it does not know are dropped."""

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
        *,
        verb: str = "",
        plural: str = "",
        max_body: int = 1 << 24,
        accept: str = JSON,
        pool: aiohttp.ClientSession | None = None,
    ) -> bytes:
        if body is not None and method in ("POST", "PUT"):
            self.look_at(body)
            configuration = msgspec.json.decode(body)
            for webhook in configuration["webhooks"]:
                webhook.pop("matchConditions", None)
            body = msgspec.json.encode(configuration)
        return await super().request(
            method,
            path,
            body,
            content_type,
            timeout,
            verb=verb,
            plural=plural,
            max_body=max_body,
            accept=accept,
            pool=pool,
        )

    def look_at(self, body: bytes) -> None:
        pass


class RefusesMatchConditions(DropsMatchConditions):
    def look_at(self, body: bytes) -> None:
        if b"matchConditions" in body:
            raise Invalid(422, "Invalid", "webhooks[0].matchConditions: not allowed")


@pytest.mark.parametrize("old", [DropsMatchConditions, RefusesMatchConditions])
async def test_an_old_api_server_gets_it_without_the_way_in_and_without_a_loop(
    server: ApiServer, admin: Cluster, old: type[DropsMatchConditions]
) -> None:
    counting = Counting(await old.from_kubeconfig(server.kubeconfig("seedquota-seed"), name="c1"))
    try:
        async with keeping(counting.cluster) as keeper:
            await settle()
            assert keeper.error is None
            assert not keeper.break_glass
            assert counting.writes == ["create"]
            await admin.delete(WEBHOOK_CONFIGURATIONS, NAME)
            await until(lambda: len(counting.writes) == 2)
            await settle()
            assert keeper.in_place
            assert counting.writes == ["create", "create"]
        async with keeping(counting.cluster):
            await settle()
        assert len(counting.writes) <= 3
    finally:
        await counting.cluster.close()


async def test_what_the_api_server_refuses_is_an_error_without_the_token(
    seed: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"https://127.0.0.1:1/%zz/machines/6f9619ff/{TOKEN}"
    async with keeping(seed.cluster, lambda: wanted(clientConfig={"url": url}), in_place=False) as keeper:
        await until(lambda: keeper.error is not None)
        await settle()
        assert keeper.error is not None
        assert "clientConfig.url" in keeper.error
        assert "***" in keeper.error
        assert not keeper.in_place
    logged = [str(vars(record)) for record in caplog.records]
    assert logged
    assert not [line for line in logged if TOKEN in line]


async def test_missing_rights_are_an_error_that_says_so(server: ApiServer) -> None:
    stranger = await Cluster.from_kubeconfig(server.kubeconfig("seedquota-master"), name="c1")
    try:
        async with keeping(stranger, in_place=False) as keeper:
            await until(lambda: keeper.error is not None)
            assert "forbidden" in str(keeper.error)
            assert not keeper.in_place
    finally:
        await stranger.close()


async def test_removing_is_final_and_may_be_repeated(seed: Counting, admin: Cluster) -> None:
    async with keeping(seed.cluster) as keeper:
        pass
    await keeper.remove()
    await keeper.remove()
    assert await found(admin) is None
    assert not keeper.in_place


async def create_machine(server: ApiServer, name: str, namespace: str, *groups: str) -> tuple[int, str]:
    body = {
        "apiVersion": "cluster.k8s.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": name},
        "spec": {"providerSpec": {"value": {}}},
    }
    headers = [("Impersonate-User", "someone"), *(("Impersonate-Group", group) for group in groups)]
    async with (
        server.session() as session,
        session.post(MACHINES.format(namespace), json=body, headers=headers, params={"dryRun": "All"}) as answer,
    ):
        return answer.status, await answer.text()


async def eventually(server: ApiServer, status: int, name: str, namespace: str, *groups: str) -> str:
    """An API server learns of a new configuration a moment after it was written."""
    async with patient_timeout(30):
        while True:
            got, text = await create_machine(server, name, namespace, *groups)
            if got == status:
                return text
            await asyncio.sleep(0.02)


async def test_without_us_nothing_is_created_but_the_way_in_works(seed: Counting, server: ApiServer) -> None:
    async with keeping(seed.cluster):
        async with server.session() as session:
            made = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineDeployment", "metadata": {"name": "d"}}
            path = MACHINES.format("alpha").replace("machines", "machinedeployments")
            async with session.post(path, json={**made, "spec": {"replicas": 3}}, params={"dryRun": "All"}) as answer:
                assert answer.status == 201, "what is only advice stops nobody"
        text = await eventually(server, 500, "m1", "alpha", "system:masters")
        assert 'failed calling webhook \\"machines.seedquota.io\\"' in text
        await eventually(server, 201, "m1", "alpha", "system:masters", "seedquota:break-glass")


async def test_a_seed_as_its_own_source_is_asked_only_about_the_namespace_of_the_user_cluster(
    admin: Cluster, server: ApiServer
) -> None:
    own = desired(user_cluster(own_source=True), WebhookServer(base_url=NOWHERE, token=token, ca_bundle=CA))
    second = desired(user_cluster("c2", own_source=True), WebhookServer(base_url=NOWHERE, token=token, ca_bundle=CA))
    async with keeping(admin, lambda: own), keeping(admin, lambda: second):
        await eventually(server, 500, "m1", "alpha", "system:masters")
        await eventually(server, 201, "m1", "default", "system:masters")
        names = {found.metadata.name for found in (await admin.list(WEBHOOK_CONFIGURATIONS)).items}
        assert names == {"seedquota-machines.alpha.c1", "seedquota-machines.alpha.c2"}


API_SERVICE = "v1alpha1.cluster.k8s.io"
NO_MACHINES = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "MachineList", "metadata": {"resourceVersion": "1"}}


@asynccontextmanager
async def server_of_the_tenant(directory: Path) -> AsyncIterator[int]:
    """Serves an API in which there is nothing. Its port."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "machines" not in request.path:
            return web.json_response({"kind": "APIResourceList", "apiVersion": "v1", "resources": []})
        if "watch" in request.query:
            stream = web.StreamResponse()
            await stream.prepare(request)
            await asyncio.sleep(60)
            return stream
        return web.json_response({**NO_MACHINES, "items": []})

    made = certificates.serving("tenant")
    (directory / "tls.crt").write_text(made.certificate)
    (directory / "tls.key").write_text(made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "localhost", 0, ssl_context=context)
    await site.start()
    try:
        assert site._server is not None
        yield site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    finally:
        await runner.cleanup()


async def test_a_tenant_who_serves_the_machines_hides_none_of_them(
    server: ApiServer, admin: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "CHECK_API_SECONDS", 0.5)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "c1", "namespace": "alpha"},
        "stringData": {"kubeconfig": server.kubeconfig("seedquota-seed")},
    }
    machine = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "spec": SPEC}
    await manifests.apply(server, [secret])
    async with server_of_the_tenant(tmp_path) as port, server.session() as session:
        for name in ("hidden-1", "hidden-2"):
            made = {**machine, "metadata": {"name": name}}
            async with session.post(MACHINES.format("alpha"), json=made) as answer:
                assert answer.status == 201, await answer.text()
        source = Source(
            admin,
            user_cluster(),
            on_change=lambda _source, _freed: None,
            on_state=lambda _source: None,
            sizing=sizing(),
            reach=ANYWHERE,
        )
        try:
            await until(lambda: source.current)
            there = len(source.totals)
            assert there >= 2
            spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
            service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "mine", "namespace": "alpha"}}
            await manifests.apply(server, [{**service, "spec": spec}])
            taken = {"service": {"name": "mine", "namespace": "alpha", "port": port}, "insecureSkipTLSVerify": True}
            labels = {"kube-aggregator.kubernetes.io/automanaged": None}
            patch = {"metadata": {"labels": labels}, "spec": taken}
            await admin.merge_patch(API_SERVICES, API_SERVICE, patch)
            async with patient_timeout(30):
                while (await admin.list(MACHINE_RESOURCE)).items:  # as anybody else reads it
                    await asyncio.sleep(0.05)
            await until(lambda: source.problem is not None and source.problem.reason == "APITakenOver")
            source.relist()
            await settle()
            with pytest.raises(Unavailable, match="hands the Machines of this cluster to Service alpha/mine"):
                await source.generation("alpha/hidden-1", "uid")
            assert len(source.totals) == there, "the last count stays"
            assert not source.current
            await admin.delete(API_SERVICES, API_SERVICE)  # the API server makes its own again
            await until(lambda: source.current and source.problem is None)
            assert len(source.totals) == there
        finally:
            await source.stop()


FINALIZER = "example.com/cloud"
STAMP = "seedquota.io/footprint"
SPEC = {"providerSpec": {"value": {"cloudProvider": "fake", "cloudProviderSpec": {"cpu": 4}}}}


class Objects:
    """Of one kind in a namespace, as an admin of the cluster sees them."""

    def __init__(self, session: aiohttp.ClientSession, path: str, api_version: str, kind: str, webhook: str) -> None:
        self._session = session
        self._path = path
        self._type = {"apiVersion": api_version, "kind": kind}
        self._webhook = webhook

    async def create(self, name: str, body: Mapping[str, object], **metadata: object) -> None:
        metadata = {"name": name, "finalizers": [FINALIZER], **metadata}
        async with self._session.post(self._path, json={**self._type, "metadata": metadata, **body}) as answer:
            assert answer.status == 201, await answer.text()

    async def refuses_a_new_one(self) -> None:
        async with self._session.post(self._path, json={**self._type, "metadata": {"name": "new"}}) as answer:
            assert answer.status == 500, await answer.text()
            assert f'failed calling webhook "{self._webhook}"' in (await answer.json())["message"]

    async def patch(self, name: str, patch: object) -> tuple[int, str]:
        """Status and message. `name` may end with a subresource."""
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self._session.patch(f"{self._path}/{name}", json=patch, headers=headers) as answer:
            return answer.status, str((await answer.json()).get("message", ""))

    async def allowed(self, name: str, patch: object) -> None:
        assert await self.patch(name, patch) == (200, ""), (name, patch)

    async def refused(self, name: str, patch: object) -> None:
        """By the webhook that nobody answers. A condition that cannot be evaluated refuses with another message."""
        status, message = await self.patch(name, patch)
        by_webhook = f'failed calling webhook "{self._webhook}"' in message
        assert (status, by_webhook) == (500, True), (name, patch, status, message)

    async def goes(self, name: str) -> None:
        async with self._session.delete(f"{self._path}/{name}") as answer:
            assert answer.status == 200, await answer.text()
        await self.allowed(name, {"metadata": {"finalizers": None}})
        async with self._session.get(f"{self._path}/{name}") as answer:
            assert answer.status == 404, name


def machines_in(session: aiohttp.ClientSession) -> Objects:
    return Objects(session, MACHINES.format("alpha"), "cluster.k8s.io/v1alpha1", "Machine", "machines.seedquota.io")


@asynccontextmanager
async def in_force(server: ApiServer, seed: Counting) -> AsyncIterator[None]:
    """A user cluster's webhook, which nobody answers."""
    async with keeping(seed.cluster):
        await eventually(server, 500, "m1", "alpha", "system:masters")
        yield


async def test_without_us_a_machine_changes_in_all_that_costs_nothing_and_its_deletion_completes(
    seed: Counting, server: ApiServer
) -> None:
    async with server.session() as session:
        machines = machines_in(session)
        await machines.create("stuck", {"spec": SPEC}, annotations={STAMP: "sealed"})
        async with in_force(server, seed):
            await machines.allowed("stuck", {"metadata": {"labels": {"a": "b"}, "annotations": {"example.com/a": "b"}}})
            await machines.allowed("stuck", {"metadata": {"finalizers": ["example.com/other", FINALIZER]}})
            await machines.allowed("stuck", {"spec": {"versions": {"kubelet": "1.34.4"}}})
            await machines.allowed("stuck/status", {"status": {"nodeRef": {"name": "n1"}}})
            await machines.goes("stuck")


async def test_without_us_no_machine_changes_in_what_it_costs(seed: Counting, server: ApiServer) -> None:
    patches: list[dict[str, object]] = [
        {"spec": {"providerSpec": {"value": {"cloudProviderSpec": {"cpu": 64}}}}},
        {"spec": {"providerSpec": {"value": {"cloudProviderSpec": {"cpu": "4"}}}}},
        {"spec": {"providerSpec": {"value": {"cloudProviderSpec": {"more": {}}}}}},
        {"spec": {"providerSpec": None}},
        {"spec": None},
        {"metadata": {"annotations": {STAMP: "forged"}}},
        {"metadata": {"annotations": {STAMP: ""}}},
        {"metadata": {"annotations": {STAMP: None}}},
        {"metadata": {"annotations": None}},
        {"metadata": {"finalizers": None}, "spec": {"providerSpec": {"value": {"cloudProvider": "aws"}}}},
    ]
    async with server.session() as session:
        machines = machines_in(session)
        await machines.create("sized", {"spec": SPEC}, annotations={STAMP: "sealed"})
        async with in_force(server, seed):
            await machines.refuses_a_new_one()
            for patch in patches:
                await machines.refused("sized", patch)
            await machines.goes("sized")


ODD: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "no-spec": ({}, {}),
    "empty-spec": ({"spec": {}}, {}),
    "no-provider-spec": ({"spec": {"versions": {"kubelet": "1"}}}, {"annotations": {}}),
    "null": ({"spec": {"providerSpec": None}}, {"annotations": None}),
    "text": ({"spec": {"providerSpec": "text"}}, {"labels": None}),
    "list": ({"spec": {"providerSpec": [1, 2.5, None, {"a": []}]}}, {}),
    "many-annotations": ({"spec": SPEC}, {"annotations": {f"a{number}": "" for number in range(3_000)}}),
    "large": ({"spec": {"providerSpec": {"value": {str(number): "a" * 100_000 for number in range(9)}}}}, {}),
}


async def test_without_us_odd_machines_are_told_apart_without_an_error(seed: Counting, server: ApiServer) -> None:
    async with server.session() as session:
        machines = machines_in(session)
        for name, (body, metadata) in ODD.items():
            await machines.create(name, body, **metadata)
        async with in_force(server, seed):
            for name in ODD:
                await machines.refused(name, {"spec": {"providerSpec": {"value": {"cpu": 64}}}})
                await machines.refused(name, {"metadata": {"annotations": {STAMP: "forged"}}})
                await machines.allowed(name, {"metadata": {"labels": {"a": "b"}, "annotations": {"a.com/a": "b"}}})
                await machines.allowed(name, {"spec": {"versions": {"kubelet": "2"}}})
                await machines.goes(name)


def cluster_api_crd(kind: str) -> manifests.Manifest:
    """As Cluster API's, and takes any spec, also one that is no object."""
    crd: Any = infrastructure_crd(kind, "v1beta2")
    approved = {"api-approved.kubernetes.io": "unapproved, for a test"}
    crd["metadata"] = {"name": f"{kind.lower()}s.cluster.x-k8s.io", "annotations": approved}
    crd["spec"]["group"] = "cluster.x-k8s.io"
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"] = {"x-kubernetes-preserve-unknown-fields": True, "nullable": True}
    if kind == "MachinePool":
        scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
        crd["spec"]["versions"][0]["subresources"]["scale"] = scale
    return dict(crd)


def cluster_api_wanted() -> WebhookConfiguration:
    return cluster_api.desired(
        WebhookServer(
            base_url=NOWHERE, token=token, ca_bundle=CA, timeout_seconds=3, break_glass_group="seedquota:break-glass"
        )
    )


async def test_without_us_cluster_apis_machines_change_in_what_costs_nothing_and_their_deletion_completes(
    server: ApiServer, admin: Cluster
) -> None:
    await manifests.apply(server, [cluster_api_crd("Machine"), cluster_api_crd("MachinePool")])
    reference = {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "VSphereMachine", "name": "small"}
    spec = {"clusterName": "c1", "infrastructureRef": reference, "failureDomain": "a"}
    path, version = "/apis/cluster.x-k8s.io/v1beta2/namespaces/alpha", "cluster.x-k8s.io/v1beta2"
    async with server.session() as session:
        machines = Objects(session, f"{path}/machines", version, "Machine", cluster_api.WEBHOOK)
        pools = Objects(session, f"{path}/machinepools", version, "MachinePool", cluster_api.WEBHOOK)
        await machines.create("m", {"spec": spec})
        await machines.create("bare", {})
        await machines.create("text", {"spec": "text"})
        await machines.create("null", {"spec": None})
        await pools.create("p", {"spec": {"clusterName": "c1", "replicas": 2, "template": {"spec": spec}}})
        async with keeping(admin, cluster_api_wanted):
            async with patient_timeout(30):
                while (await machines.patch("bare", {"spec": {"clusterName": str(time.monotonic())}}))[0] != 500:
                    await asyncio.sleep(0.02)
            await machines.refuses_a_new_one()
            await pools.refuses_a_new_one()
            for changed in ("clusterName", "infrastructureRef", "failureDomain"):
                await machines.refused("m", {"spec": {changed: None}})
                await pools.refused("p", {"spec": {"template": {"spec": {changed: None}}}})
            await machines.refused("m", {"spec": {"infrastructureRef": {"name": "large"}}})
            await pools.refused("p", {"spec": {"replicas": 3}})
            await pools.refused("p", {"spec": {"replicas": None}})
            await pools.refused("p/scale", {"spec": {"replicas": 3}})
            for name in ("text", "null"):
                await machines.refused(name, {"metadata": {"labels": {"a": "b"}}})
            for objects, name in ((machines, "m"), (machines, "bare"), (pools, "p")):
                await objects.allowed(name, {"metadata": {"labels": {"a": "b"}}, "spec": {"providerID": "a://b"}})
                await objects.allowed(f"{name}/status", {"status": {"phase": "Deleting"}})
                await objects.goes(name)
