from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
import yaml

from common.kube.client import tenant_hosts, tenant_threads
from common.kube.client.api_client import Cluster
from common.kube.client.errors import Unavailable
from common.kube.client.networks import Networks
from common.kube.client.reach import ANYWHERE, DEFAULT
from common.kube.client.tenant_threads import NotDoneError, TenantThreads
from tests.unit.fake_api_server import PATIENCE, eventually


class Hanging:
    """Work that does not end before `end` is set."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.running = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.running += 1
        self.end.wait(60)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.end.set()


async def begun(hanging: Hanging, wanted: int) -> None:
    await eventually(lambda: hanging.running >= wanted)


async def cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def threads(places: int = 4, seconds: float = 2 * PATIENCE) -> TenantThreads:
    return TenantThreads("test", places=places, seconds=seconds)


async def test_it_returns_and_raises_what_the_work_does() -> None:
    made = threads()
    assert await made.run("alpha/c1", lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        await made.run("alpha/c1", lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        await made.run("alpha/c1", lambda: (_ for _ in ()).throw(TimeoutError("its own")))


async def test_a_cluster_whose_work_never_ends_has_one_thread_and_others_do_not_wait(hanging: Hanging) -> None:
    made = threads()
    stuck = [asyncio.create_task(made.run("alpha/c1", hanging)) for _ in range(100)]
    await begun(hanging, 1)
    assert [await made.run("alpha/c2", lambda n=n: n) for n in range(20)] == list(range(20))
    assert hanging.running == 1
    await cancel(stuck)


async def test_a_namespace_has_half_of_the_threads_however_many_clusters_it_has(hanging: Hanging) -> None:
    made = threads(places=4)
    stuck = [asyncio.create_task(made.run(f"alpha/c{number}", hanging)) for number in range(100)]
    await begun(hanging, 2)
    assert await made.run("beta/c1", lambda: "done") == "done"
    assert hanging.running == 2
    await cancel(stuck)


async def test_the_platforms_own_threads_are_not_taken(hanging: Hanging) -> None:
    made = threads(places=64)
    stuck = [asyncio.create_task(made.run(f"n{number}/c", hanging)) for number in range(64)]
    await begun(hanging, 64)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), PATIENCE) == "done"
    await cancel(stuck)


async def test_what_is_not_done_in_time_is_told_and_its_place_is_free_only_when_it_ends(hanging: Hanging) -> None:
    made = threads(seconds=0.1)
    for _ in range(2):
        with pytest.raises(NotDoneError, match=r"not done within 0\.1 s"):
            await made.run("alpha/c1", hanging)
    await begun(hanging, 1)
    assert hanging.running == 1
    hanging.end.set()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                assert await made.run("alpha/c1", lambda: "done") == "done"
                break
            except NotDoneError:
                continue


async def test_what_waits_is_bounded_and_goes_when_nobody_waits_for_it(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_threads, "MAX_WAITING", 3)
    made = threads()
    stuck = [asyncio.create_task(made.run("alpha/c1", hanging)) for _ in range(4)]
    await begun(hanging, 1)
    with pytest.raises(NotDoneError, match="too much waits"):
        await made.run("alpha/c1", hanging)
    await cancel(stuck)
    waits = asyncio.create_task(made.run("alpha/c1", lambda: None))
    await asyncio.sleep(0.05)
    assert not waits.done(), "the thread still works for the first"
    hanging.end.set()
    await asyncio.wait_for(waits, PATIENCE)


def test_the_end_of_an_event_loop_leaves_no_place_taken(hanging: Hanging) -> None:
    made = threads(places=1)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(made.run("alpha/c1", hanging), 0.1)

    asyncio.run(give_up())
    hanging.end.set()
    assert asyncio.run(made.run("alpha/c1", lambda: "done")) == "done"


def kubeconfig(server: str) -> str:
    return yaml.safe_dump(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
    )


async def test_hosts_of_tenants_that_no_name_server_answers_for_keep_no_other_lookup_from_its_answer(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def look_up(host: object, *arguments: object, **more: object) -> object:
        if str(host).endswith(".hostile.example"):
            hanging()
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answered")
        return real(host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(tenant_hosts, "_LOOKUPS", threads(places=32))
    clusters = [
        await Cluster.of_tenant(
            kubeconfig(f"https://{number}.hostile.example"), name=f"mallory/c{number}", reach=DEFAULT
        )
        for number in range(48)
    ]
    asked = [asyncio.create_task(cluster.request("GET", "/version")) for cluster in clusters]
    other = await Cluster.of_tenant(kubeconfig("https://localhost:1"), name="a/c1", reach=ANYWHERE, timeout=PATIENCE)
    try:
        await begun(hanging, 16)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await other.request("GET", "/version")
        found = await asyncio.wait_for(asyncio.get_running_loop().getaddrinfo("localhost", 1), PATIENCE)
        assert found, "a lookup of the platform's"
    finally:
        hanging.end.set()
        await asyncio.gather(*asked, return_exceptions=True)
        for cluster in (*clusters, other):
            await cluster.close()


async def test_an_address_is_used_as_it_was_looked_up() -> None:
    found = await tenant_hosts.TenantHosts("alpha/c1", Networks()).resolve("localhost", 443, socket.AF_INET)
    assert found[0]["host"] == "127.0.0.1" and found[0]["port"] == 443 and found[0]["hostname"] == "localhost"
    with pytest.raises(OSError):
        await tenant_hosts.TenantHosts("alpha/c1", Networks()).resolve("does-not-exist.invalid", 443)
