"""Equinix Metal: the plan's physical cores, memory and drives from `GET /metal/v1/plans`.

Equinix ended the service on 30 June 2026; this follows its last API description (github.com/equinix/equinix-sdk-go,
spec/services/metalv1). Fields: k8c.io/machine-controller/sdk/cloudprovider/equinixmetal/types.go, RawConfig;
pkg/cloudprovider/provider/equinixmetal/provider.go, getConfig, has their names in the environment.

A plan has its CPUs as `{"count": 2, "type": "Intel Xeon Gold 5120 14-Core Processor @ 2.20GHz"}`: a number, and a text
for people. Cores are those of the model if the text has no number of cores, or has that of all CPUs together.
Memory is in GiB though called "GB"; drives are sold, and counted, in powers of 1000.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from common.quota.quantity import UNIT
from common.runtime.pieces import in_pieces
from seed.providers.decimals import nanos
from seed.providers.entries import Entries
from seed.providers.flavour import (
    Catalogue,
    Cloud,
    CloudError,
    Flavour,
    Lookup,
    Place,
    Query,
    Setting,
    Settings,
    Unreadable,
)
from seed.providers.spec import Spec

NAME = "equinixmetal"

_HOST = "api.equinix.com"
_CORES = {
    "C2550": 4,
    "C2750": 8,
    "E3-1240": 4,
    "E3-1578L": 4,
    "E5-2620": 8,
    "E5-2640": 8,
    "E5-2650": 12,
    "Gold 5120": 14,
    "Gold 6126": 12,
    "Gold 6314U": 32,
    "Gold 6338": 32,
    "Silver 4214": 12,
    "E-2278G": 8,
    "E-2378G": 8,
    "D-1537": 8,
    "7401P": 24,
    "7402P": 24,
    "7502P": 32,
    "CN8890": 48,
    "ThunderX": 48,
    "eMAG": 32,
    "Q80-30": 80,
}
_NAMED_CORES = re.compile(r"\b([1-9][0-9]{0,2})[ -]cores?\b", re.IGNORECASE)
_AMOUNT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([MGT])i?B", re.IGNORECASE)
_NVIDIA = re.compile(r"nvidia|tesla|quadro", re.IGNORECASE)
_AMD = re.compile(r"\bamd\b|radeon", re.IGNORECASE)

_Count = Annotated[int, msgspec.Meta(ge=0, le=1024)]


def size(spec: Spec) -> Lookup:
    return Lookup(
        provider=NAME,
        flavour=spec.word("instanceType", "a plan"),
        where={},
        credentials={
            "token": spec.setting("token", "METAL_AUTH_TOKEN"),
            "packetToken": Setting(variable="PACKET_API_KEY"),  # as it was called before, still read
        },
    )


def place(where: Settings) -> Place:
    """The same everywhere: a plan has one size, whatever the metro."""
    return Place(NAME, _HOST)


class _Cpu(msgspec.Struct):
    count: _Count
    type: str


class _Memory(msgspec.Struct):
    total: str


class _Drive(msgspec.Struct):
    count: _Count
    size: str


class _Gpu(msgspec.Struct):
    count: _Count
    type: str = ""


class _Specs(msgspec.Struct):
    cpus: list[_Cpu]
    memory: _Memory
    drives: list[_Drive] = []
    gpu: list[_Gpu] = []


class _Plan(msgspec.Struct):
    specs: _Specs


class _Answer(msgspec.Struct):
    plans: list[msgspec.Raw]


async def fetch(query: Query) -> Catalogue:
    token = query.credentials.get("token") or query.credentials.get("packetToken") or query.credentials["token"]
    answer = await query.http.request("GET", f"https://{_HOST}/metal/v1/plans", headers={"X-Auth-Token": token})
    if answer.status != 200:
        raise CloudError(f"answered {answer.status}")
    entries = Entries()
    async for plan in in_pieces(answer.json(_Answer).plans):
        # `baremetal_0` is `t1.small.x86`: both names are taken. Storage plans have no specs.
        entries.add_json(plan, ("slug", "name"), _Plan, _flavour)
    return entries.catalogue()


def _flavour(plan: _Plan) -> Flavour:
    specs = plan.specs
    cores = [cpu.count * _cores(cpu.type) for cpu in specs.cpus]
    if not cores or not all(cores):
        raise Unreadable("its CPUs are of a model whose cores are not known")
    memory = _amount(specs.memory.total, binary=True)
    storage = sum(drive.count * _amount(drive.size, binary=False) for drive in specs.drives)
    devices: dict[str, int] = {}
    for gpu in specs.gpu:
        device = "nvidia.com/gpu" if _NVIDIA.search(gpu.type) else "amd.com/gpu" if _AMD.search(gpu.type) else ""
        if device and gpu.count:  # not the CPU's own: Intel HD Graphics P630
            devices[device] = devices.get(device, 0) + gpu.count * UNIT
    return Flavour(cpu=sum(cores) * UNIT, memory=memory, storage=storage, devices=devices)


def _cores(text: str) -> int:
    for model, cores in _CORES.items():
        if model in text:
            return cores
    found = _NAMED_CORES.search(text)
    return int(found[1]) if found else 0


def _amount(text: str, *, binary: bool) -> int:
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise Unreadable("its memory or drives are not an amount")
    return nanos(f"{found[1]}{found[2].upper()}{'i' if binary else ''}")


CLOUD = Cloud(place=place, fetch=fetch, lists=True, least_spec=lambda _region: {"instanceType": "x"})
