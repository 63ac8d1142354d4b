from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
import yaml

from devcluster.controlplane import USERS, ApiServer, ControlPlane
from devcluster.manifests import MACHINE_CRDS, ManifestError, apply, load
from devcluster.servers import StartError

pytestmark = pytest.mark.integration

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest_asyncio.fixture(scope="module")
async def plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane() as plane:
        await plane.start(["one", "two"], controllers=["two"])
        yield plane


@pytest.fixture
def one(plane: ControlPlane) -> ApiServer:
    return plane.cluster("one")


@pytest.fixture
def two(plane: ControlPlane) -> ApiServer:
    return plane.cluster("two")


async def create(server: ApiServer, name: str) -> None:
    async with server.session() as session:
        answer = await session.post(CONFIG_MAPS, json={"metadata": {"name": name}})
        assert answer.status == 201, await answer.text()


async def status(server: ApiServer, path: str, user: str = "admin") -> int:
    async with server.session(user) as session, session.get(path) as answer:
        return answer.status


async def test_what_is_written_in_one_cluster_is_not_in_the_other(one: ApiServer, two: ApiServer) -> None:
    await create(one, "only-in-one")
    assert await status(one, f"{CONFIG_MAPS}/only-in-one") == 200
    assert await status(two, f"{CONFIG_MAPS}/only-in-one") == 404


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_cluster_taken_down_comes_back_with_its_port_and_objects(one: ApiServer, how: str) -> None:
    await create(one, f"before-{how}")
    port = one.port
    await (one.stop() if how == "stop" else one.kill())
    with pytest.raises(aiohttp.ClientConnectorError):
        await status(one, "/readyz")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    await one.start()
    assert one.port == port
    assert await status(one, f"{CONFIG_MAPS}/before-{how}") == 200


async def test_a_paused_cluster_answers_when_it_is_resumed(one: ApiServer) -> None:
    one.pause()
    asking = asyncio.create_task(status(one, "/readyz"))
    done, _ = await asyncio.wait([asking], timeout=0.5)
    assert not done
    one.resume()
    assert await asyncio.wait_for(asking, 60) == 200


async def test_objects_survive_the_store_being_killed(plane: ControlPlane, one: ApiServer) -> None:
    await create(one, "before-the-store")
    await plane.etcd.kill()
    await plane.etcd.start()
    deadline = time.monotonic() + 60
    while await status(one, f"{CONFIG_MAPS}/before-the-store") != 200:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_a_wrong_token_is_not_known_and_a_user_has_only_the_rights_given(one: ApiServer) -> None:
    async with aiohttp.ClientSession(one.url, connector=aiohttp.TCPConnector(ssl=one.ssl)) as session:
        answer = await session.get(CONFIG_MAPS, headers={"Authorization": "Bearer wrong"})
        assert answer.status == 401
    assert await status(one, CONFIG_MAPS, "seedquota-seed") == 403
    group = "rbac.authorization.k8s.io"
    api = {"apiVersion": f"{group}/v1", "metadata": {"name": "reads-config-maps"}}
    role = {
        **api,
        "kind": "ClusterRole",
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
    }
    binding = {
        **api,
        "kind": "ClusterRoleBinding",
        "roleRef": {"kind": "ClusterRole", "name": "reads-config-maps", "apiGroup": group},
        "subjects": [{"kind": "User", "name": "seedquota-seed", "apiGroup": group}],
    }
    await apply(one, [role, binding])
    deadline = time.monotonic() + 60
    while await status(one, CONFIG_MAPS, "seedquota-seed") != 200:  # the authorizer reads a cache
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert await status(one, CONFIG_MAPS, "seedquota-master") == 403


async def test_a_token_of_one_cluster_is_not_known_in_the_other(one: ApiServer, two: ApiServer) -> None:
    headers = {"Authorization": f"Bearer {one.tokens['admin']}"}
    async with aiohttp.ClientSession(two.url, connector=aiohttp.TCPConnector(ssl=two.ssl)) as session:
        answer = await session.get(CONFIG_MAPS, headers=headers)
        assert answer.status == 401


async def test_a_cluster_proves_itself_by_its_own_authority_only(one: ApiServer, two: ApiServer) -> None:
    async with aiohttp.ClientSession(one.url) as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get("/readyz", ssl=two.ssl)
        answer = await session.get("/readyz", ssl=ssl.create_default_context(cadata=one.ca))
        assert answer.status == 200


async def test_the_machine_api_is_served_once_applied_and_applying_again_changes_nothing(one: ApiServer) -> None:
    for _ in range(2):
        await apply(one, load(MACHINE_CRDS))
        for plural in ("machines", "machinesets", "machinedeployments"):
            assert await status(one, f"/apis/cluster.k8s.io/v1alpha1/{plural}") == 200
    provider = {"value": {"cloudProvider": "fake", "cloudProviderSpec": {"cpu": "2"}}}
    machine = {
        "apiVersion": "cluster.k8s.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": "m", "namespace": "kube-system"},
        "spec": {"providerSpec": provider},
    }
    await apply(one, [machine])
    async with one.session() as session:
        stored = await session.get("/apis/cluster.k8s.io/v1alpha1/namespaces/kube-system/machines/m")
        assert (await stored.json())["spec"] == {"providerSpec": provider}


async def test_namespaces_and_types_are_applied_before_what_needs_them(two: ApiServer) -> None:
    inside = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "inside", "namespace": "later"}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "later"}}
    machine = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "metadata": {"name": "m"}}
    await apply(two, [inside, machine, *load(MACHINE_CRDS), namespace])
    assert await status(two, "/api/v1/namespaces/later/configmaps/inside") == 200


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        ({"kind": "ConfigMap"}, "not a Kubernetes object"),
        ({"apiVersion": "v1", "kind": "Nonesuch", "metadata": {"name": "x"}}, "Nonesuch x: .*no such kind"),
        (
            {"apiVersion": "no.such/v1", "kind": "X", "metadata": {"name": "x"}},
            "X x: the cluster has no API no.such/v1",
        ),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "A_b"}}, "ConfigMap A_b: .*RFC 1123"),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "missing"}},
            'ConfigMap x: namespaces "missing" not found',
        ),
    ],
)
async def test_a_refused_manifest_is_named_with_the_reason(
    one: ApiServer, manifest: dict[str, object], why: str
) -> None:
    with pytest.raises(ManifestError, match=why):
        await apply(one, [manifest])


async def test_a_namespace_goes_where_the_controllers_run(two: ApiServer) -> None:
    await apply(two, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "short-lived"}}])
    async with two.session() as session:
        assert (await session.delete("/api/v1/namespaces/short-lived")).status == 200
    deadline = time.monotonic() + 60
    while await status(two, "/api/v1/namespaces/short-lived") != 404:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_a_server_that_cannot_start_shows_the_end_of_its_log(plane: ControlPlane) -> None:
    async with ControlPlane(users={**USERS, 'quo"te': ()}) as broken:
        with pytest.raises(StartError, match=r"(?s)bad ended with status 1.*bad\.log.*parse error on line 4"):
            await broken.start(["bad"])
        directory = broken.directory
    assert not directory.exists()


def processes_of(directory: Path) -> list[str]:
    if Path("/proc/self/cmdline").exists():
        commands = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    else:
        listed = subprocess.run(["ps", "-axwwo", "command"], capture_output=True, text=True, check=True)
        commands = listed.stdout.splitlines()
    return [command for command in commands if str(directory) in command]


async def until_nothing_is_left(directory: Path) -> None:
    deadline = time.monotonic() + 60
    while (left := processes_of(directory)) or directory.exists():
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
async def test_up_leaves_nothing_behind_however_it_ends(number: signal.Signals, tmp_path: Path) -> None:
    """It is interrupted when it is ready, and ended by the other signals while its servers start."""
    output = tmp_path / "output"
    with tempfile.TemporaryDirectory() as short:
        command = [sys.executable, "-m", "devcluster", "up", "--seeds", "1"]
        # What runs in the background of a script ignores SIGINT, and so would all that it starts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with output.open("w") as file:
                up = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | {"TMPDIR": short})
        finally:
            signal.signal(signal.SIGINT, before)

        async def until(holds: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 180
            while not holds():
                assert up.poll() is None, output.read_text()
                assert time.monotonic() < deadline, output.read_text()
                await asyncio.sleep(0.05)

        try:
            if number == signal.SIGINT:
                await until(lambda: "Ctrl-C stops everything" in output.read_text())
                directory = it_is_as_it_says(output.read_text())
            else:
                await until(lambda: servers_of(Path(short)) == (3, 1))
                (directory,) = Path(short).glob("seedquota-devcluster-*")
        finally:
            up.send_signal(number)
            ended = await asyncio.to_thread(up.wait, 120)  # it waits 20 s for each server that is slow to end
        assert ended == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number), output.read_text()
        await until_nothing_is_left(directory)
        assert "Traceback" not in output.read_text()


def it_is_as_it_says(output: str) -> Path:
    """Its directory."""
    (written,) = [Path(path) for path in re.findall(r"KUBECONFIG=(\S+)", output)]
    config, directory = yaml.safe_load(written.read_text()), written.parent
    assert [context["name"] for context in config["contexts"]] == ["master", "seed-1", "user-1"]
    servers = [cluster["cluster"]["server"] for cluster in config["clusters"]]
    assert len(set(servers)) == 3, servers
    assert all(server.startswith("https://127.0.0.1:") for server in servers)
    files = [written, *directory.glob("*.kubeconfig")]
    assert len(files) == 1 + 3 * 2, "one for each of the programs' users on each cluster"
    assert all(file.stat().st_mode & 0o077 == 0 for file in files), "others could read the token"
    assert servers_of(directory) == (3, 1), processes_of(directory)
    return directory


def servers_of(directory: Path) -> tuple[int, int]:
    """How many API servers and etcds run there."""
    commands = "\n".join(processes_of(directory))
    return len(re.findall(r"kube-apiserver ", commands)), len(re.findall(r"etcd --data-dir", commands))
