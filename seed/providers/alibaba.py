"""Alibaba Cloud: the instance type's size from ECS's DescribeInstanceTypes, the disks (`diskSize`, GiB) from the spec.

Fields: k8c.io/machine-controller/sdk/cloudprovider/alibaba/types.go, RawConfig;
pkg/cloudprovider/provider/alibaba/provider.go, getConfig, has their names in the environment, and Create makes **two**
disks of DiskSize GiB, the system disk and a data disk: both count. Local disks of a type come with it and do not.
Answers: https://www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeinstancetypes.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

import msgspec

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.alibaba_api import Keys, RefusedCall, call
from seed.providers.decimals import gibibytes
from seed.providers.entries import Entries
from seed.providers.flavour import ALL, Catalogue, Cloud, CloudError, Flavour, Lookup, Place, Query, Settings
from seed.providers.size import GIB, NotSized
from seed.providers.spec import LARGEST, Spec

NAME = "alibaba"

_REGION = re.compile(r"[a-z]{2}(-[a-z0-9]{1,20}){1,4}")
_TYPE = re.compile(r"(ecs\.[a-z0-9-]{1,32})\.[a-z0-9-]{1,32}")
_DISK = re.compile(r"[1-9][0-9]{0,6}")
_UNKNOWN_TYPE = re.compile(r"InvalidInstanceType(s)?\..+|InvalidInstanceTypeFamily\..+")
MAX_PAGES = 20
PER_PAGE = 100  # the most that is documented

_Whole = Annotated[int, msgspec.Meta(gt=0, le=LARGEST)]


def size(spec: Spec) -> Lookup:
    disk = spec.text("diskSize")
    if not _DISK.fullmatch(disk):
        raise NotSized(NAME, "diskSize must be a whole number of GiB from 1")
    flavour = spec.text("instanceType")
    if not _TYPE.fullmatch(flavour):
        raise NotSized(NAME, "instanceType is no name of an instance type")
    return Lookup(
        provider=NAME,
        flavour=flavour,
        where={"regionID": spec.setting("regionID")},
        credentials={
            "accessKeyID": spec.setting("accessKeyID", "ALIBABA_ACCESS_KEY_ID", identifier=True),
            "accessKeySecret": spec.setting("accessKeySecret", "ALIBABA_ACCESS_KEY_SECRET"),
        },
        root=int(disk) * GIB * UNIT,
        disks=int(disk) * GIB * UNIT,
    )


def place(where: Settings) -> Place:
    region = where["regionID"]
    if not _REGION.fullmatch(region):
        raise NotSized(NAME, "regionID is no name of a region")
    return Place(NAME, f"ecs.{region}.aliyuncs.com", region)


class _Type(msgspec.Struct):
    cores: _Whole = msgspec.field(name="CpuCoreCount")
    memory: Decimal = msgspec.field(name="MemorySize")
    gpus: Annotated[int, msgspec.Meta(ge=0, le=LARGEST)] = msgspec.field(name="GPUAmount", default=0)
    gpu: str = msgspec.field(name="GPUSpec", default="")


class _Types(msgspec.Struct):
    items: list[msgspec.Raw] = msgspec.field(name="InstanceType")


class _Answer(msgspec.Struct):
    types: _Types = msgspec.field(name="InstanceTypes")
    following: str = msgspec.field(name="NextToken", default="")


async def fetch(query: Query) -> Catalogue:
    keys = Keys(query.credentials["accessKeyID"], query.credentials["accessKeySecret"])
    if query.flavour == ALL:
        return await _described(query, keys, {})
    found = await _described(query, keys, {"InstanceTypes.1": query.flavour})
    if query.flavour in found.flavours or query.flavour in found.unreadable:
        return found
    family = _TYPE.fullmatch(query.flavour)
    try:
        return await _described(query, keys, {"InstanceTypeFamily": family[1]} if family else {})
    except CloudError:
        return Catalogue({})  # what else there is makes a suggestion: not worth an error


async def _described(query: Query, keys: Keys, wanted: dict[str, str]) -> Catalogue:
    entries = Entries()
    parameters = {**wanted, "MaxResults": str(PER_PAGE)}
    for _ in range(MAX_PAGES):
        try:
            answer = await call(query.http, query.place.endpoint, keys, "DescribeInstanceTypes", parameters, _Answer)
        except RefusedCall as error:
            if _UNKNOWN_TYPE.fullmatch(error.code):
                return Catalogue({})
            raise
        async for kind in in_pieces(answer.types.items):
            entries.add_json(kind, ("InstanceTypeId",), _Type, _flavour)
        if not answer.following:
            return entries.catalogue()
        parameters = {**parameters, "NextToken": answer.following}
    raise CloudError(f"answers more than {MAX_PAGES} pages")


def _flavour(kind: _Type) -> Flavour:
    devices = {_device(kind.gpu): kind.gpus * UNIT} if kind.gpus else {}
    return Flavour(cpu=kind.cores * UNIT, memory=gibibytes(kind.memory), devices=devices)


def _device(text: str) -> str:
    """`NVIDIA V100`, `AMD S7150`. Some types hide the model (`GPU H`): those are NVIDIA's."""
    return "amd.com/gpu" if text.upper().startswith("AMD") else "nvidia.com/gpu"


CLOUD = Cloud(
    place=place,
    fetch=fetch,
    lists=False,
    least_spec=lambda region: {"instanceType": "ecs.x.x", "regionID": region, "diskSize": "1"},
)
