"""Scaleway: the Instance type's CPUs, memory (bytes) and GPUs in its zone; the root volume is as big as the image.

Fields: k8c.io/machine-controller/sdk/cloudprovider/scaleway/types.go, RawConfig;
pkg/cloudprovider/provider/scaleway/provider.go, getConfig, has their names in the environment, and Create names an
image and no volumes, so that the image decides how big the root volume is. A Machine has no field for it.
Answers: https://www.scaleway.com/en/developers/api/instance/#path-instance-types-list-instance-types
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated

import msgspec

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.entries import Entries
from seed.providers.flavour import Catalogue, Cloud, Flavour, Lookup, Place, Query, Settings, Unreadable
from seed.providers.pages import listed_pages
from seed.providers.size import NotSized
from seed.providers.spec import LARGEST, Spec

NAME = "scaleway"

_HOST = "api.scaleway.com"
_ZONE = re.compile(r"[a-z]{2}-[a-z]{3}-[1-9]")
_GPUS = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
_DISK = "cannot say how big its root volume is, which is as big as its image"
PER_PAGE = 100  # the most that is documented

_Whole = Annotated[int, msgspec.Meta(gt=0, le=LARGEST)]


def size(spec: Spec) -> Lookup:
    return Lookup(
        provider=NAME,
        flavour=spec.word("commercialType", "a commercial type"),
        where={"zone": spec.setting("zone")},
        credentials={"secretKey": spec.setting("secretKey", "SCW_SECRET_KEY")},
        root=_DISK,
    )


def place(where: Settings) -> Place:
    zone = where["zone"]
    if not _ZONE.fullmatch(zone):
        raise NotSized(NAME, "zone is no name of a zone")
    return Place(NAME, _HOST, zone)


class _GpuInfo(msgspec.Struct):
    gpu_manufacturer: str = "NVIDIA"


class _Type(msgspec.Struct):
    ncpus: _Whole
    ram: _Whole
    gpu: Annotated[int, msgspec.Meta(ge=0, le=1024)] | None = None
    gpu_info: _GpuInfo | None = None


class _Answer(msgspec.Struct):
    servers: dict[str, msgspec.Raw]


async def fetch(query: Query) -> Catalogue:
    headers = {"X-Auth-Token": query.credentials["secretKey"]}
    url = f"https://{_HOST}/instance/v1/zones/{query.place.region}/products/servers"
    entries = Entries()
    parameters = {"page": "1", "per_page": str(PER_PAGE)}
    async for page in listed_pages(query, url, _Answer, _following, parameters=parameters, headers=headers):
        async for name, kind in in_pieces(page.servers.items()):
            entries.add([name], partial(_flavour, kind))
    return entries.catalogue()


def _following(page: _Answer, number: int) -> Mapping[str, str] | None:
    return None if len(page.servers) < PER_PAGE else {"page": str(number + 1)}


def _flavour(raw: msgspec.Raw) -> Flavour:
    kind = msgspec.json.decode(raw, type=_Type)
    devices: dict[str, int] = {}
    if kind.gpu or kind.gpu_info is not None:
        device = _GPUS.get((kind.gpu_info or _GpuInfo()).gpu_manufacturer.upper())
        if device is None:
            raise Unreadable("its GPUs are of a maker that is not known")
        devices[device] = max(kind.gpu or 0, 1) * UNIT  # a part of one is one
    return Flavour(cpu=kind.ncpus * UNIT, memory=kind.ram * UNIT, devices=devices)


CLOUD = Cloud(
    place=place,
    fetch=fetch,
    lists=True,
    least_spec=lambda zone: {"commercialType": "x", "zone": zone},
)
