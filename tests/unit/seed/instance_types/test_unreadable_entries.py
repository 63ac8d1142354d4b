"""One entry that cannot be read, in the list of each cloud: only the Machine that names it is refused, and finally."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
from aiohttp import web

from seed.providers.size import FlavourUnknown, NotSized
from tests.unit.fake_cloud import Handler, answering, fake_cloud
from tests.unit.seed.instance_types.test_outages import SUBJECTS, Subject, World
from tests.unit.seed.providers import test_azure as azure
from tests.unit.seed.providers import test_gcp as gcp
from tests.unit.seed.providers import test_hetzner as hetzner
from tests.unit.seed.providers import test_kubevirt_instancetypes as kubevirt
from tests.unit.seed.providers import test_openstack as openstack

Body = dict[str, object]


def listed(body: object) -> Handler:
    return answering(200, json.dumps(body))


def ecs() -> Handler:
    good: Body = {"InstanceTypeId": "ecs.g7.large", "CpuCoreCount": 2, "MemorySize": 8.0, "GPUAmount": 0}
    return listed(
        {"InstanceTypes": {"InstanceType": [{**good, "InstanceTypeId": "ecs.g7.bad", "CpuCoreCount": 0}, good]}}
    )


def ec2() -> Handler:
    size = "<vCpuInfo><defaultVCpus>2</defaultVCpus></vCpuInfo><memoryInfo><sizeInMiB>8192</sizeInMiB></memoryInfo>"
    items = "".join(
        f"<item><instanceType>{name}</instanceType>{told}</item>" for name, told in (("m5.bad", ""), ("m5.large", size))
    )
    return answering(200, f"<r><instanceTypeSet>{items}</instanceTypeSet></r>")


def compute() -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        cpus = {"e2-bad": 0, "e2-standard-4": 4}.get(name)
        if cpus is None and name != "machineTypes":
            return web.json_response({"error": {"code": 404}}, status=404)
        one = {"name": name, "guestCpus": cpus, "memoryMb": 16384}
        return web.json_response(one if cpus is not None else {"items": [{**one, "name": "e2-micro", "guestCpus": 2}]})

    return gcp.after_sign_in(answer)


def instancetypes() -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/gpu.dra") and "/v1beta1/virtualmachinecluster" in request.path:
            return web.json_response(kubevirt.described(kubevirt.CLUSTER, "gpu.dra", kubevirt.CLUSTER_TYPES["gpu.dra"]))
        return await kubevirt.serve(request)

    return answer


def nova() -> Handler:
    good: Body = {"id": "1", "name": "m1.small", "vcpus": 1, "ram": 2048, "disk": 20}
    bad = {**good, "id": "2", "name": "bad", "extra_specs": {"pci_passthrough:alias": "a100:many"}}
    return openstack.listing(json.dumps({"flavors": [bad, good]}))


def plans() -> Handler:
    good: Body = {"id": "vhf-8c-32gb", "vcpu_count": 8, "ram": 32768, "disk": 512}
    meta: Body = {"links": {"next": ""}}

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("-metal"):
            return web.json_response({"plans_metal": [], "meta": meta})
        return web.json_response({"plans": [{**good, "id": "bad", "disk": 0}, good, 7, {"name": "x"}], "meta": meta})

    return answer


_DROPLET: Body = {"slug": "s-2vcpu-4gb", "vcpus": 2, "memory": 4096, "disk": 80}
_LINODE: Body = {"id": "g6-standard-2", "vcpus": 2, "memory": 4096, "disk": 81920, "gpus": 0}
_SERVERS = [hetzner.documented(1, "bad", 2, "4.0", 0, "shared", "arm"), hetzner.documented(*hetzner.TYPES[2])]
SERVED: dict[str, tuple[Callable[[], Handler], str]] = {
    "alibaba": (ecs, "ecs.g7.bad"),
    "aws": (ec2, "m5.bad"),
    "azure": (
        lambda: azure.listing(
            azure.sku("bad", {"vCPUs": "4"}), azure.sku("Standard_D4s_v5", {"vCPUs": "4", "MemoryGB": "16"})
        ),
        "bad",
    ),
    "digitalocean": (lambda: listed({"sizes": [{**_DROPLET, "slug": "bad", "disk": 0}, _DROPLET]}), "bad"),
    "gce": (compute, "e2-bad"),
    "hetzner": (
        lambda: answering(
            200, f'{{"server_types": [{", ".join(_SERVERS)}], "meta": {{"pagination": {{"next_page": null}}}}}}'
        ),
        "bad",
    ),
    "kubevirt": (instancetypes, "gpu.dra"),
    "linode": (lambda: listed({"data": [{**_LINODE, "id": "bad", "vcpus": None}, _LINODE], "pages": 1}), "bad"),
    "openstack": (nova, "bad"),
    "scaleway": (lambda: listed({"servers": {"bad": {"ncpus": 1}, "DEV1-S": {"ncpus": 2, "ram": 1}}}), "bad"),
    "vultr": (plans, "bad"),
}


@pytest.mark.parametrize("subject", [pytest.param(subject, id=subject.provider) for subject in SUBJECTS])
async def test_only_the_machine_that_names_it_is_refused(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    serve, bad = SERVED[subject.provider]
    async with fake_cloud(serve(), *subject.hosts) as cloud:
        world = World(subject, cloud)
        try:
            for _ in range(5):  # more often than a cloud may fail before it is left alone
                with pytest.raises(NotSized, match="in a way that cannot be read") as caught:
                    await world.size(subject.machine(cloud, bad))
                assert type(caught.value) is NotSized
            assert await world.size(subject.machine(cloud))
            if subject.provider not in ("alibaba", "aws"):  # served the same answer whatever is asked
                with pytest.raises(FlavourUnknown):
                    await world.size(subject.machine(cloud, subject.unheard_of))
        finally:
            await world.sizing.close()
    reports = [record for record in caplog.records if record.message.startswith("machine types without a size")]
    assert [record.levelno for record in reports] == [logging.WARNING]
