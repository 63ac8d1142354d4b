"""Vultr: the plan's CPUs, memory (MiB) and disks (GiB) from `GET /v2/plans` and, of bare metal, `GET /v2/plans-metal`.
Neither asks for credentials.

Fields: k8c.io/machine-controller/sdk/cloudprovider/vultr/types.go, RawConfig: no plan is in both lists, so
physicalMachine is not read. pkg/cloudprovider/provider/vultr/provider.go attaches no volumes. Of bare metal all threads
count, as its node shows them.
Answers: https://www.vultr.com/api/#tag/plans. A plan of cloud GPUs has their model and the memory of all of them; one
of bare metal has model and number in its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.entries import Entries
from seed.providers.flavour import Catalogue, Cloud, Flavour, Lookup, Place, Query, Settings, Unreadable
from seed.providers.pages import listed_pages
from seed.providers.size import GIB, MIB
from seed.providers.spec import LARGEST, Spec

NAME = "vultr"

_HOST = "api.vultr.com"
_GPU_GB = {"A16": 16, "A40": 48, "A100": 80, "L40S": 48, "H100": 80, "GH200": 96, "MI300X": 192, "MI325X": 256}
_METAL_GPUS = re.compile(r"-(?:([1-9][0-9]?)-)?([a-z0-9]+)-gpu$")
_AMD = re.compile(r"MI[0-9]", re.IGNORECASE)
PER_PAGE = 500  # the most that is documented

_Whole = Annotated[int, msgspec.Meta(gt=0, le=LARGEST)]


def size(spec: Spec) -> Lookup:
    return Lookup(provider=NAME, flavour=spec.word("plan", "a plan"), where={}, credentials={})


def place(where: Settings) -> Place:
    """The same everywhere: a plan has one size, whatever the region."""
    return Place(NAME, _HOST)


class _Plan(msgspec.Struct):
    id: str
    vcpu_count: _Whole
    ram: _Whole
    disk: _Whole
    disk_count: _Whole = 1
    gpu_type: str = ""
    gpu_vram_gb: int = 0


class _Metal(msgspec.Struct):
    id: str
    cpu_threads: _Whole
    ram: _Whole
    disk: _Whole
    disk_count: _Whole = 1


class _Links(msgspec.Struct):
    next: str = ""


class _Meta(msgspec.Struct):
    links: _Links


class _Plans(msgspec.Struct):
    meta: _Meta
    plans: list[msgspec.Raw]


class _MetalPlans(msgspec.Struct):
    meta: _Meta
    plans_metal: list[msgspec.Raw]


async def fetch(query: Query) -> Catalogue:
    entries = Entries()
    parameters = {"per_page": str(PER_PAGE)}
    async for page in listed_pages(query, f"https://{_HOST}/v2/plans", _Plans, _following, parameters=parameters):
        async for plan in in_pieces(page.plans):
            entries.add_json(plan, ("id",), _Plan, _flavour)
    async for metal in listed_pages(
        query, f"https://{_HOST}/v2/plans-metal", _MetalPlans, _following, parameters=parameters
    ):
        async for plan in in_pieces(metal.plans_metal):
            entries.add_json(plan, ("id",), _Metal, _metal)
    return entries.catalogue()


def _following(page: _Plans | _MetalPlans, _number: int) -> Mapping[str, str] | None:
    return {"cursor": page.meta.links.next} if page.meta.links.next else None


def _flavour(plan: _Plan) -> Flavour:
    devices: dict[str, int] = {}
    if plan.gpu_type:
        model = plan.gpu_type.rpartition("_")[2].upper()  # NVIDIA_A16
        if model not in _GPU_GB:
            raise Unreadable("its GPUs are of a model that is not known")
        devices[_device(model)] = max(-(-plan.gpu_vram_gb // _GPU_GB[model]), 1) * UNIT  # a part of one is one
    return _made(plan.vcpu_count, plan, devices)


def _metal(plan: _Metal) -> Flavour:
    devices: dict[str, int] = {}
    if "gpu" in plan.id:
        found = _METAL_GPUS.search(plan.id)  # vbm-112c-2048gb-8-h100-gpu
        if found is None:
            raise Unreadable("its name has no number of GPUs")
        devices[_device(found[2])] = int(found[1] or 1) * UNIT
    return _made(plan.cpu_threads, plan, devices)


def _device(model: str) -> str:
    return "amd.com/gpu" if _AMD.match(model) else "nvidia.com/gpu"


def _made(cpus: int, plan: _Plan | _Metal, devices: dict[str, int]) -> Flavour:
    storage = plan.disk * plan.disk_count * GIB * UNIT
    return Flavour(cpu=cpus * UNIT, memory=plan.ram * MIB * UNIT, storage=storage, devices=devices)


CLOUD = Cloud(place=place, fetch=fetch, lists=True, least_spec=lambda _region: {"plan": "x"})
