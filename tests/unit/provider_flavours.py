"""What the clouds answer about the flavours of the examples in docs/providers.md."""

from __future__ import annotations

from common.quantity import UNIT
from seed.providers.flavour import Flavour
from seed.providers.size import GIB

FLAVOURS: dict[str, Flavour] = {
    "aws": Flavour(cpu=2 * UNIT, memory=8 * GIB * UNIT),
    "azure": Flavour(cpu=4 * UNIT, memory=16 * GIB * UNIT),
    "gce": Flavour(cpu=4 * UNIT, memory=16 * GIB * UNIT, devices={"nvidia.com/gpu": UNIT}),
}
