"""The sizes of the demo's Machines, what became of them, and amounts as it shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from common.quota import resources
from common.quota.quantity import UNIT
from common.quota.resources import ResourceList
from devcluster.load import Attempt, Outcome, Size

SMALLEST_CPU = 1
STORM_CPUS = (4, 8, 12, 16)  # no multiple of these fills a limit that leaves 3: the smallest must


def size(cpus: int) -> Size:
    return Size(str(cpus), f"{4 * cpus}Gi", f"{20 * cpus}Gi")


def mixed(by: Random, count: int) -> list[Size]:
    return [size(cpus) for cpus in by.choices(STORM_CPUS, k=count)]


def limits_of(cpus: int) -> dict[str, int]:
    """A limit that the same Machines fill in every resource."""
    return resources.only(size(cpus).amounts, ("cpu", "memory", "storage"))


def outcomes(attempts: Sequence[Attempt]) -> Counter[Outcome]:
    return Counter(attempt.outcome for attempt in attempts)


def amounts(of: ResourceList, names: ResourceList) -> list[str]:
    return [shown(name, of.get(name, 0)) for name in names]


def shown(name: str, amount: int) -> str:
    """Without the suffixes that make 2k of 2000: columns are read from top to bottom."""
    return str(amount // UNIT) if name == "cpu" else f"{amount // (UNIT << 30)}Gi"
