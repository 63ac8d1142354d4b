"""What clouds answer, and hosts that say they are one. Nothing comes of it but sizes, CloudError and NotSized."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given

from seed.providers import CLOUDS
from seed.providers.flavour import Answer, Catalogue, CloudError, Place, Query, Settings, SignIn
from seed.providers.size import NotSized
from tests.fuzz.inputs import FUZZ, JSON, bounded, mangled

XML = (
    b"<",
    b">",
    b"<a>",
    b"</a>",
    b"&lt;",
    b"&x;",
    b'<!DOCTYPE x [<!ENTITY a "b">]>',
    b"<item>",
    b"]]>",
    b"\x00",
    b"9" * 400,
)

GPU = {
    "pci_passthrough:alias": "a100:8,amd_gpu:1",
    "resources:CUSTOM_GPU": "1",
    "pci_passthrough:gpu_specs": "m60:virt:1",
}
SAMPLES: dict[str, object] = {
    "openstack": {
        "flavors": [{"id": "1", "name": "m1", "vcpus": 2, "ram": 2048, "disk": 20, "extra_specs": GPU}],
        "flavors_links": [{"rel": "next", "href": "x"}],
    },
    "hetzner": {
        "server_types": [{"id": 1, "name": "cx22", "cores": 2, "memory": 4.0, "disk": 40}],
        "meta": {"pagination": {"next_page": 2}},
    },
    "digitalocean": {
        "sizes": [{"slug": "s-1", "vcpus": 1, "memory": 1024, "disk": 25, "gpu_info": {"count": 1, "model": "h100"}}],
        "links": {"pages": {"next": "x"}},
    },
    "azure": {
        "value": [
            {
                "resourceType": "virtualMachines",
                "name": "Standard_NC6",
                "capabilities": [{"name": "vCPUs", "value": "6"}, {"name": "MemoryGB", "value": "56.5"}],
            }
        ],
        "nextLink": "https://management.azure.com/x",
    },
    "gce": {
        "items": [{"name": "n1", "guestCpus": 1, "memoryMb": 1024, "accelerators": [{"guestAcceleratorCount": 1}]}],
        "nextPageToken": "t",
    },
    "alibaba": {
        "InstanceTypes": {
            "InstanceType": [{"InstanceTypeId": "ecs.g6.large", "CpuCoreCount": 2, "MemorySize": 8, "GPUAmount": 1}]
        },
        "NextToken": "t",
    },
}
AWS = b"""<?xml version="1.0"?><DescribeInstanceTypesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
<instanceTypeSet><item><instanceType>m5.large</instanceType><vCpuInfo><defaultVCpus>2</defaultVCpus></vCpuInfo>
<memoryInfo><sizeInMiB>8192</sizeInMiB></memoryInfo><gpuInfo><gpus><item><count>1</count><manufacturer>NVIDIA
</manufacturer></item></gpus></gpuInfo></item></instanceTypeSet><nextToken>t</nextToken></DescribeInstanceTypesResponse>"""


class Answering:
    """Answers the same to everything, for some pages."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left = 5

    async def request(self, *_: Any, **__: Any) -> Answer:
        self._left -= 1
        if self._left < 0:
            raise CloudError("no more")
        return Answer(200, {"x-subject-token": "t"}, self._body)

    async def kubernetes(self, *_: Any, **__: Any) -> None:
        return None


class Anything(Settings):
    """Every setting has a value."""

    def __getitem__(self, name: str) -> str:
        return self.get(name)

    def get(self, name: str) -> str:
        return "" if name in self._missing else "12345678-1234-1234-1234-123456789012"

    def __contains__(self, name: str) -> bool:
        return name not in self._missing


async def sign_in(_make: SignIn) -> Mapping[str, str]:
    return defaultdict(lambda: "https://nova.example/v2.1", {"token": "t"})


def ask(name: str, body: bytes) -> Catalogue:
    nothing: Mapping[str, str] = MappingProxyType({"assumeRoleARN": "", "assumeRoleExternalID": ""})
    some = Anything(name, {}, nothing)
    query = Query(Place(name, "https://host.example", "eu-central-1"), "m5.large", some, some, Answering(body), sign_in)
    return asyncio.run(CLOUDS[name].fetch(query))


@pytest.mark.parametrize("name", [*SAMPLES, "aws"])
def test_the_samples_are_understood(name: str) -> None:
    """Else what follows would try nothing but errors."""
    body = AWS if name == "aws" else json.dumps(SAMPLES[name]).encode()
    with suppress(CloudError):
        assert ask(name, body).flavours


@FUZZ
@given(mangled([json.dumps(sample).encode() for sample in SAMPLES.values()], JSON))
def test_answers_in_json(body: bytes) -> None:
    for name in SAMPLES:
        with bounded(), suppress(CloudError, NotSized):
            catalogue = ask(name, body)
            assert all(flavour.cpu >= 0 and flavour.memory >= 0 for flavour in catalogue.flavours.values())


@FUZZ
@given(mangled([AWS], XML))
def test_answers_in_xml(body: bytes) -> None:
    with bounded(), suppress(CloudError, NotSized):
        ask("aws", body)


@FUZZ
@given(mangled([json.dumps({"token": {"catalog": [], "issued_at": "2026-01-01T00:00:00Z"}}).encode()], JSON))
def test_answers_of_keystone(body: bytes) -> None:
    from seed.providers import keystone  # noqa: PLC0415

    some = Anything("openstack", {}, {"tokenId": "", "applicationCredentialID": ""})
    query = Query(Place("openstack", "https://host.example/v3", "r"), "m1", some, some, Answering(body), sign_in)
    with bounded(), suppress(CloudError, NotSized):
        asyncio.run(keystone.sign_in(query))
