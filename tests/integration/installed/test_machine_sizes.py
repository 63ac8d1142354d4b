"""Sizes from a cloud and their stamps, with real API servers and programs: a Machine of AWS, from kubectl's side."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from devcluster.install import Program
from devcluster.manifests import apply
from devcluster.objects import API, quota
from devcluster.patience import patient_timeout
from devcluster.redis import Settings
from seed import size_command
from seed.ledger.backend import PASSWORD_VARIABLE
from tests.integration.installed.site import Site as Installed
from tests.integration.redis_servers import rack
from tests.unit.fake_cloud import FakeCloud, answering, fake_cloud
from tests.unit.seed.kinds.machines.test_sizes import ec2

pytestmark = [pytest.mark.integration, pytest.mark.steps]

MACHINES = "/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines"
USER_CLUSTER = f"/apis/{API}/namespaces/alpha/userclusters/user-1"
STAMP = "seedquota.io/footprint"
SECRET = "s3cret-of-the-platform"


class Site:
    """User-1 of the installation, whose UserCluster names a cloud."""

    def __init__(self, whole: Installed, cloud: FakeCloud) -> None:
        self.whole = whole
        self.installed = whole.installed
        self.cloud = cloud
        self.user = whole.session("user-1")
        self.seed = whole.session("seed-1")

    @property
    def agent(self) -> Program:
        return self.installed.programs["seedquota-seed-1"]

    async def set_provider(self, provider: object) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self.seed.patch(USER_CLUSTER, json={"spec": {"provider": provider}}, headers=headers) as answer:
            assert answer.status == 200, await answer.text()

    async def create(
        self, name: str, instance_type: str = "m5.large", annotations: dict[str, str] | None = None, dry_run: str = ""
    ) -> tuple[int, dict]:
        body = {
            "apiVersion": "cluster.k8s.io/v1alpha1",
            "kind": "Machine",
            "metadata": {
                "name": name,
                "annotations": annotations or {},
            },
            "spec": {
                "providerSpec": {
                    "value": {
                        "cloudProvider": "aws",
                        "cloudProviderSpec": {
                            "instanceType": instance_type,
                            "region": "eu-central-1",
                            "diskSize": 50,
                            "tags": {"a<b>&": "é"},  # what encoders write in more ways than one
                        },
                    }
                }
            },
        }
        parameters = {"dryRun": dry_run} if dry_run else {}
        answer = await self.whole.call("user-1", "POST", MACHINES, body, **parameters)
        return answer.status, answer.body

    async def patch(self, name: str, patch: dict) -> tuple[int, dict]:
        answer = await self.whole.decision("user-1", "PATCH", f"{MACHINES}/{name}", patch)
        return answer.status, answer.body

    async def usage(self) -> tuple[int, dict]:
        async with self.seed.get(USER_CLUSTER) as answer:
            status = (await answer.json())["status"]
        return status["machines"], status["resourceUsage"]

    async def metrics(self) -> str:
        url = f"{self.agent.health}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text()

    async def stamps_current(self) -> tuple[str, str]:
        async with self.seed.get(USER_CLUSTER) as answer:
            conditions = (await answer.json())["status"]["conditions"]
        (found,) = (condition for condition in conditions if condition["type"] == "StampsCurrent")
        return found["status"], found.get("message", "")

    async def counts(self, machines: int, cpu: str | None, seconds: float = 60) -> None:
        found: tuple[int, dict] = (0, {})
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = await self.usage()
            if (found[0], found[1].get("cpu")) == (machines, cpu):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(found)


@pytest_asyncio.fixture(scope="module")
async def site(installation: Installed, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    directory: Path = tmp_path_factory.mktemp("sizes")
    async with fake_cloud(ec2) as cloud:
        (directory / "ca.pem").write_text(cloud.ca)
        made = Site(installation, cloud)
        try:
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("SSL_CERT_FILE", str(directory / "ca.pem"))
                await installation.stop(made.agent)
                await installation.start(made.agent)
                data = {
                    "AWS_ENDPOINT_URL_EC2": f"https://127.0.0.1:{cloud.port}/",
                    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
                    "AWS_SECRET_ACCESS_KEY": SECRET,
                }
                secret = {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": "aws", "namespace": "alpha"},
                    "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
                }
                await apply(installation.server("seed-1"), [secret])
                await made.set_provider({"name": "aws", "credentialsSecretRef": {"name": "aws"}})
                await apply(made.installed.master, [quota("alpha", "alpha", {"cpu": "8"})])
                await made.installed.enforced("alpha")
                await _stamping(made)
                yield made
                for log in made.installed.directory.glob("*.log"):
                    assert SECRET not in log.read_text()
                told = await _told(made)
                assert "cannot size machine" in told  # in an Event
                assert SECRET not in told
        finally:
            await installation.stop(made.agent)
            await installation.start(made.agent)
            await made.set_provider(None)
            await installation.delete("seed-1", "/api/v1/namespaces/alpha/secrets/aws")


async def _told(site: Site) -> str:
    """All that people and monitoring can read: Events, objects of ours and their status, Machines, metrics."""
    ours = f"/apis/{API}"
    paths = {
        "seed-1": (
            "/api/v1/events",
            *(f"{ours}/{kind}" for kind in ("userclusters", "resourcequotas", "quotaledgers")),
        ),
        "user-1": ("/api/v1/events", MACHINES),
    }
    told: list[str] = []
    for cluster, session in (("seed-1", site.seed), ("user-1", site.user)):
        for path in paths[cluster]:
            async with session.get(path) as answer:
                assert answer.status == 200, path
                told.append(await answer.text())
    async with site.installed.master.session() as session, session.get(f"{ours}/resourcequotas") as answer:
        told.append(await answer.text())
    return "\n".join([*told, await site.metrics()])


async def _stamping(site: Site) -> None:
    """Until the API server asks for stamps: it heeds a new configuration after a moment."""
    async with patient_timeout(60):
        while STAMP not in (await site.create("canary", dry_run="All"))[1]["metadata"].get("annotations", {}):
            await asyncio.sleep(0.1)


async def test_a_machine_is_stamped_counted_and_kept_through_an_outage_and_a_restart(site: Site) -> None:
    status, made = await created(site, "a")
    assert status == 201, made
    stamp = json.loads(made["metadata"]["annotations"][STAMP])
    assert stamp["footprint"] == {"cpu": "2", "machines": "1", "memory": "8Gi", "storage": "50Gi"}
    await site.counts(1, "2")

    refusal = await refused(site, 422, "b", "m5.larg")
    assert refusal["reason"] == "Invalid"
    assert "cannot size machine: aws eu-central-1 has no type m5.larg; nearest: m5.large" in refusal["message"]

    refusal = await refused(site, 403, "c", annotations={STAMP: "{}"})
    assert "annotation seedquota.io/footprint is written by SeedQuota only" in refusal["message"]

    site.cloud.disturb = answering(500)
    status, again = await created(site, "d")
    assert status == 201, again  # known
    async with site.user.get(f"{MACHINES}/a") as answer:
        before = (await answer.json())["metadata"]["annotations"][STAMP]
    await refused(site, 503, "e", "c5.large", says="cannot size machine now: aws eu-central-1 ")

    status, patched = await site.patch("a", {"metadata": {"annotations": {STAMP: None}}})
    assert status == 200, patched
    assert patched["metadata"]["annotations"][STAMP] == before  # put back
    status, refusal = await site.patch("a", {"metadata": {"annotations": {STAMP: before.replace('"2"', '"1"')}}})
    assert status == 403, refusal
    await site.counts(2, "4")

    await restarted(site)
    await asyncio.sleep(1)
    await site.counts(2, "4")
    await refused(site, 503, "f")  # the cache went with the program, and the cloud is still down
    site.cloud.disturb = None


async def test_a_machine_that_slipped_in_is_counted_by_asking_when_the_cloud_is_back(site: Site) -> None:
    machines, usage = await site.usage()
    site.cloud.disturb = answering(500)
    async with site.user.post(
        MACHINES,
        json={
            "apiVersion": "cluster.k8s.io/v1alpha1",
            "kind": "Machine",
            "metadata": {"name": "slipped"},
            "spec": {
                "providerSpec": {
                    "value": {
                        "cloudProvider": "aws",
                        "cloudProviderSpec": {"instanceType": "m5.large", "region": "eu-central-1", "diskSize": 51},
                    }
                }
            },
        },
        headers=[
            ("Impersonate-User", "ann"),
            ("Impersonate-Group", "system:masters"),
            ("Impersonate-Group", "seedquota:break-glass"),
        ],
    ) as answer:
        assert answer.status == 201, await answer.text()
        assert STAMP not in (await answer.json())["metadata"].get("annotations", {})
    await site.counts(machines + 1, usage["cpu"])
    site.cloud.disturb = None
    await site.counts(machines + 1, str(int(usage["cpu"]) + 2), seconds=70)


async def test_whoever_sizes_a_file_for_a_user_cluster_is_told_what_admission_would_say(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seed.yaml").write_text(site.installed.cluster("seed-1").kubeconfig())
    async with site.user.get(MACHINES) as answer:
        (tmp_path / "machines.json").write_text(await answer.text())  # as `kubectl get machines -o json`
    arguments = ["-f", str(tmp_path / "machines.json"), "--kubeconfig", str(tmp_path / "seed.yaml")]
    site.cloud.disturb = None
    assert await asyncio.to_thread(size_command.main, [*arguments, "--user-cluster", "alpha/user-1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "a: cpu=2,instances.m5.large=1,machines=1,memory=8Gi,storage=50Gi"
    assert told[1].startswith("  found: m5.large of aws eu-central-1, asked 2")
    site.cloud.disturb = answering(401)
    assert await asyncio.to_thread(size_command.main, [*arguments, "--user-cluster", "alpha/user-1"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        "a: 503 cannot size machine now: aws eu-central-1 refuses these credentials (401)"
    )
    site.cloud.disturb = None
    assert await asyncio.to_thread(size_command.main, [*arguments, "--user-cluster", "alpha/none"]) == 2
    assert capsys.readouterr().err == "seedquota-seed size: the seed has no UserCluster alpha/none\n"


async def test_a_cloud_that_tells_a_larger_size_than_a_stamp_is_told_and_counts(site: Site) -> None:
    async def bigger(request: web.Request) -> web.StreamResponse:
        told = await ec2(request)
        assert isinstance(told, web.Response)
        return web.Response(text=str(told.text).replace("<defaultVCpus>2<", "<defaultVCpus>4<"))

    async with site.user.delete(f"{MACHINES}/slipped") as answer:  # it has no stamp
        assert answer.status == 200
    await site.counts(2, "4")
    async with patient_timeout(60):
        while await site.stamps_current() != ("True", ""):
            await asyncio.sleep(0.1)
    site.cloud.disturb = bigger
    await restarted(site)
    async with patient_timeout(60):
        while (told := await site.stamps_current())[0] != "False":
            await asyncio.sleep(0.1)
    assert told[1].startswith("2 machines: kube-system/")
    assert "stamped cpu=2, now cpu=4" in told[1]
    assert 'seedquota_machines_drifted{user_cluster="alpha/user-1"} 2.0' in (await site.metrics()).splitlines()
    await site.counts(2, "8")
    site.cloud.disturb = None


async def test_with_a_redis_a_program_that_restarts_knows_what_was_told_before_though_the_cloud_is_down(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rack(tmp_path) as servers:
        redis = await servers.server("sizes", Settings(password="of-redis"))
        monkeypatch.setenv("SEEDQUOTA_REDIS_URL", redis.url)
        monkeypatch.setenv(PASSWORD_VARIABLE, "of-redis")
        site.cloud.disturb = None
        for name in ("a", "d"):  # of the tests before: room for two
            async with site.user.delete(f"{MACHINES}/{name}") as answer:
                assert answer.status in (200, 404)
        await restarted(site)
        status, made = await created(site, "told")
        assert status == 201, made
        async with patient_timeout(60):
            while await redis.command("EXISTS", "{seedquota:seed-1}:sizes:2") != b"1":
                await asyncio.sleep(0.1)
        site.cloud.disturb = answering(500)
        await restarted(site)
        await _stamping(site)  # a Redis that is slower than a lookup waits for it is known at the next one
        status, made = await created(site, "recalled")
        assert status == 201, made
        assert json.loads(made["metadata"]["annotations"][STAMP])["footprint"]["cpu"] == "2"
        site.cloud.disturb = None
        kept = [await redis.command("HGETALL", "{seedquota:seed-1}:sizes:2"), await redis.command("KEYS", "*")]
        assert not any(word in b"".join(kept) for word in (SECRET.encode(), b"AKIDEXAMPLE"))


async def restarted(site: Site) -> None:
    await site.whole.kill(site.agent)
    await site.whole.start(site.agent)


async def created(site: Site, name: str) -> tuple[int, dict]:
    """Once there is capacity and the program serves again; a refusal for its size is none of that. With a stamp: no API
    server waits long for that."""
    async with patient_timeout(120):
        while True:
            status, made = await site.create(name)
            if status == 201 and STAMP not in made["metadata"].get("annotations", {}):
                await site.whole.delete("user-1", f"{MACHINES}/{name}")
            elif status == 201 or "cannot size" in made["message"]:
                return status, made
            await asyncio.sleep(0.5)


async def refused(
    site: Site, wanted: int, name: str, *how: str, annotations: dict[str, str] | None = None, says: str = ""
) -> dict:
    """What is said with this status: on a busy machine, nobody can decide at first."""
    async with patient_timeout(120):
        while True:
            status, refusal = await site.create(name, *how, annotations=annotations)
            if status == wanted and says in refusal["message"]:
                return refusal
            assert status in (500, 503), refusal
            await asyncio.sleep(0.1)


async def test_machines_are_limited_by_their_type(site: Site) -> None:
    async with site.user.get(MACHINES) as answer:
        names = [found["metadata"]["name"] for found in (await answer.json())["items"]]
    for name in names:
        async with site.user.delete(f"{MACHINES}/{name}") as answer:
            assert answer.status == 200, await answer.text()
    assert (await created(site, "first"))[0] == 201
    await apply(site.installed.master, [quota("of-type", "alpha", {"instances.m5.large": "1"})])
    await site.installed.enforced("of-type")
    refusal = await refused(site, 403, "second")
    counted = "requested: instances.m5.large=1, used: instances.m5.large=1, limited: instances.m5.large=1"
    assert f"exceeded quota: of-type, {counted};" in refusal["message"]
    async with site.user.delete(f"{MACHINES}/first") as answer:
        assert answer.status == 200, await answer.text()

    async with patient_timeout(60):
        while (await site.create("second"))[0] != 201:
            await asyncio.sleep(0.1)
