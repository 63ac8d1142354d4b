"""What the clouds answer about the flavours of the examples in docs/providers.md."""

from __future__ import annotations

from common.quantity import UNIT
from seed.providers.flavour import Flavour
from seed.providers.size import GIB

FLAVOURS: dict[str, Flavour] = {
    "alibaba": Flavour(cpu=2 * UNIT, memory=8 * GIB * UNIT),
    "aws": Flavour(cpu=2 * UNIT, memory=8 * GIB * UNIT),
    "azure": Flavour(cpu=4 * UNIT, memory=16 * GIB * UNIT),
    "digitalocean": Flavour(cpu=2 * UNIT, memory=4 * GIB * UNIT, storage=80 * GIB * UNIT),
    "equinixmetal": Flavour(cpu=24 * UNIT, memory=64 * GIB * UNIT, storage=1440 * 10**9 * UNIT),
    "gce": Flavour(cpu=4 * UNIT, memory=16 * GIB * UNIT, devices={"nvidia.com/gpu": UNIT}),
    "hetzner": Flavour(cpu=2 * UNIT, memory=4 * GIB * UNIT, storage=40 * GIB * UNIT),
    "openstack": Flavour(cpu=2 * UNIT, memory=4 * GIB * UNIT, storage=40 * GIB * UNIT),
}
