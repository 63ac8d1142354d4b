"""DigitalOcean: the Droplet size's own vCPUs, memory (MiB) and disk (GiB) from `GET /v2/sizes`.

Fields: k8c.io/machine-controller/sdk/cloudprovider/digitalocean/types.go, RawConfig;
pkg/cloudprovider/provider/digitalocean/provider.go, getConfig, has their names in the environment.
Answers: https://docs.digitalocean.com/reference/api/reference/sizes/. `gpu_info` is there for GPU Droplets only. Their
further `scratch` disk comes with the size and is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.entries import Entries
from seed.providers.flavour import Catalogue, Cloud, Flavour, Lookup, Place, Query, Settings
from seed.providers.pages import listed_pages
from seed.providers.size import GIB, MIB
from seed.providers.spec import LARGEST, Spec

NAME = "digitalocean"

_HOST = "api.digitalocean.com"
_DEVICES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
PER_PAGE = 200  # the most that is documented

_Whole = Annotated[int, msgspec.Meta(gt=0, le=LARGEST)]


def size(spec: Spec) -> Lookup:
    return Lookup(
        provider=NAME,
        flavour=spec.word("size", "a size"),
        where={},
        credentials={"token": spec.setting("token", "DO_TOKEN")},
    )


def place(where: Settings) -> Place:
    """The same everywhere: a slug has one size, whatever the region."""
    return Place(NAME, _HOST)


class _Gpu(msgspec.Struct):
    count: _Whole
    model: str = ""


class _Size(msgspec.Struct):
    slug: str
    memory: _Whole
    vcpus: _Whole
    disk: _Whole
    gpu_info: _Gpu | None = None


class _Pages(msgspec.Struct):
    next: str | None = None


class _Links(msgspec.Struct):
    pages: _Pages | None = None


class _Answer(msgspec.Struct):
    sizes: list[msgspec.Raw]
    links: _Links | None = None


async def fetch(query: Query) -> Catalogue:
    headers = {"Authorization": f"Bearer {query.credentials['token']}"}
    entries = Entries()
    url, parameters = f"https://{_HOST}/v2/sizes", {"page": "1", "per_page": str(PER_PAGE)}
    async for page in listed_pages(query, url, _Answer, _following, parameters=parameters, headers=headers):
        async for size in in_pieces(page.sizes):
            entries.add_json(size, ("slug",), _Size, _flavour)
    return entries.catalogue()


def _following(page: _Answer, number: int) -> Mapping[str, str] | None:
    more = page.links and page.links.pages and page.links.pages.next
    return {"page": str(number + 1)} if more else None


def _flavour(size: _Size) -> Flavour:
    devices: dict[str, int] = {}
    if size.gpu_info:
        device = _DEVICES.get(size.gpu_info.model.partition("_")[0])  # nvidia_h100, amd_mi300x
        if device:
            devices[device] = size.gpu_info.count * UNIT
    return Flavour(
        cpu=size.vcpus * UNIT, memory=size.memory * MIB * UNIT, storage=size.disk * GIB * UNIT, devices=devices
    )


CLOUD = Cloud(place=place, fetch=fetch, lists=True, least_spec=lambda _region: {"size": "x"})
