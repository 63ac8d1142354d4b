"""10,000 Machines over 40 types of AWS: how often the cloud is asked, and how long a recount takes."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import cast

import msgspec
from aiohttp import web

from common.api import UserCluster
from common.kube.client import Cluster
from common.kube.reflector import Change
from seed.flavours.cache import FlavourCache
from seed.flavours.settings import SettingsReader
from seed.machines.machine_controller import FOOTPRINT_ANNOTATION as ANNOTATION
from seed.machines.machine_controller import Machine
from seed.sizing import Sizing
from seed.source import Tally
from seed.webhook_token import seal
from tests.unit.fake_cloud import fake_cloud

MACHINES = 10_000
TYPES = 40
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


def _machine(number: int, stamp: str = "") -> Machine:
    spec = {
        "instanceType": f"m{number % TYPES}.large",
        "region": "eu-central-1",
        "diskSize": 50,
        "accessKeyId": "AKIDEXAMPLE",
        "secretAccessKey": "secret",
    }
    annotations = {ANNOTATION: stamp} if stamp else {}
    body = {
        "metadata": {"name": f"m-{number}", "namespace": "n", "uid": f"uid-{number}", "annotations": annotations},
        "spec": {"providerSpec": {"value": {"cloudProvider": "aws", "cloudProviderSpec": spec}}},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Machine)


def _recount(sizing: Sizing, machines: list[Machine]) -> float:
    tally = Tally(size=lambda machine: sizing.counted("c1-uid", machine))
    started = time.perf_counter()
    for machine in machines:
        tally.apply(Change(None, machine))
    seconds = time.perf_counter() - started
    assert not tally.waiting
    return seconds


async def sizes(_seconds: float) -> None:
    def sealed(text: bytes) -> str:
        return seal(b"k" * 32, text)

    async with fake_cloud(_ec2, HOST) as cloud:
        settings = SettingsReader(cast(Cluster, SimpleNamespace(name="seed")), environment={})
        sizing = Sizing(FlavourCache(cloud.transport()), settings, sealed, lambda text, given: sealed(text) == given)
        machines = [_machine(number) for number in range(MACHINES)]
        loop = asyncio.get_running_loop()

        async def size_all() -> float:
            started = time.perf_counter()
            await asyncio.gather(*(sizing.size(CLUSTER, machine, loop.time() + 30) for machine in machines))
            return time.perf_counter() - started

        print(f"{MACHINES:,} Machines over {TYPES} types of AWS, whose API is on this machine, over TLS")
        for state in ("cold", "warm"):
            cloud.requests.clear()
            seconds = await size_all()
            print(f"  sized {state}: {len(cloud.requests)} calls, {seconds * 1000:.0f} ms")
        print(f"  counted by what is known: {_recount(sizing, machines) * 1000:.0f} ms")
        stamped = []
        for number, machine in enumerate(machines):
            found = await sizing.size(CLUSTER, machine, loop.time() + 30)
            stamped.append(_machine(number, sizing.make_stamp("c1-uid", machine, found)))
        print(f"  counted by their stamps:  {_recount(sizing, stamped) * 1000:.0f} ms")
        await sizing.close()
