"""common/kube against real API servers."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
import pytest_asyncio

from common.kube.client import api_client
from common.kube.client.api_client import Cluster
from common.kube.client.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
)
from common.kube.client.meta import Object
from common.kube.client.resource import Resource
from common.kube.controller.reflector import Reflector, State
from tests.running import running
from tests.unit.fake_api_server import eventually

pytestmark = pytest.mark.integration


class ConfigMap(Object, frozen=True):
    data: dict[str, str] = {}


CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=ConfigMap)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False, type=Object)
SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True, type=Object)
_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module")
async def api(control_plane):
    await control_plane.start(["kube"])
    server = control_plane.cluster("kube")
    yield server
    await server.kill()


@pytest_asyncio.fixture(scope="module")
async def cluster(api):
    made = await Cluster.from_kubeconfig(api.kubeconfig(), name="kube")
    yield made
    await made.close()


@pytest_asyncio.fixture
async def namespace(cluster):
    name = f"t{next(_numbers)}"
    await cluster.create(NAMESPACES, {"metadata": {"name": name}})
    return name


@asynccontextmanager
async def synced(reflector):
    async with running(reflector.run()):
        await reflector.wait_synced(30)
        yield reflector


def config_map(namespace, name, **data):
    return {"metadata": {"namespace": namespace, "name": name}, "data": data}


async def test_errors_of_a_real_server_are_what_they_say(api, cluster, namespace):
    with pytest.raises(NotFound, match='configmaps "a" not found'):
        await cluster.get(CONFIGMAPS, "a", namespace)
    made = await cluster.create(CONFIGMAPS, config_map(namespace, "a"))
    with pytest.raises(AlreadyExists):
        await cluster.create(CONFIGMAPS, config_map(namespace, "a"))
    with pytest.raises(Invalid) as invalid:
        await cluster.create(CONFIGMAPS, config_map(namespace, "Not_A_Name"))
    assert invalid.value.causes[0].field == "metadata.name"
    with pytest.raises(Conflict):
        await cluster.delete(CONFIGMAPS, "a", namespace, uid="another")
    await cluster.delete(CONFIGMAPS, "a", namespace, uid=made.metadata.uid)
    with pytest.raises(NotFound, match="404 page not found"):
        await cluster.list(Resource("nothing.example", "v1", "things", "Thing", namespaced=False, type=Object))
    seed = await Cluster.from_kubeconfig(api.kubeconfig("seedquota-seed"), name="kube")
    with pytest.raises(Forbidden, match="cannot list resource"):
        await seed.list(SECRETS)
    await seed.close()
    stranger = await Cluster.from_kubeconfig(api.kubeconfig().replace(api.tokens["admin"], "wrong"), name="kube")
    with pytest.raises(Unauthorized):
        await stranger.list(SECRETS)
    await stranger.close()


ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role", namespaced=True, type=Object)


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        " ",
        "a,b",
        "a=b",
        "a!=b",
        "a\\b",
        "a\\,b",
        "a,metadata.namespace=c",
        "a;b?c#d&e+f",
        "...",
        "\u540d",
        "x" * 253,
    ],
)
async def test_objects_are_found_by_names_that_have_the_characters_of_selectors_and_urls(cluster, namespace, name):
    """API servers take any part of a path as the name of a Role."""
    for each in (name, "a"):
        await cluster.create(ROLES, {"metadata": {"namespace": namespace, "name": each}})
    found = await cluster.find(ROLES, name, namespace)
    assert found is not None and found.metadata.name == name
    assert (await cluster.get(ROLES, name, namespace)).metadata.uid == found.metadata.uid
    await cluster.delete(ROLES, name, namespace, uid=found.metadata.uid)
    assert await cluster.find(ROLES, name, namespace) is None


async def test_a_watch_from_a_version_that_is_too_old_leads_to_a_list(api, cluster, namespace):
    await api.kill()
    await api.start()  # it remembers no changes from before
    with pytest.raises(Gone):
        async with cluster.open_watch(CONFIGMAPS, resource_version="1") as stream:
            await stream.read()
    reflector = Reflector(cluster, CONFIGMAPS, namespace=namespace)
    reflector._version = "1"
    async with synced(reflector):
        await eventually(lambda: reflector.state is State.WATCHING)
        await cluster.create(CONFIGMAPS, config_map(namespace, "a"))
        await eventually(lambda: len(reflector.store) == 1)
        assert reflector.lists_completed == 1


async def compact(plane, revision):
    connector = aiohttp.UnixConnector(plane.etcd.url.removeprefix("unix://"))
    async with aiohttp.ClientSession(connector=connector) as session:
        body = {"revision": str(revision), "physical": True}
        async with session.post("http://etcd/v3/kv/compaction", json=body) as answer:
            assert answer.status == 200, await answer.text()


async def test_a_list_interrupted_by_compaction_and_restart_is_still_complete(
    control_plane, api, cluster, namespace, monkeypatch
):
    await asyncio.gather(*(cluster.create(CONFIGMAPS, config_map(namespace, f"c{n}")) for n in range(9)))
    real, pages = cluster.request, []

    async def request(method, path, *args, **options):
        answer = await real(method, path, *args, **options)
        pages.append(path)
        if len(pages) == 1:
            last = await cluster.create(CONFIGMAPS, config_map(namespace, "late"))
            await compact(control_plane, last.metadata.resource_version)
            await api.kill()
            await api.start()
        return answer

    monkeypatch.setattr(cluster, "request", request)
    listing = await cluster.list(CONFIGMAPS, namespace, limit=4)
    assert len(listing.items) == 10, "the list began again, and saw what came in between"
    assert len([path for path in pages if "limit=4" in path and "continue" not in path]) == 2


async def test_a_reflector_outlives_its_server(api, cluster, namespace):
    await cluster.create(CONFIGMAPS, config_map(namespace, "before"))
    reflector = Reflector(cluster, CONFIGMAPS, namespace=namespace)
    async with synced(reflector):
        await eventually(lambda: reflector.state is State.WATCHING)
        await api.kill()
        await eventually(lambda: reflector.state is State.BACKOFF)
        assert reflector.error.startswith("cluster kube: ")
        assert len(reflector.store) == 1, "what was seen stays"
        with pytest.raises(Unavailable):
            await cluster.get(CONFIGMAPS, "before", namespace)
        await api.start()
        await cluster.create(CONFIGMAPS, config_map(namespace, "after"))
        await eventually(lambda: len(reflector.store) == 2, 40)
        await eventually(lambda: reflector.state is State.WATCHING)
        assert reflector.error is None


async def test_a_watch_proves_itself_by_its_end_where_nothing_changes(cluster, namespace):
    """An API server sends no bookmark then."""
    reflector = Reflector(cluster, CONFIGMAPS, namespace=namespace, watch_seconds=(2, 2))
    async with synced(reflector):
        listed, version, unbroken = reflector.proven_at, reflector.version, None
        for _ in range(2):
            before = reflector.proven_at
            await eventually(lambda seen=before: reflector.proven_at > seen)
            unbroken = unbroken or reflector.unbroken
            assert time.monotonic() - reflector.proven_at >= 1.9, "by what had happened when it was asked for"
        assert reflector.proven_at > listed and reflector.unbroken == unbroken is not None
        assert (reflector.lists_started, reflector.version) == (1, version)


async def test_a_server_that_hangs_for_longer_than_a_watch_is_listed_again(api, namespace, monkeypatch):
    monkeypatch.setattr(api_client, "SILENT", 1.0)
    cluster = await Cluster.from_kubeconfig(api.kubeconfig(), name="kube")
    reflector = Reflector(cluster, CONFIGMAPS, namespace=namespace, watch_seconds=(2, 2))
    async with synced(reflector):
        await eventually(lambda: reflector.unbroken is not None)
        unbroken = reflector.unbroken
        api.pause()
        try:
            await eventually(lambda: reflector.error is not None)
            assert "the watch did not end in time" in reflector.error
        finally:
            api.resume()
        await reflector.wait_listed(2, 60)
        await eventually(lambda: reflector.unbroken is not None)
        assert reflector.unbroken > unbroken, "it may have been stopped and restored meanwhile"
    await cluster.close()


async def test_a_cluster_restored_from_a_backup_is_seen_as_it_is_now(control_plane, tmp_path):
    await control_plane.start(["restored"], own_etcd=["restored"])
    api, etcd, backup = control_plane.cluster("restored"), control_plane.etcd_of("restored"), tmp_path / "backup"
    cluster = await Cluster.from_kubeconfig(api.kubeconfig(), name="kube")
    await cluster.create(CONFIGMAPS, config_map("default", "old"))
    reflector = Reflector(cluster, CONFIGMAPS, namespace="default")
    async with synced(reflector):
        await etcd.snapshot(backup)
        for number in range(20):
            await cluster.create(CONFIGMAPS, config_map("default", f"lost-{number}"))
        await eventually(lambda: len(reflector.store) == 21, 40)
        await api.kill()
        await etcd.stop()
        await etcd.restore(backup)
        await etcd.start()
        await api.start()
        await eventually(lambda: reflector.store.keys() == ["default/old"], 40)
        await cluster.create(CONFIGMAPS, config_map("default", "new"))
        await eventually(lambda: len(reflector.store) == 2)
    await cluster.close()
    await api.kill()
    await etcd.kill()


async def test_many_objects_are_followed(cluster, namespace, capsys):
    total = 1100  # three pages of a list
    events = 0

    def count(_change):
        nonlocal events
        events += 1

    reflector = Reflector(cluster, CONFIGMAPS, namespace=namespace, on_change=count)
    async with synced(reflector):
        await eventually(lambda: reflector.state is State.WATCHING)
        numbers = iter(range(total))
        payload = "x" * 400

        async def create():
            for number in numbers:
                await cluster.create(CONFIGMAPS, config_map(namespace, f"c{number}", payload=payload))

        started = time.perf_counter()
        await asyncio.gather(*(create() for _ in range(32)))
        writing = time.perf_counter() - started
        await eventually(lambda: len(reflector.store) == total, 40)
        assert events == total and reflector.lists_completed == 1
        started = time.perf_counter()
        await reflector.wait_listed(reflector.relist(), 60)
        listing = time.perf_counter() - started
        assert events == total, "a list of what is known changes nothing"
    lines = [
        json.dumps({"type": "ADDED", "object": json.loads(CONFIGMAPS.encode(obj))}).encode()
        for obj in reflector.store.values()
    ]
    async with cluster.open_watch(CONFIGMAPS, namespace, resource_version=str(reflector._version)) as stream:
        started = time.process_time()  # what others do on this machine costs it nothing
        for line in lines:
            stream._decode(line)
        decoding = time.process_time() - started
    with capsys.disabled():
        print(
            f"\n  {total} ConfigMaps: created at {total / writing:.0f}/s by 32 clients, "
            f"listed in {listing:.2f} s, events decoded at {decoding / total * 1e6:.1f} us each"
        )
    assert decoding / total < 100e-6
