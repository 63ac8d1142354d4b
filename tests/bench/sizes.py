"""10,000 Machines over 40 types: how often the cloud is asked, and how long a recount takes.

AWS is asked for each type, Hetzner for a list of all.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import msgspec
from aiohttp import web

from common.api.types import UserCluster
from common.kube.controller.store import Change
from common.runtime.redis_access import RedisAccess, redis_url
from devcluster import redis as servers
from devcluster.binaries import BuildError
from devcluster.redis import RedisServer, Settings
from seed.instance_types.cache import FlavourCache
from seed.instance_types.redis_cache import SharedSizes
from seed.instance_types.settings import SettingsReader
from seed.kinds.machines.totals import MachineTotals
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION as ANNOTATION
from seed.machines.machine_controller import Machine
from seed.registration.token import seal
from seed.sizing.sizer import Sizing
from seed.sizing.stamp import Seal
from tests.unit.fake_cloud import FakeCloud, fake_cloud

MACHINES = 10_000
TYPES = 40
AT_A_TIME = 200  # as an API server asks
HOST = "ec2.eu-central-1.amazonaws.com"
CLUSTER = msgspec.convert(
    {"metadata": {"name": "c1", "namespace": "alpha", "uid": "c1-uid"}, "spec": {"project": "alpha"}}, UserCluster
)


async def _ec2(request: web.Request) -> web.StreamResponse:
    name = str((await request.post())["InstanceType.1"])
    return web.Response(
        text=f"<r><instanceTypeSet><item><instanceType>{name}</instanceType><vCpuInfo><defaultVCpus>2</defaultVCpus>"
        "</vCpuInfo><memoryInfo><sizeInMiB>8192</sizeInMiB></memoryInfo></item></instanceTypeSet></r>"
    )


async def _hetzner(_request: web.Request) -> web.StreamResponse:
    types = [{"id": number, "name": f"cx{number}", "cores": 2, "memory": 4.0, "disk": 40} for number in range(TYPES)]
    return web.json_response({"server_types": types, "meta": {"pagination": {"next_page": None}}})


def _machine(number: int, stamp: str = "", provider: str = "aws") -> Machine:
    specs: dict[str, dict[str, object]] = {
        "aws": {
            "instanceType": f"m{number % TYPES}.large",
            "region": "eu-central-1",
            "diskSize": 50,
            "accessKeyId": "AKIDEXAMPLE",
            "secretAccessKey": "secret",
        },
        "hetzner": {"serverType": f"cx{number % TYPES}", "location": "fsn1", "token": "secret"},
    }
    annotations = {ANNOTATION: stamp} if stamp else {}
    body = {
        "metadata": {"name": f"m-{number}", "namespace": "n", "uid": f"uid-{number}", "annotations": annotations},
        "spec": {"providerSpec": {"value": {"cloudProvider": provider, "cloudProviderSpec": specs[provider]}}},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Machine)


def _recount(sizing: Sizing, machines: list[Machine]) -> float:
    totals = MachineTotals(size=lambda machine: sizing.counted("c1-uid", machine))
    started = time.perf_counter()
    for machine in machines:
        totals.apply(Change(None, machine))
    seconds = time.perf_counter() - started
    assert not totals.waiting
    return seconds


async def sizes(_seconds: float) -> None:
    def sealed(text: bytes) -> str:
        return seal(b"k" * 32, text)

    async with fake_cloud(_ec2, HOST) as cloud:
        settings = SettingsReader(None, environment={})
        sizing = Sizing(FlavourCache(cloud.transport()), settings, sealed, lambda text, given: sealed(text) == given)
        machines = [_machine(number) for number in range(MACHINES)]
        loop = asyncio.get_running_loop()

        print(f"{MACHINES:,} Machines over {TYPES} types of AWS, whose API is on this machine, over TLS")
        await _cold_and_warm(cloud, sizing, machines, TYPES)
        print(f"  counted by what is known: {_recount(sizing, machines) * 1000:.0f} ms")
        stamped = []
        for number, machine in enumerate(machines):
            found = await sizing.size(CLUSTER, machine, loop.time() + 30)
            stamped.append(_machine(number, sizing.make_stamp("c1-uid", machine, found)))
        print(f"  counted by their stamps:  {_recount(sizing, stamped) * 1000:.0f} ms")
        await sizing.close()
        await _restarted(cloud, machines, sealed)

    async with fake_cloud(_hetzner, "api.hetzner.cloud") as cloud:
        print(f"{MACHINES:,} Machines over {TYPES} types of Hetzner")
        settings = SettingsReader(None, environment={})
        sizing = Sizing(FlavourCache(cloud.transport()), settings, sealed, lambda _text, _seal: False)
        machines = [_machine(number, provider="hetzner") for number in range(MACHINES)]
        await _cold_and_warm(cloud, sizing, machines, 1)
        await sizing.close()


async def _cold_and_warm(cloud: FakeCloud, sizing: Sizing, machines: list[Machine], calls: int) -> None:
    for state, most in (("cold", calls), ("warm", 0)):
        cloud.requests.clear()
        started = time.perf_counter()
        await _size_all(sizing, machines)
        seconds = time.perf_counter() - started
        print(f"  sized {state}: {len(cloud.requests)} calls, {seconds * 1000:.0f} ms")
        assert len(cloud.requests) <= most


async def _restarted(cloud: FakeCloud, machines: list[Machine], sealed: Seal) -> None:
    """Replicas one after the other that share a Redis."""
    try:
        executable = await servers.ensure()
    except BuildError as error:
        print(f"  a restarted replica with Redis: not measured ({error})")
        return
    with tempfile.TemporaryDirectory() as directory:
        async with servers.redis_group() as group:
            redis = RedisServer("redis", executable, Path(directory), group, Settings())
            await redis.start()
            for state in ("first", "restarted"):
                cloud.requests.clear()
                shared = SharedSizes(redis_url(redis.url), RedisAccess(), "eu-1")
                settings = SettingsReader(None, environment={})
                sizing = Sizing(FlavourCache(cloud.transport(), shared), settings, sealed, lambda _text, _seal: False)
                started = time.perf_counter()
                for first in range(0, MACHINES, AT_A_TIME):
                    await _size_all(sizing, machines[first : first + AT_A_TIME])
                seconds = time.perf_counter() - started
                print(f"  sized by a {state} replica with Redis: {len(cloud.requests)} calls, {seconds * 1000:.0f} ms")
                async with asyncio.timeout(10):
                    while int(await redis.command("HLEN", "{seedquota:eu-1}:sizes:2")) < TYPES:
                        await asyncio.sleep(0.01)
                await sizing.close()


async def _size_all(sizing: Sizing, machines: list[Machine]) -> None:
    deadline = asyncio.get_running_loop().time() + 30
    await asyncio.gather(*(sizing.size(CLUSTER, machine, deadline) for machine in machines))
